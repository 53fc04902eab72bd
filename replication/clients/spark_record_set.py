"""Sends of a DataFrame: Spark's tasks encode its records and write the segments, and the driver commits them.

A first job runs the DataFrame, once. Its tasks choose the partitions and put the records, encoded in batches, into
files beside the logs of the partitions' leaders. No commit names these files. A second job for each leader copies the
batches into segments at the offsets that they get, and may do it again: the records and their order stay the same, also
those of a DataFrame that would give others each time.

A task with few records returns them to the driver. If all do, the send is that of a table, without files and without a
second job.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from lakelog.replication.clients.record_limit import RecordLimit, RefusedRecord, refused_records
from lakelog.replication.clients.records import partitions_of, split, to_records
from lakelog.replication.clients.sink.routed_records import LARGE_BYTES
from lakelog.replication.clients.spark_worker import keep_imports
from lakelog.replication.errors import KafkaStorageException, LakelogException, error_or
from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.data_file_name import staged_prefix
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.encoded_batches import StagedRecords, stage
from lakelog.replication.storage.log.log_append import Positions
from lakelog.replication.storage.log.new_batches import ArrowRecords, NewRecords, digests_of, joined, write_batches
from lakelog.replication.storage.log.segment import Segment

KEPT_BYTES = 64 * 1024  # of records that a task returns to the driver
_ALL_KEPT_BYTES = 256 * KEPT_BYTES  # of 256 tasks; further ones return less: see spark.driver.maxResultSize
_CHUNK_BYTES = 32 * 1024 * 1024  # of a task's records are encoded together
_CHUNKS = 2  # one is encoded while another one comes from the JVM
_SHARE_BYTES = 64 * 1024 * 1024  # for a task that writes segments
_FILES = 8  # are read, written or deleted at the same time
_TASKS_END_SECONDS = 30.0  # after their job has failed: Spark gives Python workers 2 s, and a chunk may be on its way
_PACKED = "packed binary"

logger = logging.getLogger(__name__)


def run_data_frame(
    topic: str, records: DataFrame, partitions: int, sticky: int, segment_bytes: int,
    roots: Mapping[int, StorageRoot] | LakelogException, limit: RecordLimit | None = None,
    kept_bytes: int = KEPT_BYTES, all_kept_bytes: int = _ALL_KEPT_BYTES,
) -> SparkRecordSet | pa.Table:  # fmt: skip
    """Runs a DataFrame. Returns its records: as a table if no task has more than `kept_bytes` of them, unchecked;
    otherwise checked and staged beside logs. The n-th task keeps at most `all_kept_bytes` / n, so that thousands of
    tasks together return a few times `all_kept_bytes` at most.

    `roots`: the folder of a log for each partition, where its records are staged; if a task cannot write there, it
    takes another one of them. An error in place of the folders is raised once a task has to stage records. Raises as
    `record_set`, and KafkaStorageException if no folder can be written.
    """
    prefix, now = staged_prefix(), time.time_ns() // 1000
    strictest, most = limit and limit.strictest, (kept_bytes, all_kept_bytes)
    job = _StageRecords(topic, partitions, sticky, now, segment_bytes, roots, strictest, prefix, *most)
    found: list[_TaskRecords | LakelogException]
    try:
        found = _run(records, job)
    except BaseException:  # an error of the DataFrame itself: the tasks have not told what they have staged
        if not isinstance(roots, LakelogException):
            find = partial(_files_with, prefix, {*roots.values()})
            _delete(find)
            _delete_later(find)
        raise
    tasks = [each for each in found if isinstance(each, _TaskRecords) and (each.staged or each.kept is not None)]
    kept = [task.kept for task in tasks if task.kept is not None]
    try:
        _raise_first(found)
        if not any(task.staged for task in tasks):
            return pa.concat_tables(kept or [to_arrow_schema(records.schema, timezone="UTC").empty_table()])
        groups = [list(near) for is_kept, near in groupby(tasks, lambda task: task.kept is not None) if is_kept]
        # Their place among the others stays. There may be a group between each two large tasks.
        in_threads(lambda near: job.stage([pa.concat_tables([task.kept for task in near])], near[0]), groups, _FILES)
        for refused in (each for task in tasks for each in task.refused):
            if limit is not None:
                refused.check(limit)
    except BaseException:
        _delete(lambda: {(each.root, each.name) for task in tasks for each in task.staged})
        raise
    return SparkRecordSet(records.sparkSession, segment_bytes, [each for task in tasks for each in task.staged])


class SparkRecordSet:
    """The records of a DataFrame, staged beside logs during the send."""

    nbytes = 0  # files have them

    def __init__(self, spark: SparkSession, segment_bytes: int, records: Sequence[StagedRecords]) -> None:
        self._spark, self._segment_bytes = spark, segment_bytes
        self._records: dict[int, list[StagedRecords]] = {}
        for each in records:
            self._records.setdefault(each.partition, []).append(each)
        self.counts: Mapping[int, int] = {
            number: sum(each.num_rows for each in found) for number, found in self._records.items()
        }

    def __enter__(self) -> SparkRecordSet:
        return self

    def __exit__(self, *error: object) -> None:
        _delete(lambda: {(each.root, each.name) for found in self._records.values() for each in found})

    def write(
        self, root: StorageRoot, leader: int, requests: Sequence[PartitionAppend], positions: Positions
    ) -> Sequence[Segment]:  # fmt: skip
        """Writes in tasks. One has all records of a partition."""
        todo = [request for request in requests if request.topic_id_partition in positions]
        shares = self._shares(todo)
        job = _WriteSegments(root, leader, shares, dict(positions), self._records_of(todo), self._segment_bytes)
        written: list[list[Segment]] = _run(self._spark.range(0, len(shares), 1, len(shares)), job)
        _raise_first(written)
        return [segment for segments in written for segment in segments]

    def digests(self, partition: TopicIdPartition, parts: Sequence[range]) -> Sequence[str]:
        """The digests of parts of a partition's records, computed by one task."""
        job = _Digests(tuple(self._records[partition.partition]), tuple(parts))
        found: list[list[str]] = _run(self._spark.range(0, 1, 1, 1), job)
        _raise_first(found)
        return found[0]

    def _records_of(self, requests: Sequence[PartitionAppend]) -> dict[int, list[StagedRecords]]:
        return {request.partition: self._records[request.partition] for request in requests}

    def _shares(self, requests: Sequence[PartitionAppend]) -> list[list[PartitionAppend]]:
        """The requests in shares of about 64 MB, one for each task. Those with the same replicas stay together, as far
        as they share segments."""
        shares, size = list[list[PartitionAppend]](), _SHARE_BYTES
        for request in sorted(requests, key=lambda each: (sorted(each.replicas), each.partition)):
            if size >= _SHARE_BYTES:
                shares.append([])
                size = 0
            shares[-1].append(request)
            size += sum(each.nbytes for each in self._records[request.partition])
        return shares


