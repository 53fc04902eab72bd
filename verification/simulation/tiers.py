"""The tiers of `simulate`: `rules` runs the rules over records in memory; `stack` runs all shipped code except Spark
over a store in memory; `quorum` runs the rounds of a quorum of cluster roots over stores in memory; `cluster-roots` is
`stack` with three cluster roots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from lakelog.verification.simulation.history import History, run_seed
from lakelog.verification.simulation.history_events import NO_FAULTS, Violation
from lakelog.verification.simulation.quorum.quorum_history import QuorumHistory, run_quorum
from lakelog.verification.simulation.quorum.quorum_sabotages import QUORUM_SABOTAGES
from lakelog.verification.simulation.quorum.slot_explorer import EXPLORATIONS, SlotExplorer, SlotViolation
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.shrink import shrink

Tell = Callable[[str], None]


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
    `explorations`: the processes and faults whose interleavings are all checked, by name.
    """

    name: str
    step_is: str
    sabotages: Mapping[str, AnySabotage]
    sabotage_seeds: int
    run: Callable[[int, Any], AnyHistory]
    shrink: Callable[[Any], AnyHistory]
    rare: Mapping[str, int] = MappingProxyType({})
    explorations: Mapping[str, Callable[[], SlotExplorer]] = MappingProxyType({})

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
    # Imported late: it imports the brokers and pyspark.
    from lakelog.verification.simulation.stack.stack_history import run, shrink_stack
    from lakelog.verification.simulation.stack.stack_sabotages import STACK_SABOTAGES

    return Tier(
        "stack",
        "one read or write of a process at the store: a fault may happen there, and other processes may act meanwhile",
        STACK_SABOTAGES, 100, lambda seed, sabotage: run(seed, sabotage=sabotage), shrink_stack,
    )  # fmt: skip


def _cluster_roots() -> Tier:
    # Imported late, as above.
    from lakelog.verification.simulation.stack.root_sabotages import ROOT_SABOTAGES
    from lakelog.verification.simulation.stack.stack_history import run
    from lakelog.verification.simulation.stack.voting_roots import COUNT

    return _stack()._replace(
        name="cluster-roots", sabotages=ROOT_SABOTAGES,
        run=lambda seed, sabotage: run(seed, sabotage=sabotage, cluster_count=COUNT),
    )  # fmt: skip


def _run_quorum(seed: int, sabotage: Any) -> QuorumHistory:
    return run_quorum(seed) if sabotage is None else run_quorum(seed, sabotage.habits)


def _as_it_is(history: Any) -> Any:
    return history  # a seed makes a history of the quorum, and no list of events does


_RARE_OF_QUORUM = {"polls_its_own_roots": 6_526, "keeps_its_identity_in_a_restore": 247}

QUORUM = Tier(
    "quorum",
    "one request of one process at one root; then the invariants are checked",
    QUORUM_SABOTAGES, 1_000, _run_quorum, _as_it_is, _RARE_OF_QUORUM, EXPLORATIONS,
)  # fmt: skip

TIERS: Mapping[str, Callable[[], Tier]] = {
    "rules": lambda: RULES, "stack": _stack, "quorum": lambda: QUORUM, "cluster-roots": _cluster_roots,
}  # fmt: skip


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


class AllExplored(NamedTuple):
    """The result of an exploration: different states, the interleavings that lead through them, and the violation that
    ended it, with the moves that lead there."""

    what: str
    states: int
    interleavings: int
    violation: str | None


class Simulated(NamedTuple):
    """The result of the whole run. `seconds` is the time of the histories."""

    tier: Tier
    seed: int
    histories: int
    steps: int
    seconds: float
    found: tuple[Found, ...]
    sabotages: tuple[Caught, ...]
    explored: tuple[AllExplored, ...]

    @property
    def is_good(self) -> bool:
        """Whether there was no violation, and every sabotage was caught."""
        is_held = not self.found and not any(explored.violation for explored in self.explored)
        return is_held and all(caught.invariant for caught in self.sabotages)


def simulate(histories: int, seed: int, tell: Tell = lambda _: None, tier: Tier = RULES) -> Simulated:
    """Runs the explorations of the tier, then `histories` histories from seed `seed` on, in one process, then each
    sabotage. It calls `tell` after each one."""
    explored = tuple(_explored(tier, tell))
    steps, found, began = 0, [], time.perf_counter()
    for number in range(seed, seed + histories):
        history = tier.run(number, None)
        steps += history.steps
        if history.violation is not None:
            found.append(Found(number, tier.shrink(history)))
        tell("histories")
    seconds = time.perf_counter() - began
    return Simulated(tier, seed, histories, steps, seconds, tuple(found), tuple(_sabotages(tier, seed, tell)), explored)


def _explored(tier: Tier, tell: Tell) -> Iterator[AllExplored]:
    for what, explorer in tier.explorations.items():
        try:
            found = explorer().run()
            yield AllExplored(what, found.states, found.interleavings, None)
        except SlotViolation as violation:
            yield AllExplored(what, 0, 0, f"{violation}: {'; '.join(violation.moves)}")
        tell("explorations")


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
        "explored": [explored._asdict() for explored in run.explored],
    }
