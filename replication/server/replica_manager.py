"""The replicas that a broker hosts: their roles, their high watermarks, and what it tells others of them.

Kafka: `ReplicaManager`, `Partition`. The rules are in `protocol` and answer with steps; here these are carried out on
tables, in the order given.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from replication.errors import KafkaStorageException, LakelogException
from replication.protocol.become_leader_or_follower import become_leader_or_follower
from replication.protocol.high_watermark import follower_high_watermark
from replication.protocol.isr import IsrChange
from replication.protocol.leadership import (
    HostedPartition,
    Surroundings,
    attend,
    follow_registration,
    host,
    raise_high_watermark,
    settle_isr_change,
)
from replication.protocol.partition_log import Role
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import (
    AlterPartitions,
    CommitRoles,
    DeleteLogs,
    HostPartitions,
    PublishReplicas,
    RaiseHighWatermarks,
    StartFetching,
    Step,
    StopFetching,
    StopIdleFetchers,
)
from replication.server.gate import Gate
from replication.server.metadata_cache import MetadataCache
from replication.server.replica_fetcher_manager import ReplicaFetcherManager
from replication.server.replica_rows import replica_row
from replication.storage.cut import delete_logs
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable

logger = logging.getLogger(__name__)
state_changes = logging.getLogger("state.change.logger")


class ReplicaManager:
    """All replicas of one broker. `apply` and `lead` are called by one thread; the rest may be called by any."""

    def __init__(
        self, broker_id: int, broker_epoch: int, log: ReplicaLog, table: ReplicaTable, cache: MetadataCache,
        fetchers: ReplicaFetcherManager, replica_lag_time_max_ms: int, gate: Gate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._log = log
        self._table = table
        self._cache = cache
        self._fetchers = fetchers
        self._replica_lag_time_max = replica_lag_time_max_ms / 1000
        self._gate = gate
        self._clock = clock
        self._lag_looked_at = clock()
        self._is_shutting_down = False
        self._lock = threading.RLock()
        self._hosted: dict[TopicIdPartition, HostedPartition] = {}
        self._around: dict[TopicIdPartition, Surroundings] = {}
        self._handlers: dict[type[Step], Callable[[Any], object]] = {
            StopFetching: lambda step: fetchers.remove_fetcher_for_partitions(step.partitions),
            CommitRoles: self._commit_roles,
            DeleteLogs: lambda step: delete_logs(log, step.partitions, f"broker-{broker_id}"),
            HostPartitions: self._host,
            PublishReplicas: lambda step: self.publish(step.why),
            StartFetching: self._start_fetching,
            StopIdleFetchers: lambda _: fetchers.shutdown_idle_fetchers(),
            AlterPartitions: lambda step: self._alter_partitions(step.changes),
            RaiseHighWatermarks: lambda _: self._raise_high_watermarks(),
        }

    def shutting_down(self) -> None:
        """From now on roles are taken up as before, but nothing new is fetched. [BL-09]"""
        self._is_shutting_down = True

    def apply(self) -> None:
        """Takes up the roles that the metadata gives to this broker; what is as before is left alone. [BL-03]"""
        with self._lock:
            metadata = self._cache.partitions
            for partition, hosted in self._hosted.items():
                if partition in metadata:
                    self._hosted[partition] = follow_registration(hosted, metadata[partition])
            registrations = {p: hosted.registration for p, hosted in self._hosted.items()}
        state = self._log.refresh()
        known = {*state.partitions(), *(p for p, r in metadata.items() if self._broker_id in r.replicas)}
        logs = {p: state.partition(p) for p in sorted(known)}
        self.carry_out(become_leader_or_follower(self._broker_id, registrations, metadata, logs))

    def lead(self) -> bool:
        """The duties of a leader: looks at the followers, changes the ISR, raises the HWs, tells whether one has moved.

        Kafka: `Partition.maybeShrinkIsr`, `maybeExpandIsr`, `maybeIncrementLeaderHW`. [HW-01, IS-01, IS-04, FE-03]
        """
        if not self.leads():
            return False
        self._around = self._surroundings()
        with self._lock:
            before = dict(self._hosted)
            for partition, surroundings in self._around.items():
                self._hosted[partition] = attend(self._hosted[partition], surroundings)
            changes = tuple(h.pending for h in self._hosted.values() if h.pending)
        steps: list[Step] = [AlterPartitions(changes)] if changes else []
        self.carry_out([*steps, RaiseHighWatermarks()])
        with self._lock:
            return any(h.high_watermark > before[p].high_watermark for p, h in self._hosted.items() if p in before)

    def _surroundings(self) -> dict[TopicIdPartition, Surroundings]:
        """What each led partition's leader looks at now. The log comes last: it tells whether this process is still the
        broker's, and what has been decided on older metadata than that is refused by its partition epoch."""
        led = self.leads()
        rows = self._follower_rows({broker for r in led for broker in r.followers})
        epochs = {broker: registration.broker_epoch for broker, registration in self._cache.brokers().items()}
        alive = self._cache.alive_brokers()
        state, now = self._log.refresh(), self._clock()
        may_shrink = now - self._lag_looked_at >= self._replica_lag_time_max / 2
        self._lag_looked_at = now if may_shrink else self._lag_looked_at
        return {
            p: Surroundings(
                state.partition(p), {b: rows[b][p] for b in r.followers if b in rows and p in rows[b]}, epochs,
                {broker: epochs[broker] for broker in alive}, now, self._replica_lag_time_max,
                self._cache.min_isr(r), may_shrink,
            )
            for p, r in ((r.topic_id_partition, r) for r in led)
        }  # fmt: skip

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Carries out steps in their order; a broker may be ended between any two."""
        for step in steps:
            self._gate.pass_through()
            self._handlers[type(step)](step)

    def _commit_roles(self, step: CommitRoles) -> None:
        self._log.become(step.roles, why=f"metadata version {self._cache.version}")
        self._log_roles(step.roles)

    def _start_fetching(self, step: StartFetching) -> None:
        if not self._is_shutting_down:
            self._fetchers.add_fetcher_for_partitions(step.partitions)

    def _log_roles(self, roles: Mapping[TopicIdPartition, Role]) -> None:
        """The log of state changes. [BL-12]"""
        for partition, role in roles.items():
            registration = self._cache.partitions.get(partition)
            name = f"{registration.topic}-{registration.partition}" if registration else str(partition)
            state_changes.info(
                "broker %d: %s is %s under leader epoch %d (controller epoch %s, leader %s)",
                self._broker_id, name, role.name, role.leader_epoch,
                registration.controller_epoch if registration else "-", registration.leader if registration else "-",
            )  # fmt: skip

    def _host(self, step: HostPartitions) -> None:
        state, now = self._log.current(), self._clock()
        with self._lock:
            for partition in step.gone:
                del self._hosted[partition]
            for partition, registration in step.registrations.items():
                self._hosted[partition] = host(
                    self._hosted.get(partition), self._table.replicas.get(partition), registration,
                    state.partition(partition), self._broker_id, now, partition in step.resumed,
                )  # fmt: skip

    def _alter_partitions(self, changes: tuple[IsrChange, ...]) -> None:
        """Writes changes of ISRs; one whose outcome cannot be told stays pending, and the HW waits for both."""
        try:
            outcomes = self._cache.alter_partitions(changes, f"broker-{self._broker_id}")
        except KafkaStorageException as error:
            logger.warning("broker %d: what became of a change of the ISR is not known: %s", self._broker_id, error)
            return
        with self._lock:
            for partition, (outcome, current) in outcomes.items():
                hosted = self._hosted.get(partition)
                if hosted is not None:
                    self._hosted[partition] = settle_isr_change(hosted, outcome, current)
                    isr = current.isr if current else "gone"
                    state_changes.info(
                        "broker %d: ISR of %s: %s, now %s", self._broker_id, partition, outcome.value, isr
                    )

    def _raise_high_watermarks(self) -> None:
        for partition, around in self._around.items():
            with self._lock:
                hosted = self._hosted.get(partition)
                if hosted is not None:
                    self._hosted[partition] = raise_high_watermark(hosted, around)

    def leads(self) -> list[PartitionRegistration]:
        """The partitions that this broker leads."""
        with self._lock:
            return [h.registration for h in self._hosted.values() if h.registration.leader == self._broker_id]

    def update_follower_high_watermarks(self, leader_high_watermarks: Mapping[TopicIdPartition, int]) -> None:
        """Takes over the leader's HW, as far as this replica's log goes. [HW-03]"""
        state = self._log.current()
        with self._lock:
            for partition, high_watermark in leader_high_watermarks.items():
                hosted = self._hosted.get(partition)
                if hosted:
                    end = state.partition(partition).log_end_offset
                    follows = follower_high_watermark(high_watermark, end)
                    self._hosted[partition] = replace(hosted, high_watermark=follows)

    def lower_high_watermarks(self, partitions: Iterable[TopicIdPartition]) -> None:
        """After a cut no HW is above its log: what is appended there next is not committed yet. [TR-05]"""
        with self._lock:
            known = {p: self._hosted[p].high_watermark for p in partitions if p in self._hosted}
            self.update_follower_high_watermarks(known)

    def _follower_rows(self, brokers: Iterable[int]) -> dict[int, Mapping[TopicIdPartition, Replica]]:
        rows: dict[int, Mapping[TopicIdPartition, Replica]] = {}
        for broker in brokers:
            try:
                table = self._cache.replica_table(broker)
                table.refresh()
                rows[broker] = table.replicas
            except LakelogException as error:
                logger.warning("broker %d: replicas of broker %d cannot be read: %s", self._broker_id, broker, error)
        return rows

    def publish(self, why: str) -> None:
        """Writes what this broker says of its replicas, if it differs from what it last said."""
        state = self._log.current()
        with self._lock:
            told = self._table.replicas
            rows = [
                replica_row(
                    self._broker_id, self._broker_epoch, hosted, state.partition(p), self._fetchers.fetch_state(p),
                    told.get(p), state.version,
                )
                for p, hosted in self._hosted.items()
            ]  # fmt: skip
            self._table.publish(rows, why)
