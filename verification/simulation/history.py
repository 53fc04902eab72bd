"""One history: a seed determines its settings and its events, and the events determine everything else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.verification.simulation.history_events import (
    CRASH,
    FAULTS,
    NONE,
    PAUSE,
    RESUME,
    SHUTDOWN,
    START,
    Event,
    Violation,
    as_violation,
)
from lakelog.verification.simulation.rules import SHIPPED, Rules
from lakelog.verification.simulation.simulated_controller import SimulatedController
from lakelog.verification.simulation.simulated_tables import VersionedTable
from lakelog.verification.simulation.world import World
from lakelog.verification.simulation.world_state import WorldSettings

if TYPE_CHECKING:
    from lakelog.verification.simulation.world import World

_ROUNDS = 1_200  # the most steps of each thread
_POLLS = 20  # steps between two checks of which processes run
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
_NO_ERRORS = "rules_do_not_fail"
_CALM = 4  # one history in this many ends with a calm
_DELETIONS = 16  # one history in this many deletes records


def check_that_it_heals(world: World) -> None:
    """Raises Violation if the cluster does not converge within a limited number of steps."""
    ill = "nothing has happened yet"
    controller = _let_one_controller_run(world)
    for number in range(_ROUNDS):
        if number % _POLLS == 0:
            _let_everybody_run(world)
        threads = [thread for process in list(world.processes.values()) for thread in process.threads()]
        for thread in [*threads, controller]:
            world.apply(Event(thread, salt=number * 61 + 7))
        found = _ill(world)
        if found is None:
            return
        ill = found
    raise Violation("the_cluster_heals", ill)


def _let_everybody_run(world: World) -> None:
    """Lets one process of each broker run: the newest one, or a new one."""
    for broker in world.broker_ids:
        own = [name for name, process in world.processes.items() if process.broker_id == broker]
        for name in own[:-1]:
            world.apply(Event(name, CRASH))
        newest = world.processes[own[-1]] if own else None
        if newest is None or newest.is_shutting_down:
            if newest is not None:
                world.apply(Event(newest.name, CRASH))
            world.apply(Event(f"broker-{broker}", START))
        else:
            world.apply(Event(newest.name, RESUME))


def _let_one_controller_run(world: World) -> str:
    """Restarts all controllers and lets only the first one run. It knows which brokers live, and gets elected."""
    world.is_calm = True
    names = [name for name, actor in world.others.items() if isinstance(actor, SimulatedController)]
    for name in names:
        world.apply(Event(name, CRASH))
    return names[0]


def _ill(world: World) -> str | None:
    """The first fault that remains, None if there is none."""
    requests = world.admin.at(world.admin.newest).requests
    going = [topic for topic in world.topics.at(world.topics.newest).topics.values() if topic.deleting]
    if requests or going:
        return f"requests {requests} wait, topics {going} are being deleted"
    for registration in world.metadata.at(world.metadata.newest).partitions.values():
        fault = _fault(world, registration)
        if fault is not None:
            return f"{registration.topic_id}-{registration.partition}: {fault}; {registration}"
    return _left_over(world)


def _left_over(world: World) -> str | None:
    """The first records of a partition that is deleted, or on a broker that is not its replica."""
    partitions = world.metadata.at(world.metadata.newest).partitions
    for broker, table in world.logs.items():
        for partition, log in table.at(table.newest).partitions.items():
            found = partitions.get(partition)
            if log.batches and (found is None or broker not in found.replicas):
                return f"broker {broker} still has records of {partition}, which it is no replica of"
    return None


def _fault(world: World, registration: PartitionRegistration) -> str | None:
    partition, leader = registration.topic_id_partition, registration.leader
    if leader not in registration.replicas or set(registration.isr) != set(registration.replicas):
        return f"leader {leader}, ISR {registration.isr}"
    if is_reassigning(registration):
        return "is being moved"
    ends = {broker: world.checker.log(broker, partition).log_end_offset for broker in registration.replicas}
    row = world.replicas[leader].at(world.replicas[leader].newest).replicas.get(partition)
    if len(set(ends.values())) > 1 or row is None or row.leader_epoch != registration.leader_epoch:
        return f"log ends {ends}"
    return None if row.high_watermark == ends[leader] else f"HW {row.high_watermark}, log ends {ends}"


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


class History(NamedTuple):
    """The events of a history and its end. `violation` is None if every invariant held."""

    setting: WorldSettings
    events: tuple[Event, ...]
    is_calm_at_the_end: bool
    steps: int
    violation: Violation | None
    fingerprint: str
    trace: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """The settings of the history, as text."""
        return str(self.setting)


def run_seed(seed: int, rules: Rules = SHIPPED) -> History:
    """Runs the history of a seed."""
    random = Random(seed)
    setting = _setting(random)._replace(deletes_records=seed % _DELETIONS == _DELETIONS - 1)
    world = World(setting, rules)
    events: list[Event] = []
    violation = None
    is_calm = seed % _CALM == 0
    try:
        Driver(world, random, events).run()
        if is_calm:
            check_that_it_heals(world)
    except (Exception, Violation) as error:
        violation = as_violation(error, _NO_ERRORS)
    return History(setting, tuple(events), is_calm, world.step, violation, _fingerprint(world))


def run_events(
    setting: WorldSettings, events: Iterable[Event], is_calm: bool, rules: Rules = SHIPPED, traced: bool = False
) -> History:
    """Runs a history from its events, or from some of them."""
    events = tuple(events)
    world = World(setting, rules)
    world.trace = [] if traced else None
    violation = None
    try:
        for event in events:
            world.apply(event)
        if is_calm:
            check_that_it_heals(world)
    except (Exception, Violation) as error:
        violation = as_violation(error, _NO_ERRORS)
    return History(setting, events, is_calm, world.step, violation, _fingerprint(world), tuple(world.trace or ()))


def _setting(random: Random) -> WorldSettings:
    return WorldSettings(
        brokers=random.choice((2, 3, 3, 3, 4)),
        partitions=random.choice((1, 1, 2)),
        min_insync_replicas=random.choice((1, 2)),
        unclean_allowed=random.random() < 0.4,
        replica_lag_time_max=random.choice((0.5, 2.0, 6.0)),
        reassigns=random.random() < 0.5,
        deletes=random.random() < 0.2,
    )


def _fingerprint(world: World) -> str:
    """A hash of the final content of all tables; histories with different results have different hashes."""
    shared: list[VersionedTable[Any]] = [world.metadata, world.topics, world.admin, world.lease, world.registry]
    tables = [*shared, *world.logs.values(), *world.replicas.values()]
    facts = repr([(table.name, table.newest, table.at(table.newest)) for table in tables])
    return hashlib.sha256(facts.encode()).hexdigest()
