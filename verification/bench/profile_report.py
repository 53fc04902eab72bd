"""The figures of `bench profile`: as JSON for scripts, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.profile import Profile, SendProfile
from lakelog.verification.bench.report import circumstances, summary

_LEAST_MS = 0.5  # parts that take less are one row of the table
_REST = "the rest"


def profile_figures(found: Profile) -> dict[str, object]:
    """All figures, in ms and in core ms of one send or of one micro-batch."""
    sends = [_figures(send) for send in found.sends]
    first, single = found.sends[0], found.sends[-1]
    return {
        "send_ms": _ms(median(first.seconds)),
        "send_core_ms": sends[0]["core_ms"],
        "commits_a_send": sends[0]["commits_a_send"],
        "micro_batch_ms": _ms(sum(means(single.batches).values())),
        "sends": sends,
        **circumstances(),
    }


def _figures(send: SendProfile) -> dict[str, object]:
    count, wall = len(send.seconds), mean(send.seconds)
    return {
        "send": send.name,
        "seconds": summary(send.seconds),
        "sends_explained": len(send.parts),
        "parts_ms": rounded(means(send.parts)),
        "micro_batches_a_send": round(len(send.batches) / count, 2),
        "micro_batch_ms": rounded(means(send.batches)),
        "looks_waited_for": round(send.pauses / count, 2),
        "commits_a_send": round(sum(map(len, send.commits.values())) / count, 2),
        "commits": [
            {"table": table, "why": why, "a_send": round(len(seconds) / count, 2), "ms": _ms(mean(seconds))}
            for (table, why), seconds in sorted(send.commits.items())
        ],
        "core_ms": round(sum(send.cpu_seconds.values()) * 1000 / count),
        "core_ms_by_threads": rounded({name: used / count for name, used in send.cpu_seconds.items()}),
        "idle_core_ms_by_threads": rounded({name: cores * wall for name, cores in send.idle_cores.items()}),
    }


def means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each part. A part that is missing took no time, so the means add up to the mean of the whole."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: sum(each.get(name, 0.0) for each in parts) / len(parts) for name in names}


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds as ms."""
    return {name: _ms(value) for name, value in seconds.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def profile_tables(found: Profile) -> list[list[Row]]:
    """Four tables with columns for each kind of send: the parts of its time, those of a micro-batch, its commits, and
    the CPU time of threads beside that of the same threads in as much time without sends."""
    sends = found.sends
    parts = {send.name: _few(means(send.parts)) for send in sends}
    cpu: dict[str, Mapping[str, float]] = {}
    for send in sends:
        cpu[send.name] = {name: used / len(send.seconds) for name, used in send.cpu_seconds.items()}
        cpu[f"{send.name}, idle"] = {name: cores * mean(send.seconds) for name, cores in send.idle_cores.items()}
    medians = {"a send, ms": "median", **{send.name: _cell(median(send.seconds)) for send in sends}}
    return [
        [*_table("a send, ms", parts), medians],
        _table("a micro-batch, ms", {send.name: _few(means(send.batches)) for send in sends}),
        _commits("commits of a send", sends),
        _table("core ms of a send", cpu),
    ]


def _few(parts: Mapping[str, float]) -> dict[str, float]:
    shown = {name: value for name, value in parts.items() if value * 1000 >= _LEAST_MS}
    return {**shown, _REST: sum(parts.values()) - sum(shown.values())}


def _table(head: str, columns: Mapping[str, Mapping[str, float]]) -> list[Row]:
    names = dict.fromkeys(name for found in columns.values() for name in found)
    rows = [
        {head: name, **{of: _cell(found[name]) if name in found else "" for of, found in columns.items()}}
        for name in sorted(names, key=lambda name: name == _REST)
    ]
    return [*rows, {head: "together", **{of: _cell(sum(found.values())) for of, found in columns.items()}}]


def _cell(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _commits(head: str, sends: Sequence[SendProfile]) -> list[Row]:
    rows = [
        {head: f"{table}: {why}", **{send.name: _commit_cell(send, (table, why)) for send in sends}}
        for table, why in sorted({kind for send in sends for kind in send.commits})
    ]
    whole = {send.name: f"{sum(map(len, send.commits.values())) / len(send.seconds):.1f}" for send in sends}
    return [*rows, {head: "together", **whole}]


def _commit_cell(send: SendProfile, kind: tuple[str, str]) -> str:
    seconds = send.commits.get(kind)
    return f"{len(seconds) / len(send.seconds):.1f} × {_cell(mean(seconds))} ms" if seconds else ""
