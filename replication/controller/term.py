"""The rounds of the active controller, from failover on: their steps, and their reads, decisions and writes in order.

Kafka: `KafkaController.onControllerFailover` and its event handlers. [FO-01, FO-02, FO-03, FO-04, FO-05]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decision import Decision, DecisionInterrupted
from lakelog.replication.controller.events import (
    EVENT_OF_REQUEST,
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerChange,
    ControllerEventManager,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
)
from lakelog.replication.errors import InvalidRequestException, LakelogException, UnknownServerException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.topic import Entity, Topic

logger = logging.getLogger(__name__)
state_changes = logging.getLogger("state.change.logger")

Partitions: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]


class ClaimTables(NamedTuple):
    """One commit on each table that a controller writes. After it no older controller can change them."""


class ReadTopics(NamedTuple):
    """A read, answered with the topics by name."""


class ReadConfigs(NamedTuple):
    """A read, answered with the settings of all entities."""


class ReadMetadata(NamedTuple):
    """A read, answered with the table's version and its partitions."""


class ReadBrokers(NamedTuple):
    """A read, answered with `BrokersSeen`. `newest`: brokers that have just registered must be among them."""

    newest: bool = False


class BrokersSeen(NamedTuple):
    """The live brokers, and the ids of all that have registered. `errors` has brokers' storage errors by id.
    `is_newest`: whether brokers that have just registered are among them. `unregistered`: those whose registration was
    removed."""

    live: Mapping[int, BrokerView]
    registered: frozenset[int] = frozenset()
    errors: Mapping[int, str] = {}
    is_newest: bool = True
    unregistered: frozenset[int] = frozenset()


class ReadRequests(NamedTuple):
    """A read of `admin`, answered with the waiting requests, oldest first. One commit refuses requests that cannot be
    carried out."""


class IsBalanceDue(NamedTuple):
    """In memory, answered by ActiveController: whether it is time to check the balance of leaders."""


class SettleWhatHasLanded(NamedTuple):
    """A read and one commit on `admin`: answers the requests that the last controller has carried out."""


class TakeUpRequest(NamedTuple):
    """One commit on `admin`: the request is being decided. Answered with False if it timed out or was withdrawn."""

    request: AdminRequest


class BeginToApplyRequest(NamedTuple):
    """One commit on `admin`: the decision is being written. Answered with False if the request was withdrawn."""

    request: AdminRequest


class AnswerRequest(NamedTuple):
    """One commit on `admin`: the outcomes of a request."""

    request: AdminRequest
    outcomes: Mapping[str, Outcome]


class ChangeTopics(NamedTuple):
    """One commit on `topics`: adds or replaces some, and drops others by name."""

    put: Mapping[str, Topic]
    drop: Collection[str]
    why: str


class ChangeConfigs(NamedTuple):
    """One commit on `configs`."""

    put: Mapping[Entity, Mapping[str, str]]
    why: str


class UnregisterBroker(NamedTuple):
    """One commit on the table of a broker's registration. Answered with False if the broker has begun or shown life
    since this process has read it; with True also if it was unregistered before."""

    broker: int
    why: str


class ChangeMetadata(NamedTuple):
    """One compare-and-set on `metadata`, with all changes of an event. The commit names `request` and its outcomes.

    Each attempt calls `choose`, because leaders may have changed ISRs meanwhile. Its arguments are the partitions and,
    if an earlier attempt has landed, the outcomes of that attempt, else None. The answer: (1) the last decision chosen;
    (2) the version of its commit or, if nothing changes, the version it was decided on; (3) whether an earlier attempt
    has landed.
    """

    choose: Callable[[Partitions, Mapping[str, Outcome] | None], Decision]
    request: AdminRequest | None
    why: str


Step: TypeAlias = (
    ClaimTables | ReadTopics | ReadConfigs | ReadMetadata | ReadBrokers | ReadRequests | IsBalanceDue
    | SettleWhatHasLanded | TakeUpRequest | BeginToApplyRequest | AnswerRequest | ChangeTopics | ChangeConfigs
    | UnregisterBroker | ChangeMetadata
)  # fmt: skip


Result = TypeVar("Result")


Round: TypeAlias = carry_out.Round[Step, Result]


