"""A controller in memory: it stands by, is elected, and then decides as the shipped controller does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from random import Random
from typing import Any

from lakelog.replication.config import Config
from lakelog.replication.controller import term
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.events import Event
from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.verification.simulation.actor import Actor, Handler, Outcoming, Work
from lakelog.verification.simulation.history_events import AnswerLost
from lakelog.verification.simulation.invariants import requests_are_read
from lakelog.verification.simulation.simulated_tables import Admin, Claimed, Metadata, Topics
from lakelog.verification.simulation.stage import Stage

CONFIG = Config().with_sessions(is_local=True)

_REBALANCES = 4  # one poll in this many ends with a check of the balance of leaders
_BELATED, _WRONG = 0.35, 0.25  # probability that its list of live brokers is old, or wrong
_VACANT, _HASTY = (
    2,
    12,
)  # one poll in this many takes over if none is active, or from an active one (then a zombie)
_RENEWALS = 4  # one poll in this many renews the lease, and so notices another election


class SimulatedActiveController:
    """The state of a controller while it is active. It is lost when the controller is deposed or crashes.

    `views`: the brokers that the controller believes to live, as it sees them now.
    """

    def __init__(self, controller: Actor, epoch: int, views: Callable[[], Mapping[int, BrokerView]]) -> None:
        self._controller = controller
        self._views = views
        self._world = controller.world
        self._rules = controller.world.rules
        self._has_failed_over = False
        self._term = self._rules.term(
            ControllerContext(epoch, CONFIG), self._rules.decide, self._observe, lambda: self._world.now
        )
        self._handlers: dict[type, Handler] = {
            term.ClaimTables: self._claim_tables,
            term.ReadTopics: self._read_topics,
            term.ReadConfigs: lambda _: _at_once({}),
            term.ReadMetadata: self._read_metadata,
            term.ReadBrokers: self._read_brokers,
            term.ReadRequests: self._read_requests,
            term.IsBalanceDue: lambda _: _at_once(controller.turn.salt % _REBALANCES == 0),
            term.SettleWhatHasLanded: self._settle_what_has_landed,
            term.TakeUpRequest: lambda _: _at_once(True),
            term.BeginToApplyRequest: lambda _: _at_once(True),
            term.AnswerRequest: self._answer_request,
            term.ChangeTopics: self._change_topics,
            term.ChangeMetadata: self._change_metadata,
        }

    @property
    def context(self) -> ControllerContext:
        """The controller's knowledge of the cluster."""
        return self._term.context

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> Work:
        """Begins the term. Raises ControllerMovedException, AnswerLost."""
        yield from self._controller.carry_out(self._term.fail_over(brokers_before), self._handlers)
        self._has_failed_over = True

    def poll(self) -> Work:
        """Polls every table once. Raises ControllerMovedException, AnswerLost."""
        yield from self._controller.carry_out(self._term.poll(), self._handlers)

    def _observe(self, event: Event, _: Decision, before: ControllerContext, after: ControllerContext) -> None:
        self._world.checker.look_at_decision(event, before, after)

    def _claim_tables(self, _: term.ClaimTables) -> Outcoming:
        world = self._world
        for table in (world.metadata, world.topics, world.admin) if self._rules.controllers_claim else ():
            yield from self._controller.transact(table, self._claim, f"claim {self.context.controller_epoch}")

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

    def _read_topics(self, _: term.ReadTopics) -> Outcoming:
        yield
        return self._controller.read(self._world.topics, may_repeat=False)[1].topics

    def _read_metadata(self, _: term.ReadMetadata) -> Outcoming:
        yield
        version, metadata = self._controller.read(self._world.metadata, may_repeat=self._has_failed_over)
        return version, metadata.partitions

    def _read_brokers(self, _: term.ReadBrokers) -> Outcoming:
        yield
        return term.BrokersSeen(self._views())

    def _read_requests(self, _: term.ReadRequests) -> Outcoming:
        yield
        return self._controller.read(self._world.admin)[1].requests

    def _settle_what_has_landed(self, _: term.SettleWhatHasLanded) -> Outcoming:
        yield
        pending = self._controller.read(self._world.admin, may_repeat=False)[1].requests
        if pending:
            yield
            metadata = self._world.metadata
            since = min(request.metadata_version for request in pending)
            landed = {metadata.at(version).request for version in range(since + 1, metadata.newest + 1)}
            yield from self._answer([r.request_id for r in pending if r.request_id in landed])

    def _answer_request(self, step: term.AnswerRequest) -> Outcoming:
        requests_are_read(step.request, step.outcomes)
        self._controller.say("answers %s: %s", step.request, step.outcomes)
        yield from self._answer([step.request.request_id])

    def _change_metadata(self, step: term.ChangeMetadata) -> Outcoming:
        chosen: list[Decision] = []
        seen = -1
        landed: dict[str, Outcome] | None = None
        request, since = step.request.request_id if step.request else None, self._world.metadata.newest

        def decide(version: int, metadata: Metadata) -> Metadata | None:
            nonlocal seen, landed
            self._check_claim(metadata)
            seen = version
            written = {self._world.metadata.at(v).request for v in range(since + 1, version + 1)} if chosen else set()
            landed = {} if request is not None and request in written else None
            decision = step.choose(metadata.partitions, landed)
            chosen[:] = [decision]
            merged = {**metadata.partitions, **decision.changed}
            merged = {partition: r for partition, r in merged.items() if partition not in decision.removed}
            return None if merged == metadata.partitions else metadata._replace(partitions=merged, request=request)

        written = yield from self._controller.transact(self._world.metadata, decide, step.why)
        return chosen[-1], seen if written is None else written, landed is not None

    def _change_topics(self, step: term.ChangeTopics) -> Outcoming:
        put, drop = step.put, step.drop

        def decide(_: int, state: Topics) -> Topics | None:
            self._check_claim(state)
            after = {name: topic for name, topic in {**state.topics, **put}.items() if name not in drop}
            return None if after == state.topics else state._replace(topics=after)

        words = ", ".join([*(f"{t.topic} is {t}" for t in put.values()), *(f"{name} is removed" for name in drop)])
        yield from self._controller.transact(self._world.topics, decide, words)

    def _answer(self, decided: Collection[str]) -> Work:
        """Answers decided requests, which removes them from the table."""

        def decide(_: int, state: Admin) -> Admin | None:
            self._check_claim(state)
            left = tuple(request for request in state.requests if request.request_id not in decided)
            return None if left == state.requests else state._replace(requests=left)

        yield from self._controller.transact(self._world.admin, decide, f"answer {', '.join(decided)}")


