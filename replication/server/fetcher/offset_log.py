"""Tells from a query's write-ahead log of offsets whether a micro-batch has headers.

Most micro-batches of a follower bring only a new high watermark. Asking Spark whether a frame is empty would run a job.
"""

from __future__ import annotations

import json

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot


class OffsetLog:
    """The offsets of one query, in its checkpoint. Spark writes the offset of a micro-batch before it starts it."""

    def __init__(self, checkpoint: StorageRoot) -> None:
        self._folder = checkpoint.child("offsets")

    def has_headers(self, batch_id: int) -> bool:
        """Whether the micro-batch has read anything from the leader's log; True if that is unknown."""
        if batch_id == 0:
            return True
        before, after = self._position(batch_id - 1), self._position(batch_id)
        return before is None or before != after

    def _position(self, batch_id: int) -> tuple[int, int] | None:
        """The stream's place in the leader's log after a micro-batch; None if it cannot be read. The file's last line
        is the offset of the only source."""
        try:
            offset = json.loads(self._folder.read(str(batch_id)).splitlines()[-1])
            return offset["log"], offset["files"]
        except (KafkaStorageException, FileNotFoundError, ValueError, LookupError, TypeError):
            return None
