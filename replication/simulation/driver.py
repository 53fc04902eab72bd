"""Draws the events of a history: who takes the next step, and what goes wrong with it."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from replication.simulation.events import CRASH, FAULTS, NONE, PAUSE, RESUME, SHUTDOWN, START, Event
from replication.simulation.world import World

_SALT = 2**30
_WARM_UP = 40  # steps of each thread, before anything goes wrong
_BURSTS = (2, 3, 1, 5, 8, 16)  # steps that somebody takes in a row
_MENDS = 0.8  # how often a start is for a broker that is not at work; else it makes a zombie of another process
_INTERRUPTS = 0.2  # how often a process that is about to commit to the metadata does so much later
_CHANGES = 0.02  # how often other brokers become the slow ones

_ZOMBIE = "pause, and start another process of the same broker"
_ACTS = {START: 7, CRASH: 4, PAUSE: 3, RESUME: 5, SHUTDOWN: 1, _ZOMBIE: 2}
_OTHERS = ("producer-1", "producer-2", "producer-3", "reader-1", "controller-1", "controller-2")


class Mood(NamedTuple):
    """How a history goes: its length, and how often what happens. Each one has its own, so that all see something."""

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
            controllers=random.choice((2, 6, 15)),
        )
        self._speeds: dict[int, float] = {}

    def run(self) -> None:
        """The whole history: a quiet beginning, then everything at once."""
        world, random = self._world, self._random
        for _ in range(_WARM_UP):
            for actor in [name for name in world.runnable() if not name.startswith("controller")]:
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
            accident = self._accident()
            for event in accident:
                self._apply(event)
            if not accident:
                self._burst(end)

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        self._world.apply(event)

    def _burst(self, end: int) -> None:
        """Who has begun something often goes on with it for a while."""
        random, actor = self._random, self._somebody()
        for _ in range(random.choice(_BURSTS if "/" in actor else _BURSTS[:3])):
            if actor not in self._world.runnable() or self._world.step >= end:
                return
            fault = random.choice(FAULTS) if random.random() < self._mood.fault else NONE
            self._apply(Event(actor, fault=fault, salt=random.randrange(_SALT)))

    def _somebody(self) -> str:
        """A thread of a broker, mostly; controllers seldom, as one step of theirs moves everybody."""
        mood, random = self._mood, self._random
        threads = [name for name in self._world.runnable() if "/" in name]
        if threads and random.random() < mood.brokers:
            weights = [self._speeds[_broker_of(name)] * (2 if name.endswith("/main") else 1) for name in threads]
            return random.choices(threads, weights)[0]
        return random.choices(_OTHERS, [*[mood.producers] * 3, 3, mood.controllers, 1])[0]

    def _late_commit(self, process: str) -> None:
        """A process freezes just before it commits to the metadata, and goes on only when another one has taken over.

        Meanwhile that one and the producers have the world to themselves.
        """
        world, random, broker = self._world, self._random, self._world.processes[process].broker_id
        self._apply(Event(process, PAUSE))
        self._apply(_start(broker))
        for _ in range(random.choice((50, 100, 150))):
            cast = [name for name in world.runnable() if name.startswith((f"broker-{broker}.", "producer"))]
            self._apply(Event(random.choice(cast), salt=random.randrange(_SALT)))
        self._apply(Event(process, RESUME))
        self._apply(Event(f"{process}/main", salt=random.randrange(_SALT)))

    def _accident(self) -> list[Event]:
        """What happens to a process now, if anything does."""
        world, random = self._world, self._random
        if random.random() >= self._mood.life:
            return []
        act = random.choices(list(_ACTS), list(_ACTS.values()))[0]
        if act == START or not world.processes:
            dead = [broker for broker in world.broker_ids if broker not in world.live()]
            return [_start(random.choice(dead if dead and random.random() < _MENDS else world.broker_ids))]
        paused = [name for name, process in world.processes.items() if process.is_paused]
        return self._hit(act, random.choice(paused if act == RESUME and paused else list(world.processes)))

    def _hit(self, act: str, process: str) -> list[Event]:
        if act == _ZOMBIE:
            return [Event(process, PAUSE), _start(self._world.processes[process].broker_id)]
        return [Event(process, act)]


def _start(broker: int) -> Event:
    return Event(f"broker-{broker}", START)


def _broker_of(thread: str) -> int:
    return int(thread.removeprefix("broker-").partition(".")[0])