def _at_once(found: Any) -> Outcoming:
    yield from ()
    return found


class SimulatedController(Actor):
    """One of several controllers. Each election has its own epoch, and controllers are often wrong about live
    brokers."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self.active: SimulatedActiveController | None = None
        self._believed = frozenset(world.broker_ids)
        # The brokers at its last two polls while it stood by: `controller.controller` gives the reason.
        self._brokers: tuple[Mapping[int, BrokerView], Mapping[int, BrokerView]] = ({}, {})

    @property
    def is_at_work(self) -> bool:
        """Whether it believes that it controls the cluster, and is not paused."""
        return self.active is not None and not self.is_paused

    def work(self) -> Work:
        while True:
            try:
                yield from self._stand_by()
                yield from self._serve()
            except (AnswerLost, ControllerMovedException) as error:
                self.say("stands by: %r", error)
            self.active, self._brokers = None, ({}, {})

    def _stand_by(self) -> Work:
        """Waits until it takes the active controller for gone, rightly or not."""
        is_due = False
        while not is_due:
            yield
            self._brokers = (self._brokers[1], self.views())
            is_due = self.world.is_calm or self.turn.salt % (_HASTY if self.world.is_controlled() else _VACANT) == 0
        epoch = yield from self._elect()
        self.active = SimulatedActiveController(self, epoch, self.views)

    def _elect(self) -> Generator[None, None, int]:
        mine = 0

        def decide(_: int, epoch: int) -> int:
            nonlocal mine
            mine = epoch + 1
            return mine

        yield from self.transact(self.world.lease, decide, "elected")
        return mine

    def _serve(self) -> Work:
        """Fails over, then polls all tables again and again. A later poll finishes what an interrupted one began.

        After a failed failover it gives up: another controller may succeed.
        """
        assert self.active is not None
        yield from self.active.fail_over(self._brokers[0])
        while True:
            try:
                if self.turn.salt % _RENEWALS == 0:
                    yield from self._renew(self.active.context.controller_epoch)
                yield from self.active.poll()
            except AnswerLost as error:
                self.say("gives up this poll: %r", error)

    def _renew(self, epoch: int) -> Work:
        yield
        elected = self.read(self.world.lease)[1]
        if elected > epoch:
            raise ControllerMovedException(f"another was elected under controller epoch {elected}")

    def views(self) -> dict[int, BrokerView]:
        """The brokers that it believes to be alive. In a calm it is right; otherwise its answer may be old or wrong."""
        registry = self.read(self.world.registry)[1]
        random = Random(self.turn.salt)
        chance = 1.0 if self.world.is_calm else random.random()
        if chance >= _BELATED + _WRONG:
            self._believed = frozenset(self.world.live())
        elif chance >= _BELATED:
            brokers = self.world.broker_ids
            self._believed = frozenset(random.sample(brokers, random.randint(1, len(brokers))))
        return {
            broker: BrokerView(row.broker_epoch, row.shutting_down, row.metadata_version)
            for broker, row in sorted(registry.items())
            if broker in self._believed
        }
