"""Runs a soak: three brokers and two controllers as processes, under load and faults. Then it waits for recovery, stops
all processes in order and checks every record."""

from __future__ import annotations

import re
import time
import traceback
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from lakelog.jobs.cli.console import Report, say
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException, TimeoutException
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.faults.cluster_health import ClusterHealth
from lakelog.verification.faults.log_check import TopicLogs, doubled
from lakelog.verification.faults.number_producer import RepeatedWork
from lakelog.verification.faults.outages import Outage, distribution, too_long
from lakelog.verification.faults.soak_faults import RootFaults, SoakFaults
from lakelog.verification.faults.soak_load import SoakLoad, TopicLoad
from lakelog.verification.faults.soak_plan import BROKERS, CLUSTER, DISKS, KINDS, STORED, Fault, plan_faults
from lakelog.verification.roots.roots import LocalRoots

Figures = Mapping[str, Any]

# Faults whose numbers must be zero.
WRONG = (
    "lost", "duplicated", "different", "offsets_missing_or_doubled", "contradictions", "wrongly_deleted", "read_twice",
    "read_out_of_order", "read_and_gone",
)  # fmt: skip
_ERRORS = ("not_acknowledged", "not_read_at_once")
_SEND, _FETCH = "longest_send_ms", "longest_fetch_ms"
_TABLES = (
    "faults_by_kind", "topics", "unavailable", "time_to_first_acknowledged", "outages", "fault_list", "failures",
    *_ERRORS,
)  # fmt: skip
# No records of the first topic are ever deleted.
KEPT, TRIMMED, COMPACTED = "kept", "trimmed", "compacted"
ASSIGNMENTS = {
    KEPT: {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 3, 2)},
    TRIMMED: {0: (2, 1, 3), 1: (3, 2, 1)},
    COMPACTED: {0: (3, 1, 2)},
}
_CONFIGS = {COMPACTED: {"cleanup.policy": "compact"}}
# Compaction runs often, and removed files are deleted soon after the longest freeze. Polls are rare, because each poll
# of the store is a request and all processes share a small machine. The broker with the slow store takes seconds a
# round. Kafka's lag time of 30 s (KIP-537), longer than Lakelog's default, keeps it in sync. Sessions are as on a disk
# in a store too, because the lengths of the faults are chosen for 6 s.
SETTINGS = {
    "broker.session.timeout.ms": 6_000,
    "controller.session.timeout.ms": 6_000,
    "replica.lag.time.max.ms": 30_000,
    "lakelog.poll.interval.ms": 200,
    "log.cleaner.backoff.ms": 2_000,
    "log.cleaner.min.files": 8,
    "log.segment.delete.delay.ms": 60_000,
    "leader.imbalance.check.interval.seconds": 30,
    "lakelog.scrub.interval.ms": 60_000,
}
_COMPACTIONS = re.compile(r"(\d+) compactions of \d+ small files")
_CLEANINGS = re.compile(r": cleaned \S+ up to offset \d+: files")
PATIENCE = 300.0


class ProgressReport(Protocol):
    """Takes the progress of a soak."""

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None: ...


@dataclass
class Course:
    """The events of a soak: each fault that has begun, in order; the errors that interrupted the soak; the number of
    processes that did not stop in order; the numbers of rotten and of repaired files; the outages after kills, and how
    many of them took longer than the session time-out and two seconds."""

    planned: int
    seed: int
    fault_list: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_in_order: int = 0
    rotted: int = 0
    repaired: int = 0
    checkpoints_deleted: int = 0
    outages: Sequence[Outage] = ()
    too_long: int = 0

    def faults(self) -> dict[str, int]:
        """The number of completed faults of each kind."""
        return dict(sorted(Counter(f["kind"] for f in self.fault_list if f["ended_s"] is not None).items()))


def topic_figures(view: TopicView, load: TopicLoad, may_delete: bool) -> dict[str, Any]:
    """Compares logs, acknowledgements and read records of a topic, after all writers have stopped."""
    logs, reader = TopicLogs(view, load.topic, may_delete, load.is_compacted), load.reader
    deleted = sum(logs.starts.values())
    return {
        "acknowledged": load.count(),
        **logs.check(load.acknowledged)._asdict(),
        "deleted": deleted,
        "wrongly_deleted": 0 if may_delete else deleted,
        "read": len(reader.seen),
        "skipped": reader.skipped,
        "read_twice": doubled(record.number for record in reader.seen),
        "read_out_of_order": reader.out_of_order,
        "read_and_gone": logs.missing(reader.seen),
    }


