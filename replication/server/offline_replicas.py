"""The replicas of a broker that have a broken file: they lead and follow nothing until it is whole again.

Kafka: `HostedPartition.Offline`. There a whole log directory fails; here one file takes its own partitions with it.
[OL-01, BL-02]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from replication.protocol.become_leader_or_follower import assigned_to
from replication.protocol.fetch_state import ReplicaState
from replication.protocol.leadership import HostedPartition
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.server.gate import Gate
from replication.server.metadata_cache import MetadataCache
from replication.server.state_changes import state_changes
from replication.storage.log_state import LogState
from replication.storage.repair import repair_logs
from replication.storage.replica_log import ReplicaLog

Value = TypeVar("Value")
Registrations = Mapping[TopicIdPartition, PartitionRegistration]


class OfflineReplicas:
    """What was found at the last look. `look` is called by one thread; the rest may be called by any."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._faulty: frozenset[object] = frozenset()
        self._registrations: Registrations = {}
        self._fenced: set[TopicIdPartition] = set()
        self.faults: Mapping[TopicIdPartition, str] = {}

    def is_due(self, state: LogState) -> bool:
        """Whether segments have broken, or been healed, since the last look."""
        return state.faulty() != self._faulty

    def look(self, state: LogState, metadata: Registrations) -> bool:
        """Finds the replicas with broken files; tells whether there are others than before."""
        self._faulty = state.faulty()
        state.learn({registration.topic_id: registration.topic for registration in metadata.values()})
        assigned = assigned_to(self._broker_id, metadata) if self._faulty else {}
        found = {p: state.fault(p) for p in assigned}
        before, self.faults = self.faults, {p: fault for p, fault in found.items() if fault is not None}
        self._registrations = {p: metadata[p] for p in self.faults}
        self._fenced &= self.faults.keys()
        for partition in self.faults.keys() - before.keys():
            state_changes.error("broker %d: %s is offline: %s", self._broker_id, partition, self.faults[partition])
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
            if p in told and told[p].state == ReplicaState.OFFLINE
        }

    def repair(
        self, log: ReplicaLog, told: Mapping[TopicIdPartition, Replica], cache: MetadataCache, gate: Gate
    ) -> None:
        """Drops what is broken of replicas that can be fetched again, and that no leader is about to count on.

        A leader may have seen such a replica in order and be taking it into the ISR right now. So the metadata are
        changed first, once for each time that a replica is offline: that commit is later than its row, has the replica
        outside of the ISR, and fails what was decided before.
        """
        repairable = self.repairable(told)
        if repairable.keys() - self._fenced:
            gate.pass_through()
            self._fenced |= cache.fence_isr_changes(sorted(repairable.keys() - self._fenced), self._broker_id)
        given_up = {p: epoch for p, epoch in repairable.items() if p in self._fenced}
        if given_up:
            gate.pass_through()
            hosted = assigned_to(self._broker_id, cache.partitions)
            repair_logs(log, given_up, f"broker-{self._broker_id}", hosted)

    def names(self) -> tuple[str, ...]:
        """The offline replicas as the broker's row has them. [LI-04]"""
        return tuple(f"{p.topic_id}/{p.partition}" for p in sorted(self.faults))
