"""The replicas that a broker hosts: their roles, their high watermarks, and what it tells others of them.

Kafka: `ReplicaManager`, `Partition`. The rules are in `protocol`; here they are applied to tables.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from replication.errors import LakelogException
from replication.protocol.fetch_state import PartitionFetchState, ReplicaState
from replication.protocol.high_watermark import follower_high_watermark, leader_high_watermark
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.server.metadata_cache import MetadataCache
from replication.server.replica_fetcher_manager import InitialFetchState, ReplicaFetcherManager
from replication.storage.log_state import FOLLOWER, LEADER, STOPPED, LogState, Role
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import FOLLOWER_ROLE, LEADER_ROLE, Replica, ReplicaTable

logger = logging.getLogger(__name__)


@dataclass
class HostedPartition:
    """A partition that this broker is a replica of, and its high watermark here."""

    registration: PartitionRegistration
    high_watermark: int


class ReplicaManager:
    """All replicas of one broker. `apply` is called by one thread; the rest may be called by any."""

    def __init__(
        self, broker_id: int, broker_epoch: int, log: ReplicaLog, table: ReplicaTable,
        cache: MetadataCache, fetchers: ReplicaFetcherManager,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._log = log
        self._table = table
        self._cache = cache
        self._fetchers = fetchers
        self._lock = threading.RLock()
        self._hosted: dict[TopicIdPartition, HostedPartition] = {}

    def apply(self) -> None:
        """Takes up the roles that the metadata gives to this broker; what is as before is left alone.

        Order as in Kafka: stop fetching, record the roles in the log, then start to fetch, so that nothing is appended
        under the old role once the new one stands. Kafka: `ReplicaManager.becomeLeaderOrFollower`. [BL-03, BL-06]
        """
        assigned = {p: r for p, r in self._cache.partitions.items() if self._broker_id in r.replicas}
        with self._lock:
            changed = {p: r for p, r in assigned.items() if not self._holds(p, r)}
            gone = [p for p in self._hosted if p not in assigned]
        if changed or gone:
            self._fetchers.remove_fetcher_for_partitions([*changed, *gone])
            self._log.become(self._roles(changed, gone), why=f"metadata version {self._cache.version}")
            self._host(changed, gone)
            self.publish("roles")  # a leader opens its partitions before it sees to what it follows
        self._fetchers.add_fetcher_for_partitions(self._followed(assigned))
        self._fetchers.shutdown_idle_fetchers()

    def _holds(self, partition: TopicIdPartition, registration: PartitionRegistration) -> bool:
        hosted = self._hosted.get(partition)
        if hosted is None or hosted.registration.leader_epoch != registration.leader_epoch:
            return False
        hosted.registration = registration
        return True

    def _roles(
        self, changed: Mapping[TopicIdPartition, PartitionRegistration], gone: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, Role]:
        roles = {p: Role(self._hosted[p].registration.leader_epoch, STOPPED) for p in gone}
        for partition, registration in changed.items():
            kind = LEADER if registration.leader == self._broker_id else FOLLOWER
            roles[partition] = Role(registration.leader_epoch, kind)
            logger.info(
                "broker %d takes up %s-%d as %s under leader epoch %d (controller epoch %d, leader %d)",
                self._broker_id, registration.topic, registration.partition,
                "leader" if kind == LEADER else "follower", registration.leader_epoch,
                registration.controller_epoch, registration.leader,
            )  # fmt: skip
        return roles

    def _host(
        self, changed: Mapping[TopicIdPartition, PartitionRegistration], gone: Iterable[TopicIdPartition]
    ) -> None:
        """A replica's HW goes on from what it was here, or was when this broker last ran. [HW-02]"""
        with self._lock:
            for partition in gone:
                del self._hosted[partition]
            for partition, registration in changed.items():
                self._hosted[partition] = HostedPartition(registration, self._last_high_watermark(partition))

    def _last_high_watermark(self, partition: TopicIdPartition) -> int:
        hosted, published = self._hosted.get(partition), self._table.replicas.get(partition)
        last = hosted.high_watermark if hosted else published.high_watermark if published else 0
        log = self._log.current().partition(partition)
        return max(min(last, log.log_end_offset), log.log_start_offset)

    def _followed(
        self, assigned: Mapping[TopicIdPartition, PartitionRegistration]
    ) -> dict[TopicIdPartition, InitialFetchState]:
        """What fetchers need to know of the partitions that others lead. [BL-10]"""
        state = self._log.current()
        return {
            p: InitialFetchState(r.topic, r.leader, r.leader_epoch, state.partition(p).log_end_offset)
            for p, r in assigned.items()
            if r.leader not in (self._broker_id, NO_LEADER)
        }

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
                    hosted.high_watermark = follower_high_watermark(high_watermark, end)

    def maybe_increment_leader_high_watermarks(self) -> bool:
        """Raises the HW of every led partition as far as its followers have come; tells whether any has moved.

        Kafka: `Partition.maybeIncrementLeaderHW`. [HW-01]
        """
        led = self.leads()
        if not led:
            return False
        state = self._log.refresh()
        rows = self._follower_rows({broker for r in led for broker in r.followers})
        moved = False
        for registration in led:
            moved |= self._maybe_increment(registration, state, rows)
        return moved

    def _maybe_increment(
        self,
        registration: PartitionRegistration,
        state: LogState,
        rows: Mapping[int, Mapping[TopicIdPartition, Replica]],
    ) -> bool:
        partition = registration.topic_id_partition
        ends = {
            broker: rows[broker][partition].log_end_offset
            for broker in registration.followers
            if broker in rows and self._counts(rows[broker].get(partition), registration)
        }
        with self._lock:
            hosted = self._hosted.get(partition)
            if hosted is None or hosted.registration.leader_epoch != registration.leader_epoch:
                return False
            before = hosted.high_watermark
            hosted.high_watermark = leader_high_watermark(
                before, state.partition(partition).log_end_offset, ends, registration.isr, self._broker_id, (),
                self._cache.min_isr(registration),
            )  # fmt: skip
            return hosted.high_watermark > before

    def _counts(self, row: Replica | None, registration: PartitionRegistration) -> bool:
        """A row counts only for the leader's own view: same topic id, leader epoch and broker epoch, and Fetching."""
        if row is None or row.leader_epoch != registration.leader_epoch or row.state != ReplicaState.FETCHING:
            return False
        registered = self._cache.brokers().get(row.broker_id)
        return registered is not None and registered.broker_epoch == row.broker_epoch and row.role == FOLLOWER_ROLE

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
            self._table.publish([self._row(p, hosted, state) for p, hosted in self._hosted.items()], why)

    def _row(self, partition: TopicIdPartition, hosted: HostedPartition, state: LogState) -> Replica:
        registration, log = hosted.registration, state.partition(partition)
        leads = registration.leader == self._broker_id
        fetch = None if leads else self._fetchers.fetch_state(partition)
        return Replica(
            topic=registration.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            leader_epoch=registration.leader_epoch,
            role=LEADER_ROLE if leads else FOLLOWER_ROLE,
            state=ReplicaState.FETCHING if leads else self._shown_state(partition, hosted, fetch),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=hosted.high_watermark,
            epochs=log.lineage,
            error=fetch.error if fetch else None,
            log_version=state.version,
        )

    def _shown_state(
        self, partition: TopicIdPartition, hosted: HostedPartition, fetch: PartitionFetchState | None
    ) -> str:
        """Without a fetcher, as at shutdown, the state that this process last told under the same leader epoch."""
        if fetch is not None:
            return fetch.shown_state
        told = self._table.replicas.get(partition)
        now = (self._broker_epoch, hosted.registration.leader_epoch)
        is_ours = told is not None and (told.broker_epoch, told.leader_epoch) == now
        return told.state if told is not None and is_ours else ReplicaState.TRUNCATING
