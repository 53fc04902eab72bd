"""A broker's offline replicas: those with a broken file. They neither lead nor follow until it is repaired.

Kafka: `HostedPartition.Offline`. In Kafka a whole log directory fails; here a broken file affects only its own
partitions. [OL-01, BL-02]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import NO_LEADER, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus

Value = TypeVar("Value")


class OfflineReplicas:
    """The offline replicas that the broker has last found. Only one thread calls `observe`; any may call the rest.

    `faults`: the error text of each. `fenced`: replicas that no earlier ISR change can add, see
    `isr.fence_isr_changes`.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._registrations: Registrations = {}
        self.fenced: set[TopicIdPartition] = set()
        self.faults: Mapping[TopicIdPartition, str] = {}

    def observe(self, faults: Mapping[TopicIdPartition, str], metadata: Registrations) -> bool:
        """Records the replicas with broken files; returns whether they or their faults have changed."""
        before, self.faults = self.faults, dict(faults)
        self._registrations = {p: metadata[p] for p in faults}
        self.fenced &= faults.keys()
        return before != self.faults

    def without_led(self, values: Mapping[TopicIdPartition, Value]) -> dict[TopicIdPartition, Value]:
        """The values without offline replicas that the metadata names as leader; the broker refuses that role.
        [BL-02]"""
        refused = {p for p, registration in self._registrations.items() if registration.leader == self._broker_id}
        return {partition: value for partition, value in values.items() if partition not in refused}

    def without(self, values: Mapping[TopicIdPartition, Value]) -> dict[TopicIdPartition, Value]:
        """The values without those of offline replicas."""
        return {partition: value for partition, value in values.items() if partition not in self.faults}

    def hosted(self, rows: Mapping[TopicIdPartition, ReplicaStatus]) -> dict[TopicIdPartition, HostedPartition]:
        """The offline replicas with their registration, and with the HW of their last published row."""
        return {
            p: HostedPartition(registration, rows[p].high_watermark if p in rows else 0)
            for p, registration in self._registrations.items()
        }

    def repairable(self, rows: Mapping[TopicIdPartition, ReplicaStatus]) -> dict[TopicIdPartition, int]:
        """The offline replicas that can be fetched again, with their leader epochs.

        Another broker leads them, this broker is not in their ISR, and the state in its published rows, `rows`, is
        Offline.
        """
        return {
            p: registration.leader_epoch
            for p, registration in self._registrations.items()
            if registration.leader not in (NO_LEADER, self._broker_id) and self._broker_id not in registration.isr
            if p in rows and rows[p].state == FollowerState.OFFLINE
        }

    def names(self) -> tuple[str, ...]:
        """The offline replicas as `<topic id>/<partition>`, for the broker's registration. [LI-04]"""
        return tuple(f"{p.topic_id}/{p.partition}" for p in sorted(self.faults))
