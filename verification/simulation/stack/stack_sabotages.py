"""The sabotages that the stack tier has to catch: shipped storage, rounds and rules with a line broken.

Each is a past bug, or one that a careless clean-up of the code could make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.protocol.append import Appended, Digests, PartitionAppend, place
from lakelog.replication.protocol.chain import _hash
from lakelog.replication.protocol.compaction import Compaction, LogFile, size_class
from lakelog.replication.protocol.partition_log import NO_ROLE, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_recovery import choose
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.producer_identity import SendSequences
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.protocol.replica_rows import replica_row
from lakelog.replication.protocol.rounds.role_round import RoleRules, take_up_roles
from lakelog.replication.server.registration import Registration
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.storage.cluster import _read_note
from lakelog.replication.storage.delta.compare_and_set import compare_and_set
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.log import pieces
from lakelog.replication.storage.log.broken_segments import SoughtRange
from lakelog.replication.storage.log.log_cleaning import LatestOffsets
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.log_txns import GENERATION
from lakelog.replication.storage.log.pieces import write_pieces
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import BROKER_EPOCH, ReplicaTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.stack.breaks import Break, DirectedHistory, StackSabotage, all_of, at, of_rules
from lakelog.verification.simulation.stack.one_thread import InlineFetcher
from lakelog.verification.simulation.stack.schedules import admins, followers, identity, leaders, rare

_next, _decoded_batches = Registration._next, pieces._decoded_batches
_may_meet, _are_latest = SoughtRange.may_meet, LatestOffsets.are_latest


def _are_before_the_latest(latest: LatestOffsets, rows: pa.Table) -> pa.ChunkedArray:
    earlier = rows.set_column(rows.column_names.index("offset"), "offset", pc.subtract(rows["offset"], 1))
    return _are_latest(latest, earlier)


def _is_decided_once(
    log: ReplicaLog, cause: Any, decide: Callable[[LogState], Any], deadline: Any = None, noop_staleness: Any = None
) -> Any:
    decided: list[LogChange | None] = []

    def attempt(max_staleness: float | None) -> int | None:
        with log._lock:
            state = log._refresh(max_staleness)
            decided.append(decided[0] if decided else decide(state))
            return None if decided[0] is None else log._commit(cause, decided[0])

    return compare_and_set(log.root, attempt, deadline, noop_staleness)


def _writes_what_it_had(table: StateTable, cause: Any, change: Any, txns: Any = None, *_: Any, **__: Any) -> Any:
    decided: list[Any] = []

    def attempt(max_staleness: float | None) -> int | None:
        with table._lock:
            table._follow(table._log.move(max_staleness))
            decided.append(decided[0] if decided else change(list(table._rows)))
            return None if decided[0] is None else table._commit(dict(cause), decided[0], txns)

    return compare_and_set(table._log.root, attempt, None)


def _takes_silence_for_landed(_log: DeltaLog, _expected: int, _nonce: str, error: Exception) -> None:
    if isinstance(error, FileExistsError):
        raise CommitConflict(str(error)) from error


def _registers_as_before(registration: Registration, last: Any, *given: Any, **named: Any) -> Any:
    offered = _next(registration, last, *given, **named)
    registration._offered = replace(offered, broker_epoch=max(1, offered.broker_epoch - 1)) if last else offered
    return registration._offered


def _spoils_a_row(*given: Any) -> Any:
    for piece in _decoded_batches(*given):
        rows = piece.table
        value = pa.array([*rows["value"].to_pylist()[:-1], b"spoilt"], rows.schema.field("value").type)
        yield replace(piece, table=rows.set_column(rows.schema.get_field_index("value"), "value", value))


def _only_names_its_generation(log: ReplicaLog, _: int, generation: int, __: Any, cause: Any, *___: Any) -> None:
    log.transact(cause, lambda _: LogChange(txns={GENERATION: generation}))


def _leaves_out_a_batch(root: Any, leader: Any, pieces: Any) -> Any:
    return write_pieces(root, leader, pieces[:-1] or pieces)


STORAGE: dict[str, StackSabotage] = {
    "errors_are_taken_for_landed": StackSabotage(
        "a commit without an answer counts as landed, without a check",
        at(("storage.delta.delta_log.DeltaLog._settle", _takes_silence_for_landed)),
    ),
    "changes_are_decided_once": StackSabotage(
        "a writer that loses a compare-and-set commits the same change again",
        at(("storage.log.replica_log.ReplicaLog.transact", _is_decided_once)),
    ),
    "state_is_written_over": StackSabotage(
        "a writer that loses a compare-and-set on a state table overwrites the winner's rows",
        at(("storage.tables.state_table.StateTable.update", _writes_what_it_had)),
    ),
    "the_predecessor_is_not_checked": StackSabotage(
        "a commit counts even if the commit before it is missing",
        at(("storage.delta.delta_log.CommitTracker.is_there", lambda *_: True)),
        rare.commit_into_a_hole,
    ),
    "commits_are_known_by_name": StackSabotage(
        "a file with the name of a known commit counts as that commit",
        at(("storage.delta.delta_log.CommitTracker._is_known", lambda _, __, stamp: stamp is not None)),
        rare.commit_into_a_hole,
    ),
    "compaction_spoils_a_row": StackSabotage(
        "compaction writes another value than it read",
        at(("storage.log.pieces._decoded_batches", _spoils_a_row)),
    ),
    "compaction_drops_a_batch": StackSabotage(
        "compaction leaves out a batch",
        at(
            ("storage.log.log_compaction.write_pieces", _leaves_out_a_batch),
            ("storage.log.replica_log.check_change", lambda *_: None),
        ),
    ),
    "newest_records_go": StackSabotage(
        "the log cleaner removes the newest record of each key, too",
        at(("storage.log.log_cleaning.LatestOffsets.are_latest", _are_before_the_latest)),
    ),
    "broker_epochs_stand_still": StackSabotage(
        "a new process has the broker epoch of the one before it",
        at(("server.registration.Registration._next", _registers_as_before)),
        rare.leader_without_its_end,
    ),
}


_MAY_MEET = "storage.log.broken_segments.SoughtRange.may_meet"
FETCHES: dict[str, StackSabotage] = {
    "nobody_is_behind": StackSabotage(
        "a follower that finds what it lacks does not mark its partitions as behind",
        at(("server.fetcher.shared_fetch_states.SharedFetchStates.fell_behind", lambda *_: None)),
    ),
    "a_failed_copy_fails_alone": StackSabotage(
        "the plan keeps the other segments of a partition of which a copy has failed",
        at(("server.fetcher.segment_copier._leave_out", lambda wanted, _: wanted)),
        followers.copy_without_an_answer,
    ),
    "files_end_before_their_last_offset": StackSabotage(
        "a fetch reads no file that ends at its offset",
        at((_MAY_MEET, lambda sought, file: _may_meet(sought._replace(offset=sought.offset + 1), file))),
    ),
    "files_of_the_first_partition": StackSabotage(
        "a fetch reads only files that may hold the first of its partitions",
        at((_MAY_MEET, lambda sought, file: _may_meet(sought._replace(partitions=(sought.partitions[0],) * 2), file))),
    ),
}


_settle_send, _place, _publish = SendSequences.settle, place, ReplicaManager.publish


def _succeeds(send: SendSequences, _succeeded: Collection[int]) -> None:
    """After a send that raised, the next send uses the same producer id and sequence numbers."""
    _settle_send(send, send._places)


def _leads_on(_broker: int, _epoch: int, metadata: Mapping[Any, Any]) -> dict[Any, Any]:
    """A new process leads the partitions for which an older process was elected."""
    return dict(metadata)


def _goes_on(manager: ReplicaManager) -> None:
    """A broker's fetchers do a round while another thread of the broker publishes, unless a fetcher publishes."""
    fetchers = [f for f in manager._fetchers.fetchers().values() if isinstance(f, InlineFetcher)]
    if not any(fetcher.is_fetching for fetcher in fetchers):
        for fetcher in fetchers:
            fetcher.fetch_once()