def unavailable(loads: Sequence[TopicLoad], began: float) -> list[dict[str, Any]]:
    """For each partition the longest time without an acknowledgement (ms), and its begin in seconds after `began`."""
    return [
        {
            "topic": load.topic,
            "partition": probe.partition,
            "longest_ms": 0 if longest is None else round(longest.lasted_s * 1000),
            "began_s": None if longest is None else round(longest.began_s - began, 1),
        }
        for load in loads
        for probe in load.probes
        for longest in [probe.waits.longest]
    ]


def note_pauses(faults: Sequence[dict[str, Any]], loads: Sequence[TopicLoad], began: float) -> None:
    """Notes in each fault that has begun the longest time that a send and a fetch took (ms) until the next one began.
    The middle of a time tells to which fault it belongs."""
    begun = [fault for fault in faults if fault["began_s"] is not None]
    begins = [began + fault["began_s"] for fault in begun]
    clients: Mapping[str, Sequence[RepeatedWork]] = {
        _SEND: [sender for load in loads for sender in load.senders],
        _FETCH: [load.reader for load in loads],
    }
    for name, some in clients.items():
        for fault in begun:
            fault[name] = 0
        for wait in (wait for client in some for wait in client.waits.all):
            number = bisect_right(begins, wait.began_s + wait.lasted_s / 2)
            if number:
                begun[number - 1][name] = max(begun[number - 1][name], round(wait.lasted_s * 1000))


