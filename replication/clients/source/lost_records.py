"""Records that a query can no longer read: `failOnDataLoss`. Spark: `KafkaMicroBatchStream.reportDataLoss`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lakelog.replication.clients.readable_partition import ReadablePartition
from lakelog.replication.clients.source.partition_view import PartitionView, Registered
from lakelog.replication.clients.source.read_plan import Bounds
from lakelog.replication.clients.source.source_offset import LastEpoch, SourceOffset
from lakelog.replication.errors import OffsetOutOfRangeException
from lakelog.replication.protocol.leader_epoch import end_offset_for, epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicPartition

_log = logging.getLogger(__name__)
_WAY_OUT = "option failOnDataLoss=false warns and goes on with what is there"


class LostRecords:
    """Finds what is lost since an offset: it fails the query, or warns and goes on with what is there."""

    def __init__(self, fails: bool, begun: SourceOffset, ended: SourceOffset | None = None) -> None:
        self._fails = fails
        self._begun = begun
        self._ended = ended

    def starts(
        self, registered: Registered, readable: Mapping[TopicPartition, ReadablePartition]
    ) -> dict[TopicPartition, int]:
        """Where the next micro-batch starts, for each partition that goes on. Raises OffsetOutOfRangeException for a
        topic that is gone or was made again, and for records that are deleted, unless the query goes on without."""
        return {
            partition: self._kept(self._begun, partition, readable[partition]) if partition in readable else offset
            for partition, offset in self._begun.offsets.items()
            if self._is_same_topic(partition, registered)
        }

    def target(
        self, target: Mapping[TopicPartition, int], readable: Mapping[TopicPartition, ReadablePartition]
    ) -> dict[TopicPartition, int]:
        """Where a query ends that reads what was committed up to the `target`. Raises as `starts`."""
        left = dict(target)
        for partition, offset in target.items():
            end = readable[partition].log.log_end_offset if partition in readable else offset
            if end < offset:
                self._report(f"{partition}: an unclean election has removed records {end} to {offset - 1}")
                left[partition] = end
        return left

    def bounds(
        self, view: PartitionView, registered: Registered, wanted: Bounds
    ) -> dict[TopicPartition, tuple[int, int]]:
        """What is left of the bounds of a micro-batch. Raises as `starts`."""
        kept = {partition: each for partition, each in wanted.items() if self._is_same_topic(partition, registered)}
        for partition, readable in view.led({partition: registered[partition] for partition in kept}).items():
            start = self._kept(self._begun, partition, readable)
            kept[partition] = start, max(start, self._kept(self._ended or self._begun, partition, readable))
        return kept

    def _kept(self, known: SourceOffset, partition: TopicPartition, readable: ReadablePartition) -> int:
        """The offset of a partition, or the nearest one at which its log goes on."""
        offset, log = known.offsets[partition], readable.log
        first, end = log.log_start_offset, log.log_end_offset
        if first > offset:
            self._report(f"{partition}: records {offset} to {first - 1} are deleted, the log starts at {first}")
            return first
        common = _common_end(log, offset, known.epochs.get(partition))
        if common < offset:  # after a clean election the new leader has all that was committed
            lost = "removed" if end < offset else "replaced"
            self._report(f"{partition}: an unclean election has {lost} records {common} to {offset - 1}")
        return max(first, common)

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


def epochs_before(
    known: SourceOffset, readable: Mapping[TopicPartition, ReadablePartition], begun: SourceOffset | None
) -> dict[TopicPartition, LastEpoch]:
    """The leader epoch of the record before each offset that is `known`. It stays that of the offset `begun` where that
    is the same: a partition may be unreadable for a while, or have no record left."""
    found = {}
    for partition, offset in known.offsets.items():
        kept = begun.epochs.get(partition) if begun and _is_same(known, begun, partition) else None
        if kept is None and partition in readable:
            kept = _last_epoch(readable[partition].log, offset)
        if kept is not None:
            found[partition] = kept
    return found


def _is_same(one: SourceOffset, other: SourceOffset, partition: TopicPartition) -> bool:
    topic, offset = one.topic_ids[partition.topic], one.offsets[partition]
    return (topic, offset) == (other.topic_ids.get(partition.topic), other.offsets.get(partition))


def _last_epoch(log: PartitionLog, offset: int) -> LastEpoch | None:
    """The epoch of the record before the offset; None if the log does not have that record any more."""
    entries = [entry for entry in log.lineage if log.log_start_offset <= entry.start_offset < offset]
    return LastEpoch(*entries[-1][:2]) if entries else None


def _common_end(log: PartitionLog, offset: int, last: LastEpoch | None) -> int:
    """Up to where the log has the records before the offset, if the last of them are of this epoch.

    A log without that epoch may have records of older ones there: an earlier leader's, which nobody else had.

    Kafka: `SubscriptionState.maybeCompleteValidation`. KIP-320; KIP-279 for a log without the epoch.
    """
    common = min(offset, log.log_end_offset)
    if last is None or offset <= log.log_start_offset or epoch_at(log.lineage, common - 1) == last.leader_epoch:
        return common
    known, end = end_offset_for(log.lineage, log.log_end_offset, last.leader_epoch)
    common = min(common, end) if end >= 0 else common
    return common if known == last.leader_epoch else min(common, last.start_offset)
