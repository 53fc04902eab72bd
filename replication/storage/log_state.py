"""What the commits of a log table add up to: replayed commit by commit, by its broker, its producers, its readers.

Everybody who writes to a log decides on this state and commits at the version it was replayed to; nobody changes it
in another way than by replaying what has landed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.errors import CorruptRecordException
from replication.protocol import leader_epoch as epochs
from replication.protocol.leader_epoch import EpochEntry
from replication.protocol.producer_state import ProducerEntry, record
from replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader, TopicIdPartition
from replication.storage.commit import Commit
from replication.storage.segment import Segment

STOPPED, FOLLOWER, LEADER = 0, 1, 2
_ROLES = 4  # a role transaction's version is leader epoch x 4 + role: it only ever goes up
BROKER_EPOCH = "broker-epoch"


class Role(NamedTuple):
    """What the log's own history says its broker is of a partition, and since which leader epoch."""

    leader_epoch: int
    kind: int

    @property
    def is_leader(self) -> bool:
        """Whether the log is open for appends under `leader_epoch`."""
        return self.kind == LEADER


NO_ROLE = Role(-1, STOPPED)


def role_app_id(partition: TopicIdPartition) -> str:
    """The `txn` that records role and epoch of a partition."""
    return f"role/{partition.topic_id}/{partition.partition}"


def start_app_id(partition: TopicIdPartition) -> str:
    """The `txn` that records where the current leader's epoch starts."""
    return f"start/{partition.topic_id}/{partition.partition}"


def log_start_app_id(partition: TopicIdPartition) -> str:
    """The `txn` that records the first offset that is kept."""
    return f"log-start/{partition.topic_id}/{partition.partition}"


def may_go_back(app_id: str) -> bool:
    """Whether a `txn` may fall: an epoch may start below an earlier one, whose records have been cut."""
    return app_id.startswith("start/")


def role_version(role: Role) -> int:
    """A role as the version of its `txn`."""
    return role.leader_epoch * _ROLES + role.kind


class PlacedBatch(NamedTuple):
    """A batch and the segment that holds it; in order of offsets."""

    base_offset: int
    header: BatchHeader
    segment: str


@dataclass
class PartitionLog:
    """One partition's part of a log: its batches in order, its lineage, its producers."""

    batches: list[PlacedBatch] = field(default_factory=list)
    log_start_offset: int = 0
    role: Role = NO_ROLE
    epoch_start: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    _lineage: tuple[EpochEntry, ...] = ()

    @property
    def log_end_offset(self) -> int:
        """LEO: the next offset to be written."""
        return self.batches[-1].header.next_offset if self.batches else self.log_start_offset

    @property
    def lineage(self) -> tuple[EpochEntry, ...]:
        """Which epoch wrote from which offset on; a leader's own epoch counts from its start, records or not."""
        if self.role.is_leader:
            return epochs.assign(self._lineage, self.role.leader_epoch, self.epoch_start)
        return self._lineage

    def add(self, header: BatchHeader, segment: str) -> None:
        """Takes a batch in; one that does not lie at the end is put in its place."""
        placed = PlacedBatch(header.base_offset, header, segment)
        if self.batches and header.base_offset < self.log_end_offset:
            insort(self.batches, placed, key=lambda batch: batch.base_offset)
            self._derive()
            return
        if not self.batches:
            self.log_start_offset = max(self.log_start_offset, header.base_offset)
        self.batches.append(placed)
        self._follow(header)

    def drop(self, segment: str) -> None:
        """Forgets the batches of a segment."""
        self.batches = [batch for batch in self.batches if batch.segment != segment]
        self._derive()

    def _derive(self) -> None:
        self._lineage, self.producers = (), {}
        for batch in self.batches:
            self._follow(batch.header)

    def _follow(self, header: BatchHeader) -> None:
        self._lineage = epochs.assign(self._lineage, header.leader_epoch, header.base_offset)
        if header.producer_id != NO_PRODUCER_ID:
            self.producers[header.producer_id] = record(self.producers.get(header.producer_id), header)

    def check(self, partition: TopicIdPartition) -> None:
        """Raises CorruptRecordException unless the offsets are without gaps and doubles."""
        for before, after in zip(self.batches, self.batches[1:], strict=False):
            if after.base_offset != before.header.next_offset:
                raise CorruptRecordException(
                    f"{partition}: {after.segment} begins at offset {after.base_offset}, "
                    f"but {before.segment} ends before {before.header.next_offset}"
                )


