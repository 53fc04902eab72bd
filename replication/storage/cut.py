"""Cutting logs: what goes and what is written anew, in one commit that adds nothing new. [TR-05]"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replication.errors import FencedLeaderEpochException
from replication.protocol.partition_log import STOPPED
from replication.protocol.producer_state import increment_sequence
from replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader, TopicIdPartition
from replication.protocol.truncation import Cut, check_cut
from replication.storage.filesystem import StorageRoot
from replication.storage.log_state import LogState, log_start_app_id
from replication.storage.replica_log import LogChange, ReplicaLog
from replication.storage.segment import (
    Segment,
    read_records,
    record_bytes,
    rows_of,
    write_segment,
    write_snapshot,
)
from replication.storage.segment_name import leader_of

logger = logging.getLogger(__name__)


def cut_logs(log: ReplicaLog, cuts: Mapping[TopicIdPartition, Cut], who: str) -> int | None:
    """Carries out the cuts of a follower, in one commit; those whose role has changed meanwhile are left out."""

    def decide(state: LogState) -> LogChange | None:
        allowed = {p: cut for p, cut in cuts.items() if _is_allowed(state, p, cut)}
        restarts = {p: cut.restart_at for p, cut in allowed.items() if cut.restart_at is not None}
        # A log that starts over loses also what lies below its start, and what it remembers of producers.
        change = without_ends(log, state, {p: 0 if p in restarts else cut.offset for p, cut in allowed.items()})
        change = without_producers(log, state, change, restarts)
        txns = {log_start_app_id(p): offset for p, offset in restarts.items()}
        return dataclasses.replace(change, txns=txns) if change.removes or txns else None

    return log.transact({"who": who, "why": "truncate to the leader's lineage"}, decide)


def _is_allowed(state: LogState, partition: TopicIdPartition, cut: Cut) -> bool:
    try:
        check_cut(state.partition(partition), cut, f"{partition.topic_id}-{partition.partition}")
    except FencedLeaderEpochException as error:
        logger.warning("%s", error)
        return False
    return True


def delete_logs(log: ReplicaLog, partitions: Iterable[TopicIdPartition], who: str) -> int | None:
    """Removes all records of partitions whose replica has been stopped here, in one commit. [SR-02]

    A broken segment goes when nothing else is in it: it cannot be read, to write the rest of it again. [SR-03]
    """

    def decide(state: LogState) -> LogChange | None:
        stopped = [p for p in partitions if state.known(p).role.kind == STOPPED]
        change = without_producers(log, state, without_ends(log, state, dict.fromkeys(stopped, 0)), stopped)
        change = dataclasses.replace(change, removes=(*change.removes, *state.broken_for_nobody()))
        return change if change.removes else None

    return log.transact({"who": who, "why": "stop replica with deletion"}, decide)


def without_ends(log: ReplicaLog, state: LogState, offsets: Mapping[TopicIdPartition, int]) -> LogChange:
    """Drops the records at and above each partition's offset; nothing happens where the LEO is not above it.

    Segments that hold such records are removed, and what else is in them is written again, in the same commit. Broken
    ones stay.
    """
    touched = {
        batch.segment
        for partition, offset in offsets.items()
        for batch in state.known(partition).batches
        if batch.header.next_offset > offset and batch.segment not in state.broken
    }
    removed = tuple(state.segments[name] for name in sorted(touched))
    kept = (without(log.root, segment, offsets) for segment in removed)
    return LogChange(adds=tuple(k for k in kept if k), removes=removed)


def without_producers(
    log: ReplicaLog, state: LogState, change: LogChange, partitions: Collection[TopicIdPartition]
) -> LogChange:
    """The change, and what is remembered of the partitions' producers goes too."""
    snapshots = [segment for segment in state.segments.values() if segment.producers]
    kept = [p for segment in snapshots for p in segment.producers if p.partition not in partitions]
    if len(kept) == sum(len(segment.producers) for segment in snapshots):
        return change
    adds = (write_snapshot(log.root, kept),) if kept else ()
    return dataclasses.replace(change, adds=(*change.adds, *adds), removes=(*change.removes, *snapshots))


def without(root: StorageRoot, segment: Segment, offsets: Mapping[TopicIdPartition, int]) -> Segment | None:
    """A new segment with the rows of `segment` that lie below the offsets; None if none does."""
    ranges = [
        (
            header,
            header.base_offset,
            min(header.next_offset, offsets.get(header.topic_id_partition, header.next_offset)),
        )
        for header in segment.headers
    ]
    return rewrite(root, segment, root, [r for r in ranges if r[1] < r[2]])


def rewrite(
    source: StorageRoot, segment: Segment, target: StorageRoot, ranges: list[tuple[BatchHeader, int, int]]
) -> Segment | None:
    """A new segment at `target` with parts of the batches of one at `source`.

    `ranges` has a batch's header, the first offset wanted and the one after the last. None if there are none.
    """
    if not ranges:
        return None
    records = read_records(source, segment.name)
    parts = [(header, rows_of(records, header.topic_id_partition, start, stop)) for header, start, stop in ranges]
    headers = [cut_header(header, rows) for header, rows in parts]
    return write_segment(target, leader_of(segment.name), pa.concat_tables(rows for _, rows in parts), headers)


def cut_header(header: BatchHeader, rows: pa.Table) -> BatchHeader:
    """The header of a part of a batch: its own offsets, sequence, size and time."""
    base, last = (int(rows["offset"][index].as_py()) for index in (0, -1))
    sequence = header.base_sequence
    if header.producer_id != NO_PRODUCER_ID:
        sequence = increment_sequence(sequence, base - header.base_offset)
    return dataclasses.replace(
        header,
        base_offset=base,
        last_offset=last,
        base_sequence=sequence,
        max_timestamp=int(pc.max(rows["timestamp"]).value),
        bytes=pc.sum(record_bytes(rows)).as_py() or 0,
    )
