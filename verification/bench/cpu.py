"""CPU time of this process and of all that it has started: Spark's JVM and Python workers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PROC = Path("/proc")


def cpu_seconds() -> float:
    """The CPU time in seconds of this process, its descendants, and those of them that have ended."""
    return sum(process_tree().values())


def cores_while_idle(seconds: float) -> float:
    """The cores that this process and its descendants use while it waits: for `seconds`, after as many without a count,
    because what was just started or used is still busy. A process that ends meanwhile does not count: its time appears
    only once its parent waits for it."""
    pause = threading.Event()
    pause.wait(seconds)
    started, before = time.perf_counter(), _own_seconds()
    pause.wait(seconds)
    used = sum(own - before.get(pid, 0.0) for pid, own in _own_seconds().items())
    return used / (time.perf_counter() - started)


def process_tree() -> dict[int, float]:
    """The CPU time in seconds of this process and of each descendant, with that of its children that have ended."""
    return {pid: own + ended for pid, (own, ended) in _tree().items()}


def _own_seconds() -> dict[int, float]:
    return {pid: own for pid, (own, _) in _tree().items()}


def _tree() -> dict[int, tuple[float, float]]:
    """The CPU time in seconds of this process and of each descendant: its own, and that of its children that have
    ended."""
    found = dict(filter(None, (_process(folder) for folder in _PROC.glob("[0-9]*"))))
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: (found[pid][1] / tick, found[pid][2] / tick) for pid in _with_descendants(os.getpid(), found)}


def _process(folder: Path) -> tuple[int, tuple[int, int, int]] | None:
    """A process's id, its parent, its clock ticks, and those of its children that have ended; None if it has ended."""
    try:
        text = (folder / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before ")" may have spaces, and any bytes
    ticks = [int(field) for field in fields[11:15]]
    return int(folder.name), (int(fields[1]), sum(ticks[:2]), sum(ticks[2:]))


def _with_descendants(pid: int, processes: dict[int, tuple[int, int, int]]) -> list[int]:
    children = [child for child, (parent, _, _) in processes.items() if parent == pid]
    return [pid, *(each for child in children for each in _with_descendants(child, processes))]
