"""The figures of `bench produce`: as JSON for scripts, as a table for people."""

from __future__ import annotations

from statistics import median

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.produce_run import (
    FIRST,
    FRAME,
    IN_A_ROW,
    IN_FLIGHT,
    LARGE,
    SINK,
    SMALL,
    Produced,
    Sends,
)
from lakelog.verification.bench.report import circumstances, summary


def produce_figures(found: Produced) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    named = {sends.name: sends for sends in found.sends}
    large = [sends for sends in found.sends if sends.name == LARGE]
    return {
        "rows_equal": True,
        "first_send_ms": _ms(named[FIRST].seconds),
        "small_send_ms": _ms(named[SMALL].seconds),
        "small_send_core_seconds": round(named[SMALL].core_seconds / len(named[SMALL].seconds), 3),
        "in_a_row_mb_per_s": _mb_per_s(named[IN_A_ROW]),
        "in_flight_mb_per_s": _mb_per_s(named[IN_FLIGHT]),
        **{f"arrow_mb_per_s_{_size(sends)}": _mb_per_s(sends) for sends in large},
        **{f"arrow_records_per_s_{_size(sends)}": _records_per_s(sends) for sends in large},
        f"frame_mb_per_s_{_size(named[FRAME])}": _mb_per_s(named[FRAME]),
        f"sink_mb_per_s_{_size(named[SINK])}": _mb_per_s(named[SINK]),
        "sends": [_figures(sends) for sends in found.sends],
        **circumstances(),
    }


def _figures(sends: Sends) -> dict[str, object]:
    return {
        "name": sends.name,
        "data_set": sends.data_set.name,
        "seconds": summary(sends.seconds),
        "plain_append_seconds": summary(sends.plain_seconds),
    }


def _size(sends: Sends) -> str:
    size = sends.data_set.value_bytes
    return f"{size // 1000}kb" if size >= 1000 else f"{size}b"


def _ms(seconds: list[float]) -> float:
    return round(median(seconds) * 1000, 1)


def _records_per_s(sends: Sends) -> int:
    return round(sends.data_set.records / median(sends.seconds))


def _mb_per_s(sends: Sends) -> float:
    return round(_records_per_s(sends) * sends.data_set.value_bytes / 1e6, 1)


def produce_rows(found: Produced) -> list[Row]:
    """One row for each kind of send; `plain_ms` is the time of the plain append, which writes one copy."""
    return [
        {
            "sent": sends.name,
            "each": sends.data_set.name,
            "median_ms": round(median(sends.seconds) * 1000),
            "mb_per_s": _mb_per_s(sends),
            "plain_ms": round(median(sends.plain_seconds) * 1000),
        }
        for sends in found.sends
    ]
