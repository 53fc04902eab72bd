"""Undoes what other tools have done to a log: OPTIMIZE and the like write files without batch headers.

Delta lets no other tool write a log of the present format, see `table_opening`; a log of an older format has no such
guard. The files that such a commit removed are still there, because the owner deletes none while a partition is
offline. They have the same batches with their headers, so one commit brings them back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_format import is_commit, read_commit
from lakelog.replication.storage.delta.data_file_name import foreign_name, named_digest
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_rewrite import NewFiles
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import (
    Segment,
    encoded,
    read_segment,
    rows_of,
    statistics,
    write_file,
)
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)


def foreign_files(state: LogState) -> frozenset[str]:
    """The files of other tools in a log, which have no batch headers."""
    return frozenset(name for name in state.broken if named_digest(name) is None)


def undo_other_writers(log: ReplicaLog, who: str) -> int | None:
    """Brings back the segments that other tools' commits have removed, and removes the files that they have added.

    Where this is impossible, because a segment is gone, it writes each such file again as one file for each partition.
    So a partition that has no other replica does not keep the others from being repaired. Returns the version of its
    commit, None if there is nothing that it can do. Only the log's owner calls it. Raises KafkaStorageException.
    """
    version = _undo(log, _commits(log.root), who)
    return version if version is not None else _separate(log, who)


def _commits(root: StorageRoot) -> Iterator[Commit]:
    """All commits that are still there, in order."""
    for name in sorted(filter(is_commit, root.child("_delta_log").list())):
        try:
            yield read_commit(root, int(name[:20]))
        except FileNotFoundError:  # a clean-up has deleted it meanwhile
            continue


def _undo(log: ReplicaLog, commits: Iterable[Commit], who: str) -> int | None:
    added, removed = _net(commits)
    segments = _readable(log.root, removed)
    if segments is None:
        return None

    def decide(state: LogState) -> LogChange | None:
        going = [state.segments[name] for name in sorted(added & foreign_files(state))]
        coming = [segment for segment in segments if segment.name not in state.segments]
        if not (going or coming) or not _continues(state, coming):
            return None
        return LogChange(tuple(coming), tuple(going))

    version = log.transact({"who": who, "why": "undo what another tool has written"}, decide)
    if version is not None:
        logger.warning(
            "%s: another tool has rewritten %d segments; they are back. See \"What other tools may run\" in "
            "docs/tables.md",
            log.root.uri,
            len(segments),
        )  # fmt: skip
    return version


def _net(commits: Iterable[Commit]) -> tuple[set[str], set[str]]:
    """The files that commits of other tools have added, and those that they have removed, in the end."""
    added: set[str] = set()
    removed: set[str] = set()
    for commit in commits:
        gone, come = ({file.name for file in files} for files in (commit.removes, commit.adds))
        removed -= come
        if commit.is_foreign:
            removed |= gone - added
            added |= {name for name in come if named_digest(name) is None}
        elif gone & added:  # the broker has repaired partitions of it: their logs have gone on without these batches
            removed.clear()
        added -= gone
    return added, removed


def _readable(root: StorageRoot, names: Iterable[str]) -> list[Segment] | None:
    """The segments that were removed; None if one of them is gone or broken, or the commit that has made it is gone."""
    sizes = root.sizes_listed()
    try:
        return [read_segment(root, AddedFile(name, sizes.get(name, -1))) for name in sorted(names)]
    except CorruptRecordException as error:
        logger.warning("%s: what another tool has written cannot be undone: %s", root.uri, error)
        return None


def _continues(state: LogState, segments: Iterable[Segment]) -> bool:
    """Whether the batches of segments fill exactly the gaps that are in the logs of their partitions."""
    batches: dict[TopicIdPartition, list[PlacedBatch]] = {}
    for segment in segments:
        for header in segment.headers:
            placed = PlacedBatch(header.base_offset, header, segment.name)
            batches.setdefault(header.topic_id_partition, []).append(placed)
    for partition, added in batches.items():
        known = state.known(partition).copy()
        known.place(sorted(added))
        try:
            known.check(partition)
        except CorruptRecordException as error:
            logger.warning("what another tool has written cannot be undone: %s", error)
            return False
    return True


def _separate(log: ReplicaLog, who: str) -> int | None:
    """Writes each file of another tool with several partitions again, as a file for each of them, still without
    headers: its rows stay, but a broken partition is alone in its file."""
    with NewFiles(log) as new:
        written: dict[str, list[Segment]] = {}
        for name in foreign_files(log.current()):
            parts = _partitions_of(log.root, name)
            if len(parts) > 1:
                written[name] = [new.add(_part(log.root, name, partition)) for partition in parts]

        def decide(state: LogState) -> LogChange | None:
            names = [name for name in written if name in state.segments]
            adds = tuple(segment for name in names for segment in written[name])
            removes = tuple(state.segments[name] for name in names)
            return new.offered(LogChange(adds, removes, data_change=False)) if names else None

        cause = {"who": who, "why": "separate the partitions of another tool's files"}
        return log.transact(cause, decide) if written else None


def _partitions_of(root: StorageRoot, name: str) -> list[TopicIdPartition]:
    """The partitions in a file; none if it cannot be read."""
    try:
        rows = _rows(root, name, ["topic_id", "partition"]).group_by(["topic_id", "partition"]).aggregate([])
        return sorted(TopicIdPartition(row["topic_id"], row["partition"]) for row in rows.to_pylist())
    except (OSError, pa.ArrowException, KeyError, TypeError):
        return []


def _rows(root: StorageRoot, name: str, columns: list[str]) -> pa.Table:
    with root.open(name) as source:
        return pq.read_table(source, columns=columns)


def _part(root: StorageRoot, name: str, partition: TopicIdPartition) -> Segment:
    """Writes the rows of a partition into a file of its own, without headers."""
    with root.open(name) as source:
        wanted = [("topic_id", "=", partition.topic_id), ("partition", "=", partition.partition)]
        rows = rows_of(pq.read_table(source, columns=LOG.arrow.names, filters=wanted), partition, 0)
    stats = statistics(rows)
    content = encoded(rows, [rows.num_rows], {})
    return Segment(write_file(root, foreign_name, content, stats), ())
