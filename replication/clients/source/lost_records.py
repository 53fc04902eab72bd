"""Records that a query can no longer read: `failOnDataLoss`. Spark: `KafkaMicroBatchStream.reportDataLoss`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lakelog.replication.clients.readable_partition import ReadablePartition
from lakelog.replication.clients.source.partition_view import PartitionView, Registered
from lakelog.replication.clients.source.read_plan import Bounds
from lakelog.replication.clients.source.source_offset import SourceOffset
from lakelog.replication.errors import OffsetOutOfRangeException
from lakelog.replication.protocol.record_batch import TopicPartition

_log = logging.getLogger(__name__)
_WAY_OUT = "option failOnDataLoss=false warns and goes on with what is there"


class LostRecords:
    """Finds what is lost since an offset: it fails the query, or warns and goes on with what is there."""

    def __init__(self, fails: bool, begun: SourceOffset) -> None:
        self._fails = fails
        self._begun = begun

    def starts(
        self, registered: Registered, readable: Mapping[TopicPartition, ReadablePartition]
    ) -> dict[TopicPartition, int]:
        """Where the next micro-batch starts, for each partition that goes on. Raises OffsetOutOfRangeException for a
        topic that is gone or was made again, and for records that are deleted, unless the query goes on without."""
        starts = {}
        for partition, offset in self._begun.offsets.items():
            if not self._is_same_topic(partition, registered):
                continue
            first, end = _ends(readable[partition]) if partition in readable else (offset, offset)
            if first > offset:
                self._report(f"{partition}: records {offset} to {first - 1} are deleted, the log starts at {first}")
            if end < offset:  # after a clean election the new leader has all that was committed
                self._report(f"{partition}: an unclean election has cost records {end} to {offset - 1}")
            starts[partition] = min(max(first, offset), max(first, end))
        return starts

    def bounds(
        self, view: PartitionView, registered: Registered, wanted: Bounds
    ) -> dict[TopicPartition, tuple[int, int]]:
        """What is left of the bounds of a micro-batch. Raises as `starts`."""
        kept = {partition: each for partition, each in wanted.items() if self._is_same_topic(partition, registered)}
        for partition, readable in view.led({partition: registered[partition] for partition in kept}).items():
            start, stop = kept[partition]
            first, end = _ends(readable)
            if first > start:
                self._report(f"{partition}: records {start} to {first - 1} are deleted, the log starts at {first}")
            if stop > end:
                self._report(f"{partition}: an unclean election has cost records {end} to {stop - 1}")
            kept[partition] = max(start, first), min(stop, end)
        return kept

    def _is_same_topic(self, partition: TopicPartition, registered: Registered) -> bool:
        known, found = self._begun.topic_ids[partition.topic], registered.get(partition)
        if found is None:
            self._report(f"{partition}: the topic with id {known} is deleted")
        elif found.topic_id != known:
            self._report(f"{partition}: the topic was made again: it had id {known} and has {found.topic_id}")
        return found is not None and found.topic_id == known

    def _report(self, lost: str) -> None:
        if self._fails:
            raise OffsetOutOfRangeException(f"{lost}; {_WAY_OUT}")
        _log.warning("%s", lost)


def _ends(readable: ReadablePartition) -> tuple[int, int]:
    """The log start and the LEO."""
    return readable.log.log_start_offset, readable.log.log_end_offset
