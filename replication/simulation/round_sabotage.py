"""Broken rounds: a line of a shipped round is left out, or comes in another place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from replication.controller import steps
from replication.controller.batch import Batch
from replication.controller.events import Event
from replication.controller.steps import ChangeTopics, Partitions
from replication.controller.term import Term
from replication.errors import KafkaStorageException
from replication.protocol.admin_request import AdminRequest, Outcome
from replication.protocol.broker_rounds import Memory
from replication.protocol.leader_round import LeaderRound
from replication.protocol.steps import AlterPartitions, Round


class BrokenRound(NamedTuple):
    """What is broken, and the fields of `Rules` with that break."""

    what: str
    rules: Mapping[str, Callable[..., Any]]


class _DecidesOnWhatItKnew(Term):
    def _choose(self, event: Event, _: Partitions, __: Mapping[str, Outcome] | None) -> Batch:
        return self._decide(self.context, event)


class _DropsTopicsFirst(Term):
    def _write(self, event: Event, batch: Batch, request: AdminRequest | None) -> steps.Round[Batch]:
        if batch.dropped:
            yield ChangeTopics({}, batch.dropped, batch.why)
        return (yield from super()._write(event, batch, request))


class _TakesNoAnswerForDone(LeaderRound):
    """What it asked for is in force, or so it believes."""

    def run(self, memory: Memory) -> Round[bool]:
        work, answer = super().run(memory), None
        while True:
            try:
                step = work.send(answer)
            except StopIteration as end:
                return bool(end.value)
            try:
                answer = yield step
            except KafkaStorageException:
                if not isinstance(step, AlterPartitions):
                    raise
                answer = {}
                for change in step.changes:
                    hosted = memory.hosted[change.partition]
                    after = replace(hosted.registration, isr=change.isr)
                    memory.hosted[change.partition] = replace(hosted, registration=after, pending=None)


BROKEN_ROUNDS: dict[str, BrokenRound] = {
    "decides_on_what_it_knew": BrokenRound(
        "a commit to the metadata is decided on what the controller knew before", {"term": _DecidesOnWhatItKnew}
    ),
    "drops_topics_first": BrokenRound("a topic goes before its partitions do", {"term": _DropsTopicsFirst}),
    "takes_no_answer_for_done": BrokenRound(
        "a change of the ISR without an answer passes for made", {"leader_round": _TakesNoAnswerForDone}
    ),
}  # fmt: skip
