"""Broken rules, one at a time. If no invariant catches a break here, none would catch the same mistake in the code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple

from lakelog.replication.controller import (
    broker_events,
    partition_reassignment,
    partition_state_machine,
    replica_state_machine,
    topic_deletion_manager,
)
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.decision import Decision, uninterrupted
from lakelog.replication.controller.events import Event
from lakelog.replication.controller.term import ChangeTopics, ControllerTerm, Partitions
from lakelog.replication.controller.term import Round as ControllerSteps
from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol import delayed_operation, elections, isr, leadership
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.append import Digests, PartitionAppend, check_follower_append, place
from lakelog.replication.protocol.append_plan import AppendPlan
from lakelog.replication.protocol.fetch_state import FetchStates, FollowerState
from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrChange
from lakelog.replication.protocol.leadership import HostedPartition, LeaderInputs
from lakelog.replication.protocol.log_retention import delete_records_offset
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity, SendSequences
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, ReplicaStatus
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.broker_steps import BrokerState, PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import (
    AppendFetched,
    FetchRound,
    FetchStep,
    FinishTruncation,
    Round,
    States,
    TruncateLogs,
    maybe_truncate,
)
from lakelog.replication.protocol.rounds.leader_round import AlterPartitions, LeaderRound, LeaderStep
from lakelog.replication.protocol.rounds.leader_round import Round as LeaderSteps
from lakelog.replication.protocol.rounds.role_round import CommitRoles, RoleStep, become_leader_or_follower
from lakelog.replication.protocol.truncation import Truncation
from lakelog.verification.simulation.actor import carried_out
from lakelog.verification.simulation.rules import SHIPPED, Rules

_on_broker_change = broker_events.on_broker_change
_complete_replica_deletions = topic_deletion_manager.complete_replica_deletions
_put = Decision.put


class Sabotage(NamedTuple):
    """A description of the break, and the rules with it."""

    what: str
    rules: Rules


def _anybody_appends(log: PartitionLog, request: PartitionAppend, digests: Digests) -> Any:
    return place(_as(log, Role(request.leader_epoch, LEADER)), request, digests)


def _as(log: PartitionLog, role: Role) -> PartitionLog:
    other = log.copy()
    other.role = role
    return other


def _followers_append_in_any_role(log: PartitionLog, leader_epoch: int, previous: str, name: str) -> None:
    check_follower_append(_as(log, Role(leader_epoch, FOLLOWER)), leader_epoch, previous, name)


def _sequences_are_ignored(log: PartitionLog, request: PartitionAppend, digests: Digests) -> Any:
    unknown = log.copy()
    unknown.producers = {}
    return place(unknown, request, digests)


def _all_rows_count(inputs: LeaderInputs, registration: PartitionRegistration) -> LeaderInputs:
    """Rows of any epoch, process and state count as rows of this leadership."""
    epochs = inputs.broker_epochs
    rows = {
        broker: replace(
            row, leader_epoch=registration.leader_epoch, role=FOLLOWER_ROLE, state=FollowerState.FETCHING,
            broker_epoch=epochs.get(broker, -1), log_end_offset=min(row.log_end_offset, inputs.log.log_end_offset),
        )
        for broker, row in inputs.rows.items()
    }  # fmt: skip
    return replace(inputs, rows=rows)


def _high_watermark_from_any_row(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    return leadership.raise_high_watermark(hosted, _all_rows_count(inputs, hosted.registration))


def _high_watermark_without_pending(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    """A shrink counts as done before it is made: the HW waits only for the members that stay."""
    isr_soon = hosted.pending.isr if hosted.pending else hosted.registration.isr
    soon = replace(hosted, pending=None, registration=replace(hosted.registration, isr=isr_soon))
    return replace(hosted, high_watermark=leadership.raise_high_watermark(soon, inputs).high_watermark)


def _high_watermark_is_the_log_end(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    return replace(hosted, high_watermark=max(hosted.high_watermark, inputs.log.log_end_offset))


def _joins_below_the_epoch_start(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    log = inputs.log.copy()
    log.epoch_start = 0
    return leadership.observe_followers(hosted, replace(inputs, log=log))


def _joins_anywhere(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    log = inputs.log.copy()
    log.epoch_start = 0
    attended = leadership.observe_followers(replace(hosted, high_watermark=0), replace(inputs, log=log))
    return replace(attended, high_watermark=hosted.high_watermark)


def _joins_by_any_row(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    return leadership.observe_followers(hosted, _all_rows_count(inputs, hosted.registration))


def _isr_changes_are_forced(
    current: PartitionRegistration | None, change: IsrChange, broker_epochs: Mapping[int, int]
) -> tuple[AlterIsrOutcome, PartitionRegistration | None]:
    """The change is made to the current registration, whatever has happened since the decision."""
    if current is None:
        return AlterIsrOutcome.LOST, current
    decided_on = replace(change, leader=current.leader, leader_epoch=current.leader_epoch,
                         partition_epoch=current.partition_epoch)  # fmt: skip
    return isr.alter_partition(current, decided_on, broker_epochs)


def _truncates_to_the_high_watermark(
    truncating: Iterable[Any], fetching: Iterable[Any], logs: Mapping[Any, PartitionLog],
    leaders: Mapping[Any, ReplicaStatus], *given: Any,
) -> list[FetchStep]:  # fmt: skip
    """As before KIP-101. A follower takes the HW from its leader's row, limited by its own LEO."""
    steps = maybe_truncate(list(truncating), list(fetching), logs, leaders, *given)
    due = [p for step in steps if isinstance(step, FinishTruncation) for p in step.partitions]
    ends = {p: min(leaders[p].high_watermark, logs[p].log_end_offset) for p in due}
    truncations = {p: Truncation(leaders[p].leader_epoch, end) for p, end in ends.items()}
    return [TruncateLogs(truncations), *(step for step in steps if not isinstance(step, TruncateLogs))] if due else []