def _is_overtaken(manager: ReplicaManager, why: str, may_wait: bool = False) -> None:
    """The shipped `publish`, after the fetchers' rounds: its rows are correct."""
    _goes_on(manager)
    _publish(manager, why, may_wait)


def _reads_the_log_first(manager: ReplicaManager, why: str, _may_wait: bool = False) -> None:
    """Reads the log, lets other threads of the broker run, and then reads the fetch states."""
    state = manager._log.current()
    _goes_on(manager)
    last, fetched = manager._table.replicas, manager._fetchers.fetch_states()
    rows = (
        replica_row(
            manager._broker_id, manager._broker_epoch, h, state.known(p), fetched.get(p), last.get(p), state.version
        )
        for p, h in manager._hosted.items()
    )  # fmt: skip
    manager._table.publish(rows, why)


def _appends_all_again(log: PartitionLog, request: PartitionAppend, digests: Digests) -> Appended:
    """A leader that has only the first records of a send appends all of them."""
    found = _place(log, request, digests)
    return Appended(log.log_end_offset, log.log_end_offset + request.records - 1) if found.known else found


def _without_progress(
    files: Collection[LogFile], segment_bytes: int, min_files: int, _max_bytes: int
) -> Compaction | None:
    """Chooses files by their compressed size, and packs them by the size of their records, which may be far larger."""
    small = [file for file in files if size_class(file.size, segment_bytes) >= 0]
    if len(small) < min_files:
        return None
    packs: list[list[tuple[LogFile, BatchHeader]]] = []
    sizes: Counter[int] = Counter()
    placed = ((file, header) for file in small for header in file.headers)
    for file, header in sorted(placed, key=lambda item: (item[1].topic_id_partition, item[1].base_offset)):
        is_new = not packs or packs[-1][-1][1].topic_id_partition != header.topic_id_partition
        if is_new or sizes[len(packs)] + header.bytes > segment_bytes:
            packs.append([])
        packs[-1].append((file, header))
        sizes[len(packs)] += header.bytes
    return Compaction(tuple(small), tuple(packs))


