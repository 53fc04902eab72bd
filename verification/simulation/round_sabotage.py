"""Broken rounds: each leaves out, changes or moves one step or one decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from lakelog.replication.controller import steps
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.events import Event
from lakelog.replication.controller.steps import ChangeTopics, Partitions
from lakelog.replication.controller.term import Term
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.append_plan import AppendPlan
from lakelog.replication.protocol.fetch_states import FetchStates
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity, SendSequences
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.acknowledge_round import produce
from lakelog.replication.protocol.rounds.broker_rounds import Memory
from lakelog.replication.protocol.rounds.fetch_round import FetchRound, States
from lakelog.replication.protocol.rounds.fetch_steps import AppendFetched, FetchStep, Round, TruncateLogs
from lakelog.replication.protocol.rounds.leader_round import LeaderRound
from lakelog.replication.protocol.rounds.steps import AlterPartitions, Step
from lakelog.replication.protocol.rounds.steps import Round as LeaderSteps
from lakelog.verification.simulation.actor import carried_out


class BrokenRound(NamedTuple):
    """A description of the break, and the fields of `Rules` with that break."""

    what: str
    rules: Mapping[str, Callable[..., Any]]


class _DecidesOnWhatItKnew(Term):
    def _choose(self, event: Event, _: Partitions, __: Mapping[str, Outcome] | None) -> Decision:
        return self._decide(self.context, event)


class _DropsTopicsFirst(Term):
    def _write(self, event: Event, decision: Decision, request: AdminRequest | None) -> steps.Round[Decision]:
        if decision.dropped:
            yield ChangeTopics({}, decision.dropped, decision.why)
        return (yield from super()._write(event, decision, request))


class _TakesNoAnswerForDone(LeaderRound):
    """Believes that its ISR change is in force, even without an answer."""

    def run(self, memory: Memory) -> LeaderSteps[bool]:
        def instead(step: Step) -> LeaderSteps[Any]:
            try:
                return (yield step)
            except KafkaStorageException:
                if not isinstance(step, AlterPartitions):
                    raise
            for change in step.changes:
                hosted = memory.hosted[change.topic_id_partition]
                after = replace(hosted.registration, isr=change.isr)
                memory.hosted[change.topic_id_partition] = replace(hosted, registration=after, pending=None)
            return {}

        return bool((yield from carried_out(super().run(memory), instead)))


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
        given, ids = send.sequence, count(1_000_000 * self.given.producer_id)

        def sequence(partition: TopicIdPartition) -> tuple[int, int, int]:
            given(partition)
            return next(ids), 0, 0

        send.sequence = sequence  # type: ignore[method-assign]
        return send


def _sends_as_another(topic: str, counts: Mapping[int, int], identity: ProducerIdentity, *given: Any) -> Any:
    another = ProducerIdAndEpoch(identity.given.producer_id + 1, 0)
    identity.renew(another)
    return produce(topic, counts, _AnotherIdEachTime(another), *given)


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
        "a producer repeats a batch under another producer id", {"produce": _sends_as_another}
    ),
}  # fmt: skip
