"""One history: a seed determines its settings and its events, and the events determine everything else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from lakelog.verification.simulation.convergence import check_that_it_heals
from lakelog.verification.simulation.driver import Driver
from lakelog.verification.simulation.events import Event, Violation, as_violation
from lakelog.verification.simulation.rules import SHIPPED, Rules
from lakelog.verification.simulation.tables import VersionedTable
from lakelog.verification.simulation.world import World
from lakelog.verification.simulation.world_state import WorldSettings

_NO_ERRORS = "rules_do_not_fail"
_CALM = 4  # one history in this many ends with a calm
_DELETIONS = 16  # one history in this many deletes records


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
