"""A leader's append: records get their offsets from the log end and land in one compare-and-set commit.

Kafka: `Partition.appendRecordsToLeader`, `UnifiedLog.appendAsLeader`, `ProducerStateManager`. [AP-06]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.errors import KafkaStorageException, LakelogException, OffsetOutOfRangeException
from lakelog.replication.protocol.append import Appended, AppendPosition, PartitionAppend, place, position_of
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.follow import check_follower_append
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment, record_bytes, write_segment
from lakelog.schemas import LOG

SEGMENT_BYTES = 32 * 1024 * 1024


# The position of each partition's append.
Positions = Mapping[TopicIdPartition, AppendPosition]

# Writes the new records, from the given positions on, into uncommitted segments. It is called again if positions move,
# and must then write the records of a partition in the same order.
SegmentWriter = Callable[[Positions], Sequence[Segment]]


def append(
    log: ReplicaLog, appends: Sequence[PartitionAppend], write: SegmentWriter, who: str, deadline: float | None = None
) -> dict[TopicIdPartition, Appended | LakelogException]:
    """Appends to partitions that this log leads, in one commit. Returns the offsets or the error of each.

    After `deadline` (seconds of the monotonic clock) it does not repeat a commit that lost to another. Raises
    TimeoutException then, and KafkaStorageException if the log cannot be written. After a KafkaStorageException the
    records may or may not be in the log; the caller may send the same append again, which adds no duplicates.
    """
    outcomes: dict[TopicIdPartition, Appended | LakelogException] = {}
    written: tuple[Positions, tuple[Segment, ...]] = ({}, ())

    def decide(state: LogState) -> LogChange | None:
        nonlocal written
        outcomes.update({request.topic_id_partition: _place(state, request) for request in appends})
        positions = _positions(state, outcomes)
        if not positions:
            return None
        if positions != written[0]:
            written = positions, tuple(write(positions))
        return LogChange(adds=written[1])

    epochs = {request.name: request.leader_epoch for request in appends}
    log.transact({"who": who, "why": "append", "leader_epochs": epochs}, decide, deadline)
    state = log.current()
    return {partition: _with_chain(state, partition, outcome) for partition, outcome in outcomes.items()}


def _with_chain(
    state: LogState, partition: TopicIdPartition, outcome: Appended | LakelogException
) -> Appended | LakelogException:
    if not isinstance(outcome, Appended):
        return outcome
    return outcome._replace(chain=state.known(partition).chain_at(outcome.last_offset + 1) or "")


class Fetched(NamedTuple):
    """What one fetch has copied from a leader: segments, and the chain at the log end of each partition before them and
    its leader epoch."""

    segments: Sequence[Segment]
    starts: Mapping[TopicIdPartition, str]
    leader_epochs: Mapping[TopicIdPartition, int]


def append_as_follower(log: ReplicaLog, fetches: Sequence[Fetched], who: str) -> list[LakelogException | None]:
    """Commits what fetches have copied, in one commit: each fetch wholly or not at all. Returns the error of each.

    A fetch is refused by FencedLeaderEpochException or OffsetOutOfRangeException unless each of its partitions still
    follows at its leader epoch, and its log ends with its chain in `starts`. What is there already is no error. Raises
    as `ReplicaLog.transact`.

    Kafka: `UnifiedLog.appendAsFollower`. [FT-09, FT-10]
    """
    errors: list[LakelogException | None] = []

    def decide(state: LogState) -> LogChange | None:
        adds, taken = list[Segment](), set[TopicIdPartition]()
        errors.clear()
        for fetch in fetches:
            is_there = all(segment.name in state.segments for segment in fetch.segments)  # the reply was lost
            errors.append(None if is_there else _refusal(state, fetch, taken))
            if not is_there and errors[-1] is None:
                adds += fetch.segments
                taken.update(fetch.starts)
        return LogChange(adds=tuple(adds)) if adds else None

    partitions = sum(len(fetch.starts) for fetch in fetches)
    log.transact({"who": who, "why": "fetched", "partitions": partitions}, decide)
    return errors


def _refusal(state: LogState, fetch: Fetched, taken: Collection[TopicIdPartition]) -> LakelogException | None:
    """Why a fetch cannot be appended. `taken`: partitions that another fetch of the same commit moves."""
    try:
        for partition, start in fetch.starts.items():
            check_follower_append(state.partition(partition), fetch.leader_epochs[partition], start, str(partition))
            if partition in taken:
                raise OffsetOutOfRangeException(f"{partition}: another fetch has moved its log end")
    except LakelogException as error:
        return error
    return None


def _positions(
    state: LogState, outcomes: Mapping[TopicIdPartition, Appended | LakelogException]
) -> dict[TopicIdPartition, AppendPosition]:
    positions = {}
    for partition, outcome in outcomes.items():
        position = position_of(outcome, state.partition(partition).log_end) if isinstance(outcome, Appended) else None
        if position is not None:
            positions[partition] = position
    return positions


def _place(state: LogState, request: PartitionAppend) -> Appended | LakelogException:
    state.learn({request.topic_id: request.topic})
    fault = state.fault(request.topic_id_partition)
    if fault is not None:
        return KafkaStorageException(f"{request.name} is offline: {fault}")
    try:
        return place(state.partition(request.topic_id_partition), request)
    except LakelogException as error:
        return error


def arrow_writer(
    root: StorageRoot,
    leader: int,
    appends: Sequence[PartitionAppend],
    records: Mapping[TopicIdPartition, pa.Table],
    segment_bytes: int = SEGMENT_BYTES,
) -> SegmentWriter:
    """Writes records from memory. `records` has a table for each partition: key, value, timestamp, headers.

    `segment_bytes` is the size of a segment in bytes.
    """

    def write(positions: Positions) -> list[Segment]:
        placed = [
            (request.replicas, batch)
            for request in sorted(appends, key=lambda r: (sorted(r.replicas), r.topic, r.partition))
            if request.topic_id_partition in positions
            for batch in batches_of(
                request, records[request.topic_id_partition], positions[request.topic_id_partition], segment_bytes
            )
        ]
        by_replicas = groupby(placed, key=lambda item: sorted(item[0]))
        packs = [pack for _, group in by_replicas for pack in packs_of((batch for _, batch in group), segment_bytes)]
        return in_threads(partial(_write_pack, root, leader), packs, os.cpu_count() or 1)

    return write


Batch = tuple[BatchHeader, pa.Table]


def batches_of(
    request: PartitionAppend, records: pa.Table, position: AppendPosition, segment_bytes: int
) -> Iterator[Batch]:
    """The new records as log rows with their headers, chained to the end of the log. They form one batch, or several if
    they exceed `segment_bytes`. The rows have the columns of `schemas.LOG`."""
    rows, previous = max(1, records.num_rows * segment_bytes // max(1, records.nbytes)), position.chain
    base = position.base_offset - position.known
    for start in range(position.known, records.num_rows, rows):
        part = records.slice(start, rows)
        header = linked(_header(request, part, base + start, start), previous)
        previous = header.chain
        yield header, _log_rows(request, part, base + start)


def _header(request: PartitionAppend, part: pa.Table, base: int, skipped: int) -> BatchHeader:
    return BatchHeader(
        topic=request.topic,
        topic_id=request.topic_id,
        partition=request.partition,
        leader_epoch=request.leader_epoch,
        base_offset=base,
        last_offset=base + part.num_rows - 1,
        max_timestamp=int(pc.max(part["timestamp"]).value),
        bytes=pc.sum(record_bytes(part)).as_py() or 0,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=increment_sequence(request.base_sequence, skipped),
        digest=record_digest(part),
    )


def _log_rows(request: PartitionAppend, part: pa.Table, base: int) -> pa.Table:
    count = part.num_rows
    constants = {
        "topic": request.topic,
        "partition": request.partition,
        "timestampType": 0,
        "leader_epoch": request.leader_epoch,
        "topic_id": request.topic_id,
    }
    columns = {
        name: pa.repeat(pa.scalar(value, LOG.arrow.field(name).type), count) for name, value in constants.items()
    }
    columns["offset"] = pa.arange(base, base + count)
    columns.update({name: part[name] for name in ("key", "value", "timestamp", "headers")})
    return pa.table({name: columns[name] for name in LOG.names})


def packs_of(batches: Iterable[Batch], segment_bytes: int) -> Iterator[list[Batch]]:
    """Groups batches, in the given order, into packs of about `segment_bytes` bytes."""
    pack: list[Batch] = []
    size = 0
    for batch in batches:
        if pack and size + batch[1].nbytes > segment_bytes:
            yield pack
            pack, size = [], 0
        pack.append(batch)
        size += batch[1].nbytes
    if pack:
        yield pack


def _write_pack(root: StorageRoot, leader: int, pack: Sequence[Batch]) -> Segment:
    headers = [header for header, _ in pack]
    return write_segment(root, leader, pa.concat_tables(rows for _, rows in pack), headers)
