"""The sends of a producer in flight: each goes on in its own round, in the order in which they began.

Kafka: `Sender.runOnce`, `RecordAccumulator`, max.in.flight.requests.per.connection. KIP-98, KAFKA-5494. [AP-06]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.carry_out import Result
from lakelog.replication.protocol.rounds.send_round import (
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    RecordMetadata,
    SendStep,
)
from lakelog.replication.protocol.rounds.send_round import Round as SendSteps

_READS = ReadTopic, ReadLeaderships, ReadLeaderLogs, ReadReplicas  # the steps whose answers sends share

Answers: TypeAlias = Mapping[int, RecordMetadata]


@dataclass(eq=False)
class SendInFlight:
    """A send, or several that share a commit. `work`: their round. `execute`: carries out a step of the round and
    returns its answer. `done`: receives the round's answers, or the error that it raised.

    `deadline`: on the monotonic clock, in seconds. `is_backing_off`: it pauses before another attempt.
    """

    work: SendSteps[Answers]
    deadline: float
    execute: Callable[[SendStep], Any]
    done: Callable[[Answers | None, BaseException | None], None]
    is_backing_off: bool = False


class StepOf(NamedTuple):
    """A step of one round, and the function that returns its answer."""

    execute: Callable[[SendStep], Any]
    step: SendStep

    def answer(self) -> Any:
        """Carries out the step and returns its answer."""
        return self.execute(self.step)


Round: TypeAlias = carry_out.Round[StepOf | Pause, Result]


class PipelineRound:
    """Advances the sends in flight, and begins others while fewer than `max_in_flight` are there.

    A send that begins appends at once, after those before it. While sends wait, all of them poll the tables together,
    every `seconds`. They share what they read, until the next pause or until one of them writes. `next_send`: returns
    the next send, or None. `clock`: monotonic, in seconds.
    """

    def __init__(
        self,
        next_send: Callable[[], SendInFlight | None],
        max_in_flight: int,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._next_send = next_send
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._seconds = seconds
        self._poll_at = 0.0
        self._in_flight: list[SendInFlight] = []
        self._seen: dict[SendStep, Any] = {}  # the answers of the reads since the last pause and the last write

    @property
    def in_flight(self) -> int:
        """The number of sends in flight."""
        return len(self._in_flight)

    def run(self, until: Callable[[], bool] = lambda: False) -> Round[None]:
        """Goes on until nothing is left to send and to wait for, or until `until` returns true."""
        self._seen.clear()
        while not until():
            begun = self._next_send() if len(self._in_flight) < self._max_in_flight else None
            if begun is not None:
                if not self._in_flight:
                    self._poll_at = self._clock() + self._seconds
                self._in_flight.append(begun)
                yield from self._advance(begun)
            elif not self._in_flight:
                return
            if begun is None or self._clock() >= self._poll_at:
                yield from self._poll(begun)

    def _poll(self, begun: SendInFlight | None) -> Round[None]:
        """Continues the paused sends, in their order, except for `begun`, the send that has just begun. Without a
        `begun` it pauses first, and returns if the pause was cut short."""
        if begun is None:
            self._seen.clear()
            deadline = min(sending.deadline for sending in self._in_flight)
            is_cut_short = yield Pause(deadline, any(sending.is_backing_off for sending in self._in_flight))
            if is_cut_short:
                return
        self._poll_at = self._clock() + self._seconds
        for sending in list(self._in_flight):
            if sending is not begun:
                yield from self._advance(sending)

    def _advance(self, sending: SendInFlight) -> Round[None]:
        """Carries out the steps of a send until it pauses or ends. Its errors end this send only."""
        try:
            step = next(sending.work)
            while not isinstance(step, Pause):
                try:
                    answer = yield from self._answer(sending, step)
                except Exception as error:
                    step = sending.work.throw(error)
                else:
                    step = sending.work.send(answer)
            sending.is_backing_off = step.is_backoff
        except StopIteration as end:
            self._end(sending, end.value, None)
        except Exception as error:
            self._end(sending, None, error)

    def _answer(self, sending: SendInFlight, step: SendStep) -> Round[Any]:
        """Carries out a step, or returns what the same step has read for another send. A read of leaders' rows discards
        the logs that were read before it: they may lack records that a row claims."""
        if not isinstance(step, _READS):
            self._seen.clear()
            return (yield StepOf(sending.execute, step))
        if step not in self._seen:
            if isinstance(step, ReadLeaderships):
                self._seen = {read: found for read, found in self._seen.items() if not isinstance(read, ReadLeaderLogs)}
            self._seen[step] = yield StepOf(sending.execute, step)
        return self._seen[step]

    def _end(self, sending: SendInFlight, answers: Answers | None, error: BaseException | None) -> None:
        self._in_flight.remove(sending)
        sending.done(answers, error)

    def abort(self, error: BaseException) -> None:
        """Ends all sends in flight with an error; nobody knows whether their records are in a log. A callback that
        raises keeps no other send from its end."""
        while self._in_flight:
            sending = self._in_flight.pop(0)
            try:
                sending.work.close()
                sending.done(None, error)
            except BaseException:
                self.abort(error)
                raise
