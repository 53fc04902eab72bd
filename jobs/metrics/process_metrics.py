"""The metrics that a broker or a controller serves of its own process: what no table says.

The names are those of Prometheus's client for Python, those of its JMX exporter for the JVM, and our own, which begin
with `lakelog_`. A scrape reads numbers that others keep, and takes no lock that their threads wait for. Where a value
is not known, there is no sample: a controller has no JVM, and a JVM that hangs does not hold up a scrape.

Metric names: `prometheus_client` and `client_java`.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lakelog.jobs.launch.installed import version
from lakelog.jobs.metrics.exposition import COUNTER, GAUGE, SUMMARY, Family, Labels, Sample
from lakelog.replication.error_log import error_counts
from lakelog.replication.storage.delta.store_requests import COUNTER as STORE_REQUESTS

if TYPE_CHECKING:  # a controller has no PySpark
    from lakelog.jobs.metrics.jvm_figures import JvmFigures

_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_TEXT = Labels({})
_OWN_NAME = re.compile(r"(?:broker|controller)[ -][^:]+(?:: )?")  # before the name of a work


class ProcessFigures(NamedTuple):
    """The figures of the operating system about a process."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    started_at: float  # s since 1970
    open_fds: int


class ServerFigures(NamedTuple):
    """The figures of a broker or a controller about itself. `polled_at`: when its own thread last began a round, in s
    since 1970. `is_active`: whether it is the active controller; None of a broker."""

    polled_at: float
    is_active: bool | None = None


class ProcessSources:
    """The results of one scrape."""

    def __init__(self, messages: Mapping[str, int], server: ServerFigures | None, jvm: JvmFigures | None) -> None:
        self.messages, self.server, self.jvm = messages, server, jvm
        self.own = process_figures(os.getpid())
        self.of_jvm = process_figures(jvm.pid) if jvm is not None else None
        self.store = STORE_REQUESTS.counts()


class ProcessMetric(NamedTuple):
    """A metric. `labels`: those that its samples have. `sums`: of a summary, whose `samples` are its counts."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[ProcessSources], Iterable[Sample]]
    sums: Callable[[ProcessSources], Iterable[Sample]] = lambda _: ()


class ProcessScrapes:
    """The scrapes of this process.

    `server` and `jvm` are set once there are such figures; they may be None again. `jvm` returns None if the JVM does
    not answer soon.
    """

    def __init__(self) -> None:
        self.server: Callable[[], ServerFigures | None] = lambda: None
        self.jvm: Callable[[], JvmFigures | None] | None = None
        self._messages = LogMessages()
        logging.getLogger("lakelog").addHandler(self._messages)

    def scrape(self) -> Iterator[Family]:
        """The metrics of the process as they are now."""
        jvm = self.jvm
        found = jvm() if jvm is not None else None
        of = ProcessSources(self._messages.counts(), self.server(), found)
        if jvm is not None:
            yield Family(JVM_UP, GAUGE, JVM_UP_WORDS, [("", int(found is not None))])
        for metric in PROCESS_METRICS:
            yield Family(metric.name, metric.kind, metric.help, metric.samples(of), metric.sums(of))


class LogMessages(logging.Handler):
    """Counts log messages by level."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts = Counter(dict.fromkeys(_LEVELS, 0))

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a message; its caller holds the lock of this handler."""
        self._counts[record.levelname] += 1

    def counts(self) -> dict[str, int]:
        """The counts since the handler was made."""
        return dict(self._counts)


def process_figures(pid: int) -> ProcessFigures | None:
    """The figures of a process; None where there is no /proc, and if the process has ended."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # from the third on: the second may hold blanks
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
        ticks = os.sysconf("SC_CLK_TCK")
        return ProcessFigures(
            cpu_seconds=(int(fields[11]) + int(fields[12])) / ticks,
            resident_bytes=int(fields[21]) * resource.getpagesize(),
            virtual_bytes=int(fields[20]),
            started_at=booted + int(fields[19]) / ticks,
            open_fds=len(os.listdir(f"/proc/{pid}/fd")),
        )
    return None