def _delete(find: Callable[[], Collection[tuple[StorageRoot, str]]]) -> None:
    """Deletes files, by folder and name."""
    try:
        files = sorted(find(), key=lambda file: file[1])
        in_threads(lambda file: file[0].delete(file[1]), files, _FILES)
    except KafkaStorageException as failure:  # the brokers delete the files a day later
        logger.warning("files of a send stay for a day: %s", failure)


def _delete_later(find: Callable[[], Collection[tuple[StorageRoot, str]]]) -> None:
    """Deletes files of a job that has failed, after its tasks have ended: their Python workers take the end of the
    input for the end of the records, and stage what they have got."""
    timer = threading.Timer(_TASKS_END_SECONDS, _delete, [find])
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be started: the brokers delete the files a day later
        timer.start()


def _files_with(prefix: str, roots: Collection[StorageRoot]) -> list[tuple[StorageRoot, str]]:
    return [(root, name) for root in roots for name in root.list() if name.startswith(prefix)]


def _run(frame: DataFrame, job: Callable[[Iterator[pa.RecordBatch]], Any]) -> list[Any]:
    """The result of `job` for each partition of a DataFrame, in their order, or the LakelogException that it raised:
    Spark would wrap it in the stack trace of a worker."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        yield pa.RecordBatch.from_pydict({"packed": [pickle.dumps(error_or(job, batches))]})

    return [pickle.loads(bytes(row["packed"])) for row in frame.mapInArrow(run, _PACKED).collect()]


def _raise_first(found: Sequence[object]) -> None:
    for each in found:
        if isinstance(each, LakelogException):
            raise each


@dataclass(frozen=True)
class _TaskRecords:
    """The records of a task: `kept` if it has staged none. `refused`: those that the topic does not take, as far as the
    task knew."""

    staged: list[StagedRecords]
    refused: list[RefusedRecord]
    kept: pa.Table | None = None


@dataclass(frozen=True)
class _StageRecords:
    topic: str
    partitions: int
    sticky: int
    now: int
    segment_bytes: int
    roots: Mapping[int, StorageRoot] | LakelogException
    limit: RecordLimit | None
    prefix: str
    kept_bytes: int
    all_kept_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> _TaskRecords:
        found, chunks = _TaskRecords([], []), _chunks(batches)
        first, task = next(chunks, None), TaskContext.get()
        most = min(self.kept_bytes, self.all_kept_bytes // (task.partitionId() + 1 if task else 1))
        if first is None or first.nbytes <= most:  # a chunk that is not full is the last one
            return replace(found, kept=first)
        chunks = chain(iter([first]), chunks)  # a list would stay until the end
        del first  # once it is staged, its memory is for the chunks that follow
        self.stage(chunks, found)
        return found

    def stage(self, chunks: Iterable[pa.Table], found: _TaskRecords) -> None:
        """Stages records of a task. If this fails, it deletes what the task has staged."""
        begun = list[_TaskRecords]()

        def stage_one(chunk: pa.Table) -> _TaskRecords:
            begun.append(mine := _TaskRecords([], []))
            self._stage(chunk, mine)
            return mine

        try:
            for each in in_threads(stage_one, chunks, _CHUNKS):
                found.staged.extend(each.staged)
                found.refused.extend(each.refused)
        except BaseException:
            found.staged.extend(each for mine in begun for each in mine.staged)  # the caller may try again
            for root, name in {(each.root, each.name) for each in found.staged}:
                with suppress(LakelogException):
                    root.delete(name)
            raise

    def _stage(self, table: pa.Table, found: _TaskRecords) -> None:
        if isinstance(self.roots, LakelogException):
            raise self.roots
        records = to_records(table, self.now, self.topic)
        numbers = partitions_of(table, records, self.topic, self.partitions, self.sticky)
        if (limit := self.limit) is not None:
            topics = pa.repeat(self.topic, len(numbers))
            routed = records.append_column("partition", numbers).append_column("topic", topics)
            found.refused.extend(refused_records(routed, lambda _: limit))
        anywhere = next(iter(self.roots.values()))  # for a partition that the topic has lost: the send refuses it
        by_root: dict[StorageRoot, list[tuple[str, int, pa.Table]]] = {}
        for number, part in split(records, numbers).items():
            batches = ArrowRecords(part).batches(0, min(self.segment_bytes, _CHUNK_BYTES))
            root = self.roots.get(number, anywhere)
            by_root.setdefault(root, []).extend((self.topic, number, each.table) for each in batches)
        for root, parts in by_root.items():
            others = [other for other in dict.fromkeys(self.roots.values()) if other != root]
            found.staged.extend(self._put(root, others, parts))

    def _put(
        self, root: StorageRoot, others: Sequence[StorageRoot], parts: Sequence[tuple[str, int, pa.Table]]
    ) -> list[StagedRecords]:
        try:
            return stage(root, parts, self.prefix)
        except KafkaStorageException:
            for other in others:
                with suppress(KafkaStorageException):
                    return stage(other, parts, self.prefix)
            raise


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@dataclass(frozen=True)
class _WriteSegments:
    root: StorageRoot
    leader: int
    shares: Sequence[Sequence[PartitionAppend]]
    positions: Positions
    records: Mapping[int, Sequence[StagedRecords]]
    segment_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> list[Segment]:
        mine = [request for batch in batches for number in batch["id"].to_pylist() for request in self.shares[number]]
        records = {request.topic_id_partition: _joined(self.records[request.partition]) for request in mine}
        positions = {request.topic_id_partition: self.positions[request.topic_id_partition] for request in mine}
        return write_batches(self.root, self.leader, mine, records, self.segment_bytes, positions)


@dataclass(frozen=True)
class _Digests:
    records: tuple[StagedRecords, ...]
    parts: tuple[range, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> list[str]:
        list(batches)
        return digests_of(_joined(self.records), self.parts)


def _joined(given: Sequence[StagedRecords]) -> list[NewRecords]:
    """The records, with adjacent small batches read and joined."""

    def read_if_small(records: StagedRecords) -> NewRecords:
        return ArrowRecords(records.table) if records.nbytes < LARGE_BYTES else records

    return joined(in_threads(read_if_small, given, _FILES))
