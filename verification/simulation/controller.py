"""A controller process: it stands by, gets elected, and then acts like the shipped controller."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from random import Random

from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.errors import ControllerMovedException
from lakelog.verification.simulation.active_controller import SimulatedActiveController
from lakelog.verification.simulation.actor import Actor, Work
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.stage import Stage

_BELATED, _WRONG = 0.35, 0.25  # probability that its list of live brokers is old, or wrong
_VACANT, _HASTY = 2, 12  # one look in this many takes over from nobody, or from a working controller (then a zombie)
_RENEWALS = 4  # one look in this many renews the lease, and so notices another election


class SimulatedController(Actor):
    """One of several controllers. Each election has its own epoch, and controllers are often wrong about live
    brokers."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self.active: SimulatedActiveController | None = None
        self._believed = frozenset(world.broker_ids)
        # The brokers at its last two looks while it stood by: `controller.controller` gives the reason.
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
        """Waits until the office seems vacant, even if it is not."""
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
        """Fails over, then looks at all tables again and again. A later look finishes what an interrupted one began.

        After a failed failover it gives up: another controller may succeed.
        """
        assert self.active is not None
        yield from self.active.fail_over(self._brokers[0])
        while True:
            try:
                if self.turn.salt % _RENEWALS == 0:
                    yield from self._renew(self.active.context.controller_epoch)
                yield from self.active.look()
            except AnswerLost as error:
                self.say("gives up this look: %r", error)

    def _renew(self, epoch: int) -> Work:
        yield
        elected = self.look(self.world.lease)[1]
        if elected > epoch:
            raise ControllerMovedException(f"another was elected under controller epoch {elected}")

    def views(self) -> dict[int, BrokerView]:
        """The brokers that it believes to be alive. In a calm it is right; otherwise its answer may be old or wrong."""
        registry = self.look(self.world.registry)[1]
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