def _of_kind(kind: str, faults: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The longest times of all faults of a kind."""
    return {name: max(fault.get(name, 0) for fault in faults if fault["kind"] == kind) for name in (_SEND, _FETCH)}


def error_figures(loads: Sequence[TopicLoad]) -> dict[str, dict[str, int]]:
    """The errors that clients got: of records without acknowledgement, and of fetches that they repeated."""
    senders = [sender for load in loads for sender in load.senders]
    found = [sender.errors for sender in senders], [load.reader.errors for load in loads]
    return {name: dict(sum(errors, Counter())) for name, errors in zip(_ERRORS, found, strict=True)}


def soak_figures(
    course: Course, topics: Mapping[str, Figures], waits: Sequence[Figures], errors: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """All figures. `topics` is empty if the cluster did not recover: then the number of lost records is unknown."""
    by_kind = course.faults()
    faults = sum(by_kind.values())
    wrong = {name: sum(found[name] for found in topics.values()) if topics else None for name in WRONG}
    are_used = bool(topics) and all(found["acknowledged"] and found["read"] for found in topics.values())
    is_whole = not course.failures and not course.not_in_order and faults == course.planned
    is_repaired = course.repaired == course.rotted
    return {
        "ok": bool(is_whole and is_repaired and are_used and not any(wrong.values())),
        "seed": course.seed,
        "planned": course.planned,
        "faults": faults,
        **wrong,
        "rotted": course.rotted,
        "repaired": course.repaired,
        "longest_unavailable_ms": max((found["longest_ms"] for found in waits), default=None),
        "not_stopped_in_order": course.not_in_order,
        "checkpoints_deleted": course.checkpoints_deleted,
        "kills_beyond_session_timeout_plus_2_s": course.too_long,
        "faults_by_kind": by_kind,
        "topics": dict(topics),
        "unavailable": list(waits),
        "time_to_first_acknowledged": distribution(course.outages),
        "outages": [outage._asdict() for outage in course.outages],
        **errors,
        "failures": course.failures,
        "fault_list": course.fault_list,
    }


def show_figures(figures: Figures) -> None:
    """Prints each figure, the faults, the topics, the outages, the errors, and the failures."""
    Report([{"figure": name, "value": value} for name, value in figures.items() if name not in _TABLES]).show()
    faults = figures["fault_list"]
    Report([{"fault": k, "times": n, **_of_kind(k, faults)} for k, n in figures["faults_by_kind"].items()]).show()
    Report([{"topic": topic, **found} for topic, found in figures["topics"].items()]).show()
    Report(figures["unavailable"]).show()
    Report(figures["time_to_first_acknowledged"]).show()
    names = sorted({name for column in _ERRORS for name in figures[column]})
    Report([{"error": name, **{column: figures[column].get(name, 0) for column in _ERRORS}} for name in names]).show()
    Report([{"failure": failure} for failure in figures["failures"]]).show()


@dataclass(frozen=True)
class SoakPlan:
    """The duration in seconds, the number and kinds of faults, the seed, where the roots are: see `STORED`, and how
    many roots the cluster has."""

    seconds: float
    faults: int
    seed: int
    kinds: tuple[str, ...] = tuple(KINDS)
    store: str = "mixed"
    cluster_roots: int = 1

    @property
    def latest_end_s(self) -> float:
        """The second by which all faults must have ended, also on a machine that recovers slowly."""
        return 2 * self.seconds + PATIENCE

    def planned(self) -> tuple[Fault, ...]:
        """The faults in order. Raises ValueError if none of the kinds can hit a root."""
        return plan_faults(
            self.seed, self.seconds, self.faults, BROKERS, STORED[self.store], self.kinds, self.cluster_roots
        )


def run_soak(folder: Path, plan: SoakPlan, report: ProgressReport) -> dict[str, Any]:
    """Runs the soak in an empty folder and returns its figures. It calls `report` with its progress."""
    started = time.monotonic()
    has_disks = plan.store == DISKS
    on_disks = BROKERS if plan.cluster_roots > 1 else (CLUSTER, *BROKERS)
    roots = LocalRoots(folder, STORED[plan.store], on_disks if has_disks else (), plan.cluster_roots)
    settings = {**SETTINGS, "storage.fsync": str(has_disks).lower()}
    with ProcessCluster(roots, folder, BROKERS, settings) as cluster:
        cluster.format()
        soak = Soak(cluster, plan, report)
        soak.run()
    return {**soak.figures(), "elapsed_s": round(time.monotonic() - started, 1)}


class Soak:
    """One soak, from the start of the processes to their end."""

    def __init__(self, cluster: ProcessCluster, plan: SoakPlan, report: ProgressReport) -> None:
        self._cluster = cluster
        self._plan = plan
        self._report = report
        self._view = TopicView(Cluster.open(cluster.uri))
        self._health = ClusterHealth(self._view, cluster, list(ASSIGNMENTS))
        self._admin = AdminClient(cluster.uri, requested_by="soak")
        self._load = SoakLoad(
            cluster.uri, {topic: len(found) for topic, found in ASSIGNMENTS.items()}, plan.store == DISKS, [COMPACTED]
        )
        self._roots = RootFaults(cluster, KEPT, self._health.is_alone, self._let)
        self._meter = next(load.meter for load in self._load.topics if load.topic == KEPT)
        self._faults = SoakFaults(
            cluster, self._roots, self._health, self._meter, self._admin, TRIMMED, self._wait, self._let
        )
        self._course = Course(plan.faults, plan.seed)
        self._checked: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()
        self._is_loaded = False

    def run(self) -> None:
        """Runs all steps. A failed step is recorded, and the checks that are still possible follow."""
        if self._try(self._begin):
            self._try(self._go_wrong)
            self._is_loaded = False
            self._try(self._load.stop_senders)
            is_settled = self._try(self._settle)
            self._try(self._load.stop_readers)
            self._try(self._stop)
            if is_settled:
                self._try(self._look_for_records)

    def _try(self, part: Callable[[], None]) -> bool:
        try:
            part()
        except LakelogException as error:
            self._course.failures.append(f"{error.name}: {error}")
            return False
        except Exception:  # a bug in a thread of the load or in the soak itself: record its stack trace
            self._course.failures.append(traceback.format_exc())
            return False
        return True

    def _begin(self) -> None:
        self._cluster.launch()
        self._wait(self._cluster.missing_servers, "all servers start")
        for topic, assignment in ASSIGNMENTS.items():
            configs = {"min.insync.replicas": 2, **_CONFIGS.get(topic, {})}
            self._admin.create_topic(topic, assignment=assignment, configs=configs)
        self._load.start()
        self._is_loaded = True
        self._wait(self._lacks_records, "each partition acknowledges a record")
        self._load.forget_waits()
        self._began = time.monotonic()

    def _lacks_records(self) -> str:
        return ", ".join(load.topic for load in self._load.topics if not load.has_begun())

    def _go_wrong(self) -> None:
        plan = self._plan
        for fault in plan.planned():
            self._let(fault.at_s - self._elapsed())
            self._carry_out(fault)
        self._let(self._plan.seconds - self._elapsed())

    def _carry_out(self, fault: Fault) -> None:
        """Carries out a fault. It lists the fault before it starts, so after an error the last entry is the fault that
        failed."""
        entry = {
            "kind": fault.kind, "planned_s": fault.at_s, "began_s": None, "began": None, "lasts_s": fault.lasts_s,
            "broker": fault.broker if fault.takes_broker else None, "done": None, "ended_s": None,
        }  # fmt: skip
        self._course.fault_list.append(entry)
        self._faults.prepare(fault)
        entry.update(began_s=self._elapsed(), began=datetime.now().isoformat(timespec="milliseconds"))
        entry["done"] = self._faults.carry_out(fault)
        entry["ended_s"] = self._elapsed()
        say(f"{entry['began_s']:7.1f} s to {entry['ended_s']:7.1f} s  {fault.kind}: {entry['done']}")

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def _settle(self) -> None:
        """Starts what does not run, and waits until the replicas have their leaders' records and the readers have read
        them."""
        for process in self._cluster.all():
            if not process.is_running():
                process.kill()
                process.start()
        self._wait(self._health.lacks_members, "the ISRs are whole")
        self._wait(self._roots.lacks_repairs, "rotten files are repaired")
        bounds = self._health.bounds()
        self._wait(lambda: self._health.lacks_records(bounds), "replicas catch up")
        self._wait(self._lacks_readers, "the readers have read everything")

    def _lacks_readers(self) -> str:
        """The first topic whose reader is behind, with its positions and the ends; empty if there is none."""
        bounds = self._health.bounds()
        for load in self._load.topics:
            load.reader.check()
            partitions = self._view.partitions(load.topic)
            ends = {p: bounds[r.topic_id_partition][1] for p, r in partitions.items()}
            if not load.has_read(ends):
                return f"{load.topic}: at {load.reader.positions} of {ends}, errors {dict(load.reader.errors)}"
        return ""

    def _stop(self) -> None:
        for process, status in zip(self._cluster.all(), self._cluster.stop_all(), strict=True):
            if status:
                self._faults.not_in_order += 1
                self._course.failures.append(f"{process.name} has stopped with status {status}")

    def _look_for_records(self) -> None:
        for load in self._load.topics:
            self._checked[load.topic] = topic_figures(self._view, load, load.topic == TRIMMED)

    def _let(self, seconds: float) -> None:
        """Waits a number of seconds. If a process ends by itself meanwhile, the soak ends with an error."""
        end = time.monotonic() + seconds
        self._wait(lambda: "" if time.monotonic() >= end else "not yet", "time passes", seconds + PATIENCE)

    def _wait(self, lacks: Callable[[], str], what: str, seconds: float | None = None) -> None:
        lacking = ""

        def is_over() -> bool:
            nonlocal lacking
            self._check()
            self._report(description=what, completed=len(self._course.fault_list), acknowledged=self._load.count())
            lacking = lacks()
            return not lacking

        try:
            wait_until(is_over, what, PATIENCE if seconds is None else seconds)
        except TimeoutException as error:
            raise TimeoutException(f"{error}; missing: {lacking}") from None

    def _check(self) -> None:
        self._cluster.check()
        if self._is_loaded:
            self._load.check()
            if self._elapsed() > self._plan.latest_end_s:
                begun, planned = len(self._course.fault_list), self._plan.faults
                raise TimeoutException(f"only {begun} of {planned} faults have begun within {self._elapsed():.0f} s")

    def figures(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        self._course.not_in_order = self._faults.not_in_order
        self._course.rotted, self._course.repaired = self._roots.rotted, self._roots.repaired
        self._course.checkpoints_deleted, self._course.outages = self._faults.checkpoints_deleted, self._meter.outages
        self._course.too_long = too_long(self._meter.outages, self._view.cluster.config)
        is_checked = len(self._checked) == len(ASSIGNMENTS)
        waits = unavailable(self._load.topics, self._began)
        logs = [process.log.read_text() for process in self._cluster.brokers.values() if process.log.exists()]
        errors = error_figures(self._load.topics)
        note_pauses(self._course.fault_list, self._load.topics, self._began)
        return {
            "acknowledged": self._load.count(),
            **soak_figures(self._course, self._checked if is_checked else {}, waits, errors),
            "compactions": sum(int(count) for log in logs for count in _COMPACTIONS.findall(log)),
            "cleanings": sum(len(_CLEANINGS.findall(log)) for log in logs),
        }