class LogState:
    """All partitions of one log table at one version."""

    def __init__(self, transaction_version: Callable[[str], int | None]) -> None:
        self.version = -1
        self.segments: dict[str, Segment] = {}
        self.broker_epoch = -1
        self._partitions: dict[TopicIdPartition, PartitionLog] = {}
        self._transaction_version = transaction_version

    def partition(self, partition: TopicIdPartition) -> PartitionLog:
        """The partition's log; an empty one if the table knows nothing of it."""
        known = self._partitions.get(partition)
        return known if known is not None else self._recall(partition)

    def partitions(self) -> list[TopicIdPartition]:
        """The partitions that the log has been asked about or holds records of."""
        return sorted(self._partitions)

    def _recall(self, partition: TopicIdPartition) -> PartitionLog:
        """A partition met for the first time: its facts outlive the commits that wrote them, as `txn`."""
        log = self._partitions[partition] = PartitionLog()
        for app_id in (role_app_id(partition), start_app_id(partition), log_start_app_id(partition)):
            version = self._transaction_version(app_id)
            if version is not None:
                self._apply_transaction(app_id, version)
        return log

    def rebuild(self, version: int, segments: Iterable[Segment]) -> None:
        """Starts over from the active files of a version."""
        self.segments, self._partitions = {}, {}
        claimed = self._transaction_version(BROKER_EPOCH)
        self.broker_epoch = -1 if claimed is None else claimed
        for partition in self._place(segments):
            self._partitions[partition].check(partition)
        self.version = version

    def apply(self, commit: Commit, added: Iterable[Segment]) -> None:
        """Replays one commit; `added` are the segments of its added files, with their headers."""
        touched: set[TopicIdPartition] = set()
        for file in commit.removes:
            segment = self.segments.pop(file.name, None)
            touched |= self._drop(segment) if segment else set()
        for app_id, version in commit.txns.items():
            self._apply_transaction(app_id, version)
        touched |= self._place(added)
        for partition in touched if commit.removes else ():
            self._partitions[partition].check(partition)
        self.version = commit.version

    def _place(self, segments: Iterable[Segment]) -> set[TopicIdPartition]:
        """Takes segments in; the order of files in a commit says nothing, that of offsets does."""
        placed = sorted(
            (
                (header.topic_id_partition, header.base_offset, header, segment)
                for segment in segments
                for header in segment.headers
            ),
            key=lambda item: item[:2],
        )
        for partition, _, header, segment in placed:
            self.segments[segment.name] = segment
            self.partition(partition).add(header, segment.name)
        return {item[0] for item in placed}

    def _drop(self, segment: Segment) -> set[TopicIdPartition]:
        partitions = {header.topic_id_partition for header in segment.headers}
        for partition in partitions:
            self.partition(partition).drop(segment.name)
        return partitions

    def _apply_transaction(self, app_id: str, version: int) -> None:
        if app_id == BROKER_EPOCH:
            self.broker_epoch = max(self.broker_epoch, version)
            return
        kind, _, rest = app_id.partition("/")
        topic_id, _, number = rest.rpartition("/")
        if kind not in ("role", "start", "log-start"):
            return
        log = self.partition(TopicIdPartition(topic_id, int(number)))
        if kind == "role":
            log.role = Role(*divmod(version, _ROLES))
        elif kind == "start":
            log.epoch_start = version
        else:
            log.log_start_offset = max(log.log_start_offset, version)
