"""The report on scripts: one line a step and a table at the end for people, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from lakelog.jobs.cli.console import show
from lakelog.verification.scenarios.result import ScriptResult, StepResult
from lakelog.verification.scenarios.script import Script

_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]"}


class Report:
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
        """Prints one row a script."""
        show([_row(result) for result in results])


def _row(result: ScriptResult) -> dict[str, object]:
    return {
        "script": result.script.name,
        "": "✓" if result.ok else "✗",
        "steps": len(result.steps),
        "of": len(result.script.steps),
        "seconds": round(result.steps[-1].at_ms / 1000, 1),
        "states": len({version.version for version in result.history}),
    }


def write_json(path: Path, results: Sequence[ScriptResult]) -> None:
    """Writes one script's result as an object, several as a list."""
    objects = [result.as_json() for result in results]
    path.write_text(json.dumps(objects[0] if len(objects) == 1 else objects, indent=2) + "\n")