def _truncates_nothing(*given: Any) -> list[FetchStep]:
    return [step for step in maybe_truncate(*given) if not isinstance(step, TruncateLogs)]


def _restarts_at_the_leaders_end(
    truncating: Iterable[Any], fetching: Iterable[Any], logs: Mapping[Any, PartitionLog],
    leaders: Mapping[Any, ReplicaStatus], *given: Any,
) -> list[FetchStep]:  # fmt: skip
    """As in Kafka: a log that has lost everything restarts at the leader's end, and may lack records in between."""

    def restart(partition: Any, truncation: Truncation) -> Truncation:
        leader = leaders[partition]
        end = max(leader.log_start_offset, min(truncation.offset, leader.log_end_offset))
        return truncation._replace(restart=truncation.restart and truncation.restart._replace(offset=end))

    steps = maybe_truncate(list(truncating), list(fetching), logs, leaders, *given)
    return [TruncateLogs({p: restart(p, t) for p, t in s.truncations.items()}) if isinstance(s, TruncateLogs) else s
            for s in steps]  # fmt: skip


def _row_before_the_truncation(*given: Any) -> list[FetchStep]:
    steps = maybe_truncate(*given)
    return [*(s for s in steps if not isinstance(s, TruncateLogs)), *(s for s in steps if isinstance(s, TruncateLogs))]


def _says_so_before_it_is(*given: Any) -> list[RoleStep]:
    """A broker publishes its role before its log has it."""
    steps = become_leader_or_follower(*given)
    roles = [step for step in steps if isinstance(step, CommitRoles)]
    others = [step for step in steps if not isinstance(step, CommitRoles)]
    after = next((n for n, step in enumerate(others) if isinstance(step, PublishReplicas)), 0)
    return [*others[: after + 1], *roles, *others[after + 1 :]]


def _acknowledges_at_once(row: ReplicaStatus | None, *given: Any) -> delayed_operation.Completion:
    reached = replace(row, high_watermark=row.log_end_offset) if row else None
    return delayed_operation.produce_outcome(reached, *given)


def _acknowledges_by_offset(row: ReplicaStatus | None, leader_epoch: int, *given: Any) -> delayed_operation.Completion:
    """Trusts a later leader's HW, whatever records are at the offsets there."""
    same = replace(row, leader_epoch=leader_epoch) if row and row.leader_epoch > leader_epoch else row
    return delayed_operation.produce_outcome(same, leader_epoch, *given)


def _deletes_anything(log: PartitionLog, leader_epoch: int, _: int, before: int, *given: Any) -> int:
    return delete_records_offset(log, leader_epoch, log.log_end_offset, min(before, log.log_end_offset), *given)


def _reads_any_log(*_: Any) -> None:
    return None


