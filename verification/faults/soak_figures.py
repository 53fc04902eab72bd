"""The figures of a soak, of each topic and in total, as JSON and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakelog.jobs.cli.console import show
from lakelog.replication.clients.topic_view import TopicView
from lakelog.verification.faults.log_check import TopicLogs, doubled
from lakelog.verification.faults.soak_load import TopicLoad

Figures = Mapping[str, Any]

# Faults whose numbers must be zero.
WRONG = (
    "lost", "duplicated", "different", "offsets_missing_or_doubled", "contradictions", "wrongly_deleted", "read_twice",
    "read_out_of_order", "read_and_gone",
)  # fmt: skip
_ERRORS = ("not_acknowledged", "not_read_at_once")
_TABLES = ("faults_by_kind", "topics", "unavailable", "fault_list", "failures", *_ERRORS)


@dataclass
class Course:
    """The events of a soak: each fault that has begun, in order; the errors that interrupted the soak; the number of
    processes that did not stop in order; the numbers of rotten and of repaired files."""

    planned: int
    seed: int
    fault_list: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_in_order: int = 0
    rotted: int = 0
    repaired: int = 0

    def faults(self) -> dict[str, int]:
        """The number of completed faults of each kind."""
        return dict(sorted(Counter(f["kind"] for f in self.fault_list if f["ended_s"] is not None).items()))


def topic_figures(view: TopicView, load: TopicLoad, may_delete: bool) -> dict[str, Any]:
    """Compares logs, acknowledgements and read records of a topic, after all writers have stopped."""
    logs, reader = TopicLogs(view, load.topic, may_delete), load.reader
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
            "longest_ms": round(probe.waits.longest_s * 1000),
            "began_s": None if probe.waits.began_s is None else round(probe.waits.began_s - began, 1),
        }
        for load in loads
        for probe in load.probes
    ]


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
        "faults_by_kind": by_kind,
        "topics": dict(topics),
        "unavailable": list(waits),
        **errors,
        "failures": course.failures,
        "fault_list": course.fault_list,
    }


def show_figures(figures: Figures) -> None:
    """Prints each figure, the faults, the topics, the outages, the errors, and the failures."""
    show([{"figure": name, "value": value} for name, value in figures.items() if name not in _TABLES])
    show([{"fault": kind, "times": times} for kind, times in figures["faults_by_kind"].items()])
    show([{"topic": topic, **found} for topic, found in figures["topics"].items()])
    show(figures["unavailable"])
    names = sorted({name for column in _ERRORS for name in figures[column]})
    show([{"error": name, **{column: figures[column].get(name, 0) for column in _ERRORS}} for name in names])
    show([{"failure": failure} for failure in figures["failures"]])
