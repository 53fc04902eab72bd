"""The figures of `bench scale`: as JSON for scripts, as a table for each thing that grows for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.report import circumstances
from lakelog.verification.bench.scale import Growth


def scale_figures(found: Sequence[Growth]) -> dict[str, object]:
    """All times in ms, by what grows and by its size."""
    most = max(found, key=lambda growth: growth.factor)
    return {
        "largest_growth": round(most.factor, 1),
        "action_that_grows_most": f"{most.action} ({min(most.seconds):,} to {max(most.seconds):,} {most.by})",
        "growth": [
            {
                "by": growth.by,
                "action": growth.action,
                "ms": {str(size): _ms(seconds) for size, seconds in growth.seconds.items()},
                "growth": round(growth.factor, 1),
            }
            for growth in found
        ],
        **circumstances(),
    }


def scale_tables(found: Sequence[Growth]) -> list[list[Row]]:
    """A table for each thing that grows: one row an action, a column of ms for each size, and the growth of the time
    from the smallest size to the largest."""
    return [[_row(growth) for growth in group] for _, group in groupby(found, key=lambda growth: growth.by)]


def _row(growth: Growth) -> Row:
    sizes = {f"{size:,} {growth.by}, ms": _ms(seconds) for size, seconds in growth.seconds.items()}
    return {"action": growth.action, **sizes, "growth": round(growth.factor, 1)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
