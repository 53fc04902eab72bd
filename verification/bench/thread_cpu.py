"""CPU time by groups of threads: of this process, of Spark's JVM, and of its Python workers."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from lakelog.verification.bench.cpu import process_tree

# The group of a thread is the first whose pattern its name begins with. Linux keeps 15 letters of a name.
JVM_GROUPS = (
    ("JVM: JIT compiler", r"C[12] Comp|Sweeper"),
    ("JVM: garbage collector", r"GC |G1 |VM Thread|VM Periodic"),
    ("JVM: streams' threads", r"stream execut"),
    ("JVM: tasks", r"Executor task"),
    ("JVM: scheduler", r"dispatcher|dag-sched|task-result|spark-listen|block-manag|context-clean|shuffle|netty|rpc-"),
    ("JVM: calls from Python", r"Thread-\d|Python"),
    ("JVM: others", r""),
)
DRIVER_GROUPS = (
    ("Python: client", r"MainThread"),
    ("Python: brokers' rounds", r"broker-\d+$"),
    ("Python: brokers' other threads", r"broker-|rows-of|warm"),
    ("Python: controller", r"controller"),
    ("Python: micro-batches", r"Thread-\d|Dummy|foreach"),
    ("Python: others", r""),
)
NATIVE = "Python: native threads of delta-rs, Arrow"
WORKERS = "Python workers of Spark"
ENDED = "threads that have ended"


Used = Mapping[tuple[int, str], float]


def cpu_now() -> Used:
    """The CPU seconds of each group of threads so far, by process and group."""
    found: dict[tuple[int, str], float] = {}
    for pid, seconds in process_tree().items():
        ended, threads = _ended(pid), list(_threads(pid))
        for name, used in [*threads, (ended, seconds - sum(used for _, used in threads))]:
            found[pid, name] = found.get((pid, name), 0.0) + used
    return found


def cpu_since(before: Used) -> dict[str, float]:
    """The CPU seconds of each group of threads since then. The time of a process that has ended does not count, and
    that of a thread that has ended moves to the group of such threads."""
    found: dict[str, float] = {}
    for (pid, name), used in sorted(cpu_now().items(), key=lambda item: item[0][1]):
        found[name] = found.get(name, 0.0) + used - before.get((pid, name), 0.0)
    return found


def group_of(name: str, groups: tuple[tuple[str, str], ...]) -> str:
    """The group of a thread's name."""
    return next(group for group, pattern in groups if re.match(pattern, name))


def _threads(pid: int) -> Iterator[tuple[str, float]]:
    """The group and the CPU seconds of each thread of this process or of the JVM. Workers are not told apart."""
    own = {thread.native_id: thread.name for thread in threading.enumerate()}
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*") if _ended(pid) != WORKERS else ():
        try:
            name, used = (task / "comm").read_text().strip(), thread_seconds(task)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if pid != os.getpid():
            yield group_of(name, JVM_GROUPS), used
        else:
            thread = own.get(int(task.name))
            yield (group_of(thread, DRIVER_GROUPS) if thread else NATIVE), used


def thread_seconds(task: Path) -> float:
    """The CPU seconds of one thread, to the nanosecond."""
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def _ended(pid: int) -> str:
    """The group of the threads of a process that have ended."""
    if pid == os.getpid():
        return f"Python: {ENDED}"
    try:
        is_jvm = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except (FileNotFoundError, ProcessLookupError):
        is_jvm = False
    return f"JVM: {ENDED}" if is_jvm else WORKERS
