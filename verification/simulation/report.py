"""Runs many histories of a tier, then every sabotage until an invariant catches it; `simulate` reports the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lakelog.verification.simulation.events import NO_FAULTS
from lakelog.verification.simulation.tiers import RULES, AnyHistory, Tier

Tell = Callable[[str], None]


class Found(NamedTuple):
    """A violation: its seed, and its history as short as possible."""

    seed: int
    history: AnyHistory

    def lines(self) -> list[str]:
        """The lines for people: the violation, its seed and settings, and the events that lead to it."""
        return [f"seed {self.seed}: {self.history.violation}", f"  {self.history.about}",
                *(f"  {line}" for line in self.history.trace)]  # fmt: skip


class Caught(NamedTuple):
    """The result of a sabotage: the invariant that caught it (None if none did), the seed of its first history, the
    number of histories, and the time in seconds."""

    name: str
    what: str
    invariant: str | None
    first_seed: int
    histories: int
    seconds: float


class Simulated(NamedTuple):
    """The result of the whole run. `seconds` is the time of the histories."""

    tier: Tier
    seed: int
    histories: int
    steps: int
    seconds: float
    found: tuple[Found, ...]
    sabotages: tuple[Caught, ...]

    @property
    def is_good(self) -> bool:
        """Whether there was no violation, and every sabotage was caught."""
        return not self.found and all(caught.invariant for caught in self.sabotages)


def simulate(histories: int, seed: int, tell: Tell = lambda _: None, tier: Tier = RULES) -> Simulated:
    """Runs `histories` histories from seed `seed` on, in one process, then each sabotage. It calls `tell` after each
    one."""
    steps, found, began = 0, [], time.perf_counter()
    for number in range(seed, seed + histories):
        history = tier.run(number, None)
        steps += history.steps
        if history.violation is not None:
            found.append(Found(number, tier.shrink(history)))
        tell("histories")
    seconds = time.perf_counter() - began
    return Simulated(tier, seed, histories, steps, seconds, tuple(found), tuple(_sabotages(tier, seed, tell)))


def _sabotages(tier: Tier, seed: int, tell: Tell) -> Iterator[Caught]:
    for name, sabotage in tier.sabotages.items():
        began, first = time.perf_counter(), tier.first_seed(name, seed)
        invariant, needed = catch(tier, name, first, tier.sabotage_seeds)
        yield Caught(name, sabotage.what, invariant, first, needed, round(time.perf_counter() - began, 1))
        tell("sabotages")


def catch(tier: Tier, name: str, seed: int, at_most: int) -> tuple[str | None, int]:
    """The invariant that first catches a sabotage (None if none does), and the number of histories that it took."""
    for number in range(at_most):
        violation = tier.run(seed + number, tier.sabotages[name]).violation
        if violation is not None and violation.invariant != NO_FAULTS:
            return violation.invariant, number + 1
    return None, at_most


def figures(run: Simulated) -> dict[str, Any]:
    """The figures as a JSON object."""
    caught = [sabotage for sabotage in run.sabotages if sabotage.invariant]
    return {
        "tier": run.tier.name,
        "seed": run.seed,
        "histories": run.histories,
        "violations": len(run.found),
        "steps": run.steps,
        "seconds": round(run.seconds, 1),
        "steps_per_second": round(run.steps / run.seconds),
        "a_step_is": run.tier.step_is,
        "sabotaged_rules": len(run.sabotages),
        "sabotaged_rules_caught": len(caught),
        "sabotages": [sabotage._asdict() for sabotage in run.sabotages],
        "failing_seeds": [found.seed for found in run.found],
    }
