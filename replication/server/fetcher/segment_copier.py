"""Copies the segments of a plan: whole files byte for byte, and only the wanted rows of a file that holds more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import SparkSession

from lakelog.replication.errors import CorruptRecordException, LakelogException
from lakelog.replication.protocol.append_plan import AppendPlan, FetchedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.executors import ExecutorsFailed, has_executors, on_executors
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.segment import Segment, read_segment
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.replication.storage.log.segment_rewrite import rewrite

logger = logging.getLogger(__name__)

_COPIERS = 4

_Item: TypeAlias = tuple[str, list[FetchedBatch]]  # the name of a segment, and the batches that are wanted of it
_Outcome: TypeAlias = tuple[str, Segment | LakelogException]


@dataclass(frozen=True)
class Copied:
    """The segments that were copied but not committed yet, and the partitions whose source failed, with errors."""

    segments: tuple[Segment, ...]
    failed: Mapping[TopicIdPartition, LakelogException]


class SegmentCopier:
    """Copies segments from one log to another.

    The driver copies them. If one of the logs is in an object store, Spark has executors, and several segments together
    have at least `executor_bytes`, executors copy them. This only saves the driver work: it copies what they have not.
    """

    def __init__(self, source: StorageRoot, target: StorageRoot, spark: SparkSession, executor_bytes: int) -> None:
        self._source = source
        self._target = target
        self._job = _CopyJob(source, target)
        self._spark = spark
        self._executor_bytes = executor_bytes

    def copy(self, plan: AppendPlan) -> Copied:
        """Copies the planned batches of each segment. If a segment fails, only its own partitions fail.

        It leaves out the batches that a failed partition has in other segments, because a log has no holes.
        """
        failed: dict[TopicIdPartition, LakelogException] = {}
        done: dict[str, tuple[list[FetchedBatch], Segment]] = {}
        wanted = plan.by_segment()
        while True:
            todo = {name: batches for name, batches in wanted.items() if name not in done or done[name][0] != batches}
            errors: dict[TopicIdPartition, LakelogException] = {}
            for name, outcome in self._copy_each(todo):
                if isinstance(outcome, LakelogException):
                    errors.update(dict.fromkeys((batch.topic_id_partition for batch in todo[name]), outcome))
                else:
                    done[name] = todo[name], outcome
            if not errors:
                return Copied(tuple(done[name][1] for name in wanted), failed)
            failed.update(errors)
            wanted = _leave_out(wanted, failed)

    def _copy_each(self, todo: Mapping[str, list[FetchedBatch]]) -> list[_Outcome]:
        items = list(todo.items())
        done = self._on_executors(items) if self._is_for_executors(todo) else {}
        left = [item for item in items if item[0] not in done]
        return [*done.items(), *self._job.copy_all(left)]

    def _is_for_executors(self, todo: Mapping[str, list[FetchedBatch]]) -> bool:
        """Nothing is nearer to two folders of this machine than the driver."""
        size = sum(batches[0].segment_bytes for batches in todo.values())
        is_far = not (self._source.is_local and self._target.is_local)
        return is_far and len(todo) > 1 and size >= self._executor_bytes and has_executors(self._spark)

    def _on_executors(self, items: Sequence[_Item]) -> dict[str, Segment]:
        """The segments that executors have copied, by the name of their source.

        On an executor's machine a URI may lead elsewhere. So a copy counts only if the driver finds it in the target.
        """
        shares = _shares(items, self._spark.sparkContext.defaultParallelism)
        try:
            outcomes = [outcome for each in on_executors(self._spark, self._job.copy_all, shares) for outcome in each]
        except ExecutorsFailed as error:
            logger.warning("%s: the driver copies %d segments itself: %s", self._source.uri, len(items), error)
            return {}
        written = {name: segment for name, segment in outcomes if isinstance(segment, Segment)}
        sizes = self._target.sizes([segment.name for segment in written.values()])
        found = zip(written.items(), sizes, strict=True)
        done = {name: segment for (name, segment), size in found if size == segment.file.size}
        logger.info("%s: executors have copied %d of %d segments", self._source.uri, len(done), len(items))
        return done


def _shares(items: Sequence[_Item], cores: int) -> list[list[_Item]]:
    """The items as shares of about the same number of bytes, one for each core at most."""
    by_size = sorted(items, key=_bytes_of)
    return [by_size[start::cores] for start in range(min(cores, len(items)))]


def _bytes_of(item: _Item) -> int:
    return item[1][0].segment_bytes


@dataclass(frozen=True)
class _CopyJob:
    """Copies segments, in the driver or on an executor. A core of an executor has as many connections as the driver,
    since a copy waits for its store most of the time."""

    source: StorageRoot
    target: StorageRoot

    def copy_all(self, items: Sequence[_Item]) -> list[_Outcome]:
        """Copies segments, the largest first, so that no thread copies alone at the end. If one fails, its outcome is
        the error."""
        return in_threads(self._outcome, sorted(items, key=_bytes_of, reverse=True), _COPIERS)

    def _outcome(self, item: _Item) -> _Outcome:
        name, batches = item
        try:
            return name, self._copy(name, batches)
        except LakelogException as error:
            return name, error

    def _copy(self, name: str, batches: Sequence[FetchedBatch]) -> Segment:
        segment = read_segment(self.source, self._file(name, batches[0].segment_bytes))
        if not _is_all_of(segment, batches):
            return self._rewrite(segment, batches)
        return copy_segment(self.source, segment, self.target)

    def _file(self, name: str, size: int) -> AddedFile:
        noted = self.source.newest_versions
        return AddedFile(name, size, content=noted.commits.content(self.source.uri, name) if noted else None)

    def _rewrite(self, segment: Segment, batches: Sequence[FetchedBatch]) -> Segment:
        chains = {batch.chain for batch in batches}
        wanted = [header for header in segment.headers if header.chain in chains]
        rewritten = rewrite(self.source, segment, self.target, wanted)
        if rewritten is None or len(wanted) < len(batches):
            raise CorruptRecordException(f"{self.source.path(segment.name)}: lacks batches that its footer listed")
        return rewritten


def _is_all_of(segment: Segment, batches: Sequence[FetchedBatch]) -> bool:
    wanted = {(batch.topic_id_partition, batch.chain) for batch in batches}
    return wanted == {(header.topic_id_partition, header.chain) for header in segment.headers}


def _leave_out(
    wanted: Mapping[str, list[FetchedBatch]], failed: Mapping[TopicIdPartition, LakelogException]
) -> dict[str, list[FetchedBatch]]:
    kept = {
        name: [batch for batch in batches if batch.topic_id_partition not in failed] for name, batches in wanted.items()
    }
    return {name: batches for name, batches in kept.items() if batches}
