"""Opens partitions for reading: at their leaders, or at in-sync replicas that are nearer or have certain records.

The order of reads matters: first the replica's row, then its log, then the check that the row describes the log. So the
log has all records below the row's high watermark. Clients read partitions only through this module, which keeps that
order.

Kafka: `RackAwareReplicaSelector`, KIP-392.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.clients.purgatory import until_available
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
    error_or,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads, has_records
from lakelog.replication.protocol.fencing import check_leader_row
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange, TopicIdPartition
from lakelog.replication.protocol.replica_status import (
    FOLLOWER_ROLE,
    LEADER_ROLE,
    Leadership,
    ReplicaStatus,
    no_leader,
)
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.partition_rows import RowRange, row_ranges
from lakelog.replication.storage.log.segment import Segment

Found = TypeVar("Found")
Answer = TypeVar("Answer")
_ReplicaRows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus]

# A partition has these errors until its new leader has taken up its role. Kafka's admin client retries them.
_NEW_LEADER_ERRORS = (OffsetNotAvailableException, LeaderNotAvailableException, NotLeaderOrFollowerException)


class OpenPartition(NamedTuple):
    """A replica that can be read up to its own high watermark. `state` and `root` are those of its broker's log."""

    registration: PartitionRegistration
    row: ReplicaStatus
    state: LogState
    root: StorageRoot

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
        """The offset below which records may be read here: the row's high watermark, or the log start if that has risen
        above it since the row was read. Only committed records are deleted. Kafka: `UnifiedLog.updateHighWatermark`."""
        return max(self.row.high_watermark, self.log.log_start_offset)

    def segments(self, offsets: OffsetRange) -> list[Segment]:
        """The segments that have the records at these offsets, in order."""
        return self.state.segments_with(self.registration.topic_id_partition, offsets)

    def rows(self, offsets: OffsetRange) -> list[RowRange]:
        """Where the records at these offsets lie in those segments, segment by segment."""
        key = self.registration.topic_id_partition
        return [rows for segment in self.segments(offsets) for rows in row_ranges(self.root, segment, key, offsets)]


class _BrokerLog(NamedTuple):
    """A broker's log as last read, and the root that has its files."""

    state: LogState
    root: StorageRoot

    @classmethod
    def of(cls, view: TopicView, broker: int) -> _BrokerLog:
        """Reads the log up to its newest commit. Raises as `TopicView.log` and `ReplicaLog.refresh`."""
        log = view.log(broker)
        return cls(log.refresh(), log.root)


class PartitionReader:
    """Opens the partitions of one poll. It reads the rows and the log of each broker once, so each poll needs a new
    reader. A caller that passes rows must have read them before it made the reader: a row must be older than the log.

    `rack`: that of the reading process; None to read from leaders.
    """

    def __init__(self, view: TopicView, rack: str | None = None) -> None:
        self._view = view
        self._rack = rack
        self._rows: dict[int, _ReplicaRows | LakelogException] = {}
        self._logs: dict[int, _BrokerLog | LakelogException] = {}

    def leader(self, registration: PartitionRegistration) -> OpenPartition:
        """The partition at its leader. Raises as `open`, and what the leader's table raises."""
        if registration.leader == NO_LEADER:
            raise no_leader(registration)
        row = self._rows_of(registration.leader).get(registration.topic_id_partition)
        return self.open(Leadership(registration, row))

    def open(self, seen: Leadership) -> OpenPartition:
        """The partition at its leader, whose row was read before.

        Raises `Leadership.unavailable`, NotLeaderOrFollowerException or LeaderNotAvailableException if the log is not
        the one that the row describes, KafkaStorageException, CorruptRecordException, BrokerNotAvailableException.
        """
        return self._opened(seen.registration, seen.available_row(), seen.registration.leader)

    def open_for_fetch(self, seen: Leadership) -> OpenPartition:
        """As `open`, but with the errors of a fetch: FENCED_LEADER_EPOCH if the registration is older than the row, and
        UNKNOWN_LEADER_EPOCH if it is newer. See `check_leader_row`."""
        registration, row = seen.registration, seen.row
        if seen.unavailable and (seen.error or registration.leader == NO_LEADER):
            raise seen.unavailable
        error = check_leader_row(row, registration.topic_id_partition, registration.leader_epoch)
        if error or row is None:
            raise error or no_leader(registration)
        return self._opened(registration, row, registration.leader)

    def nearest(self, registration: PartitionRegistration, offset: int) -> OpenPartition:
        """The most caught-up in-sync replica in the reader's rack whose log starts at the offset or before, or else the
        leader.

        A new leader may still have records that its followers have deleted, because the leader before it did so. Raises
        as `leader`.
        """
        for near in self.in_rack(registration):
            if near.log.log_start_offset <= offset:
                return near
        return self.leader(registration)

    def in_rack(self, registration: PartitionRegistration) -> Iterator[OpenPartition]:
        """The in-sync followers in the reader's rack that can be read, the one with the highest HW first; none if the
        leader is in the rack too. It opens each one only when that one is asked for. KIP-392."""
        near = self._nearest_first(registration)
        near = near[: near.index(registration.leader)]
        read = [error_or(self._rows_of, broker) for broker in near]
        rows = [rows.get(registration.topic_id_partition) for rows in read if not isinstance(rows, LakelogException)]
        for row in sorted(filter(None, rows), key=lambda r: (r.high_watermark, r.log_end_offset), reverse=True):
            opened = error_or(self._replica, registration, row.broker_id)
            if isinstance(opened, OpenPartition):
                yield opened

    def holding(self, registration: PartitionRegistration, offsets: OffsetRange) -> OpenPartition:
        """A replica with all records at these offsets, committed. It tries replicas in the reader's rack first, then
        the leader, then the rest of the ISR, which can be read even while the leader's root cannot be reached.

        Raises OffsetOutOfRangeException if the leader has deleted the first of the records. Raises the leader's own
        error, or LeaderNotAvailableException, if no replica has committed all of them.
        """
        start, stop = offsets
        behind = f"{registration.name}: no replica has committed records up to offset {stop}"
        error: LakelogException = LeaderNotAvailableException(behind)
        for broker in self._to_try(registration):
            found = error_or(self._replica, registration, broker)
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

    def _to_try(self, registration: PartitionRegistration) -> Iterator[int]:
        preferred = [b for b in self._nearest_first(registration) if b != NO_LEADER]
        yield from dict.fromkeys((*preferred, *registration.isr))

    def _is_near(self, broker: int) -> bool:
        known = self._view.cluster.brokers.get(broker)
        return self._rack is not None and known is not None and known.rack == self._rack

    def _replica(self, registration: PartitionRegistration, broker: int) -> OpenPartition:
        if broker == registration.leader:
            return self.leader(registration)
        row = self._rows_of(broker).get(registration.topic_id_partition)
        if row is None or row.leader_epoch != registration.leader_epoch:
            raise LeaderNotAvailableException(
                f"{registration.name}: broker {broker} has not taken up its role under leader epoch "
                f"{registration.leader_epoch}"
            )
        return self._opened(registration, row, broker)

    def _opened(self, registration: PartitionRegistration, row: ReplicaStatus, broker: int) -> OpenPartition:
        if broker not in self._logs:
            self._logs[broker] = error_or(_BrokerLog.of, self._view, broker)
        broker_log = _or_raise(self._logs[broker])
        log = broker_log.state.partition(registration.topic_id_partition)
        if broker == registration.leader:
            check_log_leads(log, row, registration.name)
        else:
            _check_follows(registration, row, log)
        return OpenPartition(registration, row, *broker_log)

    def _rows_of(self, broker: int) -> _ReplicaRows:
        if broker not in self._rows:
            self._rows[broker] = error_or(self._view.replicas, broker)
            self._logs.pop(broker, None)  # a log that was read before may lack records below the rows' HWs
        return _or_raise(self._rows[broker])