def _own(value: Callable[[ProcessFigures], float]) -> Callable[[ProcessSources], Iterable[Sample]]:
    return lambda of: [] if of.own is None else [("", value(of.own))]


def _of_jvm_process(value: Callable[[ProcessFigures], float]) -> Callable[[ProcessSources], Iterable[Sample]]:
    return lambda of: [] if of.of_jvm is None else [("", value(of.of_jvm))]


def _errors(_: ProcessSources) -> list[Sample]:
    found = Counter[str]()
    for name, count in error_counts().items():
        found[_OWN_NAME.sub("", name, 1) or "round"] += count
    return _by("work", found)


def _by(label: str, counts: Mapping[str, float]) -> list[Sample]:
    return [(_TEXT.text(**{label: name}), value) for name, value in sorted(counts.items())]


def _most_fds(_: ProcessSources) -> list[Sample]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [] if most == resource.RLIM_INFINITY else [("", most)]


def _python(_: ProcessSources) -> list[Sample]:
    major, minor, patch = platform.python_version_tuple()
    return [
        (
            _TEXT.text(
                implementation=platform.python_implementation(), major=major, minor=minor, patchlevel=patch,
                version=platform.python_version(),
            ),
            1,
        )
    ]  # fmt: skip


def _generations(key: str) -> Callable[[ProcessSources], Iterable[Sample]]:
    return lambda _: [(_TEXT.text(generation=n), stats[key]) for n, stats in enumerate(gc.get_stats())]


def _jvm(value: Callable[[JvmFigures], Iterable[Sample]]) -> Callable[[ProcessSources], Iterable[Sample]]:
    return lambda of: [] if of.jvm is None else value(of.jvm)


def _areas(name: str) -> Callable[[ProcessSources], Iterable[Sample]]:
    return _jvm(
        lambda jvm: [(_TEXT.text(area=area), sizes[name]) for area, sizes in jvm.memory.items() if sizes[name] >= 0]
    )


def _phases(jvm: JvmFigures) -> Iterator[Sample]:
    for query, found in jvm.queries.items():
        for phase, seconds in found.seconds.items():
            yield _TEXT.text(query=query, phase=phase), seconds


def _active_samples(of: ProcessSources) -> list[Sample]:
    return [] if of.server is None or of.server.is_active is None else [("", int(of.server.is_active))]


JVM_UP, JVM_UP_WORDS = "lakelog_jvm_up", "1 if the JVM of the process has answered the scrape, 0 if it was too slow"

