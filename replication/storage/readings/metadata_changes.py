"""What the metadata table has said of each partition: the rows that changed, version by version. [IS-05]"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import Commit
from lakelog.replication.storage.delta.commit_reader import read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.readings.past_version import commit_times
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import METADATA
from lakelog.schemas.views.readings import METADATA_CHANGES

_READERS = 8
_AT_ONCE = 64  # versions in memory
_UNREADABLE = FileNotFoundError, CorruptRecordException


def metadata_changes(cluster: StorageRoot, at: float | None = None) -> Iterator[pa.Table]:
    """The rows of each version that its commit changed, oldest first; columns of `METADATA_CHANGES`. `at`: no version
    that is younger than that, in seconds since the epoch.

    A version says all that there is, so the oldest one that can be read has all its rows. History begins after the last
    version that cannot be read. Raises KafkaStorageException.
    """
    root = cluster.child(METADATA.name)
    table = StateTable.open(root, METADATA)
    versions = _Versions()
    kept = iter([(version, time) for version, time in commit_times(root).items() if at is None or time <= at])
    while chunk := list(islice(kept, _AT_ONCE)):
        read = in_threads(lambda dated: _read(root, table, dated[0]), chunk, _READERS)
        for (version, time), found in zip(chunk, read, strict=True):
            if found is None or version == 0:
                versions = _Versions(is_whole=found is not None)
            if found is not None and found[1] is not None:
                yield from versions.changed(*found, time)


def _read(root: StorageRoot, table: StateTable, version: int) -> tuple[Commit, pa.Table | None] | None:
    """A commit and its rows; no rows if it changes none. None if it cannot be read."""
    try:
        commit = read_commit(root, version)
        files = [table.read_file(file) for file in commit.adds]
    except _UNREADABLE:
        return None
    changes_rows = bool(commit.adds or commit.removes)
    return commit, pa.concat_tables([METADATA.arrow.empty_table(), *files]) if changes_rows else None


class _Versions:
    """The rows of the version before. `is_whole`: there was no version before those that it is given."""

    def __init__(self, is_whole: bool = False) -> None:
        self._is_first = not is_whole
        self._rows = METADATA.arrow.empty_table()
        self._known: dict[TopicIdPartition, tuple[int, int]] = {}  # partition epoch, and the place of the row

    def changed(self, commit: Commit, rows: pa.Table, time: float) -> Iterator[pa.Table]:
        """The rows that a commit has changed or removed."""
        keys = map(TopicIdPartition, rows["topic_id"].to_pylist(), rows["partition"].to_pylist())
        epochs = rows["partition_epoch"].to_pylist()
        known = {key: (epoch, place) for place, (key, epoch) in enumerate(zip(keys, epochs, strict=True))}
        fresh = [place for key, (epoch, place) in known.items() if self._known.get(key, (None,))[0] != epoch]
        gone = [place for key, (_, place) in self._known.items() if key not in known]
        if fresh:
            yield _dated(rows.take(fresh), commit, time, self._is_first, False)
        if gone:
            yield _dated(self._rows.take(gone), commit, time, False, True)
        self._rows, self._known, self._is_first = rows, known, False


def _dated(rows: pa.Table, commit: Commit, time: float, is_first: bool, is_removed: bool) -> pa.Table:
    """With the columns that tell of the commit."""
    told = {
        "version": commit.version, "committed_at": int(time * 1e6), "is_first": is_first, "is_removed": is_removed,
        "who": commit.info.get("who"), "why": commit.info.get("why"),
    }  # fmt: skip
    fields = [METADATA_CHANGES.arrow.field(name) for name in told]
    columns = [
        pa.array([value] * rows.num_rows, field.type) for value, field in zip(told.values(), fields, strict=True)
    ]
    return pa.table([*rows.columns, *columns], METADATA_CHANGES.arrow)
