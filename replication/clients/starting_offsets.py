"""Where a consumer starts in a partition without a committed offset. Kafka: `auto.offset.reset`,
`OffsetFetcher.resetPositionsIfNeeded`. [AP-04]
"""

from __future__ import annotations

from lakelog.replication.clients.consumer_fetch import led_log
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import NoOffsetForPartitionException
from lakelog.replication.protocol.delayed_operation import check_offset_available
from lakelog.replication.protocol.partition_assignor import AssignedPartition


def starting_offset(view: TopicView, partition: AssignedPartition, reset: str) -> int:
    """The log start for `earliest`, the high watermark for `latest`.

    Raises NoOffsetForPartitionException for `none`, OffsetNotAvailableException while a new leader does not know how
    much is committed, UnknownTopicIdException if the topic was made again, and why the partition has no leader.
    """
    name, number = partition.name, partition.partition
    if reset == "none":
        raise NoOffsetForPartitionException(f"{name}: the group has committed no offset, and auto.offset.reset is none")
    seen = TopicWatch(view, partition.topic, [number], partition.topic_id).leadership(number)
    high_watermark = seen.available_row().high_watermark
    log = led_log(seen, lambda leader: view.log(leader).refresh())
    if reset == "earliest":
        return log.log_start_offset
    check_offset_available(None, high_watermark, log.epoch_start, name)
    return high_watermark