def _fetches_from_any_leader(row: ReplicaStatus | None, *_: Any) -> LakelogException | None:
    """Trusts the leader's row at any epoch, so its lineage may be of an older one."""
    return None if row is not None else LakelogException("no row")


def _with(what: str, **broken: Callable[..., Any] | bool) -> Sabotage:
    """A broken rule. It also removes the chain, which would repair or stop many of its effects."""
    return Sabotage(what, replace(SHIPPED, link=lambda header, _: header, **broken))  # type: ignore[arg-type]


class BrokenController(NamedTuple):
    """A description of the break, and `decide` with that break."""

    what: str
    decide: Callable[[ControllerContext, Event], Decision]


@contextmanager
def swapped(owner: ModuleType | type, name: str, broken: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function of a module or class during the block."""
    shipped = getattr(owner, name)
    setattr(owner, name, broken)
    try:
        yield
    finally:
        setattr(owner, name, shipped)


def _deciding(what: str, owner: ModuleType | type, name: str, broken: Callable[..., Any]) -> BrokenController:
    def decide_with(
        context: ControllerContext, event: Event, keep_lease: Callable[[], None] = uninterrupted
    ) -> Decision:
        with swapped(owner, name, broken):
            return decide(context, event, keep_lease)

    return BrokenController(what, decide_with)


def _elects_anybody(
    registration: PartitionRegistration, live: Collection[int], unclean_allowed: bool
) -> PartitionRegistration | None:
    """The first live replica leads, in sync or not, with all other replicas in the ISR."""
    return elections.elect_offline(replace(registration, isr=registration.replicas), live, unclean_allowed)


def _prefers_anybody(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """The preferred leader leads as soon as it lives, in sync or not, and joins the ISR."""
    isr = tuple(broker for broker in registration.replicas if broker in (*registration.isr, registration.replicas[0]))
    return elections.elect_preferred(replace(registration, isr=isr), live)


def _keeps_the_leader_epoch(decision: Decision, registration: PartitionRegistration) -> None:
    _put(decision, registration)
    partition = registration.topic_id_partition
    before, changed = decision.context.partitions.get(partition), decision.changed.get(partition)
    if before is not None and changed is not None:
        decision.changed[partition] = replace(changed, leader_epoch=before.leader_epoch)


def _overlooks_new_broker_epochs(decision: Decision, before: Mapping[int, BrokerView]) -> None:
    now = decision.context.brokers
    _on_broker_change(decision, {broker: now.get(broker, view) for broker, view in before.items()})


def _takes_deletions_for_done(decision: Decision) -> None:
    """The controller waits for no broker: each counts as having carried out the newest metadata."""
    brokers = {b: replace(view, metadata_version=2**31) for b, view in decision.context.brokers.items()}
    decision.context = replace(decision.context, brokers=brokers)
    _complete_replica_deletions(decision)


def _leaves_the_isr_to_the_last(registration: PartitionRegistration, broker: int) -> PartitionRegistration:
    """An offline replica leaves the ISR. If it was the last member, all other assigned replicas replace it."""
    left = elections.replica_offline(registration, broker)
    return (
        left if left.isr != (broker,) else replace(left, isr=tuple(b for b in left.replicas if b != broker) or left.isr)
    )


BROKEN_CONTROLLERS: dict[str, BrokenController] = {
    "elects_anybody": _deciding(
        "a replica outside the ISR is elected like a member", partition_state_machine, "elect_offline", _elects_anybody
    ),
    "prefers_anybody": _deciding(
        "the preferred leader need not be in sync", partition_state_machine, "elect_preferred", _prefers_anybody
    ),
    "the_isr_is_not_kept": _deciding(
        "the last member of an ISR leaves it to replicas that are not in sync",
        replica_state_machine, "replica_offline", _leaves_the_isr_to_the_last,
    ),
    "fails_without_a_new_epoch": _deciding(
        "a failover keeps the leader epoch", Decision, "put", _keeps_the_leader_epoch
    ),
    "overlooks_new_broker_epochs": _deciding(
        "a restarted broker counts as its earlier process",
        broker_events, "on_broker_change", _overlooks_new_broker_epochs,
    ),
    "reassigns_before_all_are_in_sync": _deciding(
        "a reassignment ends before its target has caught up", partition_reassignment, "may_complete", lambda _: True
    ),
    "deletes_before_brokers_have": _deciding(
        "a topic is removed before brokers have deleted its replicas",
        topic_deletion_manager, "complete_replica_deletions", _takes_deletions_for_done,
    ),
}  # fmt: skip


class BrokenRound(NamedTuple):
    """A description of the break, and the fields of `Rules` with that break."""

    what: str
    rules: Mapping[str, Callable[..., Any]]


class _DecidesOnWhatItKnew(ControllerTerm):
    def _choose(self, event: Event, _: Partitions, __: Mapping[str, Outcome] | None) -> Decision:
        return self._decide(self.context, event)


class _DropsTopicsFirst(ControllerTerm):
    def _write(self, event: Event, decision: Decision, request: AdminRequest | None) -> ControllerSteps[Decision]:
        if decision.dropped:
            yield ChangeTopics({}, decision.dropped, decision.why)
        return (yield from super()._write(event, decision, request))


class _TakesNoAnswerForDone(LeaderRound):
    """Believes that its ISR change is in force, even without an answer."""

    def run(self, state: BrokerState) -> LeaderSteps[bool]:
        def instead(step: LeaderStep) -> LeaderSteps[Any]:
            try:
                return (yield step)
            except KafkaStorageException:
                if not isinstance(step, AlterPartitions):
                    raise
            for change in step.changes:
                hosted = state.hosted[change.topic_id_partition]
                after = replace(hosted.registration, isr=change.isr)
                state.hosted[change.topic_id_partition] = replace(hosted, registration=after, pending=None)
            return {}

        return bool((yield from carried_out(super().run(state), instead)))


class _GoesOnWithoutAnswer(FetchRound):
    """Takes a commit of this type without an answer for made."""

    _type: type

    def run(self) -> Round[bool]:
        return bool((yield from carried_out(super().run(), self._instead)))

    def _instead(self, step: FetchStep) -> Round[Any]:
        try:
            return (yield step)
        except KafkaStorageException:
            if not isinstance(step, self._type):
                raise
        return None


class _TakesNoAnswerForAppended(_GoesOnWithoutAnswer):
    _type = AppendFetched


class _TakesNoAnswerForTruncation(_GoesOnWithoutAnswer):
    _type = TruncateLogs


class _GoesOnAfterRemovals(FetchRound):
    def __init__(self, states: FetchStates, *given: Any) -> None:
        super().__init__(states, *given)
        held = states.held
        states.held = lambda _: held(states.removals)  # type: ignore[assignment, method-assign]


class _FollowsTheTailOverGaps(FetchRound):
    def _settle(self, plan: AppendPlan, fetchable: States) -> bool:
        return super()._settle(replace(plan, gaps=frozenset()), fetchable)


class _AnotherIdEachTime(ProducerIdentity):
    """Uses another producer id each time, so no log recognises a repeated batch."""

    def begin_send(self, topic: str, partitions: Iterable[int]) -> SendSequences:
        send = super().begin_send(topic, partitions)
        given, ids = send.sequence, count(1_000_000 * self.id_and_epoch.producer_id)

        def sequence(partition: TopicIdPartition) -> tuple[int, int, int]:
            given(partition)
            return next(ids), 0, 0

        send.sequence = sequence  # type: ignore[method-assign]
        return send


def _sends_as_another(topic: str, counts: Mapping[int, int], identity: ProducerIdentity, *given: Any) -> Any:
    another = ProducerIdAndEpoch(identity.id_and_epoch.producer_id + 1, 0)
    identity.renew(another)
    return send_and_acknowledge(topic, counts, _AnotherIdEachTime(another), *given)


BROKEN_ROUNDS: dict[str, BrokenRound] = {
    "decides_on_what_it_knew": BrokenRound(
        "a commit to the metadata is decided on the controller's earlier knowledge", {"term": _DecidesOnWhatItKnew}
    ),
    "drops_topics_first": BrokenRound("a topic goes before its partitions do", {"term": _DropsTopicsFirst}),
    "takes_no_answer_for_done": BrokenRound(
        "a change of the ISR without an answer counts as made", {"leader_round": _TakesNoAnswerForDone}
    ),
    "takes_no_answer_for_appended": BrokenRound(
        "an append without an answer counts as made", {"fetch_round": _TakesNoAnswerForAppended}
    ),
    "takes_no_answer_for_truncation": BrokenRound(
        "a truncation without an answer counts as made", {"fetch_round": _TakesNoAnswerForTruncation}
    ),
    "goes_on_after_removals": BrokenRound(
        "a round appends what it fetched in an earlier role", {"fetch_round": _GoesOnAfterRemovals}
    ),
    "follows_the_tail_over_gaps": BrokenRound(
        "a follower whose tail has a gap does not read the snapshot", {"fetch_round": _FollowsTheTailOverGaps}
    ),
    "sends_as_another": BrokenRound(
        "a producer repeats a batch under another producer id", {"send_and_acknowledge": _sends_as_another}
    ),
}  # fmt: skip


SABOTAGES: dict[str, Sabotage] = {
    "appends_are_not_fenced": _with("a log takes records in any role and epoch", place=_anybody_appends),
    "sequences_are_ignored": _with("a repeated batch is appended again", place=_sequences_are_ignored),
    "followers_append_in_any_role": _with(
        "a fetch is appended although the replica has another role by now",
        check_follower_append=_followers_append_in_any_role, rounds_are_awaited=False,
    ),
    "truncates_in_any_role": _with(
        "a truncation is made although the replica has another role meanwhile",
        check_truncation=_reads_any_log, rounds_are_awaited=False,
    ),
    "everything_may_be_appended": _with("what the leader truncated is appended as well", may_append=lambda *_: True),
    "high_watermark_from_any_row": _with(
        "rows of other epochs and states count for the HW", raise_high_watermark=_high_watermark_from_any_row
    ),
    "high_watermark_without_pending": _with(
        "the HW does not wait for a change of the ISR", raise_high_watermark=_high_watermark_without_pending
    ),
    "high_watermark_is_the_log_end": _with(
        "the HW does not wait for any follower", raise_high_watermark=_high_watermark_is_the_log_end
    ),
    "forgets_the_high_watermark": _with(
        "a new role begins without the HW of the earlier one",
        host=lambda _before, _published, *given: leadership.host(None, None, *given),
    ),
    "joins_below_the_epoch_start": _with(
        "a follower joins the ISR below the start of the leader's epoch", observe_followers=_joins_below_the_epoch_start
    ),
    "joins_anywhere": _with("a follower joins the ISR with any lag", observe_followers=_joins_anywhere),
    "joins_by_any_row": _with("rows of other epochs and states count for the ISR", observe_followers=_joins_by_any_row),
    "isr_changes_are_forced": _with("an ISR change ignores what came between", alter_partition=_isr_changes_are_forced),
    "deletes_what_is_not_committed": _with("records above the HW may go", delete_records_offset=_deletes_anything),
    "unknown_is_won": _with("a commit without an answer is taken for won", unknown_is_asked=False),
    "truncates_to_the_high_watermark": _with(
        "a follower truncates to the HW, not to the lineage", maybe_truncate=_truncates_to_the_high_watermark
    ),
    "truncates_nothing": _with("a follower keeps records that its leader lacks", maybe_truncate=_truncates_nothing),
    "restarts_at_the_leaders_end": _with(
        "a log that starts over begins at its leader's end", maybe_truncate=_restarts_at_the_leaders_end
    ),
    "row_before_the_truncation": _with(
        "the row is published as Fetching before the truncation", maybe_truncate=_row_before_the_truncation
    ),
    "says_so_before_it_is": _with(
        "a row has a role before the log has it", become_leader_or_follower=_says_so_before_it_is
    ),
    "leads_under_any_broker_epoch": _with(
        "a restarted leader leads on before a controller has elected it again",
        given_to=lambda _id, _epoch, metadata: metadata,
    ),
    "claims_are_not_checked": _with("a process does not stop at a newer one's claim", claims_are_checked=False),
    "acknowledges_at_once": _with("acks=all does not wait for the HW", produce_outcome=_acknowledges_at_once),
    "acknowledges_by_offset": _with(
        "acks=all checks the new leader's HW and not its lineage", produce_outcome=_acknowledges_by_offset
    ),
    "reads_any_log": _with("a reader does not check whether the log still leads", check_log_leads=_reads_any_log),
    "fetches_from_any_leader": _with(
        "a follower follows a leader of another epoch", check_leader_row=_fetches_from_any_leader
    ),
    "controllers_do_not_claim": _with(
        "a controller reads and writes without a claim, so an older one may do so too", controllers_claim=False
    ),
    **{name: _with(broken.what, decide=broken.decide) for name, broken in BROKEN_CONTROLLERS.items()},
    **{name: _with(broken.what, **broken.rules) for name, broken in BROKEN_ROUNDS.items()},
}  # fmt: skip
