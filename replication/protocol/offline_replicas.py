"""The replicas of a broker that have a broken file: they lead and follow nothing until it is whole again.

Kafka: `HostedPartition.Offline`. There a whole log directory fails; here one file takes its own partitions with it.
[OL-01, BL-02]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import NO_LEADER, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica

Value = TypeVar("Value")


class OfflineReplicas:
    """What was found at the last look. `look` is called by one thread; the rest may be called by any.

    `faults`: what is wrong, in words. `fenced`: whom no leader takes into an ISR on what was known before.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._registrations: Registrations = {}
        self.fenced: set[TopicIdPartition] = set()
        self.faults: Mapping[TopicIdPartition, str] = {}

    def look(self, faults: Mapping[TopicIdPartition, str], metadata: Registrations) -> bool:
        """Takes note of the replicas with broken files; tells whether there are others than before."""
        before, self.faults = self.faults, dict(faults)
        self._registrations = {p: metadata[p] for p in faults}
        self.fenced &= faults.keys()
        return before != self.faults

    def without_led(self, values: Mapping[TopicIdPartition, Value]) -> dict[TopicIdPartition, Value]:
        """The values but those of offline replicas that are to lead: that role is refused. [BL-02]"""
        refused = {p for p, registration in self._registrations.items() if registration.leader == self._broker_id}
        return {partition: value for partition, value in values.items() if partition not in refused}

    def without(self, values: Mapping[TopicIdPartition, Value]) -> dict[TopicIdPartition, Value]:
        """The values but those of offline replicas."""
        return {partition: value for partition, value in values.items() if partition not in self.faults}

    def hosted(self, told: Mapping[TopicIdPartition, Replica]) -> dict[TopicIdPartition, HostedPartition]:
        """Offline replicas as they stand in the metadata, with the HW that was told of them last."""
        return {
            p: HostedPartition(registration, told[p].high_watermark if p in told else 0)
            for p, registration in self._registrations.items()
        }

    def repairable(self, told: Mapping[TopicIdPartition, Replica]) -> dict[TopicIdPartition, int]:
        """The offline replicas that can be fetched again as far as is known here, with the leader epoch that they
        follow at: another broker leads, the ISR does without this one, and `told`, its rows, have it offline."""
        return {
            p: registration.leader_epoch
            for p, registration in self._registrations.items()
            if registration.leader not in (NO_LEADER, self._broker_id) and self._broker_id not in registration.isr
            if p in told and told[p].state == FollowerState.OFFLINE
        }

    def names(self) -> tuple[str, ...]:
        """The offline replicas as the broker's row has them. [LI-04]"""
        return tuple(f"{p.topic_id}/{p.partition}" for p in sorted(self.faults))
