"""Logs for tests: records, requests to append them, and checks of a log."""

import datetime as dt
from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.chain import genesis, linked
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import (
    Appended,
    DigestsOf,
    Fetched,
    PartitionAppend,
    append,
    append_as_follower,
)
from lakelog.replication.storage.log.log_rewrite import Removal, take_out
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import log_start_app_id
from lakelog.replication.storage.log.new_batches import ArrowRecords, digests_of, write_batches
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.replication.storage.log.truncate import without_ends
from lakelog.schemas import LOG

TOPIC, TOPIC_ID = "flights", "flights-id"
P0, P1, P2 = (TopicIdPartition(TOPIC_ID, number) for number in range(3))
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
PRODUCER = 7
SEGMENT_BYTES = Config().log_segment_bytes
COLUMNS = pa.schema([LOG.arrow.field(name) for name in ("key", "value", "timestamp", "headers")])


def records(*values: bytes | None) -> pa.Table:
    """Records with these values, a millisecond apart."""
    return pa.Table.from_pylist(
        [
            {"key": b"k", "value": value, "timestamp": NOON + dt.timedelta(milliseconds=index), "headers": None}
            for index, value in enumerate(values)
        ],
        COLUMNS,
    )


def keyed(*pairs: tuple[bytes | None, bytes | None]) -> pa.Table:
    """Records with these keys and values, at noon."""
    rows = [{"key": key, "value": value, "timestamp": NOON, "headers": None} for key, value in pairs]
    return pa.Table.from_pylist(rows, COLUMNS)


def numbered(count: int, first: int = 0) -> pa.Table:
    """Records with rising numbers as values."""
    return records(*(str(first + index).encode() for index in range(count)))


def request(
    partition: TopicIdPartition, count: int, sequence: int = 0, epoch: int = 0, replicas: tuple[int, ...] = (1, 2, 3),
    producer_id: int = PRODUCER, producer_epoch: int = 0,
) -> PartitionAppend:  # fmt: skip
    return PartitionAppend(
        TOPIC, partition.topic_id, partition.partition, replicas, epoch, count, producer_id, producer_epoch, sequence
    )


