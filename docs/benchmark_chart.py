"""Draws `docs/benchmarks.svg` from the figures of `docs/benchmarks.md`: `.venv/bin/python docs/benchmark_chart.py`.

A test fails if the page has other figures than the chart, so run it after each change of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from lakelog.jobs.web.console_style import drawing

PAGE = Path(__file__).resolve().parent / "benchmarks.md"
CHART = PAGE.with_name("benchmarks.svg")

_WIDTH, _LEFT, _RIGHT = 1000.0, 300.0, 900.0
_ROW, _GROUP, _TOP = 26.0, 40.0, 62.0
_MILLISECONDS = {"ms": 1.0, "s": 1000.0}
TITLE = "Lakelog, a plain Delta-to-Delta stream, and Kafka"


class Bar(NamedTuple):
    """A bar: who, and where the page has the figure, as the begin of a row and the number of its column; or why there
    is none."""

    who: str
    colour: str
    row: str = ""
    column: int = 0
    missing: str = ""


_BESIDE = "| an acknowledged send of one record to each of 12 partitions"
_STREAM, _LAKELOG = ("Delta-to-Delta stream", "b1"), ("Lakelog", "b0")
_SEND = "| [**Send**](#sends) one record to each of 12 partitions"
_SMALL, _LARGE = "| 1,000 records, 12 commits", "| 500,000 records of 1 KB, random bytes, 504 MB"

GROUPS = {
    "An acknowledged send of 12 records, on three replicas": (
        Bar("Lakelog, brokers as processes", "b0", _BESIDE, 1), Bar("Lakelog, all in one process", "b0", _SEND, 1),
        Bar("Kafka, brokers as processes", "b5", _BESIDE, 2), Bar(*_STREAM, missing="acknowledges nothing"),
    ),
    "A commit of 1,000 records, until the copy has it": (
        Bar(*_LAKELOG, _SMALL, 1), Bar(*_STREAM, _SMALL, 2),
    ),
    "A commit of 504 MB, until the copy has it": (Bar(*_LAKELOG, _LARGE, 1), Bar(*_STREAM, _LARGE, 2)),
}  # fmt: skip


def figure(page: str, bar: Bar) -> float | None:
    """The milliseconds of a bar; None if there are none. Raises ValueError if the page does not have the row once."""
    if not bar.row:
        return None
    rows = [line for line in page.splitlines() if line.startswith(bar.row)]
    cell = rows[0].strip("| ").split(" | ")[bar.column] if len(rows) == 1 else ""
    found = re.match(r"([\d,.]+) (ms|s)\b", cell)
    if not found:
        raise ValueError(
            f"{PAGE.name}: {len(rows)} rows begin with {bar.row!r}, and a time must be in column {bar.column}"
        )
    return float(found[1].replace(",", "")) * _MILLISECONDS[found[2]]


def chart(page: str) -> str:
    """The chart of a page, as SVG."""
    y, body = _TOP, [f'<text class="title" x="16" y="30">{TITLE}</text>']
    for title, bars in GROUPS.items():
        body.append(f'<text class="said" x="16" y="{y:g}">{title}: shorter is better</text>')
        body += _group(page, bars, y + 8)
        y += _GROUP + _ROW * len(bars)
    return drawing(_WIDTH, y - 12, TITLE, "\n".join(body))


def _group(page: str, bars: tuple[Bar, ...], top: float) -> Iterator[str]:
    """The bars of a group, which has a scale of its own."""
    found = [figure(page, bar) for bar in bars]
    most = max(value for value in found if value is not None)
    for place, (bar, value) in enumerate(zip(bars, found, strict=True)):
        y = top + _ROW * place
        yield f'<text class="said" x="{_LEFT - 10:g}" y="{y + 15:g}" text-anchor="end">{escape(bar.who)}</text>'
        if value is None:
            yield f'<text class="said" x="{_LEFT:g}" y="{y + 15:g}" font-style="italic">{escape(bar.missing)}</text>'
            continue
        wide = max(2.0, (_RIGHT - _LEFT) * value / most)
        yield f'<rect class="{bar.colour}" x="{_LEFT:g}" y="{y + 2:g}" width="{wide:.1f}" height="18"/>'
        yield f'<text class="said" x="{_LEFT + wide + 8:.1f}" y="{y + 15:g}">{value:,.0f} ms</text>'


if __name__ == "__main__":
    CHART.write_text(chart(PAGE.read_text("utf-8")), "utf-8")
