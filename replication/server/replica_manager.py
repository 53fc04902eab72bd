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

from replication.errors import KafkaStorageException
from replication.protocol.become_leader_or_follower import assigned_to, become_leader_or_follower, given_to
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
from replication.protocol.partition_log import PartitionLog
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica_rows import replica_row, with_faults
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
from replication.server.leader_view import LeaderView
from replication.server.metadata_cache import MetadataCache
from replication.server.offline_replicas import OfflineReplicas
from replication.server.replica_fetcher_manager import ReplicaFetcherManager
from replication.server.state_changes import log_isr_change, log_roles
from replication.storage.cut import delete_logs
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable

logger = logging.getLogger(__name__)


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
        self._gate = gate
        self._clock = clock
        self._view = LeaderView(broker_id, log, cache, replica_lag_time_max_ms, clock)
        self._offline = OfflineReplicas(broker_id)
        self._is_shutting_down = False
        self._lock = threading.RLock()
        self._hosted: dict[TopicIdPartition, HostedPartition] = {}
        self._around: dict[TopicIdPartition, Surroundings] = {}
        self._handlers: dict[type[Step], Callable[[Any], object]] = {
            StopFetching: lambda step: fetchers.remove_fetcher_for_partitions(step.partitions),
            CommitRoles: self._commit_roles,
            DeleteLogs: lambda step: delete_logs(
                log, step.partitions, f"broker-{broker_id}", assigned_to(broker_id, cache.partitions)
            ),
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
            metadata = given_to(self._broker_id, self._broker_epoch, self._cache.partitions)
            for partition, hosted in self._hosted.items():
                if partition in metadata:
                    self._hosted[partition] = follow_registration(hosted, metadata[partition])
            registrations = {p: hosted.registration for p, hosted in self._hosted.items()}
        logs = self._known_logs(metadata)
        has_changed = self._offline.look(self._log.current(), metadata)
        kept = self._offline.without_led
        steps = become_leader_or_follower(self._broker_id, kept(registrations), kept(metadata), kept(logs))
        if has_changed:
            steps = [StopFetching(tuple(self._offline.faults)), *steps, PublishReplicas("offline replicas")]
        self.carry_out(steps)
        self._offline.repair(self._log, self._table.replicas, self._cache, self._gate)

    def _known_logs(
        self, metadata: Mapping[TopicIdPartition, PartitionRegistration]
    ) -> dict[TopicIdPartition, PartitionLog]:
        """What the log has, and may have in broken files; those that hold nothing of what it still has are let go."""
        state = self._log.refresh()
        of_metadata = (p for p, r in metadata.items() if self._broker_id in r.replicas or state.fault(p))
        logs = {p: state.known(p) for p in sorted({*state.partitions(), *of_metadata})}
        if state.broken:
            self.carry_out([DeleteLogs(())])
        return logs

    def is_due(self) -> bool:
        """Whether `apply` has to be called without a move of the metadata: files have broken, or are whole again."""
        return self._offline.is_due(self._log.current())

    def offline(self) -> tuple[str, ...]:
        """The replicas that have a broken file, as the broker's row has them. [OL-01, LI-04]"""
        return self._offline.names()

    def lead(self) -> bool:
        """The duties of a leader: looks at the followers, changes the ISR, raises the HWs, tells whether one has moved.

        Kafka: `Partition.maybeShrinkIsr`, `maybeExpandIsr`, `maybeIncrementLeaderHW`. [HW-01, IS-01, IS-04, FE-03]
        """
        if not self.leads():
            return False
        self._around = self._view.look(self.leads())
        with self._lock:
            before = dict(self._hosted)
            for partition, surroundings in self._around.items():
                self._hosted[partition] = attend(self._hosted[partition], surroundings)
            changes = tuple(h.pending for h in self._offline.without(self._hosted).values() if h.pending)
        steps: list[Step] = [AlterPartitions(changes)] if changes else []
        self.carry_out([*steps, RaiseHighWatermarks()])
        with self._lock:
            return any(self._has_news(p, h, before[p]) for p, h in self._hosted.items() if p in before)

    def _has_news(self, partition: TopicIdPartition, now: HostedPartition, before: HostedPartition) -> bool:
        """Whether others wait for what has changed: a HW, or a log start that a client has raised."""
        told, around = self._table.replicas.get(partition), self._around.get(partition)
        is_shorter = told is not None and around is not None and told.log_start_offset < around.log.log_start_offset
        return is_shorter or now.high_watermark > before.high_watermark

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Carries out steps in their order; a broker may be ended between any two."""
        for step in steps:
            self._gate.pass_through()
            self._handlers[type(step)](step)

    def _commit_roles(self, step: CommitRoles) -> None:
        self._log.become(step.roles, why=f"metadata version {self._cache.version}")
        log_roles(self._broker_id, step.roles, self._cache.partitions)

    def _start_fetching(self, step: StartFetching) -> None:
        if not self._is_shutting_down:
            self._fetchers.add_fetcher_for_partitions(self._offline.without(step.partitions))

    def _host(self, step: HostPartitions) -> None:
        state, now = self._log.current(), self._clock()
        with self._lock:
            for partition in step.gone:
                del self._hosted[partition]
            for partition, registration in step.registrations.items():
                self._hosted[partition] = host(
                    self._hosted.get(partition), self._table.replicas.get(partition), registration,
                    state.known(partition), self._broker_id, now,
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
                    log_isr_change(self._broker_id, partition, outcome, current)

    def _raise_high_watermarks(self) -> None:
        for partition, around in self._around.items():
            with self._lock:
                hosted = self._hosted.get(partition)
                if hosted is not None:
                    self._hosted[partition] = raise_high_watermark(hosted, around)

    def leads(self) -> list[PartitionRegistration]:
        """The partitions that this broker leads."""
        return [hosted.registration for hosted in self.led().values()]

    def led(self) -> dict[TopicIdPartition, HostedPartition]:
        """What this broker leads, with its HWs; what has a broken file it does not."""
        with self._lock:
            led = {p: h for p, h in self._hosted.items() if h.registration.leader == self._broker_id}
            return self._offline.without(led)

    def update_follower_high_watermarks(self, leader_high_watermarks: Mapping[TopicIdPartition, int]) -> None:
        """Takes over the leader's HW, as far as this replica's log goes. [HW-03]"""
        state = self._log.current()
        with self._lock:
            for partition, high_watermark in leader_high_watermarks.items():
                hosted = self._hosted.get(partition)
                if hosted:
                    end = state.known(partition).log_end_offset
                    follows = follower_high_watermark(high_watermark, end)
                    self._hosted[partition] = replace(hosted, high_watermark=follows)

    def lower_high_watermarks(self, partitions: Iterable[TopicIdPartition]) -> None:
        """After a cut no HW is above its log: what is appended there next is not committed yet. [TR-05]"""
        with self._lock:
            known = {p: self._hosted[p].high_watermark for p in partitions if p in self._hosted}
            self.update_follower_high_watermarks(known)

    def publish(self, why: str) -> None:
        """Writes what this broker says of its replicas, if it differs from what it last said.

        A fetch state moves after the log has changed, and a role is hosted after it is in the log: so what is read
        before the log claims no more than the log. [HW-02]
        """
        with self._lock:
            told = self._table.replicas
            hosted = {**self._offline.hosted(told), **self._hosted}
            fetched = {p: self._fetchers.fetch_state(p) for p in hosted}
            state = self._log.current()  # last: roles and truncations that the rows tell of are in it by now
            rows = (
                replica_row(
                    self._broker_id, self._broker_epoch, h, state.known(p), fetched[p], told.get(p), state.version
                )
                for p, h in hosted.items()
            )
            self._table.publish(with_faults(rows, self._offline.faults), why)
