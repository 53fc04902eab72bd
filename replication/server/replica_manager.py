"""The replicas that a broker hosts: their roles, their high watermarks and their published rows.

Kafka: `ReplicaManager`, `Partition`. The rules in `protocol` return steps, and this module carries them out on tables
in the given order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lakelog.replication.errors import InconsistentClusterRootException, KafkaStorageException
from lakelog.replication.protocol.become_leader_or_follower import assigned_to, was_deleted
from lakelog.replication.protocol.isr import IsrOutcomes
from lakelog.replication.protocol.leadership import HostedPartition, follow_high_watermarks, host
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_rows import stray_replica
from lakelog.replication.protocol.rounds.broker_rounds import Memory
from lakelog.replication.protocol.rounds.carry_out import Handler, carry_out
from lakelog.replication.protocol.rounds.fetch_steps import FollowHighWatermarks
from lakelog.replication.protocol.rounds.leader_round import LeaderRound
from lakelog.replication.protocol.rounds.role_round import take_up_roles
from lakelog.replication.protocol.rounds.steps import (
    AlterPartitions,
    CommitRoles,
    DeleteLogs,
    FenceIsrChanges,
    HostPartitions,
    IsrChangesSettled,
    OwnLogs,
    PublishReplicas,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
    ReadOwnLogs,
    RepairLogs,
    Result,
    Round,
    StartFetching,
    Step,
    StopFetching,
    StopIdleFetchers,
)
from lakelog.replication.server.leader_reads import LeaderReads
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.pause_point import PausePoint
from lakelog.replication.server.published_rows import PublishedRows, RowInputs, all_may_wait
from lakelog.replication.server.replica_fetcher_manager import ReplicaFetcherManager
from lakelog.replication.server.state_change_log import log_isr_changes, log_offline, log_roles
from lakelog.replication.storage.log.repair import repair_logs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs
from lakelog.replication.storage.tables.replica_table import ReplicaTable

logger = logging.getLogger(__name__)

_SHOWN = 10  # names of stray replicas in one line
_DELETED = "it was deleted here by hand, and has to leave the ISR before it is fetched again"


class ReplicaManager:
    """All replicas of one broker. Only the broker's own thread calls `apply` and `lead`; any thread calls the rest."""

    def __init__(
        self, broker_id: int, broker_epoch: int, log: ReplicaLog, table: ReplicaTable, cache: MetadataCache,
        fetchers: ReplicaFetcherManager, replica_lag_time_max_ms: int, pause_point: PausePoint,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._log = log
        self._table = table
        self._cache = cache
        self._fetchers = fetchers
        self._pause_point = pause_point
        self._clock = clock
        view = LeaderReads(broker_id, log, cache, replica_lag_time_max_ms, clock)
        lag_time = replica_lag_time_max_ms / 1000
        self._leader = LeaderRound(broker_id, lag_time, lag_time / 2, clock)
        self._offline = OfflineReplicas(broker_id)
        self._is_shutting_down = False
        self._lock = threading.RLock()
        self._hosted: dict[TopicIdPartition, HostedPartition] = {}
        self._strays: dict[TopicIdPartition, HostedPartition] = {}
        self._memory = Memory(self._hosted, lambda: table.replicas, self._offline)
        self._faulty: frozenset[object] = frozenset()
        self._rows = PublishedRows(broker_id, broker_epoch)
        self._handlers = self._made_handlers(view)

    def _made_handlers(self, view: LeaderReads) -> dict[type[Step], Handler]:
        broker_id, log, cache, fetchers = self._broker_id, self._log, self._cache, self._fetchers
        who = f"broker-{broker_id}"
        return {
            StopFetching: lambda step: fetchers.remove_fetcher_for_partitions(step.partitions),
            CommitRoles: self._commit_roles,
            DeleteLogs: lambda step: delete_logs(log, step.partitions, who, assigned_to(broker_id, cache.partitions)),
            HostPartitions: self._host,
            PublishReplicas: lambda step: self.publish(step.why, step.may_wait),
            StartFetching: self._start_fetching,
            StopIdleFetchers: lambda _: fetchers.shutdown_idle_fetchers(),
            AlterPartitions: self._alter_partitions,
            IsrChangesSettled: lambda _: None,
            ReadFollowerRows: view.follower_rows,
            ReadCluster: view.cluster,
            ReadLog: view.log,
            ReadOwnLogs: self._read_own_logs,
            FenceIsrChanges: lambda step: cache.fence_isr_changes(step.partitions, broker_id),
            RepairLogs: lambda step: repair_logs(
                log, step.leader_epochs, who, assigned_to(broker_id, cache.partitions)
            ),
        }

    def shutting_down(self) -> None:
        """From now on it takes up roles as before, but starts no new fetching. [BL-09]"""
        self._is_shutting_down = True

    def apply(self) -> None:
        """Takes up the roles that the metadata gives to this broker: see `take_up_roles`. [BL-03]

        Raises StaleBrokerEpochException once a newer process has claimed the log, KafkaStorageException, BrokerKilled.
        """
        before = self._offline.faults
        try:
            work = take_up_roles(self._broker_id, self._broker_epoch, self._memory, self._cache.partitions)
            self._carry_out(work)
        finally:
            log_offline(self._broker_id, before, self._offline.faults)

    def _read_own_logs(self, step: ReadOwnLogs) -> OwnLogs:
        state = self._log.refresh()
        state.give_up_stopped([p for p in state.partitions() if p not in step.metadata])
        state.learn({registration.topic_id: registration.topic for registration in step.metadata.values()})
        of_metadata = (p for p, r in step.metadata.items() if self._broker_id in r.replicas or state.fault(p))
        logs = {p: state.known(p) for p in sorted({*state.partitions(), *of_metadata, *self._table.replicas})}
        self._faulty = state.faulty()
        assigned = assigned_to(self._broker_id, step.metadata)
        faults = {p: _DELETED for p, r in assigned.items() if was_deleted(self._broker_id, r, logs[p].role)}
        if self._faulty:
            faults |= {p: fault for p in assigned if (fault := state.fault(p)) is not None}
        self._note_strays(logs)
        return OwnLogs(logs, faults, bool(state.broken))

    def _note_strays(self, logs: Mapping[TopicIdPartition, PartitionLog]) -> None:
        """Keeps the memory of stray replicas as it is, because rows are built anew for another one. [SR-02]"""
        published, strays = self._table.replicas, {p for p, log in logs.items() if log.role.is_stray}
        known = {p: stray for p, stray in self._strays.items() if p in strays}
        for partition in strays - known.keys():
            log, hosted, row = logs[partition], self._hosted.get(partition), published.get(partition)
            topic = row.topic if row else log.batches[-1].header.topic if log.batches else partition.topic_id
            last = hosted.high_watermark if hosted else row.high_watermark if row else log.log_start_offset
            known[partition] = stray_replica(topic, log, partition, last)
        if new := [stray.registration.name for p, stray in known.items() if p not in self._strays]:
            logger.error(
                "broker %d: no metadata explain %d replicas any more. They take no records and keep theirs, as stray "
                "replicas, until the metadata do, or until `lakelog log-dirs --delete-stray` deletes them: %s",
                self._broker_id, len(new), first_names(sorted(new), _SHOWN),
            )  # fmt: skip
        self._strays = known

    def is_due(self) -> bool:
        """Whether to call `apply` although the metadata has not moved: log files have broken or work again, or somebody
        has deleted a stray replica."""
        state = self._log.current()
        return state.faulty() != self._faulty or any(not state.known(p).role.is_stray for p in self._strays)

    def offline(self) -> tuple[str, ...]:
        """The replicas that have a broken file, each as `topic_id/partition`. [OL-01, LI-04]"""
        return self._offline.names()

    def lead(self) -> bool:
        """Runs one leader round, see `LeaderRound.run`. Returns whether an HW or a log start has risen.

        Raises StaleBrokerEpochException once a newer process has claimed the log, KafkaStorageException, BrokerKilled.
        """
        return self._carry_out(self._leader.run(self._memory))

    def _carry_out(self, work: Round[Result]) -> Result:
        return carry_out(work, self._handlers, self._deciding)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Raises BrokerKilled if the broker was killed. Under the lock a decision's changes show all at once."""
        self._pause_point.pass_through()
        with self._lock:
            yield

    def _commit_roles(self, step: CommitRoles) -> None:
        self._log.become(step.roles, why=f"metadata version {self._cache.version}")
        log_roles(self._broker_id, step.roles, self._cache.partitions)
        state = self._log.current()
        self._note_strays({p: state.known(p) for p in (*self._strays, *step.roles)})

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

    def _alter_partitions(self, step: AlterPartitions) -> IsrOutcomes:
        try:
            outcomes = self._cache.alter_partitions(step.changes, f"broker-{self._broker_id}")
        except InconsistentClusterRootException:
            raise  # nothing was written
        except KafkaStorageException as error:
            logger.warning("broker %d: the outcome of an ISR change is unknown: %s", self._broker_id, error)
            raise
        log_isr_changes(self._broker_id, outcomes, {p: hosted.registration for p, hosted in self._hosted.items()})
        return outcomes

    def leads(self) -> list[PartitionRegistration]:
        """The registrations of the partitions that this broker leads; see `led`."""
        return [hosted.registration for hosted in self.led().values()]

    def led(self) -> dict[TopicIdPartition, HostedPartition]:
        """The partitions that this broker leads, with their HWs. It does not lead a partition with a broken file."""
        with self._lock:
            led = {p: h for p, h in self._hosted.items() if h.registration.leader == self._broker_id}
            return self._offline.without(led)

    def follow_high_watermarks(self, step: FollowHighWatermarks) -> None:
        """Takes over the HWs of leaders, each at most the own LEO. [HW-03, TR-05]"""
        with self._lock:
            self._hosted.update(follow_high_watermarks(self._hosted, step.log_ends, step.leader_high_watermarks))

    def publish(self, why: str, may_wait: bool = False) -> None:
        """Writes the rows of all replicas to `replicas`, if they have changed. `why` goes into the commit. `may_wait`:
        see `PublishReplicas`.

        It reads fetch states and roles before the log, because both move only after the log has changed. So no row
        claims more than the log has. Raises StaleBrokerEpochException, KafkaStorageException. [HW-02]
        """
        with self._lock:
            published = self._table.replicas
            hosted = {**self._strays, **self._offline.hosted(published), **self._hosted}
            inputs = RowInputs(hosted, self._fetchers.fetch_states(), self._offline.faults, self._strays.keys())
            state = self._log.current()  # read last: it has all roles and truncations that the rows show
            rows = self._rows.build(inputs, state, published)
            if may_wait and all_may_wait(rows, published):
                return
            self._table.publish(rows, why)
            self._rows.have_landed(self._table.replicas)
