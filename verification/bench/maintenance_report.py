"""The figures of `bench maintenance`: as JSON for scripts, as a table for people."""

from __future__ import annotations

from statistics import median

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.maintenance import Measured
from lakelog.verification.bench.report import circumstances


def maintenance_figures(found: Measured) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    about = {"files": found.files_before, "commits": found.commits, **circumstances()}
    if not found.rows_equal:
        return {"rows_equal": False, **about}
    return {
        "rows_equal": True,
        "files_after_compaction": found.files_after,
        "most_files_of_a_partition_and_size_class": found.held_most,
        "compaction_seconds": round(found.compaction_seconds, 2),
        "end_vs_start": {name: _ratio(found, name) for name in found.at_start},
        "median_ms_at_start": {name: _ms(seconds) for name, seconds in found.at_start.items()},
        "median_ms_at_end": {name: _ms(seconds) for name, seconds in found.at_end.items()},
        "files_in_delta_log": dict(found.log_files),
        "data_files": dict(found.data_files),
        "sends": {
            "median_ms_without_compaction": _ms(found.sends.without.seconds),
            "median_ms_beside_compaction": _ms(found.sends.beside.seconds),
            "beside_vs_without": _send_ratio(found),
            "compactions": found.sends.compactions,
        },
        **about,
    }


def _ratio(found: Measured, name: str) -> float:
    return round(median(found.at_end[name]) / median(found.at_start[name]), 2)


def _send_ratio(found: Measured) -> float:
    return round(median(found.sends.beside.seconds) / median(found.sends.without.seconds), 2)


def _ms(seconds: list[float]) -> float:
    return round(median(seconds) * 1000, 1)


def maintenance_rows(found: Measured) -> list[Row]:
    """One row a figure."""
    rows: list[Row] = [
        {"figure": "small files compacted", "at_start": found.files_before, "at_end": found.files_after, "ratio": ""},
        {"figure": "seconds that took", "at_start": "", "at_end": round(found.compaction_seconds, 1), "ratio": ""},
    ]
    for name in found.at_start:
        at_start, at_end = _ms(found.at_start[name]), _ms(found.at_end[name])
        rows.append(
            {"figure": f"{name}, median ms", "at_start": at_start, "at_end": at_end, "ratio": _ratio(found, name)}
        )
    for name, count in found.log_files.items():
        rows.append({"figure": f"files in _delta_log, {name}", "at_start": "", "at_end": count, "ratio": ""})
    for name, count in found.data_files.items():
        rows.append({"figure": f"data files, {name}", "at_start": "", "at_end": count, "ratio": ""})
    sends = found.sends
    without, beside = _ms(sends.without.seconds), _ms(sends.beside.seconds)
    name = f"send without compaction, beside {sends.compactions}"
    rows.append({"figure": name, "at_start": without, "at_end": beside, "ratio": _send_ratio(found)})
    return rows
