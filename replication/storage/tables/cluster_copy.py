"""`cluster-copy/<table>` in the root of a broker: copies of the cluster's small tables, for `lakelog recover`.

They have the columns of the tables that they copy, and SQL reads them. Each commit names the cluster root and the
version of the table that was copied. A copy of an older controller, or of a cluster root that was recovered elsewhere,
never replaces a newer one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from lakelog.replication.errors import ControllerMovedException, FencedClusterRootException
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.log_recovery import log_files, put_aside, recover_log
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_txns import GENERATION
from lakelog.replication.storage.tables.state_table import CONTROLLER_EPOCH, Row, StateTable
from lakelog.schemas import CLUSTER, CONFIGS, GROUPS, METADATA, PRODUCERS, TOPICS, Table

logger = logging.getLogger(__name__)

COPIED = (CLUSTER, TOPICS, CONFIGS, GROUPS, PRODUCERS, METADATA)
FOLDER = "cluster-copy"
_IDLE_SECONDS = 3600.0  # it lists each table, and a list of an object store costs money


class CopySource(NamedTuple):
    """The cluster root that is copied, its generation, and the epoch of the controller that copies it."""

    uri: str
    generation: int
    controller_epoch: int


class CopiedRows(NamedTuple):
    """The rows of a copy, where they come from, the version of the table there, and when they were copied, in seconds
    since the epoch."""

    rows: list[Row]
    source: CopySource
    version: int
    copied_at: float

    @property
    def order(self) -> tuple[int, int, int]:
        """Newer copies have a higher one."""
        return self.source.generation, self.source.controller_epoch, self.version


class ClusterCopy:
    """The copies in the root of one broker, for the process that writes them. It is not thread-safe."""

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._tables: dict[str, StateTable] = {}
        self._sources: dict[str, object] = {}  # the cluster root that each copy names
        self._maintain_at = 0.0

    def write(
        self, table: Table, rows: list[Row], version: int, source: CopySource,
        as_of: float | None = None, who: str = "controller",
    ) -> None:  # fmt: skip
        """Copies the rows of a version of a table, as they were at a time (seconds since the epoch), by default now.
        `who`: who copies them, for the commit.

        Raises ControllerMovedException if a newer controller has copied it, FencedClusterRootException if the copy is
        of a newer generation of the cluster root, KafkaStorageException and CorruptRecordException."""
        copy = self._open(table)
        order = source.generation, source.controller_epoch
        txns = {GENERATION: source.generation, CONTROLLER_EPOCH: source.controller_epoch}

        def change(before: list[Row]) -> list[Row] | None:
            found = tuple(copy.transaction_version(name) or 0 for name in (GENERATION, CONTROLLER_EPOCH))
            if found[0] > order[0]:
                raise FencedClusterRootException(
                    f"{copy.uri}: is a copy of generation {found[0]} of the cluster root, and {source.uri} is of "
                    f"generation {order[0]}: it was recovered elsewhere. Use the new one, and delete the old one"
                )
            if found > order:
                raise ControllerMovedException(
                    f"{copy.uri}: a controller of epoch {found[1]} has copied the table, and this one is of epoch "
                    f"{order[1]}"
                )
            is_known = found == order and self._sources.get(table.name) == source.uri
            return None if before == rows and is_known else rows

        cause: dict[str, Any] = {"who": who, "why": "copy", "cluster": source.uri, "version": version}
        cause |= {} if as_of is None else {"as_of": as_of}
        if copy.update(cause, change, txns) is not None:
            self._sources[table.name], self._maintain_at = source.uri, 0.0

    def _open(self, table: Table) -> StateTable:
        if table.name not in self._tables:
            folder = self._root.child(FOLDER, table.name)
            copy = _mended(folder, table) or StateTable.create_at(folder, table)
            self._sources[table.name] = read_commit(folder, copy.version).info.get("cluster")
            self._tables[table.name] = copy
        return self._tables[table.name]

    def maintain(self) -> None:
        """Keeps the copies cheap to open, and deletes files that no version needs: after writes, else once an hour."""
        if time.monotonic() >= self._maintain_at:
            for table in self._tables.values():
                table.maintain()
            self._maintain_at = time.monotonic() + _IDLE_SECONDS


def mend_copy(root: StorageRoot) -> None:
    """Puts aside what a power cut has torn of the copies in a broker's root: they end with the last whole commit. Of
    one without a beginning nothing is left."""
    for table in COPIED:
        _mended(root.child(FOLDER, table.name), table)


def _mended(folder: StorageRoot, table: Table) -> StateTable | None:
    """A copy as far as it is whole; None if there is none. A copy has no beginning if that is torn, or if a commit that
    was on its way has landed after the root was emptied: then its log is put aside."""
    if last_version(folder) < 0:
        return None
    there = log_files(folder)  # before it is read: what another process makes meanwhile stays
    if recover_log(folder, is_after_crash=True, has_rows=True):
        return StateTable.open_at(folder, table)
    put_aside(folder, there)
    logger.error("%s: the copy has no beginning, and is begun again", folder.uri)
    return None


def read_copy(root: StorageRoot) -> Mapping[str, CopiedRows]:
    """The copies in the root of a broker, by the name of the table; a table that was never copied is left out. Raises
    KafkaStorageException and CorruptRecordException."""
    found: dict[str, CopiedRows] = {}
    for table in COPIED:
        folder = root.child(FOLDER, table.name)
        if last_version(folder) <= 0:  # the first commit only makes the table
            continue
        copy: StateTable[Any] = StateTable.open_at(folder, table)
        generation, epoch = (copy.transaction_version(name) or 0 for name in (GENERATION, CONTROLLER_EPOCH))
        info = read_commit(folder, copy.version).info
        source = CopySource(str(info.get("cluster", "")), generation, epoch)
        copied_at = float(info.get("as_of", info["timestamp"] / 1000))
        found[table.name] = CopiedRows(copy.rows, source, int(info.get("version", 0)), copied_at)
    return found
