"""The two tiers of the simulation, as `simulate` runs them: the rules over records in memory, and all that ships but
Spark over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from lakelog.replication.simulation.events import Violation
from lakelog.replication.simulation.history import History, run_seed
from lakelog.replication.simulation.sabotage import SABOTAGES
from lakelog.replication.simulation.shrink import shrink


class AnyHistory(Protocol):
    """What was run under one seed, and how it ended."""

    @property
    def steps(self) -> int:
        """How many there were."""

    @property
    def violation(self) -> Violation | None:
        """The invariant that did not hold."""

    @property
    def trace(self) -> tuple[str, ...]:
        """What has happened, line by line."""

    @property
    def about(self) -> str:
        """What the history had to do with."""


class AnySabotage(Protocol):
    """Something that is broken."""

    @property
    def what(self) -> str:
        """In words."""


class Tier(NamedTuple):
    """One tier. `run` makes the history of a seed, under a sabotage if one is given; `shrink` makes a failed one as
    short as it gets. A sabotage is tried with at most `sabotage_seeds` histories."""

    name: str
    step_is: str
    sabotages: Mapping[str, AnySabotage]
    sabotage_seeds: int
    run: Callable[[int, Any], AnyHistory]
    shrink: Callable[[Any], AnyHistory]


def _run_rules(seed: int, sabotage: Any) -> History:
    return run_seed(seed) if sabotage is None else run_seed(seed, sabotage.rules)


# 5,000 histories: before some sabotages are caught, three rare accidents must meet.
RULES = Tier(
    "rules",
    "one actor carries out one step of its list, or one read or commit; then the invariants of what it has changed",
    SABOTAGES, 5_000, _run_rules, shrink,
)  # fmt: skip


def _stack() -> Tier:
    from lakelog.replication.simulation.stack.history import (  # it imports the brokers, and pyspark with them
        run,
        shrink_stack,
    )
    from lakelog.replication.simulation.stack.sabotage import STACK_SABOTAGES

    return Tier(
        "stack",
        "one look or write of a process at the store: something may break there, and others may go on meanwhile",
        STACK_SABOTAGES, 100, lambda seed, sabotage: run(seed, sabotage=sabotage), shrink_stack,
    )  # fmt: skip


TIERS: Mapping[str, Callable[[], Tier]] = {"rules": lambda: RULES, "stack": _stack}
