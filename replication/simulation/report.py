"""Many histories under the shipped rules, then every sabotage until it is caught: what `simulate` reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replication.simulation.history import History, run_seed
from replication.simulation.rules import SHIPPED, Rules
from replication.simulation.sabotage import SABOTAGES
from replication.simulation.shrink import shrink

STEP_IS = (
    "one actor carries out one step of its list, or one read or commit; then the invariants of what it has changed"
)

# Histories of a sabotage, at most: some are caught by a rare meeting of three accidents only.
SABOTAGE_SEEDS = 5_000

Tell = Callable[[str], None]


class Found(NamedTuple):
    """A violation: the seed, and its history as short as it got."""

    seed: int
    history: History

    def lines(self) -> list[str]:
        """For people: what does not hold, where it was found, and the events that lead there."""
        return [f"seed {self.seed}: {self.history.violation}", f"  {self.history.setting}",
                *(f"  {line}" for line in self.history.trace)]  # fmt: skip


class Caught(NamedTuple):
    """What has become of a sabotage: the invariant that caught it and after how many histories, or None."""

    name: str
    what: str
    invariant: str | None
    histories: int
    seconds: float


class Simulated(NamedTuple):
    """The whole run."""

    seed: int
    histories: int
    steps: int
    seconds: float
    found: tuple[Found, ...]
    sabotages: tuple[Caught, ...]

    @property
    def is_good(self) -> bool:
        """No violation, and every sabotage caught."""
        return not self.found and all(caught.invariant for caught in self.sabotages)


def simulate(histories: int, seed: int, tell: Tell = lambda _: None) -> Simulated:
    """Runs that many histories from that seed on, one process, one core; then each sabotage. `tell` hears of each."""
    steps, found, began = 0, [], time.perf_counter()
    for number in range(seed, seed + histories):
        history = run_seed(number)
        steps += history.steps
        if history.violation is not None:
            found.append(Found(number, shrink(history)))
        tell("histories")
    seconds = time.perf_counter() - began
    return Simulated(seed, histories, steps, seconds, tuple(found), tuple(_sabotages(seed, tell)))


def _sabotages(seed: int, tell: Tell) -> Iterator[Caught]:
    for name, sabotage in SABOTAGES.items():
        began = time.perf_counter()
        invariant, needed = catch(sabotage.rules, seed, SABOTAGE_SEEDS)
        yield Caught(name, sabotage.what, invariant, needed, round(time.perf_counter() - began, 1))
        tell("sabotages")


def catch(rules: Rules, seed: int, at_most: int) -> tuple[str | None, int]:
    """The invariant that first catches broken rules, and the histories it took."""
    assert rules is not SHIPPED
    for number in range(at_most):
        violation = run_seed(seed + number, rules).violation
        if violation is not None:
            return violation.invariant, number + 1
    return None, at_most


def figures(run: Simulated) -> dict[str, Any]:
    """For the JSON."""
    caught = [sabotage for sabotage in run.sabotages if sabotage.invariant]
    return {
        "seed": run.seed,
        "histories": run.histories,
        "violations": len(run.found),
        "steps": run.steps,
        "seconds": round(run.seconds, 1),
        "steps_per_second": round(run.steps / run.seconds),
        "a_step_is": STEP_IS,
        "sabotaged_rules": len(run.sabotages),
        "sabotaged_rules_caught": len(caught),
        "sabotages": [sabotage._asdict() for sabotage in run.sabotages],
        "failing_seeds": [found.seed for found in run.found],
    }
