"""Draws the events of a history: the next actor, and the faults of its step."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from lakelog.verification.simulation.controller import SimulatedController
from lakelog.verification.simulation.events import CRASH, FAULTS, NONE, PAUSE, RESUME, SHUTDOWN, START, Event
from lakelog.verification.simulation.world import World

_SALT = 2**30
_WARM_UP = 40  # steps of each thread before the first fault
_BURSTS = (2, 3, 1, 5, 8, 16)  # numbers of steps that an actor takes in a row
_MENDS = 0.8  # probability that a start is for a stopped broker; otherwise it makes a zombie of another process
_INTERRUPTS = 0.2  # probability that a broker's commit to the metadata comes much later
_LATE_CONTROLLERS = 0.03  # probability that a controller's commit to any table comes much later, or never
_OF_CONTROLLERS = 0.15  # share of the accidents that hit a controller
_CHANGES = 0.02  # probability that other brokers become the slow ones

_ZOMBIE = "pause, and start another process of the same broker"
_ACTS = {START: 7, CRASH: 4, PAUSE: 3, RESUME: 5, SHUTDOWN: 1, _ZOMBIE: 2}
_OF_A_CONTROLLER = {CRASH: 2, PAUSE: 2, RESUME: 3}


class Mood(NamedTuple):
    """The length of a history and the probabilities of its events. Each history draws its own, to cover all kinds."""

    length: int
    life: float
    fault: float
    brokers: float
    producers: int
    controllers: int


class Driver:
    """Draws events one by one, appends them to `events` and applies them."""

    def __init__(self, world: World, random: Random, events: list[Event]) -> None:
        self._world = world
        self._random = random
        self._events = events
        self._mood = Mood(
            length=random.choice((300, 600, 1200, 2000)),
            life=random.choice((0.01, 0.03, 0.08)),
            fault=random.choice((0.0, 0.03, 0.1)),
            brokers=random.choice((0.4, 0.6, 0.75)),
            producers=random.choice((4, 9)),
            controllers=random.choice((6, 15, 30)),
        )
        self._speeds: dict[int, float] = {}

    def run(self) -> None:
        """Runs the whole history: a quiet beginning, then all kinds of events."""
        world, random = self._world, self._random
        for _ in range(_WARM_UP):
            for actor in [name for name in world.runnable() if not name.startswith(("controller", "admin"))]:
                self._apply(Event(actor, salt=random.randrange(_SALT)))
        end = world.step + self._mood.length
        while world.step < end:
            if not self._speeds or random.random() < _CHANGES:
                self._speeds = {broker: random.choice((1.0, 1.0, 0.5, 0.1)) for broker in world.broker_ids}
            about = [
                n for n, p in world.processes.items() if not p.is_paused and p.is_about_to_commit is world.metadata
            ]
            if about and random.random() < _INTERRUPTS:
                self._late_commit(random.choice(about))
            self._interrupt_controllers()
            accident = self._accident()
            for event in accident:
                self._apply(event)
            if not accident:
                self._burst(end)

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        self._world.apply(event)

    def _burst(self, end: int) -> None:
        """Lets one actor take several steps in a row."""
        random, actor = self._random, self._somebody()
        is_long = "/" in actor or actor.startswith("controller")
        for _ in range(random.choice(_BURSTS if is_long else _BURSTS[:3])):
            if actor not in self._world.runnable() or self._world.step >= end:
                return
            fault = random.choice(FAULTS) if random.random() < self._mood.fault else NONE
            self._apply(Event(actor, fault=fault, salt=random.randrange(_SALT)))

    def _somebody(self) -> str:
        """Chooses a broker thread most of the time, else a client or a controller, mostly the active one."""
        mood, random = self._mood, self._random
        threads = [name for name in self._world.runnable() if "/" in name]
        if threads and random.random() < mood.brokers:
            weights = [self._speeds[_broker_of(name)] * (2 if name.endswith("/main") else 1) for name in threads]
            return random.choices(threads, weights)[0]
        others = [name for name in self._world.runnable() if "/" not in name]
        return random.choices(others, [self._weight(name) for name in others])[0]

    def _weight(self, name: str) -> int:
        if name.startswith("producer"):
            return self._mood.producers
        actor = self._world.others[name]
        is_at_work = isinstance(actor, SimulatedController) and actor.is_at_work
        return self._mood.controllers if is_at_work else 6 if name.startswith(("reader", "deleter")) else 1

    def _late_commit(self, process: str) -> None:
        """A process freezes just before it commits to the metadata, and resumes only after another one has taken over.

        In between, only that one and the producers act.
        """
        random, broker = self._random, self._world.processes[process].broker_id
        self._apply(Event(process, PAUSE))
        self._apply(_start(broker))
        self._meanwhile(f"broker-{broker}.", "producer")
        self._apply(Event(process, RESUME))
        self._apply(Event(f"{process}/main", salt=random.randrange(_SALT)))

    def _meanwhile(self, *names: str) -> None:
        """Lets only actors with these name prefixes act for a while."""
        for _ in range(self._random.choice((50, 100, 150))):
            cast = [name for name in self._world.runnable() if name.startswith(names)]
            self._apply(Event(self._random.choice(cast), salt=self._random.randrange(_SALT)))

    def _interrupt_controllers(self) -> None:
        """A controller crashes just before a commit, or freezes and commits after another one has taken over."""
        about = [
            name
            for name, actor in self._world.others.items()
            if isinstance(actor, SimulatedController) and not actor.is_paused and actor.is_about_to_commit
        ]
        if not about or self._random.random() >= _LATE_CONTROLLERS:
            return
        name, act = self._random.choice(about), self._random.choice((CRASH, PAUSE))
        self._apply(Event(name, act))
        if act == PAUSE:
            self._meanwhile("controller", "broker", "admin")
            self._apply(Event(name, RESUME))
            self._apply(Event(name, salt=self._random.randrange(_SALT)))

    def _accident(self) -> list[Event]:
        """The events of an accident, if there is one now."""
        world, random = self._world, self._random
        if random.random() >= self._mood.life:
            return []
        if random.random() < _OF_CONTROLLERS:
            return [self._accident_of_a_controller()]
        act = random.choices(list(_ACTS), list(_ACTS.values()))[0]
        if act == START or not world.processes:
            dead = [broker for broker in world.broker_ids if broker not in world.live()]
            return [_start(random.choice(dead if dead and random.random() < _MENDS else world.broker_ids))]
        paused = [name for name, process in world.processes.items() if process.is_paused]
        return self._hit(act, random.choice(paused if act == RESUME and paused else list(world.processes)))

    def _accident_of_a_controller(self) -> Event:
        controllers = {n: actor for n, actor in self._world.others.items() if isinstance(actor, SimulatedController)}
        act = self._random.choices(list(_OF_A_CONTROLLER), list(_OF_A_CONTROLLER.values()))[0]
        hit = [n for n, actor in controllers.items() if (actor.is_paused if act == RESUME else actor.is_at_work)]
        return Event(self._random.choice(hit or list(controllers)), act)

    def _hit(self, act: str, process: str) -> list[Event]:
        if act == _ZOMBIE:
            return [Event(process, PAUSE), _start(self._world.processes[process].broker_id)]
        return [Event(process, act)]


def _start(broker: int) -> Event:
    return Event(f"broker-{broker}", START)


def _broker_of(thread: str) -> int:
    return int(thread.removeprefix("broker-").partition(".")[0])
