"""Reads that the sends in flight of a producer share."""

from __future__ import annotations

from typing import Any

from lakelog.replication.protocol.rounds.pipeline_round import StepOf
from lakelog.replication.protocol.rounds.send_round import (
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    SendStep,
)

_READS = ReadTopic, ReadLeaderships, ReadLeaderLogs, ReadReplicas


class SharedReads:
    """Carries out the steps of sends. Sends that look at the same time share what they read, until one writes."""

    def __init__(self) -> None:
        self._seen: dict[SendStep, Any] = {}

    def clear(self) -> None:
        """Forgets what was read."""
        self._seen.clear()

    def step(self, step: StepOf) -> Any:
        """Carries out a step, or returns what it has read for another send. Sends share no log that is older than the
        rows: it may lack what a row names."""
        if not isinstance(step.step, _READS):
            self._seen.clear()
            return step.owner.carry_out(step.step)
        if step.step not in self._seen:
            if isinstance(step.step, ReadLeaderships):
                self._seen = {seen: found for seen, found in self._seen.items() if not isinstance(seen, ReadLeaderLogs)}
            self._seen[step.step] = step.owner.carry_out(step.step)
        return self._seen[step.step]
