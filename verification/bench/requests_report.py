"""The figures of `bench requests`: as JSON for scripts, as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.counting_store import KINDS, Counted
from lakelog.verification.bench.report import circumstances
from lakelog.verification.bench.requests import Requests

# Dollars of a million requests, at the list prices of S3 Standard in us-east-1. DELETE costs nothing.
DOLLARS = {"HEAD": 0.4, "GET": 0.4, "LIST": 5.0, "PUT": 5.0, "POST": 5.0, "DELETE": 0.0}
_MONTH_SECONDS = 30 * 86_400
ALL = "all"
_SUMMARY = ("idle_per_second", "idle_dollars_a_month", "per_send")


def requests_figures(found: Sequence[Requests]) -> dict[str, object]:
    """All figures. If rows differ, the counts mean nothing and are left out."""
    if not all(each.rows_equal for each in found):
        return {"rows_equal": False, **circumstances()}
    clusters = [_figures(each) for each in found]
    return {
        "rows_equal": True,
        "prices_per_million": DOLLARS,
        **{f"most_{name}": max(cluster[name] for cluster in clusters) for name in _SUMMARY},
        "clusters": clusters,
        **circumstances(),
    }


def _figures(found: Requests) -> dict[str, Any]:
    per_second = _divided(found.idle, found.idle_seconds)
    per_send = _divided(found.sent, found.sends)
    idle, sent = sum(per_second.values()), sum(per_send.values())
    polls = idle * found.send_seconds / found.sends if found.sends else 0.0
    return {
        "brokers": found.brokers,
        "controllers": found.controllers,
        "partitions": found.partitions,
        "idle_seconds": round(found.idle_seconds, 1),
        "idle_per_second": round(idle, 2),
        "idle_dollars_a_month": round(dollars_a_month(per_second), 2),
        "sends": found.sends,
        "send_ms": round(1000 * found.send_seconds / found.sends) if found.sends else None,
        "per_send": round(sent, 1),
        "per_send_beside_polls": round(max(0.0, sent - polls), 1),
        "dollars_a_million_sends": round(_dollars(per_send), 2),
        "idle_by_table": _by_table(per_second),
        "sends_by_table": _by_table(per_send),
    }


def _divided(counts: Counter[Counted], by: float) -> dict[Counted, float]:
    return {what: count / by for what, count in counts.items()} if by else {}


def _dollars(per_unit: Mapping[Counted, float]) -> float:
    """Dollars of a million units."""
    return sum(count * DOLLARS[what.kind] for what, count in per_unit.items())


def dollars_a_month(per_second: Mapping[Counted, float]) -> float:
    """The cost of these requests a second for 30 days."""
    return _dollars(per_second) * _MONTH_SECONDS / 1e6


def _by_table(per_unit: Mapping[Counted, float]) -> list[dict[str, object]]:
    """One object for each table and part, those with most requests first."""
    totals: Counter[tuple[str, str]] = Counter()
    for what, count in per_unit.items():
        totals[what.table, what.part] += count  # type: ignore[assignment]
    return [
        {"table": table, "part": part, **_kinds(per_unit, table, part), ALL: round(total, 2)}
        for (table, part), total in totals.most_common()
    ]


def _kinds(per_unit: Mapping[Counted, float], table: str, part: str) -> dict[str, float]:
    return {kind: round(per_unit.get(Counted(kind, table, part), 0.0), 2) for kind in KINDS}


def requests_rows(found: Sequence[Requests]) -> list[Row]:
    """For each cluster the rows of its tables, idle and for each send, with a row of their sums."""
    rows: list[Row] = []
    for each in found:
        idle, sent = _divided(each.idle, each.idle_seconds), _divided(each.sent, each.sends)
        month, million = dollars_a_month(idle), _dollars(sent)
        rows += _rows(each, "a second, idle", idle, f"${month:,.0f} a month")
        rows += _rows(each, "a send", sent, f"${million:,.0f} a million sends")
    return rows


def _rows(found: Requests, unit: str, per_unit: Mapping[Counted, float], cost: str) -> list[Row]:
    tables = sorted({what.table for what in per_unit})
    shown = [_row(found, unit, table, [what for what in per_unit if what.table == table], per_unit) for table in tables]
    return [*shown, {**_row(found, unit, ALL, list(per_unit), per_unit), "cost": cost}]


def _row(
    found: Requests, unit: str, table: str, of: Sequence[Counted], per_unit: Mapping[Counted, float]
) -> dict[str, object]:
    by_kind = {kind: sum(per_unit[what] for what in of if what.kind == kind) for kind in KINDS}
    return {
        "brokers": found.brokers,
        "partitions": found.partitions,
        "requests": unit,
        "table": table,
        **{kind: f"{count:.1f}" for kind, count in by_kind.items()},
        ALL: f"{sum(by_kind.values()):.1f}",
        "cost": "",
    }
