"""A term of office: the order of reads and writes of `controller.active_controller`, around the shipped decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from replication.config import Config
from replication.controller.batch import Batch
from replication.controller.controller_context import BrokerView, ControllerContext
from replication.controller.events import (
    EVENT_OF_REQUEST,
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerChange,
    Event,
    IsrChangeNotification,
)
from replication.errors import ControllerMovedException
from replication.protocol.admin_request import AdminRequest
from replication.protocol.topic import Topic
from replication.simulation.actor import Work
from replication.simulation.controller_invariants import requests_are_read
from replication.simulation.tables import Admin, Claimed, Metadata, Topics

if TYPE_CHECKING:
    from replication.simulation.controller import Controller

CONFIG = Config()

_REBALANCES = 4  # one look in so many ends with a look at the balance of leaders


class ActiveController:
    """What a controller holds while it is active. All of it is gone when it is deposed, or crashes."""

    def __init__(self, controller: Controller, epoch: int) -> None:
        self._controller = controller
        self._world = controller.world
        self._rules = controller.world.rules
        self._version = -1
        self._events: deque[Event] = deque()
        self.context = ControllerContext(epoch, CONFIG)

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> Work:
        """Claims, then reads, then goes on with what was half done. Raises ControllerMovedException, AnswerLost."""
        world, look = self._world, self._controller.look
        for table in (world.metadata, world.topics, world.admin) if self._rules.controllers_claim else ():
            yield from self._controller.transact(table, self._claim, f"claim {self.context.controller_epoch}")
        yield
        topics = look(world.topics, may_repeat=False)[1].topics
        yield
        self._version, metadata = look(world.metadata, may_repeat=False)
        yield
        brokers = self._controller.views()
        known = replace(self.context, brokers=brokers, topics=topics, partitions=metadata.partitions)
        self.context = known.started(self._version)
        yield from self._settle_what_has_landed()
        self._put(ControllerChange(brokers_before))
        yield from self._process_all()

    def _claim(self, _: int, state: Any) -> Any:
        self._check_claim(state)
        epoch = self.context.controller_epoch
        return None if state.controller_epoch == epoch else state._replace(controller_epoch=epoch)

    def _check_claim(self, state: Claimed) -> None:
        epoch = self.context.controller_epoch
        if state.controller_epoch > epoch:
            raise ControllerMovedException(
                f"controller epoch {epoch} is over: epoch {state.controller_epoch} has claimed the table"
            )

    def _settle_what_has_landed(self) -> Work:
        yield
        pending = self._controller.look(self._world.admin, may_repeat=False)[1].requests
        if pending:
            yield
            metadata = self._world.metadata
            since = min(request.metadata_version for request in pending)
            landed = {metadata.at(version).request for version in range(since + 1, metadata.newest + 1)}
            yield from self._answer([r.request_id for r in pending if r.request_id in landed])

    def look(self) -> Work:
        """Looks at every table once, and deals with what has happened. Raises ControllerMovedException, AnswerLost."""
        yield
        self._look_at_brokers()
        yield
        self._look_at_metadata()
        yield
        for request in self._controller.look(self._world.admin)[1].requests:
            self._put(EVENT_OF_REQUEST[request.kind](request))
        if self._controller.turn.salt % _REBALANCES == 0:
            self._put(AutoPreferredReplicaLeaderElection())
        yield from self._process_all()

    def _look_at_brokers(self) -> None:
        before, now = self.context.brokers, self._controller.views()
        if before == now:
            return
        self.context = replace(self.context, brokers=now)
        if before.keys() != now.keys() or any(before[b].broker_epoch != now[b].broker_epoch for b in now):
            self._put(BrokerChange(before))
        for broker in sorted(self.context.shutting_down_brokers):
            if broker not in before or not before[broker].shutting_down:
                self._put(ControlledShutdown(broker))
        if self.context.deletions:
            self._put(BrokerModifications())

    def _look_at_metadata(self) -> None:
        version, metadata = self._controller.look(self._world.metadata)
        if version > self._version:
            self._version, self.context = version, self.context.with_partitions(metadata.partitions)
            self._put(IsrChangeNotification())

    def _put(self, event: Event) -> None:
        if event not in self._events:
            self._events.append(event)

    def _process_all(self) -> Work:
        """An event whose processing raises stays at the head of the queue."""
        while self._events:
            yield from self._process(self._events[0])
            self._events.popleft()

    def _process(self, event: Event) -> Work:
        """Topics are written before their partitions and dropped after them; an answer comes last of all."""
        before, batch = self.context, self._rules.decide(self.context, event)
        request: AdminRequest | None = getattr(event, "request", None)
        if batch.topics:
            yield from self._change_topics(batch.topics, ())
        if batch.touches_metadata:
            batch = yield from self._commit(event, request)
        self.context = batch.applied(self._version)
        self._world.witness.look_at_decision(event, before, self.context)
        if batch.dropped:
            yield from self._change_topics({}, batch.dropped)
        if request is not None:
            requests_are_read(request, batch.outcomes)
            self._controller.say("answers %s: %s", request, batch.outcomes)
            yield from self._answer([request.request_id])

    def _commit(self, event: Event, request: AdminRequest | None) -> Generator[None, None, Batch]:
        """One compare-and-set for all that the event changes; decided anew if anything has come between."""
        last: list[Batch] = []

        def decide(version: int, metadata: Metadata) -> Metadata | None:
            self._check_claim(metadata)
            self._version = version
            batch: Batch = self._rules.decide(self.context.with_partitions(metadata.partitions), event)
            last[:] = [batch]
            merged = {**metadata.partitions, **batch.changed}
            merged = {partition: r for partition, r in merged.items() if partition not in batch.removed}
            carried_out = request.request_id if request else None
            return None if merged == metadata.partitions else metadata._replace(partitions=merged, request=carried_out)

        written = yield from self._controller.transact(self._world.metadata, decide, type(event).__name__)
        self._version = self._version if written is None else written
        return last[-1]

    def _change_topics(self, put: Mapping[str, Topic], drop: Collection[str]) -> Work:
        def decide(_: int, state: Topics) -> Topics | None:
            self._check_claim(state)
            after = {name: topic for name, topic in {**state.topics, **put}.items() if name not in drop}
            return None if after == state.topics else state._replace(topics=after)

        words = ", ".join([*(f"{t.topic} is {t}" for t in put.values()), *(f"{name} is gone" for name in drop)])
        yield from self._controller.transact(self._world.topics, decide, words)

    def _answer(self, decided: Collection[str]) -> Work:
        """Requests that have been decided are answered, which takes them off the table."""

        def decide(_: int, state: Admin) -> Admin | None:
            self._check_claim(state)
            left = tuple(request for request in state.requests if request.request_id not in decided)
            return None if left == state.requests else state._replace(requests=left)

        yield from self._controller.transact(self._world.admin, decide, f"answer {', '.join(decided)}")