PROCESS_METRICS: tuple[ProcessMetric, ...] = (
    ProcessMetric(
        "process_cpu_seconds_total", COUNTER, (), "CPU time of the Python process", _own(lambda own: own.cpu_seconds)
    ),
    ProcessMetric(
        "process_resident_memory_bytes", GAUGE, (), "Resident memory of the Python process",
        _own(lambda own: own.resident_bytes),
    ),
    ProcessMetric(
        "process_virtual_memory_bytes", GAUGE, (), "Virtual memory of the Python process",
        _own(lambda own: own.virtual_bytes),
    ),
    ProcessMetric(
        "process_start_time_seconds", GAUGE, (), "Start of the process, in seconds since 1970",
        _own(lambda own: round(own.started_at, 2)),
    ),
    ProcessMetric(
        "process_open_fds", GAUGE, (), "Open file descriptors of the Python process", _own(lambda own: own.open_fds)
    ),
    ProcessMetric("process_max_fds", GAUGE, (), "File descriptors that the process may open", _most_fds),
    ProcessMetric(
        "python_info", GAUGE, ("implementation", "major", "minor", "patchlevel", "version"),
        "1, with the version of Python", _python,
    ),
    ProcessMetric(
        "python_gc_collections_total", COUNTER, ("generation",), "Collections of Python's garbage collector",
        _generations("collections"),
    ),
    ProcessMetric(
        "python_gc_objects_collected_total", COUNTER, ("generation",), "Objects that it has collected",
        _generations("collected"),
    ),
    ProcessMetric(
        "python_gc_objects_uncollectable_total", COUNTER, ("generation",), "Objects that it could not collect",
        _generations("uncollectable"),
    ),
    ProcessMetric("jvm_memory_used_bytes", GAUGE, ("area",), "Used memory of the JVM: heap, nonheap", _areas("used")),
    ProcessMetric("jvm_memory_committed_bytes", GAUGE, ("area",), "Memory that the JVM holds", _areas("committed")),
    ProcessMetric("jvm_memory_max_bytes", GAUGE, ("area",), "Memory that the JVM may hold", _areas("max")),
    ProcessMetric(
        "jvm_gc_collection_seconds", SUMMARY, ("gc",), "Collections of the JVM's garbage collectors, and their time",
        _jvm(lambda jvm: [(_TEXT.text(gc=name), count) for name, (count, _) in jvm.collections.items()]),
        _jvm(lambda jvm: [(_TEXT.text(gc=name), seconds) for name, (_, seconds) in jvm.collections.items()]),
    ),
    ProcessMetric("jvm_threads_current", GAUGE, (), "Threads of the JVM", _jvm(lambda jvm: [("", jvm.threads)])),
    ProcessMetric(
        "lakelog_jvm_process_cpu_seconds_total", COUNTER, (), "CPU time of the JVM's process",
        _of_jvm_process(lambda jvm: jvm.cpu_seconds),
    ),
    ProcessMetric(
        "lakelog_jvm_process_resident_memory_bytes", GAUGE, (), "Resident memory of the JVM's process",
        _of_jvm_process(lambda jvm: jvm.resident_bytes),
    ),
    ProcessMetric(
        "lakelog_jvm_process_open_fds", GAUGE, (), "Open file descriptors of the JVM's process",
        _of_jvm_process(lambda jvm: jvm.open_fds),
    ),
    ProcessMetric(
        "lakelog_build_info", GAUGE, ("version",), "1, with the version of Lakelog",
        lambda _: [(_TEXT.text(version=version()), 1)],
    ),
    ProcessMetric(
        "lakelog_last_poll_timestamp_seconds", GAUGE, (),
        "When the broker's or controller's own thread last went on, in seconds since 1970",
        lambda of: [] if of.server is None else [("", round(of.server.polled_at, 3))],
    ),
    ProcessMetric("lakelog_controller_active", GAUGE, (), "1 if this controller is the active one", _active_samples),
    ProcessMetric(
        "lakelog_log_messages_total", COUNTER, ("level",), "Log messages of Lakelog from warnings on",
        lambda of: _by("level", of.messages),
    ),
    ProcessMetric(
        "lakelog_errors_total", COUNTER, ("work",),
        "Errors of work that is repeated, such as heartbeats; the log has each once", _errors,
    ),
    ProcessMetric(
        "lakelog_store_requests_total", COUNTER, ("method",), "Requests to object stores; LIST is a GET that lists",
        lambda of: _by("method", of.store.requests),
    ),
    ProcessMetric(
        "lakelog_store_request_seconds_total", COUNTER, ("method",), "Time until these requests were answered",
        lambda of: _by("method", of.store.seconds),
    ),
    ProcessMetric(
        "lakelog_store_errors_total", COUNTER, ("method",), "Requests that have failed, after their last attempt",
        lambda of: _by("method", of.store.errors),
    ),
    ProcessMetric(
        "lakelog_store_dollars_total", COUNTER, (), "Price of these requests, by the list of S3 Standard in us-east-1",
        lambda of: [("", of.store.dollars)],
    ),
    ProcessMetric(
        "lakelog_micro_batches_total", COUNTER, ("query",), "Micro-batches of a follower's query that have ended",
        _jvm(lambda jvm: [(_TEXT.text(query=name), found.batches) for name, found in jvm.queries.items()]),
    ),
    ProcessMetric(
        "lakelog_micro_batch_rows", GAUGE, ("query",), "Rows of the last one, which are batch headers",
        _jvm(lambda jvm: [(_TEXT.text(query=name), found.rows) for name, found in jvm.queries.items()]),
    ),
    ProcessMetric(
        "lakelog_micro_batch_seconds", GAUGE, ("query", "phase"),
        "Time of the last one by Spark's phases; addBatch has the time for which it stays open", _jvm(_phases),
    ),
)  # fmt: skip