def send(
    log: ReplicaLog, *requests: PartitionAppend, tables: Mapping[TopicIdPartition, pa.Table] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> list:  # fmt: skip
    """Appends numbered records, or the given ones. Returns the outcome of each request."""
    rows = tables or {r.topic_id_partition: numbered(r.records) for r in requests}
    given = {partition: [ArrowRecords(table)] for partition, table in rows.items()}
    writer = partial(write_batches, log.root, 1, requests, given, segment_bytes)
    outcomes = append(log, requests, writer, digests_in(rows), "test")
    return [_without_chain(outcomes[r.topic_id_partition]) for r in requests]


def digests_in(tables: Mapping[TopicIdPartition, pa.Table]) -> DigestsOf:
    """The digests of parts of these records."""
    return lambda partition, parts: digests_of([ArrowRecords(tables[partition])], parts)


def _without_chain(outcome: Appended | LakelogException) -> Appended | LakelogException:
    return outcome._replace(chain="") if isinstance(outcome, Appended) else outcome


def fill(
    log: ReplicaLog, partition: TopicIdPartition, *counts: int, epoch: int = 0, producer_id: int = PRODUCER
) -> None:
    """Appends batches of these sizes, a commit each, in sequence."""
    for count in counts:
        entry = log.refresh().partition(partition).producers.get(producer_id)
        sequence = entry.next_sequence if entry else 0
        (outcome,) = send(log, request(partition, count, sequence, epoch, producer_id=producer_id))
        assert isinstance(outcome, Appended), outcome


def new_log(root: str | StorageRoot, *partitions: TopicIdPartition, epoch: int = 0) -> ReplicaLog:
    """A new log that leads the partitions."""
    log = ReplicaLog.create(root if isinstance(root, StorageRoot) else StorageRoot.of(root).child("log"))
    if partitions:
        lead(log, *partitions, epoch=epoch)
    return log


def lead(log: ReplicaLog, *partitions: TopicIdPartition, epoch: int) -> None:
    log.become({partition: Role(epoch, LEADER) for partition in partitions}, "test")


def follow(log: ReplicaLog, *partitions: TopicIdPartition, epoch: int) -> None:
    log.become({partition: Role(epoch, FOLLOWER) for partition in partitions}, "test")


def replicate(source: ReplicaLog, target: ReplicaLog, partition: TopicIdPartition = P0) -> None:
    """The follower fetches all missing records from the leader."""
    leader, end = source.refresh(), target.refresh().partition(partition).log_end
    missing = [b.segment for b in leader.partition(partition).batches if b.base_offset >= end.offset]
    segments = [copy_segment(source.root, leader.segments[name], target.root) for name in dict.fromkeys(missing)]
    fetched = Fetched(segments, {partition: end.chain}, {partition: 0})
    assert append_as_follower(target, [fetched], "test") == [None]


def filled_log(root: str) -> ReplicaLog:
    """P0 has 0-3 | 4-7 | 8-11 (epoch 1); the second file holds P1 0-4 too."""
    log = new_log(root, P0, P1)
    fill(log, P0, 4)
    send(log, request(P0, 4, sequence=4), request(P1, 5))
    lead(log, P0, epoch=1)
    fill(log, P0, 4, epoch=1)
    return log


def leo(log: ReplicaLog, partition: TopicIdPartition = P0) -> int:
    return log.refresh().partition(partition).log_end_offset


def offsets(log: ReplicaLog, partition: TopicIdPartition = P0) -> list[int]:
    return log.read(partition, log.refresh().partition(partition).log_start_offset)["offset"].to_pylist()


def values(log: ReplicaLog, partition: TopicIdPartition = P0, start: int = 0, end: int | None = None) -> list[bytes]:
    return log.read(partition, start, end)["value"].to_pylist()


def facts(
    log: ReplicaLog, *partitions: TopicIdPartition
) -> tuple[int, int, set[str], dict[TopicIdPartition, PartitionLog]]:
    """A log's whole state: version, broker epoch, segments and the state of each partition."""
    state = log.refresh()
    known = {partition: state.partition(partition) for partition in partitions or (P0, P1, P2)}
    return state.version, state.broker_epoch, set(state.segments), known


def header(
    partition: TopicIdPartition = P0, base: int = 0, last: int = 0, epoch: int = 0, previous: str | None = None
) -> BatchHeader:
    """The header of rows made by `log_rows`, after the chain `previous` if there is one."""
    digest = record_digest(log_rows(partition, base, last - base + 1, epoch))
    bare = BatchHeader(TOPIC, partition.topic_id, partition.partition, epoch, base, last, 0, 0, digest=digest)
    return linked(bare, previous or genesis(partition))


def epochs(log: ReplicaLog, partition: TopicIdPartition = P0) -> list[tuple[int, int]]:
    """The lineage of a partition's log without its chains."""
    return [(entry.leader_epoch, entry.start_offset) for entry in log.refresh().partition(partition).lineage]


def chain(log: ReplicaLog, partition: TopicIdPartition = P0) -> str:
    """The chain at the end of a partition's log."""
    return log.refresh().partition(partition).log_end.chain


def log_rows(partition: TopicIdPartition = P0, base: int = 0, count: int = 1, epoch: int = 0) -> pa.Table:
    """Rows of a log as they lie in a segment."""
    rows = [
        {**row, "topic": TOPIC, "partition": partition.partition, "offset": base + index, "timestampType": 0,
         "leader_epoch": epoch, "topic_id": partition.topic_id}
        for index, row in enumerate(numbered(count).to_pylist())
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, LOG.arrow)


def truncate(log: ReplicaLog, ends: Mapping[TopicIdPartition, int]) -> int | None:
    """Truncates to the offsets, without a check of the role. Returns the version; None if nothing was removed."""

    def plan(state: LogState) -> Removal | None:
        kept = without_ends(state, ends)
        return Removal(kept) if kept else None

    return take_out(log, {"why": "test"}, plan)


def start_at(log: ReplicaLog, partition: TopicIdPartition, offset: int) -> int | None:
    """Lets an empty log begin at an offset."""
    return log.transact({"why": "test"}, lambda _: LogChange(txns={log_start_app_id(partition): offset}))
