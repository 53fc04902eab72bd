"""The report on scripts: one line a step and a table at the end for people, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lakelog.jobs.cli.console import Report
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.verification.scenarios.predictions import AS_PREDICTED, PredictionOutcome
from lakelog.verification.scenarios.scene import Observed
from lakelog.verification.scenarios.script import Script, Step
from lakelog.verification.scenarios.script_cluster import MetadataVersion

_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]"}


@dataclass(frozen=True)
class StepResult:
    """A completed step: its outcome, its end (ms since the first step began) and its duration (ms)."""

    step: Step
    outcome: Observed
    at_ms: int
    took_ms: int

    @property
    def ok(self) -> bool:
        """Whether the outcome is the expected one."""
        return self.outcome.fault is None

    def as_json(self) -> dict[str, object]:
        """The step as a JSON object. `at_ms` is its end, when its observation was made."""
        return {
            "step": self.step.name,
            "line": self.step.line,
            "arguments": dict(self.step.given),
            "ok": self.ok,
            "at_ms": self.at_ms,
            "took_ms": self.took_ms,
            **self.outcome.figures,
            "saw": self.outcome.saw,
            **({"fault": self.outcome.fault} if self.outcome.fault else {}),
        }


@dataclass(frozen=True)
class ScriptResult:
    """A script that ran to its end, or to its first failed step."""

    script: Script
    steps: tuple[StepResult, ...]
    history: Sequence[MetadataVersion]
    predictions: Sequence[PredictionOutcome] = ()

    @property
    def ok(self) -> bool:
        """Whether every step had the expected outcome, and every kill the predicted one."""
        return len(self.steps) == len(self.script.steps) and all(result.ok for result in self.steps) and not self.faults

    @property
    def faults(self) -> list[str]:
        """The predictions that were wrong."""
        return [outcome.fault for outcome in self.predictions if outcome.fault is not None]

    def as_json(self) -> dict[str, object]:
        """The result as a JSON object: name, success, steps, predictions and history."""
        return {
            "name": self.script.name,
            "ok": self.ok,
            "steps": [result.as_json() for result in self.steps],
            "predictions": [outcome.as_json() for outcome in self.predictions],
            "history": list(states(self.history)),
        }


def states(history: Sequence[MetadataVersion]) -> Iterator[dict[str, object]]:
    """Yields each state of each partition once, with the version that brought it, its writer and its reason."""
    last: dict[TopicIdPartition, PartitionRegistration] = {}
    for version in history:
        for partition, registration in version.partitions.items():
            if last.get(partition) != registration:
                last[partition] = registration
                yield _state(version, registration)


def _state(version: MetadataVersion, registration: PartitionRegistration) -> dict[str, object]:
    return {
        "version": version.version,
        "who": version.cause.get("who"),
        "why": version.cause.get("why"),
        "topic": registration.topic,
        "partition": registration.partition,
        "leader": registration.leader,
        "leader_epoch": registration.leader_epoch,
        "isr": list(registration.isr),
        "replicas": list(registration.replicas),
        "partition_epoch": registration.partition_epoch,
    }


class ScenarioReport:
    """Prints the report while scripts run."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True, emoji=False)

    def begins(self, script: Script) -> None:
        """Prints a heading."""
        self._console.print(f"[bold]{escape(script.name)}[/] {escape(script.path)}")

    def step(self, result: StepResult) -> None:
        """Prints tick or cross, time, step and observation; a fault goes on a line of its own."""
        time, seen = f"{result.at_ms / 1000:7.1f} s", result.outcome.words
        self._console.print(f"  {_MARKS[result.ok]} {time}  {escape(str(result.step))}  [dim]{escape(seen)}[/]")
        if result.outcome.fault:
            self._console.print(f"    line {result.step.line}: [red]{escape(result.outcome.fault)}[/]")

    def ends(self, results: Sequence[ScriptResult]) -> None:
        """Prints the predictions that were wrong, and one row a script."""
        for result in results:
            for fault in result.faults:
                self._console.print(f"  {_MARKS[False]} {escape(result.script.name)}: [red]{escape(fault)}[/]")
        Report([_row(result) for result in results]).show()


def _row(result: ScriptResult) -> dict[str, object]:
    return {
        "script": result.script.name,
        "": "✓" if result.ok else "✗",
        "steps": len(result.steps),
        "of": len(result.script.steps),
        "seconds": round(result.steps[-1].at_ms / 1000, 1),
        "states": len({version.version for version in result.history}),
        "as predicted": f"{sum(v.words == AS_PREDICTED for v in result.predictions)} of {len(result.predictions)}",
    }


def write_json(path: Path, results: Sequence[ScriptResult]) -> None:
    """Writes one script's result as an object, several as a list."""
    objects = [result.as_json() for result in results]
    path.write_text(json.dumps(objects[0] if len(objects) == 1 else objects, indent=2) + "\n")
