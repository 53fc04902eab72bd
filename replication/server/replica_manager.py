"""The replicas that a broker hosts: their roles, their high watermarks, their published rows, and the log of their
changes.

Kafka: `ReplicaManager`, `Partition`. The rules in `protocol` return steps, and this module carries them out on tables
in the given order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from lakelog.replication.errors import (
    FencedClusterRootException,
    InconsistentClusterRootException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrOutcomes
from lakelog.replication.protocol.leadership import HostedPartition, follow_high_watermarks, host
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_changes import first_names, partition_changes
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_rows import replica_row, stray_replica, stray_row, with_faults
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import BrokerState, OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.carry_out import Handler, Result, Round, carry_out
from lakelog.replication.protocol.rounds.fetch_round import FollowHighWatermarks
from lakelog.replication.protocol.rounds.leader_round import (
    AlterPartitions,
    ClusterView,
    FollowersSeen,
    IsrChangesSettled,
    LeaderRound,
    LogsSeen,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
)
from lakelog.replication.protocol.rounds.role_round import (
    CommitRoles,
    DeleteLogs,
    FenceIsrChanges,
    HostPartitions,
    ReadOwnLogs,
    RepairLogs,
    StartFetching,
    StopFetching,
    StopIdleFetchers,
    assigned_to,
    take_up_roles,
    was_deleted,
)
from lakelog.replication.server.follower_rows import FollowerStatusReader, Rows
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_fetcher_manager import ReplicaFetcherManager
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.log.log_state import LogMark, LogState
from lakelog.replication.storage.log.repair import repair_logs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs
from lakelog.replication.storage.tables.replica_table import ReplicaTable

logger = logging.getLogger(__name__)
state_changes = logging.getLogger("state.change.logger")

Value = TypeVar("Value")
_SHOWN = 10  # names of stray replicas in one line
_WRONG = "an operator has found wrong records from offset %d on: they are fetched again"
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
        reads = LeaderRoundReads(broker_id, log, cache, replica_lag_time_max_ms, clock)
        lag_time = replica_lag_time_max_ms / 1000
        self._leader = LeaderRound(broker_id, lag_time, lag_time / 2, clock)
        self.offline = OfflineReplicas(broker_id)
        self._is_shutting_down = False
        self._lock = threading.RLock()
        self._hosted: dict[TopicIdPartition, HostedPartition] = {}
        self._strays: dict[TopicIdPartition, HostedPartition] = {}
        self._state = BrokerState(self._hosted, lambda: table.replicas, self.offline)
        self._faulty: frozenset[object] = frozenset()
        self._rows = ReplicaStatusBuilder(broker_id, broker_epoch)
        self._handlers = self._made_handlers(reads)

    def _made_handlers(self, reads: LeaderRoundReads) -> dict[type, Handler]:
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
            ReadFollowerRows: reads.follower_rows,
            ReadCluster: reads.cluster,
            ReadLog: reads.log,
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
        before = self.offline.faults
        try:
            work = take_up_roles(self._broker_id, self._broker_epoch, self._state, self._cache.partitions)
            self._carry_out(work)
        finally:
            log_offline(self._broker_id, before, self.offline.faults)

    def _read_own_logs(self, step: ReadOwnLogs) -> OwnLogs:
        state = self._log.refresh()
        state.give_up_stopped([p for p in state.partitions() if p not in step.metadata])
        state.topics.update({registration.topic_id: registration.topic for registration in step.metadata.values()})
        of_metadata = (p for p, r in step.metadata.items() if self._broker_id in r.replicas or state.fault(p))
        logs = {p: state.known(p) for p in sorted({*state.partitions(), *of_metadata, *self._table.replicas})}
        self._faulty = state.faulty()
        assigned = assigned_to(self._broker_id, step.metadata)
        faults = {p: _DELETED for p, r in assigned.items() if was_deleted(self._broker_id, r, logs[p].role)}
        if self._faulty:
            followed = (
                p for p in state.to_repair if p in assigned and assigned[p].leader not in (NO_LEADER, self._broker_id)
            )
            faults |= {p: _WRONG % logs[p].repair_from for p in followed}
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
        """Whether to call `apply` although the metadata has not moved: log files have broken or work again, or an
        operator has noted wrong records, or has deleted a stray replica."""
        state = self._log.current()
        return state.faulty() != self._faulty or any(not state.known(p).role.is_stray for p in self._strays)

    def lead(self) -> bool:
        """Runs one leader round, see `LeaderRound.run`. Returns whether an HW or a log start has risen.

        Raises StaleBrokerEpochException once a newer process has claimed the log, FencedClusterRootException if a
        follower belongs to a newer generation of the cluster root, KafkaStorageException, BrokerKilled.
        """
        return self._carry_out(self._leader.run(self._state))

    def _carry_out(self, work: Round[Any, Result]) -> Result:
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
            self._fetchers.add_fetcher_for_partitions(self.offline.without(step.partitions))

    def _host(self, step: HostPartitions) -> None:
        state, now = self._log.current(), self._clock()
        with self._lock:
            for partition in step.removed:
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
            return self.offline.without(led)

    def hosted(self) -> dict[TopicIdPartition, HostedPartition]:
        """The partitions with a replica on this broker, with the HWs that it knows, but those with a broken file."""
        with self._lock:
            return self.offline.without(self._hosted)

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
            hosted = {**self._strays, **self.offline.hosted(published), **self._hosted}
            inputs = RowInputs(hosted, self._fetchers.fetch_states(), self.offline.faults, self._strays.keys())
            state = self._log.current()  # read last: it has all roles and truncations that the rows show
            rows = self._rows.build(inputs, state, published)
            if may_wait and all_may_wait(rows, published):
                return
            self._table.publish(rows, why)
            self._rows.have_landed(self._table.replicas)


class LeaderRoundReads:
    """Answers the reads of one broker's rounds from tables and from its cache."""

    def __init__(
        self, broker_id: int, log: ReplicaLog, cache: MetadataCache, replica_lag_time_max_ms: int,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._log = log
        self._cache = cache
        self._unreadable: set[int] = set()
        self._polled_at: dict[int, float] = {}
        self._max_staleness = min(LONGEST_SECONDS, replica_lag_time_max_ms / 3000)
        self._rows = FollowerStatusReader(
            self._read_rows, replica_lag_time_max_ms / 2000, clock, self._polled_at.__getitem__, cache.listener.wake
        )

    def follower_rows(self, step: ReadFollowerRows) -> FollowersSeen:
        """The rows of followers. A broker whose rows cannot be read is left out, and logged once. Raises
        FencedClusterRootException if one belongs to a newer generation of the cluster root: this broker must end."""
        rows: dict[int, Rows] = {}
        for broker, found in self._rows.poll(step.brokers).items():
            if isinstance(found, FencedClusterRootException):
                raise found
            if isinstance(found, LakelogException):
                self._say_once(broker, found)
            else:
                rows[broker] = found
                self._unreadable.discard(broker)
        return FollowersSeen(rows, self._rows.began_at)

    def cluster(self, _: ReadCluster) -> ClusterView:
        """The epochs of registered and of live brokers, and each partition's min ISR, from the cache."""
        epochs = {broker: registration.broker_epoch for broker, registration in self._cache.brokers().items()}
        alive = {broker: epochs[broker] for broker in self._cache.alive_brokers()}
        return ClusterView(epochs, alive, self._cache.min_isr, self._cache.topics)

    def log(self, step: ReadLog) -> LogsSeen:
        """The broker's log as last found. Raises StaleBrokerEpochException once a newer process has claimed it."""
        state = self._log.refresh(LONGEST_SECONDS)
        mark = LogMark.of(state)
        return LogsSeen(state.known, step.since.changed(mark) if isinstance(step.since, LogMark) else None, mark)

    def _read_rows(self, broker: int) -> Rows:
        table = self._cache.replica_table(broker)
        table.poll(self._max_staleness)
        self._cache.check_generation(broker)
        # Rows may come from a poll of another thread. It is asked for before the rows, which may be newer then.
        self._polled_at[broker] = table.polled_at
        return table.replicas

    def _say_once(self, broker: int, error: LakelogException) -> None:
        """Logs once that a root cannot be read: it may stay so for many rounds."""
        if broker not in self._unreadable:
            self._unreadable.add(broker)
            logger.warning("broker %d: replicas of broker %d cannot be read: %s", self._broker_id, broker, error)


class RowInputs(NamedTuple):
    """All that rows are built from, besides the log and the rows published last. `faults`: see `with_faults`.
    `strays`: the stray replicas among `hosted`."""

    hosted: Mapping[TopicIdPartition, HostedPartition]
    fetched: Mapping[TopicIdPartition, PartitionFetchState]
    faults: Mapping[TopicIdPartition, str]
    strays: Collection[TopicIdPartition] = ()


class ReplicaStatusBuilder:
    """The rows of one process of a broker. Only one thread at a time may call it."""

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._built: tuple[RowInputs, LogMark] | None = None
        self._published: tuple[RowInputs, LogMark, Rows] | None = None

    def build(self, inputs: RowInputs, state: LogState, published: Rows) -> list[ReplicaStatus]:
        """The rows to publish over the rows `published`. Rows whose inputs are the same stay the same objects."""
        mark = LogMark.of(state)  # before the logs are read: what is appended meanwhile is looked at again
        changed, in_log = self._changed(inputs, mark, published)
        hosted, fetched = inputs.hosted, inputs.fetched
        fresh = (
            replica_row(
                self._broker_id, self._broker_epoch, hosted[p], state.known(p), fetched.get(p), published.get(p),
                mark.version,
            )
            for p in changed
        )  # fmt: skip
        shown = (stray_row(row) if row.topic_id_partition in inputs.strays else row for row in fresh)
        rows = {
            p: row for p, row in zip(changed, with_faults(shown, inputs.faults), strict=True)
            if p in in_log or p not in published or not row.tells_the_same(published[p])
        }  # fmt: skip
        self._built = inputs, mark
        in_place = published if published.keys() == hosted.keys() else hosted
        return [rows[p] if p in rows else published[p] for p in in_place]

    def have_landed(self, published: Rows) -> None:
        """The rows that were built last are the table's rows by now."""
        assert self._built is not None
        self._published = (*self._built, published)

    def _changed(
        self, inputs: RowInputs, mark: LogMark, published: Rows
    ) -> tuple[Collection[TopicIdPartition], Collection[TopicIdPartition]]:
        """The hosted partitions of which an input differs from those of the published rows, and those whose logs do;
        all if that is unknown."""
        if self._published is None:
            return inputs.hosted, inputs.hosted
        before, last_mark, rows = self._published
        in_log = last_mark.changed(mark)
        if in_log is None or rows is not published or before.faults or inputs.faults:
            return inputs.hosted, inputs.hosted
        moved = {*_moved(before.hosted, inputs.hosted), *_moved(before.fetched, inputs.fetched), *in_log}
        return sorted(moved & inputs.hosted.keys()), in_log


def _moved(before: Mapping[TopicIdPartition, Value], now: Mapping[TopicIdPartition, Value]) -> list[TopicIdPartition]:
    """The keys with another value object, or with a value in only one of the two."""
    removed = [p for p in before if p not in now]
    return [*removed, *(p for p, value in now.items() if before.get(p) is not value)]


def all_may_wait(rows: Sequence[ReplicaStatus], published: Rows) -> bool:
    """Whether the rows have no change, beyond the published ones, that another broker waits for: see
    `PublishReplicas`."""
    pairs = zip(rows, published.values(), strict=False)
    return len(rows) == len(published) and all(row is old or row.may_wait_after(old) for row, old in pairs)


def log_roles(
    broker_id: int, roles: Mapping[TopicIdPartition, Role], metadata: Mapping[TopicIdPartition, PartitionRegistration]
) -> None:
    """Logs the roles that a commit has recorded, each with the controller epoch that gave it. [BL-12]"""
    counts = Counter(role.name for role in roles.values())
    if counts:
        numbers = ", ".join(f"{name} of {count}" for name, count in sorted(counts.items()))
        logger.info("broker %d: partitions with a new role: %d (%s)", broker_id, len(roles), numbers)
    for partition, role in roles.items():
        registration = metadata.get(partition)
        name = registration.name if registration else str(partition)
        state_changes.info(
            "broker %d: %s is %s under leader epoch %d (controller epoch %s, leader %s)",
            broker_id, name, role.name, role.leader_epoch,
            registration.controller_epoch if registration else "-", registration.leader if registration else "-",
            extra={"partition": name, "epoch": role.leader_epoch},
        )  # fmt: skip


def log_isr_changes(
    broker_id: int, outcomes: IsrOutcomes, before: Mapping[TopicIdPartition, PartitionRegistration]
) -> None:
    """Logs the outcomes of a leader's ISR changes. `before` has the partitions as the leader knew them."""
    current = {p: registration for p, (_, registration) in outcomes.items() if registration is not None}
    changes = partition_changes(before, current)
    if changes:
        logger.info("broker %d: %s", broker_id, changes)
    for partition, (outcome, registration) in outcomes.items():
        _log_isr_change(broker_id, partition, outcome, registration)


def _log_isr_change(
    broker_id: int, partition: TopicIdPartition, outcome: AlterIsrOutcome, current: PartitionRegistration | None
) -> None:
    isr = current.isr if current else "gone"
    state_changes.info("broker %d: ISR of %s: %s, now %s", broker_id, partition, outcome.value, isr)


def log_offline(broker_id: int, before: Mapping[TopicIdPartition, str], now: Mapping[TopicIdPartition, str]) -> None:
    """Logs the replicas that have gone offline, each with its fault. [OL-01]"""
    for partition in now.keys() - before.keys():
        extra = {"partition": str(partition), "error": now[partition]}
        state_changes.error("broker %d: %s is offline: %s", broker_id, partition, now[partition], extra=extra)