# The counterpart of `_reads_the_log_first`: shipped code, while the broker's fetchers run.
FETCHER_GOES_ON = at(("server.replica_manager.ReplicaManager.publish", _is_overtaken))

CRITICALS: dict[str, StackSabotage] = {
    "a_send_keeps_its_identity": StackSabotage(
        "after a send that raised, the next one uses the same sequence numbers",
        at(
            ("protocol.producer_identity.SendSequences.settle", _succeeds),
            ("clients.producer.Producer._abandon_identity", lambda _: None),
        ), rare.interrupted_send,
    ),
    "a_new_process_leads_on": StackSabotage(
        "a process leads where an older one was elected, with a log that has lost its end",
        at(
            ("server.replica_manager.take_up_roles",
             partial(take_up_roles, rules=RoleRules(given_to=_leads_on))),
            ("protocol.rounds.fetch_round.leader_lost_its_end", lambda *_: False),  # else followers keep the records
        ), rare.leader_without_its_end,
    ),
    "the_log_is_read_first": StackSabotage(
        "a row is built from a log that was read before the fetch states",
        at(("server.replica_manager.ReplicaManager.publish", _reads_the_log_first)),
        rare.tail_of_a_deposed_leader,
    ),
    "all_is_appended_again": StackSabotage(
        "a leader that has the first records of a send appends all of them again",
        at(("storage.log.log_append.place", _appends_all_again)), rare.send_that_was_replicated_in_part,
    ),
    "compaction_makes_no_progress": StackSabotage(
        "compaction packs files by their compressed sizes",
        at(("storage.log.log_compaction.plan_compaction", _without_progress)),
        rare.records_that_compress_well,
    ),
}  # fmt: skip


def _nothing(*_: Any) -> None:
    """Checks nothing."""