class ControllerTerm:
    """The context and the rounds of the active controller under one controller epoch.

    `decide` returns the decision on an event. `observe` receives an event, the decision that was written, and the
    context before and after it.
    """

    def __init__(
        self, context: ControllerContext, decide: Callable[[ControllerContext, Event], Decision],
        observe: Callable[[Event, Decision, ControllerContext, ControllerContext], None],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.context = context
        self._decide = decide
        self._observe = observe
        self._events = ControllerEventManager(self._process, clock)
        self._version = -1
        self._decided: tuple[Event, ControllerContext, Decision] | None = None

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> Round[None]:
        """Claims the tables, reads them, and finishes the work of the last controller.

        It claims before it reads, so that no older controller can change the tables after that. `brokers_before` has
        the live brokers while the last controller was at work. [FO-01, FO-02, FO-03, FO-04]
        """
        yield ClaimTables()
        topics = yield ReadTopics()
        configs = yield ReadConfigs()
        self._version, partitions = yield ReadMetadata()
        brokers: BrokersSeen = yield ReadBrokers()
        self.context = replace(
            self.context, brokers=brokers.live, topics=topics, partitions=partitions, configs=configs,
            registered=brokers.registered, unregistered=brokers.unregistered,
        ).started(self._version)  # fmt: skip
        yield SettleWhatHasLanded()
        self._events.put(ControllerChange(brokers_before))
        yield from self._events.process_all()

    def poll(self) -> Round[None]:
        """Reads each table once, queues the events that follow, and processes them."""
        brokers: BrokersSeen = yield ReadBrokers()
        self._read_brokers(brokers)
        version, partitions = yield ReadMetadata()
        if version != self._version:
            self._version, self.context = version, self.context.with_partitions(partitions)
            self._events.put(IsrChangeNotification())
        requests = yield ReadRequests()
        if requests and not brokers.is_newest:  # a request may name a broker that has just registered
            self._read_brokers((yield ReadBrokers(newest=True)))
        for request in requests:
            self._events.put(EVENT_OF_REQUEST[request.kind](request))
        if (yield IsBalanceDue()):
            self._events.put(AutoPreferredReplicaLeaderElection())
        yield from self._events.process_all()

    def _read_brokers(self, seen: BrokersSeen) -> None:
        before, now = self.context.brokers, seen.live
        known = self.context.registered, self.context.unregistered
        if before == now and known == (seen.registered, seen.unregistered):
            return
        self.context = replace(
            self.context, brokers=now, registered=seen.registered, unregistered=seen.unregistered
        )  # fmt: skip
        if before.keys() != now.keys() or any(before[b].broker_epoch != now[b].broker_epoch for b in now):
            self._events.put(BrokerChange(before))
            self._log_storage_errors(before.keys() - now.keys(), seen)
        if any(before[b].offline != now[b].offline for b in before.keys() & now.keys()):
            self._events.put(LogDirEventNotification(before))
        for broker in sorted(self.context.shutting_down_brokers):
            if broker not in before or not before[broker].shutting_down:
                self._events.put(ControlledShutdown(broker))
        if self.context.deletions:
            self._events.put(BrokerModifications())

    def _log_storage_errors(self, failed: Collection[int], seen: BrokersSeen) -> None:
        """Logs the storage errors of brokers that have failed although they still send heartbeats. [LI-04]"""
        for broker in sorted(seen.errors.keys() & set(failed)):
            state_changes.warning(
                "controller epoch %d: LogDirEventNotification: broker %d has failed: %s",
                self.context.controller_epoch, broker, seen.errors[broker],
            )  # fmt: skip

    def _process(self, event: Event) -> Round[None]:
        """Decides on an event and writes the decision. It answers a request after all its writes."""
        request: AdminRequest | None = getattr(event, "request", None)
        if request is None:
            yield from self._write(event, self._first_decision(event), None)
        elif (yield TakeUpRequest(request)):
            outcomes = yield from self._outcomes(event, request)
            yield AnswerRequest(request, outcomes)

    def _first_decision(self, event: Event) -> Decision:
        """The decision on the context. It is kept, because the partitions are mostly still the same when it is
        written, and a decision depends on nothing else."""
        decision = self._decide(self.context, event)
        self._decided = event, self.context, decision
        return decision

    def _outcomes(self, event: Event, request: AdminRequest) -> Round[Mapping[str, Outcome]]:
        """The outcomes of a request, after all its writes but the answer. An unexpected error becomes its outcome, so
        that no request blocks the others."""
        try:
            decision = self._first_decision(event)
            if decision.writes and not request.validate_only and (yield BeginToApplyRequest(request)):
                decision = yield from self._write(event, decision, request)
            return decision.outcomes
        except (LakelogException, DecisionInterrupted):
            raise
        except Exception as error:
            logger.exception("request %s: %s", request.request_id, request.kind)
            problem = f"request {request.request_id}: {request.kind} failed with an error of the controller: {error!r}"
            return {request.kind: Outcome(UnknownServerException.__name__, problem)}

    def _write(self, event: Event, decision: Decision, request: AdminRequest | None) -> Round[Decision]:
        """Writes a decision. Topics are written before their partitions, and dropped after them. A broker that is to be
        unregistered and shows life keeps its registration and its settings."""
        before, why = self.context, decision.why
        for broker in sorted(decision.unregistered):
            if not (yield UnregisterBroker(broker, why)):
                refused = Decision(self.context, why)
                words = f"broker {broker} has begun or sent a heartbeat meanwhile: stop it first"
                refused.outcomes[str(broker)] = Outcome(InvalidRequestException.__name__, words)
                return refused
        if decision.topics:
            yield ChangeTopics(decision.topics, (), why)
        if decision.configs:
            yield ChangeConfigs(decision.configs, why)
        if decision.touches_metadata:
            decision, self._version, has_landed = yield ChangeMetadata(partial(self._choose, event), request, why)
            if has_landed:
                yield from self._read_anew()
                return decision
        self.context = decision.applied(self._version)
        self._observe(event, decision, before, self.context)
        if decision.deletions_begun:
            self._events.put(BrokerModifications())  # brokers may have applied it already
        if decision.dropped:
            yield ChangeTopics({}, decision.dropped, why)
        return decision

    def _read_anew(self) -> Round[None]:
        """Reads all again, as after a failover, because the context lacks the changes of an earlier attempt."""
        topics, configs = (yield ReadTopics()), (yield ReadConfigs())
        self._version, partitions = yield ReadMetadata()
        known = replace(self.context, topics=topics, configs=configs, partitions=partitions)
        self.context = known.started(self._version)
        self._events.put(ControllerChange(self.context.brokers))

    def _choose(self, event: Event, partitions: Partitions, landed: Mapping[str, Outcome] | None) -> Decision:
        """Decides on the partitions as they are now. If an earlier attempt has landed, nothing is left to change."""
        context = self.context.with_partitions(partitions)
        if landed is None:
            is_known = self._decided is not None and self._decided[:2] == (event, context)
            return self._decided[2] if self._decided and is_known else self._decide(context, event)
        decision = Decision(context, type(event).__name__)
        decision.outcomes.update(landed)
        return decision
