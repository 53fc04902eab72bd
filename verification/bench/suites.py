"""`bench all`: runs the benchmarks one after the other, each in a process of its own, so that one that fails, or whose
JVM dies, takes no figures of the others with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.replication import circumstances

# The suites in their order: the arguments of a quick run, and the figures of the summary.
SUITES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "replication": (("--quick",), ("throughput_vs_plain_stream", "latency_vs_plain_stream", "time_vs_file_copy")),
    "produce": (("--quick",), ("first_send_ms", "small_send_ms", "small_send_core_seconds", "in_flight_mb_per_s")),
    "read": (
        ("--quick",),
        (
            "read_vs_plain_delta",
            "tail_s",
            "source_batch_vs_plain_delta",
            "source_stream_vs_plain_stream",
            "consumer_mb_per_s",
        ),
    ),
    "idle": (("--seconds", "1"), ("session_cores", "cluster_cores")),
    "processes": (
        ("--sends", "2", "--seconds", "1"),
        ("start_seconds", "small_send_ms", "small_send_core_seconds", "idle_cores"),
    ),
    "requests": (
        ("--seconds", "1", "--sends", "1"),
        ("most_idle_per_second", "most_idle_dollars_a_month", "most_per_send"),
    ),
    "controller": (("--partitions", "60"), ("longest_seconds", "commits")),
    "scale": (("--quick",), ("largest_growth", "action_that_grows_most")),
    "maintenance": (
        ("--files", "100", "--commits", "100", "--sends", "2"),
        ("files_after_compaction", "end_vs_start", "sends"),
    ),
}

_LAST_WORDS = 300  # letters of a failed suite's last words


@dataclass(frozen=True)
class Suite:
    """The result of one suite: its figures, or why there are none. `seconds`: the duration of the whole suite."""

    name: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def run_suites(names: Sequence[str], is_quick: bool, say: Callable[[str], None]) -> list[Suite]:
    """Runs suites, with a line for each as it begins and ends."""
    found = []
    for number, name in enumerate(names, 1):
        say(f"{number} of {len(names)}: {name} …")
        suite = _run(name, SUITES[name][0] if is_quick else ())
        say(f"{number} of {len(names)}: {name}: {suite.error or 'done'}, {suite.seconds:.0f} s")
        found.append(suite)
    return found


def _run(name: str, flags: Sequence[str]) -> Suite:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-all-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "lakelog.jobs", "bench", name, *flags, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.perf_counter() - started
        figures = json.loads(out.read_text()) if out.exists() else {}
    if done.returncode == 0 and figures:
        return Suite(name, seconds, figures)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it wrote no figures"]
    return Suite(name, seconds, figures, f"exit status {done.returncode}: {lines[-1][:_LAST_WORDS]}")


def suites_figures(found: Sequence[Suite]) -> dict[str, object]:
    """One object a suite, and the machine that they ran on."""
    suites = {suite.name: _figures(suite) for suite in found}
    return {"suites": suites, **circumstances()}


def _figures(suite: Suite) -> dict[str, object]:
    error = {} if suite.error is None else {"error": suite.error}
    return {**error, "suite_seconds": round(suite.seconds, 1), **suite.figures}


def suites_rows(found: Sequence[Suite]) -> list[Row]:
    """The summary: the main figures of each suite, or its error."""
    return [row for suite in found for row in _rows(suite)]


def _rows(suite: Suite) -> list[Row]:
    if suite.error is not None:
        return [{"suite": suite.name, "figure": "error", "value": suite.error}]
    known = [name for name in SUITES[suite.name][1] if name in suite.figures]
    return [
        {"suite": suite.name, "figure": name.replace("_", " "), "value": _text(suite.figures[name])} for name in known
    ] or [{"suite": suite.name, "figure": "seconds of the suite", "value": f"{suite.seconds:.0f}"}]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return str(value)
