"""The kill test as a person follows it: how far it has come, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.console import show

_TABLES = ("time_to_first_acknowledged", "outages")


class KillReport:
    """A bar on stderr while the test runs."""

    def __init__(self, kills: int) -> None:
        words = (TextColumn("{task.completed} kills"), TextColumn("{task.fields[acknowledged]} acknowledged"))
        self._progress = Progress(
            BarColumn(), *words, TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
        )
        self._task = self._progress.add_task("", total=kills + 1, acknowledged=0)

    def __enter__(self) -> KillReport:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None:
        """What happens now, and what there is so far."""
        self._progress.update(self._task, description=description, completed=completed, acknowledged=acknowledged)


def show_figures(figures: Mapping[str, Any]) -> None:
    """Each figure, and the distribution of the outages."""
    show([{"figure": name, "value": value} for name, value in figures.items() if name not in _TABLES])
    show(figures["time_to_first_acknowledged"])
