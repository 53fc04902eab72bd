"""What the commits of a log table add up to: replayed commit by commit, by its broker, its producers, its readers.

Everybody who writes to a log decides on this state and commits at the version it was replayed to; nobody changes it
in another way than by replaying what has landed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replication.protocol.partition_log import PartitionLog, role_of, role_version
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.commit import Commit
from replication.storage.segment import Segment

BROKER_EPOCH = "broker-epoch"


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
    """Whether a `txn` may fall: an epoch, or a whole log, may start below an earlier one, whose records were cut."""
    return app_id.startswith(("start/", "log-start/"))


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
        touched = self._drop(file.name for file in commit.removes)
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

    def _drop(self, names: Iterable[str]) -> set[TopicIdPartition]:
        """Forgets segments, each partition's together: what follows from the batches is derived anew only once."""
        removed = [segment for segment in (self.segments.pop(name, None) for name in names) if segment]
        by_partition: dict[TopicIdPartition, set[str]] = {}
        for segment in removed:
            for header in segment.headers:
                by_partition.setdefault(header.topic_id_partition, set()).add(segment.name)
        for partition, gone in by_partition.items():
            self.partition(partition).drop(gone)
        return set(by_partition)

    def recorded(self, app_id: str) -> int:
        """What the replayed history says of a fact that only goes up: the broker's claim, or a role."""
        if app_id == BROKER_EPOCH:
            return self.broker_epoch
        _, topic_id, number = app_id.split("/")
        return role_version(self.partition(TopicIdPartition(topic_id, int(number))).role)

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
            log.role = role_of(version)
        elif kind == "start":
            log.epoch_start = version
        else:
            log.log_start_offset = version
