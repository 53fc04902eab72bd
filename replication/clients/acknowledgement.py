"""acks=all: when records count as acknowledged, and what to say when they do not in time.

Kafka: `DelayedProduce`, `Partition.checkEnoughReplicasReachOffset`. [AP-07]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from replication.clients.topic_view import TopicView, pause
from replication.errors import (
    LakelogException,
    NotEnoughReplicasAfterAppendException,
    NotLeaderOrFollowerException,
    TimeoutException,
)
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.leader_epoch import covers
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.storage.replica_table import LEADER_ROLE, Replica


class AppendedRecords(Protocol):
    """What was appended to one partition, and under which leader epoch."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    @property
    def last_offset(self) -> int:
        """Last offset."""

    @property
    def leader_epoch(self) -> int:
        """The epoch."""

    @property
    def error(self) -> LakelogException | None:
        """Why it was not appended."""


def acknowledge(
    view: TopicView, topic: str, appended: Mapping[int, AppendedRecords], deadline: float, timeout_ms: int
) -> dict[int, LakelogException]:
    """Waits until the HW has passed all that was appended; answers the error of each partition where it has not.

    TimeoutException says which replicas lack what; NotEnoughReplicasAfterAppendException, that the ISR has become too
    small; NotLeaderOrFollowerException, that a new leader's history does not hold the records.
    """
    waiting = {p: a for p, a in appended.items() if a.error is None}
    errors: dict[int, LakelogException] = {}
    while waiting:
        registrations = view.partitions(topic)
        for partition, records in list(waiting.items()):
            outcome = _look(view, registrations[partition], records)
            if outcome is not None:
                del waiting[partition]
                errors.update({partition: outcome} if isinstance(outcome, LakelogException) else {})
        if not waiting or time.monotonic() >= deadline:
            break
        pause(view.cluster.config.lakelog_poll_interval_ms, deadline)
    for partition, records in waiting.items():
        errors[partition] = _timed_out(view, view.partitions(topic)[partition], records, timeout_ms)
    return errors


def _look(
    view: TopicView, registration: PartitionRegistration, records: AppendedRecords
) -> LakelogException | bool | None:
    """True if the records are acknowledged, an error if they never will be, None if it cannot be told yet."""
    row = _leader_row(view, registration)
    if row is None or row.leader_epoch < records.leader_epoch:
        return None
    if row.leader_epoch == records.leader_epoch:
        return True if row.high_watermark > records.last_offset else None
    if covers(row.epochs, records.leader_epoch, records.base_offset, records.last_offset):
        return True if row.high_watermark > records.last_offset else None
    return NotLeaderOrFollowerException(
        f"{_name(registration)}: offsets {records.base_offset} to {records.last_offset} of leader epoch "
        f"{records.leader_epoch} are not in the log of leader {registration.leader} (epoch {row.leader_epoch})"
    )


def _leader_row(view: TopicView, registration: PartitionRegistration) -> Replica | None:
    """What the leader says, once it has taken up the role under the epoch that the metadata has."""
    if registration.leader == NO_LEADER:
        return None
    row = view.replicas(registration.leader).get(registration.topic_id_partition)
    is_leader = row is not None and row.role == LEADER_ROLE and row.leader_epoch == registration.leader_epoch
    return row if is_leader else None


def _timed_out(
    view: TopicView, registration: PartitionRegistration, records: AppendedRecords, timeout_ms: int
) -> LakelogException:
    needed = effective_min_isr(view.config(registration.topic).min_insync_replicas, len(registration.replicas))
    if len(registration.isr) < needed:
        return NotEnoughReplicasAfterAppendException(
            f"{_name(registration)}: appended, but the ISR {registration.isr} has become smaller than "
            f"min.insync.replicas ({needed})"
        )
    lacking = _lacking(view, registration, records)
    return TimeoutException(
        f"{_name(registration)}: offsets {records.base_offset} to {records.last_offset} were appended but not "
        f"acknowledged by all of the ISR {registration.isr} within {timeout_ms} ms: {lacking}"
    )


def _lacking(view: TopicView, registration: PartitionRegistration, records: AppendedRecords) -> str:
    parts = []
    for broker in (b for b in registration.isr if b != registration.leader):
        row = view.replicas(broker).get(registration.topic_id_partition)
        end = row.log_end_offset if row else 0
        if end <= records.last_offset:
            parts.append(f"broker {broker} ends at {end}" + (f" ({row.error})" if row and row.error else ""))
    return "; ".join(parts) or "all have them, and the high watermark is about to follow"


def _name(registration: PartitionRegistration) -> str:
    return f"{registration.topic}-{registration.partition}"
