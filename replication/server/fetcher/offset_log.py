"""What a micro-batch was started by, from the query's own write-ahead log of offsets.

Most wake-ups of a follower bring a high watermark and no headers, and to ask Spark whether a frame is empty is a job.
"""

from __future__ import annotations

import json

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot


class OffsetLog:
    """The offsets of one query, in its checkpoint. Spark writes a batch's before it starts the batch."""

    def __init__(self, checkpoint: StorageRoot) -> None:
        self._folder = checkpoint.child("offsets")

    def has_headers(self, batch_id: int) -> bool:
        """Whether the batch has read anything of the leader's log; True where that cannot be told."""
        if batch_id == 0:
            return True
        before, after = self._position(batch_id - 1), self._position(batch_id)
        return before is None or before != after

    def _position(self, batch_id: int) -> tuple[int, int] | None:
        """Where the stream stands in the leader's log after a batch: the last line is the offset of the one source."""
        try:
            offset = json.loads(self._folder.read(str(batch_id)).splitlines()[-1])
            return offset["log"], offset["files"]
        except (KafkaStorageException, FileNotFoundError, ValueError, LookupError, TypeError):
            return None
