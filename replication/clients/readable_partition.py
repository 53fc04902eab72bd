"""Chooses the replica that a partition is read from. Kafka: `RackAwareReplicaSelector`, KIP-392."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.clients.led_partition import LedPartition
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    OffsetOutOfRangeException,
    error_or,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads, has_records
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus, no_leader
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState

Rows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus]
Found = TypeVar("Found")


class ReadablePartition(NamedTuple):
    """A replica that can be read up to its own high watermark. `state` and `root` are those of its broker's log."""

    registration: PartitionRegistration
    row: ReplicaStatus
    state: LogState
    root: StorageRoot

    @property
    def led(self) -> LedPartition:
        """The same for a look-up of offsets."""
        return LedPartition(self.registration, self.row, self.log, self.root)

    @property
    def log(self) -> PartitionLog:
        """The partition's log at this replica."""
        return self.state.known(self.registration.topic_id_partition)

    @property
    def is_leader(self) -> bool:
        """Whether the replica leads the partition."""
        return self.row.role == LEADER_ROLE

    @property
    def high_watermark(self) -> int:
        """The offset below which records may be read here."""
        return self.row.high_watermark


class ReplicaSelector:
    """Finds replicas to read, all at one poll: each broker's rows are read once, and its log after them.

    That order matters: a log that was read later has all records below the high watermark of the row.
    """

    def __init__(self, view: TopicView, rack: str | None) -> None:
        self._view = view
        self._rack = rack
        self._rows: Callable[[int], Rows | LakelogException] = cache(lambda b: error_or(view.replicas, b))
        self._states: Callable[[int], LogState | LakelogException] = cache(lambda b: error_or(view.log(b).refresh))

    def nearest(self, registration: PartitionRegistration, offset: int) -> ReadablePartition:
        """An in-sync replica in the reader's rack whose log starts at the offset or before, or else the leader.

        The log of a new leader may start before those of its followers, which have deleted what an earlier one has.

        Raises LeaderNotAvailableException, NotLeaderOrFollowerException, KafkaStorageException,
        CorruptRecordException, BrokerNotAvailableException.
        """
        near = self.in_rack(registration)
        if near is not None and near.log.log_start_offset <= offset:
            return near
        return self._readable(registration, registration.leader)

    def in_rack(self, registration: PartitionRegistration) -> ReadablePartition | None:
        """An in-sync follower in the reader's rack, unless the leader is there too, or there is none."""
        for broker in self._nearest_first(registration):
            if broker == registration.leader:
                break
            found = error_or(self._readable, registration, broker)
            if isinstance(found, ReadablePartition):
                return found
        return None

    def holding(self, registration: PartitionRegistration, start: int, stop: int) -> ReadablePartition:
        """A replica with all committed records from `start` to before `stop`: the nearest, the leader, or any other
        in-sync one, which may be read while the leader's root cannot be reached.

        Raises OffsetOutOfRangeException if records from `start` on are deleted, and LeaderNotAvailableException if no
        replica has come as far as `stop`.
        """
        behind = f"{registration.name}: no replica has committed records up to offset {stop}"
        error: LakelogException = LeaderNotAvailableException(behind)
        for broker in self._all(registration):
            found = error_or(self._readable, registration, broker)
            if isinstance(found, LakelogException):
                error = found if broker == registration.leader else error
            elif found.high_watermark >= stop and found.log.log_start_offset <= start:
                return found
            elif found.log.log_start_offset > start and found.is_leader:
                raise OffsetOutOfRangeException(
                    f"{registration.name}: records from offset {start} on are deleted, the log starts at "
                    f"{found.log.log_start_offset}"
                )
        raise error

    def _nearest_first(self, registration: PartitionRegistration) -> list[int]:
        near = [b for b in registration.isr if b != registration.leader and self._is_near(b)]
        is_near = registration.leader != NO_LEADER and self._is_near(registration.leader)
        return [registration.leader, *near] if is_near else [*near, registration.leader]

    def _all(self, registration: PartitionRegistration) -> Iterator[int]:
        chosen = [b for b in self._nearest_first(registration) if b != NO_LEADER]
        yield from dict.fromkeys((*chosen, *registration.isr))

    def _is_near(self, broker: int) -> bool:
        known = self._view.cluster.brokers.get(broker)
        return self._rack is not None and known is not None and known.rack == self._rack

    def _readable(self, registration: PartitionRegistration, broker: int) -> ReadablePartition:
        if broker == NO_LEADER:
            raise no_leader(registration)
        row = _or_raise(self._rows(broker)).get(registration.topic_id_partition)
        if row is None or row.leader_epoch != registration.leader_epoch:
            raise LeaderNotAvailableException(
                f"{registration.name}: broker {broker} has not taken up its role under leader epoch "
                f"{registration.leader_epoch}"
            )
        state = _or_raise(self._states(broker))
        log = state.partition(registration.topic_id_partition)
        if broker == registration.leader:
            check_log_leads(log, row, registration.name)
        else:
            _check_follows(registration, row, log)
        return ReadablePartition(registration, row, state, self._view.log(broker).root)


def _or_raise(found: Found | LakelogException) -> Found:
    if isinstance(found, LakelogException):
        raise found
    return found


def _check_follows(registration: PartitionRegistration, row: ReplicaStatus, log: PartitionLog) -> None:
    """A follower's row describes its log if the log follows at the row's epoch and has the row's chain at its LEO."""
    follows = row.role == FOLLOWER_ROLE and row.state == FollowerState.FETCHING
    if not follows or not log.role.follows_at(row.leader_epoch) or not has_records(log, row.log_end_offset, row.chain):
        raise LeaderNotAvailableException(f"{registration.name}: broker {row.broker_id} is not in sync")
