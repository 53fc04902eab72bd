"""The sizes of the replicas in a broker's log, kept up to date from the commits of the log.

The footer of a file says which partitions it has, so each file is read once: when it is new, or at the start. A small
file of an object store lies in its commit, and costs no request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lakelog.jobs.admin.log_files import shares_of
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.schemas import LOG


class ReplicaSizes(NamedTuple):
    """Bytes and number of the files that have records of a partition; a file's bytes are shared out, as by
    `shares_of`."""

    sizes: Mapping[TopicIdPartition, int]
    segments: Mapping[TopicIdPartition, int]


class LogSizes:
    """The sizes of one log. It is not thread-safe."""

    def __init__(self, broker: StorageRoot) -> None:
        """Raises InconsistentClusterIdException if there is no log, KafkaStorageException."""
        self._log = DeltaLog.open(broker.child(LOG.name))
        self._shares: dict[str, Mapping[TopicIdPartition, int]] = {}  # by file
        self._sizes: Counter[TopicIdPartition] = Counter()
        self._segments: Counter[TopicIdPartition] = Counter()

    def refresh(self) -> ReplicaSizes:
        """The sizes as they are now. A file that cannot be read counts for no partition. Raises
        KafkaStorageException."""
        commits = self._log.move(is_read=True)
        with_content = {file.name: file for commit in commits or () for file in commit.adds}
        files = {file.name: file for file in self._log.active_files()}
        new = [with_content.get(name, file) for name, file in files.items() if name not in self._shares]
        for file, segment in zip(new, read_segments(self._log.root, new), strict=True):
            self._count(file.name, {} if isinstance(segment, BrokenSegment) else shares_of(segment))
        for name in self._shares.keys() - files.keys():
            shares = self._shares.pop(name)
            self._sizes.subtract(shares)
            self._segments.subtract(shares.keys())
        return ReplicaSizes(dict(self._sizes), dict(self._segments))

    def _count(self, name: str, shares: Mapping[TopicIdPartition, int]) -> None:
        self._shares[name] = shares
        self._sizes.update(shares)
        self._segments.update(shares.keys())
