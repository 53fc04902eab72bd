"""The figures of `bench read`: as JSON for scripts, as a table for people."""

from __future__ import annotations

from statistics import median

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.read import (
    COMMITTED,
    CONSUMER,
    PLAIN,
    PLAIN_STREAM,
    SOURCE,
    STREAM,
    TAIL,
    Reads,
)
from lakelog.verification.bench.report import circumstances, summary

_PEERS = {COMMITTED: PLAIN, SOURCE: PLAIN, STREAM: PLAIN_STREAM}


def read_figures(found: Reads) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "records": found.records,
        "read_vs_plain_delta": _ratio(found, COMMITTED),
        "tail_s": round(median(found.seconds[TAIL]), 3),
        "source_batch_vs_plain_delta": _ratio(found, SOURCE),
        "source_stream_vs_plain_stream": _ratio(found, STREAM),
        "consumer_mb_per_s": _mb_per_s(found),
        "seconds": {name: summary(seconds) for name, seconds in found.seconds.items()},
        **circumstances(),
    }


def _ratio(found: Reads, name: str) -> float:
    return round(median(found.seconds[name]) / median(found.seconds[_PEERS[name]]), 2)


def _mb_per_s(found: Reads) -> float:
    return round(found.megabytes / median(found.seconds[CONSUMER]), 1)


def read_rows(found: Reads) -> list[Row]:
    """One row for each way of reading; `times_plain`: its time by that of the plain read or stream."""
    return [
        {
            "read": name,
            "median_ms": round(median(seconds) * 1000),
            "times_plain": str(_ratio(found, name)) if name in _PEERS else "",
            "mb_per_s": str(_mb_per_s(found)) if name == CONSUMER else "",
        }
        for name, seconds in found.seconds.items()
    ]
