"""How far a long test has come, as a person follows it: a bar on stderr."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def counting_bar(is_shown: bool = True) -> Progress:
    """A bar on stderr with a count and the time that has passed; `add_task` names what is counted."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), disable=not is_shown)


class ProgressReport(Protocol):
    """Takes the progress of a test."""

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None: ...


class CourseProgress:
    """The bar of `total` blows, which are called `what`, and of the way back to order after the last one."""

    def __init__(self, what: str, total: int) -> None:
        words = (TextColumn(f"{{task.completed}} {what}"), TextColumn("{task.fields[acknowledged]} acknowledged"))
        self._progress = Progress(
            BarColumn(), *words, TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
        )
        self._task = self._progress.add_task("", total=total + 1, acknowledged=0)

    def __enter__(self) -> CourseProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None:
        """What happens now, and what there is so far."""
        self._progress.update(self._task, description=description, completed=completed, acknowledged=acknowledged)
