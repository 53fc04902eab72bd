"""A table as it was at a time, by the times of its commits and the clock of the store, as in Delta's time travel."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from deltalake.exceptions import DeltaError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit_format import is_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import opened

_TICK = 0.001  # s between the times of two commits that a store has written at the same time


class DatedLog(NamedTuple):
    """A table at a version, and the time of its commit in seconds since the epoch, by the clock of the store."""

    log: DeltaLog
    committed_at: float


def commit_times(root: StorageRoot) -> dict[int, float]:
    """The time of each commit that is still there, oldest first, in seconds since the epoch: later versions have later
    times.

    A commit before a gap is of a writer that came too late, and does not count. Raises KafkaStorageException.
    """
    written = {int(name[:20]): at for name, at in root.child("_delta_log").modified().items() if is_commit(name)}
    first = max((version for version in written if version - 1 not in written), default=0)
    times: dict[int, float] = {}
    for version in range(first, first + len(written)):
        if version in written:
            times[version] = max(written[version], times.get(version - 1, 0.0) + _TICK)
    return times


def table_at(root: StorageRoot, at: float | None) -> DatedLog:
    """The table at a time in seconds since the epoch; None: its newest version.

    Raises InconsistentClusterIdException if there is no table, KafkaStorageException if it cannot be read, or if its
    history does not reach back to that time.
    """
    if at is None:
        log, times = DeltaLog.open(root), commit_times(root)
        return DatedLog(log, times.get(log.version, max(times.values(), default=0.0)))
    times = commit_times(root)
    version = max((version for version, written in times.items() if written <= at), default=None)
    if version is None:
        oldest = f"its oldest commit is of {utc(min(times.values()))}" if times else "it has no commit"
        raise KafkaStorageException(f"{root.uri}: its history does not reach back to {utc(at)}: {oldest}")
    try:
        return DatedLog(DeltaLog(root, opened(root.open_table(version))), times[version])
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(
            f"{root.uri}: its history does not reach back to {utc(at)}: version {version} cannot be read: "
            f"{reason(error)}"
        ) from error


def utc(seconds: float) -> str:
    """A time in seconds since the epoch, for people."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")
