"""Copies the segments of a plan: whole files byte for byte, and only the wanted rows of a file that holds more. It also
reads their footers. Executors help where that pays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

from pyspark.sql import SparkSession

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.append_plan import AppendPlan, FetchedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.executors import ExecutorsFailed, has_executors, on_executors
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.replication.storage.log.segment import Segment, read_segment
from lakelog.replication.storage.log.segment_copy import copy_segment, rewrite

logger = logging.getLogger(__name__)

_COPIERS = 4
_FOOTERS = 64  # the driver reads eight at a time, and a job of Spark takes as long as some of these rounds

_T = TypeVar("_T")


class _Item(NamedTuple):
    """A segment to copy: its name, the batches that are wanted of it, and its footer, if that is known."""

    name: str
    batches: list[FetchedBatch]
    segment: Segment | None


_Outcome: TypeAlias = tuple[str, Segment | LakelogException]


@dataclass(frozen=True)
class Copied:
    """The segments that were copied but not committed yet, and the partitions whose source failed, with errors."""

    segments: tuple[Segment, ...]
    failed: Mapping[TopicIdPartition, LakelogException]


class SegmentCopier:
    """Copies segments from one log to another.

    The driver copies them, and reads their footers, or executors do: see `_is_for_executors`. That only saves the
    driver work: it does what they have not done. A task that is lost or tried again leaves files that no commit names.

    Once `is_over`, because the fetcher has no partitions any more, the driver begins no other copy and reads no other
    footer: a stop cancels the job of executors, and waits for no large rest.
    """

    def __init__(
        self, source: StorageRoot, target: StorageRoot, spark: SparkSession, executor_bytes: int,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._source = source
        self._target = target
        self._job = _CopyJob(source, target)
        self._spark = spark
        self._executor_bytes = executor_bytes
        self._is_over = is_over

    def has_executors(self) -> bool:
        """Whether executors may help: one of the logs is in an object store, and Spark has executors. Nothing is nearer
        to two folders of this machine than the driver."""
        return not (self._source.is_local and self._target.is_local) and has_executors(self._spark)

    def _is_for_executors(self, count: int, size: int) -> bool:
        """Whether executors copy `count` segments of together `size` bytes, or read `count` footers if `size` is 0.

        A core of an executor has as many connections to a store as the driver: two copy almost twice as fast, and four
        three times, where the store or its connections are slow (docs/benchmarks.md, Copies on executors). A job costs
        0.1 to 0.3 s, so it is not worth it for little work.
        """
        is_much = size >= self._executor_bytes if size else count >= _FOOTERS
        return count > 1 and is_much and self.has_executors()

    def read_footers(self, files: Sequence[AddedFile]) -> list[Segment | BrokenSegment]:
        """As `read_segments` of the source, but in any order. The driver reads the segments that executors have not
        found whole, because on their machines the URI may lead elsewhere. Raises KafkaStorageException, also once it
        `is_over`."""
        if not self._is_for_executors(len(files), 0):
            return read_segments(self._source, files, self._is_over)
        shares = _shares(files, self._spark.sparkContext.defaultParallelism, lambda _: 0)
        try:
            outcomes = [found for each in on_executors(self._spark, self._job.read_footers, shares) for found in each]
        except ExecutorsFailed as error:
            if not self._is_over():
                logger.warning("%s: the driver reads %d footers itself: %s", self._source.uri, len(files), error)
            return read_segments(self._source, files, self._is_over)
        whole = [segment for segment in outcomes if isinstance(segment, Segment)]
        names = {segment.name for segment in whole}
        left = [file for file in files if file.name not in names]
        return [*whole, *read_segments(self._source, left, self._is_over)]

    def copy(self, plan: AppendPlan, known: Mapping[str, Segment] | None = None) -> Copied:
        """Copies the planned batches of each segment. If a segment fails, only its own partitions fail. Of the segments
        in `known`, by name, it reads no footer.

        It leaves out the batches that a failed partition has in other segments, because a log has no holes.
        """
        known = known or {}
        failed: dict[TopicIdPartition, LakelogException] = {}
        done: dict[str, tuple[list[FetchedBatch], Segment]] = {}
        wanted = plan.by_segment()
        while True:
            todo = {name: batches for name, batches in wanted.items() if name not in done or done[name][0] != batches}
            errors: dict[TopicIdPartition, LakelogException] = {}
            for name, outcome in self._copy_each([_Item(name, todo[name], known.get(name)) for name in todo]):
                if isinstance(outcome, LakelogException):
                    errors.update(dict.fromkeys((batch.topic_id_partition for batch in todo[name]), outcome))
                else:
                    done[name] = todo[name], outcome
            if not errors:
                return Copied(tuple(done[name][1] for name in wanted), failed)
            failed.update(errors)
            wanted = _leave_out(wanted, failed)

    def _copy_each(self, items: list[_Item]) -> list[_Outcome]:
        is_for_executors = self._is_for_executors(len(items), sum(_bytes_of(item) for item in items))
        done = self._on_executors(items) if is_for_executors else {}
        left = [item for item in items if item.name not in done]
        return [*done.items(), *self._job.copy_all(left, self._is_over)]

    def _on_executors(self, items: Sequence[_Item]) -> dict[str, Segment]:
        """The segments that executors have copied, by the name of their source.

        On an executor's machine a URI may lead elsewhere. So a copy counts only if the driver finds it in the target.
        """
        shares = _shares(items, self._spark.sparkContext.defaultParallelism, _bytes_of)
        try:
            outcomes = [outcome for each in on_executors(self._spark, self._job.copy_all, shares) for outcome in each]
        except ExecutorsFailed as error:
            if not self._is_over():
                logger.warning("%s: the driver copies %d segments itself: %s", self._source.uri, len(items), error)
            return {}
        written = {name: segment for name, segment in outcomes if isinstance(segment, Segment)}
        sizes = self._target.sizes([segment.name for segment in written.values()])
        found = zip(written.items(), sizes, strict=True)
        done = {name: segment for (name, segment), size in found if size == segment.file.size}
        logger.info("%s: executors have copied %d of %d segments", self._source.uri, len(done), len(items))
        return done


def _shares(items: Sequence[_T], cores: int, size: Callable[[_T], int]) -> list[list[_T]]:
    """The items as shares of about the same size, one for each core at most."""
    by_size = sorted(items, key=size)
    return [by_size[start::cores] for start in range(min(cores, len(items)))]


def _bytes_of(item: _Item) -> int:
    return item.batches[0].segment_bytes


@dataclass(frozen=True)
class _CopyJob:
    """Copies segments, in the driver or on an executor. A core of an executor has as many connections as the driver,
    since a copy waits for its store most of the time."""

    source: StorageRoot
    target: StorageRoot

    def copy_all(self, items: Sequence[_Item], is_over: Callable[[], bool] = lambda: False) -> list[_Outcome]:
        """Copies segments, the largest first, so that no thread copies alone at the end. If one fails, its outcome is
        the error; also if it has not begun when it `is_over`."""

        def outcome(item: _Item) -> _Outcome:
            return (item.name, KafkaStorageException("the fetcher was stopped")) if is_over() else self._outcome(item)

        return in_threads(outcome, sorted(items, key=_bytes_of, reverse=True), _COPIERS)

    def read_footers(self, files: Sequence[AddedFile]) -> list[Segment | BrokenSegment]:
        """Reads the footers of segments of the source."""
        return read_segments(self.source, files)

    def _outcome(self, item: _Item) -> _Outcome:
        try:
            return item.name, self._copy(*item)
        except LakelogException as error:
            return item.name, error

    def _copy(self, name: str, batches: Sequence[FetchedBatch], known: Segment | None) -> Segment:
        file = self._file(name, batches[0].segment_bytes)
        if known is None:
            segment = read_segment(self.source, file)
        else:
            segment = replace(known, file=replace(known.file, content=file.content))
        if not _is_all_of(segment, batches):
            return self._rewrite(segment, batches)
        return copy_segment(self.source, segment, self.target)

    def _file(self, name: str, size: int) -> AddedFile:
        noted = self.source.version_cache
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