def _check_follows(registration: PartitionRegistration, row: ReplicaStatus, log: PartitionLog) -> None:
    """A follower's row describes its log if the log follows at the row's epoch and has the row's chain at its LEO."""
    follows = row.role == FOLLOWER_ROLE and row.state == FollowerState.FETCHING
    if not follows or not log.role.follows_at(row.leader_epoch) or not has_records(log, row.log_end_offset, row.chain):
        raise LeaderNotAvailableException(f"{registration.name}: broker {row.broker_id} is not in sync")


def _or_raise(found: Found | LakelogException) -> Found:
    if isinstance(found, LakelogException):
        raise found
    return found


def ask_leaders(
    view: TopicView, topic: str, numbers: Collection[int], ask: Callable[[OpenPartition], Answer], deadline: float
) -> dict[int, Answer | LakelogException]:
    """The answer of `ask` for each of these partitions, opened at its leader, or its error.

    A new leader may not have taken up its role yet, or not know how much is committed. It is asked again until
    `deadline`, in seconds of the monotonic clock. A partition without a leader gets its error at once. All answers have
    one topic id: if the topic is deleted and made again meanwhile, all its partitions are asked again.

    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    answers: dict[int, Answer | LakelogException] = {}
    retried: dict[int, LakelogException] = {}  # the errors of leaders that are asked again
    topic_ids: set[str] = set()

    def ask_once() -> None:
        found = view.leaderships(topic, numbers)
        ids = {each.registration.topic_id for each in found.values()}
        if ids - topic_ids:
            answers.clear()
        topic_ids.update(ids)
        retried.clear()
        reader = PartitionReader(view)
        for number in (number for number in numbers if number not in answers):
            try:
                if number not in found:
                    raise UnknownTopicOrPartitionException(f"{topic}-{number}: no such partition")
                answers[number] = ask(reader.open(found[number]))
            except LakelogException as error:
                (retried if _is_retried(found.get(number), error) else answers)[number] = error
        if retried:
            raise next(iter(retried.values()))  # then `until_available` calls this again

    with suppress(*_NEW_LEADER_ERRORS):  # at the deadline; `retried` has the errors
        until_available(ask_once, deadline, view.cluster.config.lakelog_poll_interval_ms, _NEW_LEADER_ERRORS)
    return {number: retried[number] if number in retried else answers[number] for number in numbers}


def _is_retried(found: Leadership | None, error: LakelogException) -> bool:
    """Whether a later attempt may succeed: the partition has a leader, and the error is one of a new leader."""
    return found is not None and found.registration.leader != NO_LEADER and isinstance(error, _NEW_LEADER_ERRORS)
