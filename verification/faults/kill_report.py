"""Prints the figures of the kill test as tables."""

from collections.abc import Mapping
from typing import Any

from lakelog.jobs.cli.console import show

_TABLES = ("time_to_first_acknowledged", "outages")


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints each figure, and the distribution of the outages."""
    show([{"figure": name, "value": value} for name, value in figures.items() if name not in _TABLES])
    show(figures["time_to_first_acknowledged"])
