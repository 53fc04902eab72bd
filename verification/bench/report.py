"""The figures of a benchmark: as JSON for scripts, as a table for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.data import DataSet
from lakelog.verification.bench.followers import LakelogFollower, PlainStream
from lakelog.verification.bench.replication import FILE_COPY, Measurement, Plan

_PACKAGES = ("lakelog", "pyspark", "delta-spark", "deltalake", "obstore", "pyarrow")
_LAKELOG, _PLAIN = LakelogFollower.name, PlainStream.name


@dataclass(frozen=True)
class Results:
    """The measurements of one run. `plan`: before it was made to fit the disk. `disk_bytes_per_second`: what the disk
    writes."""

    plan: Plan
    disk_bytes_per_second: float
    throughput: Sequence[Measurement]
    latency: Measurement

    @property
    def rounds(self) -> int:
        """The number of rounds that were measured."""
        return max(len(each.seconds.get(_LAKELOG, ())) for each in self.throughput)

    @property
    def reductions(self) -> list[str]:
        """What was left out of the plan, because the disk or the machine is slow."""
        planned, measured = ([each.name for each in sets] for sets in (self.plan.data_sets, self._data_sets))
        speed = f"the disk writes {self.disk_bytes_per_second / 1e6:,.0f} MB/s"
        found = [
            f"{one} instead of {other}: {speed}" for one, other in zip(measured, planned, strict=True) if one != other
        ]
        if self.rounds < self.plan.rounds:
            found.append(f"{self.rounds} of {self.plan.rounds} rounds: more take longer than {self.plan.seconds:.0f} s")
        return found

    @property
    def _data_sets(self) -> list[DataSet]:
        return [measurement.data_set for measurement in self.throughput]

    @property
    def all(self) -> list[Measurement]:
        """All measurements."""
        return [*self.throughput, self.latency]


def figures(results: Results) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    differing = [m.data_set.name for m in results.all if not m.rows_equal]
    if differing:
        return {"rows_equal": False, "rows_differ_in": differing, "rounds": results.rounds, **circumstances()}
    throughput, latency = results.throughput, results.latency
    return {
        "rows_equal": True,
        "throughput_vs_plain_stream": min(_ratio(m, _PLAIN, _LAKELOG) for m in throughput),
        "latency_vs_plain_stream": _ratio(latency, _LAKELOG, _PLAIN),
        "time_vs_file_copy": max(_ratio(m, _LAKELOG, FILE_COPY) for m in throughput),
        "throughput": [_throughput(m) for m in throughput],
        "latency": {**_basics(latency), "vs_plain_stream": _ratio(latency, _LAKELOG, _PLAIN)},
        "rounds": results.rounds,
        "reductions": results.reductions,
        "disk_mb_per_s": round(results.disk_bytes_per_second / 1e6),
        **circumstances(),
    }


def _throughput(m: Measurement) -> dict[str, object]:
    seconds = median(m.seconds[_LAKELOG])
    return {
        **_basics(m),
        "vs_plain_stream": _ratio(m, _PLAIN, _LAKELOG),
        "vs_plain_stream_by_round": _ratios(m, _PLAIN, _LAKELOG),
        "time_vs_file_copy": _ratio(m, _LAKELOG, FILE_COPY),
        "lakelog_records_per_second": round(m.data_set.records / seconds),
        "lakelog_bytes_per_second": round(m.bytes / seconds),
    }


def _basics(m: Measurement) -> dict[str, object]:
    return {
        "data_set": m.data_set.name,
        "records": m.data_set.records,
        "value_bytes": m.data_set.value_bytes,
        "segments": m.segments,
        "segment_bytes": m.bytes,
        "seconds": {name: summary(seconds) for name, seconds in m.seconds.items()},
    }


def summary(seconds: Sequence[float]) -> dict[str, object]:
    """The median, the range and all of some times in seconds."""
    return {
        "median": round(median(seconds), 4),
        "min": round(min(seconds), 4),
        "max": round(max(seconds), 4),
        "measured": [round(value, 4) for value in seconds],
    }


def _ratio(m: Measurement, one: str, other: str) -> float:
    return round(median(m.seconds[one]) / median(m.seconds[other]), 3)


def _ratios(m: Measurement, one: str, other: str) -> list[float]:
    return [round(a / b, 3) for a, b in zip(m.seconds[one], m.seconds[other], strict=True)]


def circumstances() -> dict[str, object]:
    """The machine and the versions that the figures depend on."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    load = [round(value, 2) for value in os.getloadavg()]
    return {"cores": len(os.sched_getaffinity(0)), "load_average": load, "versions": versions}


def rows(results: Results) -> list[Row]:
    """One row for each follower and data set."""
    return [
        _row(m, "latency" if m is results.latency else "throughput", name) for m in results.all for name in m.seconds
    ]


def _row(m: Measurement, kind: str, name: str) -> Row:
    seconds = m.seconds[name]
    return {
        "measured": kind,
        "each_commit": m.data_set.name,
        "by": name,
        "median_ms": round(median(seconds) * 1000),
        "min_ms": round(min(seconds) * 1000),
        "max_ms": round(max(seconds) * 1000),
        "commits": len(seconds),
        "lakelog_takes": "" if name == _LAKELOG else f"{_ratio(m, _LAKELOG, name):.2f} of it",
    }