def _is_deleted(registration: PartitionRegistration | None, _hosted: Any, log: PartitionLog | None) -> Role:
    """The role of a replica that is not in the metadata: it is deleted, whether they explain it or not."""
    recorded = log.role if log is not None else NO_ROLE
    epochs = recorded.before_stray.leader_epoch, registration.leader_epoch if registration else -1
    return Role(max(epochs), STOPPED)


# Each root is believed. It does not find that replicas are lost: brokers keep those that the metadata do not explain.
ANY_ROOT = at(
    ("storage.delta.root_guard.ClusterRootGuard._check", _nothing),
    ("storage.delta.root_guard.ClusterRootGuard._accept", _nothing),
    ("storage.delta.root_guard.ClusterRootGuard.seen", lambda *_: None),
)

IDENTITY: dict[str, StackSabotage] = {
    "any_root_is_believed": StackSabotage(
        "a process believes any cluster root at the address that it knows",
        ANY_ROOT,
        identity.start_on_an_older_root,
    ),
    "stray_replicas_are_deleted": StackSabotage(
        "a broker that believes any root deletes replicas that the metadata do not explain",
        all_of(ANY_ROOT, at(("protocol.rounds.role_round._last_role", _is_deleted))),
        identity.root_of_others,
    ),
    "the_note_is_not_read": StackSabotage(
        "a broker that starts does not read what its earlier process has seen of the cluster root",
        at(("storage.cluster.Cluster.seen_by", lambda *_: {})),
        identity.start_on_an_older_root,
    ),
    "a_recovery_takes_the_first_replica": StackSabotage(
        "a recovery believes the first replica of a partition, and not the one that has most",
        at(("protocol.partition_recovery.choose", lambda replicas: choose(replicas[:1]))),
        identity.lost_root,
    ),
    "a_recovery_begins_epochs_anew": StackSabotage(
        "a recovery gives leaders epochs that were seen before",
        at(("protocol.partition_recovery.next_epoch", lambda _: 1)),
        identity.lost_root,
    ),
    "a_recovery_does_not_close_the_logs": StackSabotage(
        "processes of the old cluster root go on with the brokers' logs while a recovery writes what it has read there",
        at(
            ("storage.log.replica_log.ReplicaLog.close", _only_names_its_generation),
            ("storage.log.replica_log.ReplicaLog._check_generation", _nothing),
            ("storage.tables.replica_table.ReplicaTable.claim", _nothing),
            ("server.metadata_cache.MetadataCache.check_generation", _nothing),
        ),
        identity.lost_root_in_use,
    ),
    "a_recovery_does_not_say_what_may_be_lost": StackSabotage(
        "a recovery says that nothing may be lost, whichever roots are missing",
        at(("protocol.partition_recovery.what_may_be_lost", lambda *_: (None, "nothing is missing"))),
        identity.lost_root_of_the_only_one_in_sync,
    ),
    "an_old_cluster_root_is_believed": StackSabotage(
        "a leader does not find that its followers belong to a newer generation of the cluster root",
        at(("server.metadata_cache.MetadataCache.check_generation", _nothing)),
        identity.restored_root_on_a_lost_one,
    ),
    "notes_of_older_generations_count": StackSabotage(
        "a broker believes what a process of an older generation has noted late",
        at(
            ("storage.cluster._read_note", lambda root: (1 << 30, _read_note(root)[1])),
            ("storage.cluster.Cluster._check_generation", _nothing),
        ),
        identity.lost_root_that_comes_back,
    ),
    "a_known_sequence_is_a_repeat": StackSabotage(
        "records under a known sequence count as a repeat, whatever they are",
        at(("protocol.append.check_same_records", _nothing)),
        identity.copied_producer,
    ),
}


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


def _claims_and_does_not_look(log: ReplicaLog, broker_epoch: int, log_epoch: int | None = None) -> None:
    _claim(log, broker_epoch, log_epoch)
    log._broker_epoch = None


def _any_claim(table: ReplicaTable) -> int:
    claimed = table.transaction_version(BROKER_EPOCH)
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


STACK_SABOTAGES: dict[str, StackSabotage] = {**CRITICALS, **STORAGE, **FETCHES, **IDENTITY, **SHARED}
