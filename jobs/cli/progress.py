"""A bar on stderr that shows the progress of a long run."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def counting_bar(is_shown: bool = True) -> Progress:
    """A bar on stderr with a count and the time that has passed; `add_task` names what is counted."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), disable=not is_shown)
