"""What came of a script: its steps and the history of its partitions, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakelog.jobs.scenarios.scene import Observed
from lakelog.jobs.scenarios.script import Script, Step
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.metadata_history import MetadataVersion


@dataclass(frozen=True)
class StepResult:
    """A step that was carried out: what came of it, and when, counted from the first step of its script."""

    step: Step
    outcome: Observed
    at_ms: int
    took_ms: int

    @property
    def ok(self) -> bool:
        """Whether it came out as the script says."""
        return self.outcome.fault is None

    def as_json(self) -> dict[str, object]:
        """`at_ms` is when what it saw was seen, at its end."""
        return {
            "step": self.step.name,
            "line": self.step.line,
            "arguments": dict(self.step.given),
            "ok": self.ok,
            "at_ms": self.at_ms,
            "took_ms": self.took_ms,
            **self.outcome.figures,
            "saw": self.outcome.saw,
            **({"fault": self.outcome.fault} if self.outcome.fault else {}),
        }


@dataclass(frozen=True)
class ScriptResult:
    """A script that was run, to its end or to the step that came out otherwise than it says."""

    script: Script
    steps: tuple[StepResult, ...]
    history: Sequence[MetadataVersion]

    @property
    def ok(self) -> bool:
        """Whether every step came out as it says."""
        return len(self.steps) == len(self.script.steps) and all(result.ok for result in self.steps)

    def as_json(self) -> dict[str, object]:
        """The name, whether it is well, the steps and the history."""
        return {
            "name": self.script.name,
            "ok": self.ok,
            "steps": [result.as_json() for result in self.steps],
            "history": list(states(self.history)),
        }


def states(history: Sequence[MetadataVersion]) -> Iterator[dict[str, object]]:
    """Every state that a partition has been in, once, with the version that brought it, and who wrote that and why."""
    last: dict[TopicIdPartition, PartitionRegistration] = {}
    for version in history:
        for partition, registration in version.partitions.items():
            if last.get(partition) != registration:
                last[partition] = registration
                yield _state(version, registration)


def _state(version: MetadataVersion, registration: PartitionRegistration) -> dict[str, object]:
    return {
        "version": version.version,
        "who": version.cause.get("who"),
        "why": version.cause.get("why"),
        "topic": registration.topic,
        "partition": registration.partition,
        "leader": registration.leader,
        "leader_epoch": registration.leader_epoch,
        "isr": list(registration.isr),
        "replicas": list(registration.replicas),
        "partition_epoch": registration.partition_epoch,
    }
