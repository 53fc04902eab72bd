"""The sabotages of the rules tier, applied to shipped code.

The rules tier has no chain. In shipped code the chain is a second guard: it stops some of the broken rules about
fetching and the ISR. To test the first guard too, those sabotages also break the chain: `WITHOUT_CHAIN`.
"""

from __future__ import annotations

from lakelog.replication.protocol.chain import _hash
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import BROKER_EPOCH, ReplicaTable
from lakelog.verification.simulation.sabotage import SABOTAGES
from lakelog.verification.simulation.stack.breaks import Break, DirectedHistory, StackSabotage, all_of, at, of_rules
from lakelog.verification.simulation.stack.schedules import admins, followers, leaders, rare

_settle, _claim = DeltaLog._settle, ReplicaLog.claim


def _chain_of_offsets(header: BatchHeader, _: str) -> str:
    return _hash(header.topic_id, header.partition, header.next_offset)


# The chain depends on the end offset only: logs that end at the same offset have the same chain.
WITHOUT_CHAIN = at(("protocol.chain._chain", _chain_of_offsets))


def _takes_the_unknown_for_landed(log: DeltaLog, expected: int, nonce: str, error: Exception) -> None:
    try:
        _settle(log, expected, nonce, error)
    except CommitUnknown:
        return


def _claims_and_does_not_look(log: ReplicaLog, broker_epoch: int) -> None:
    _claim(log, broker_epoch)
    log._broker_epoch = None


def _any_claim(table: ReplicaTable) -> int:
    claimed = table._table.transaction_version(BROKER_EPOCH)
    return -1 if claimed is None else claimed


# Random histories expose these.
_BY_STORMS = (
    "sequences_are_ignored", "high_watermark_is_the_log_end", "joins_anywhere", "truncates_to_the_high_watermark",
    "truncates_nothing", "says_so_before_it_is", "acknowledges_at_once", "fetches_from_any_leader", "elects_anybody",
    "the_isr_is_not_kept", "fails_without_a_new_epoch", "overlooks_new_broker_epochs",
)  # fmt: skip
_DIRECTED: dict[str, DirectedHistory] = {
    "followers_append_in_any_role": followers.fetch_that_lands_when_its_broker_leads,
    "truncates_in_any_role": followers.truncation_that_is_made_when_its_broker_leads,
    "follows_the_tail_over_gaps": followers.send_of_which_little_is_fetched_at_once,
    "takes_no_answer_for_appended": followers.append_without_an_answer,
    "joins_below_the_epoch_start": leaders.join_before_the_high_watermark_is_known,
    "high_watermark_without_pending": leaders.shrink_without_an_answer,
    "takes_no_answer_for_done": leaders.shrink_without_an_answer,
    "isr_changes_are_forced": leaders.change_of_the_isr_by_one_that_was_deposed,
    "forgets_the_high_watermark": leaders.leader_that_was_follower,
    "leads_under_any_broker_epoch": rare.leader_without_its_end,
    "deletes_what_is_not_committed": admins.delete_above_the_high_watermark,
    "restarts_at_the_leaders_end": admins.start_over_below_the_own_start,
    "prefers_anybody": admins.election_of_one_that_is_behind,
    "reassigns_before_all_are_in_sync": admins.move_to_one_that_is_behind,
    "deletes_before_brokers_have": admins.deletion_that_a_broker_is_slow_to_see,
    "drops_topics_first": admins.deletion_in_two_halves,
    "decides_on_what_it_knew": admins.decision_that_is_overtaken,
    "reads_any_log": rare.append_to_a_dead_leader,
    "sends_as_another": rare.send_that_was_replicated_in_part,
}
DIRECTED_WITHOUT_CHAIN: dict[str, DirectedHistory] = {
    "appends_are_not_fenced": leaders.append_to_one_that_follows,
    "high_watermark_from_any_row": leaders.row_of_an_older_leadership,
    "joins_by_any_row": leaders.row_of_one_that_has_left,
    "everything_may_be_appended": followers.headers_of_what_was_truncated,
    "row_before_the_truncation": followers.look_before_the_truncation,
    "takes_no_answer_for_truncation": followers.truncation_without_an_answer,
    "goes_on_after_removals": followers.truncation_of_a_role_that_is_over,
    "acknowledges_by_offset": followers.records_of_a_leader_before,
}


def _with(name: str, schedule: DirectedHistory | None, *more: Break) -> StackSabotage:
    return StackSabotage(SABOTAGES[name].what, all_of(of_rules(SABOTAGES[name].rules), *more), schedule)


def _instead(name: str, broken: Break, schedule: DirectedHistory) -> StackSabotage:
    """A sabotage whose rule belongs to the rules tier's own code: breaks the shipped counterpart instead."""
    return StackSabotage(SABOTAGES[name].what, broken, schedule)


SHARED: dict[str, StackSabotage] = {
    **{name: _with(name, None) for name in _BY_STORMS},
    **{name: _with(name, schedule) for name, schedule in _DIRECTED.items()},
    **{name: _with(name, schedule, WITHOUT_CHAIN) for name, schedule in DIRECTED_WITHOUT_CHAIN.items()},
    "unknown_is_won": _instead(
        "unknown_is_won",
        at(
            ("storage.delta.delta_log.DeltaLog._settle", _takes_the_unknown_for_landed),
            ("storage.delta.delta_log.DeltaLog.hold", lambda _: None),  # else its broker notices, and starts over
        ),
        leaders.role_without_an_answer,
    ),
    "claims_are_not_checked": _instead(
        "claims_are_not_checked",
        at(
            ("storage.log.replica_log.ReplicaLog.claim", _claims_and_does_not_look),
            ("storage.tables.replica_table.ReplicaTable._claimed", _any_claim),
            ("server.registration.Registration._check_is_ours", lambda *_: None),
        ),
        leaders.process_that_is_over,
    ),
    "controllers_do_not_claim": _instead(
        "controllers_do_not_claim",
        at(("controller.active_controller.ActiveController._claim_tables", lambda _: None)),
        admins.decision_of_the_controller_before,
    ),
}  # fmt: skip
