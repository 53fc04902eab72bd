"""The two tiers of `simulate`: `rules` runs the rules over records in memory; `stack` runs all shipped code except
Spark over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lakelog.verification.simulation.events import Violation
from lakelog.verification.simulation.history import History, run_seed
from lakelog.verification.simulation.sabotage import SABOTAGES
from lakelog.verification.simulation.shrink import shrink


class AnyHistory(Protocol):
    """A history of one seed and its end."""

    @property
    def steps(self) -> int:
        """The number of steps."""

    @property
    def violation(self) -> Violation | None:
        """The invariant that did not hold; None if all held."""

    @property
    def trace(self) -> tuple[str, ...]:
        """The events, one line each."""

    @property
    def about(self) -> str:
        """The settings of the history, as text."""


class AnySabotage(Protocol):
    """A deliberate break."""

    @property
    def what(self) -> str:
        """A description of the break."""


class Tier(NamedTuple):
    """One tier. `run` runs the history of a seed, with a sabotage if one is given; `shrink` shortens a failed history.
    A sabotage gets at most `sabotage_seeds` histories. Those of a rare sabotage begin with the seed in `rare`.
    """

    name: str
    step_is: str
    sabotages: Mapping[str, AnySabotage]
    sabotage_seeds: int
    run: Callable[[int, Any], AnyHistory]
    shrink: Callable[[Any], AnyHistory]
    rare: Mapping[str, int] = MappingProxyType({})

    def first_seed(self, sabotage: str, seed: int) -> int:
        """The seed of a sabotage's first history, in a run that begins with `seed`."""
        return self.rare.get(sabotage, seed)


def _run_rules(seed: int, sabotage: Any) -> History:
    return run_seed(seed) if sabotage is None else run_seed(seed, sabotage.rules)


# Some sabotages are caught only if three rare accidents coincide. Those not caught in 5,000 histories are `rare`.
RULES = Tier(
    "rules",
    "one actor carries out one step of its list, or one read or commit; then the invariants of its change are checked",
    SABOTAGES, 5_000, _run_rules, shrink, {"forgets_the_high_watermark": 66_415},
)  # fmt: skip


def _stack() -> Tier:
    from lakelog.verification.simulation.stack.history import (  # imported late: it imports the brokers and pyspark
        run,
        shrink_stack,
    )
    from lakelog.verification.simulation.stack.sabotage import STACK_SABOTAGES

    return Tier(
        "stack",
        "one look or write of a process at the store: a fault may happen there, and other processes may act meanwhile",
        STACK_SABOTAGES, 100, lambda seed, sabotage: run(seed, sabotage=sabotage), shrink_stack,
    )  # fmt: skip


TIERS: Mapping[str, Callable[[], Tier]] = {"rules": lambda: RULES, "stack": _stack}
