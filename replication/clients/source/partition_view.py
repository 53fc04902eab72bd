"""The partitions of a read, and the offsets that its options stand for.

Spark: `KafkaOffsetReader`, `ConsumerStrategy`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST, offset_for
from lakelog.replication.clients.partition_reader import OpenPartition, PartitionReader
from lakelog.replication.clients.source.offset_spec import OffsetSpec
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.clients.topic_view import TopicView, open_view, pause
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidPartitionsException,
    LakelogException,
    OffsetOutOfRangeException,
    RetriableException,
    UnknownTopicOrPartitionException,
    error_or,
)
from lakelog.replication.protocol.delayed_operation import check_offset_available
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange, TopicPartition
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.value_schema import one_schema
from lakelog.replication.protocol.value_type import FieldsType

Answer = TypeVar("Answer")
Registered = Mapping[TopicPartition, PartitionRegistration]


class PartitionView:
    """The partitions of a read. It keeps the handles on the cluster's tables open between polls."""

    def __init__(self, options: SourceOptions, view: TopicView) -> None:
        self.options = options
        self.view = view

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self.view.cluster.cluster_id

    def retried(self, attempt: Callable[[], Answer]) -> Answer:
        """The result of `attempt`. Repeats it after errors that may pass, such as a failover, until
        `request.timeout.ms` is over, and then raises the last of these errors. Raises any other error at once."""
        config = self.view.cluster.config
        deadline = time.monotonic() + config.request_timeout_ms / 1000
        while True:
            try:
                return attempt()
            except UnknownTopicOrPartitionException:
                raise
            except RetriableException:
                if time.monotonic() >= deadline:
                    raise
            self.view.cluster.refresh_brokers()
            pause(config.lakelog_poll_interval_ms, deadline)

    def registrations(self, must_exist: bool) -> Registered:
        """The partitions that the options choose, as they are now, in order. With `must_exist` raises
        UnknownTopicOrPartitionException for a topic that does not exist, otherwise leaves it out."""
        found: dict[TopicPartition, PartitionRegistration] = {}
        for topic in self.topics():
            partitions = error_or(self.view.partitions, topic)
            if isinstance(partitions, UnknownTopicOrPartitionException) and not must_exist:
                continue
            if isinstance(partitions, LakelogException):
                raise partitions
            found.update({TopicPartition(topic, number): each for number, each in partitions.items()})
        return self._chosen(found, must_exist)

    def topics(self) -> list[str]:
        """The topics that the options choose. They need not exist, unless the options have a pattern."""
        pattern, assigned = self.options.pattern, self.options.assigned
        if pattern is None:
            return sorted({partition.topic for partition in assigned} or self.options.topics)
        topics = self.view.cluster.topics
        topics.refresh()
        return sorted(t.topic for t in topics.topics.values() if not t.deleting and re.fullmatch(pattern, t.topic))

    def value_schema(self) -> FieldsType:
        """The schema of the values of the topics, as it is now. Raises UnknownTopicOrPartitionException, and
        InvalidConfigurationException if a topic has no schema, another one than the others, or one that this version
        does not know."""
        self.view.cluster.topics.refresh()
        return one_schema({topic: self.view.value_schema(topic) for topic in self.topics()})

    def avro_values(self, topics: Iterable[str]) -> dict[str, AvroValues]:
        """The Avro schemas by which the values of each topic are decoded, as they are now. Topics with values in JSON
        are left out. Raises InvalidConfigurationException for a schema that this version does not know."""
        self.view.cluster.topics.refresh()
        found = {topic: self.view.avro_values(topic) for topic in topics}
        return {topic: values for topic, values in found.items() if values is not None}

    def _chosen(self, found: Registered, must_exist: bool) -> Registered:
        if not self.options.assigned:
            return found
        for partition in sorted(self.options.assigned - set(found)) if must_exist else ():
            numbers = [each.partition for each in found if each.topic == partition.topic]
            raise InvalidPartitionsException(
                f"option assign: there is no partition {partition}, topic {partition.topic} has 0 to {max(numbers)}"
            )
        return {partition: each for partition, each in found.items() if partition in self.options.assigned}

    def led(self, registered: Registered) -> dict[TopicPartition, OpenPartition]:
        """The leader of each partition. Raises as `PartitionReader.leader`."""
        reader = PartitionReader(self.view)
        return {partition: reader.leader(each) for partition, each in registered.items()}

    def nearest(
        self, registered: Registered, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OpenPartition | LakelogException]:
        """The replica of each partition that is read from its offset, by default from 0; the error if there is none
        now."""
        reader = PartitionReader(self.view, self.options.rack)
        return {
            partition: error_or(reader.nearest, each, offsets.get(partition, 0))
            for partition, each in registered.items()
        }

    def holding(
        self, registered: Registered, bounds: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, OpenPartition]:
        """A replica of each partition that has all its records within the bounds. Raises as `PartitionReader`."""
        reader = PartitionReader(self.view, self.options.rack)
        return {partition: reader.holding(registered[partition], bounds[partition]) for partition in bounds}

    def offsets(self, spec: OffsetSpec, readable: Mapping[TopicPartition, OpenPartition]) -> dict[TopicPartition, int]:
        """The offset of each partition at which the read starts or ends, by `spec`.

        Raises OffsetOutOfRangeException for an offset that is not in the log or not committed, and if no record is as
        late as a timestamp; InvalidConfigurationException if `spec` names other partitions than those of the read;
        OffsetNotAvailableException.
        """
        _check_named(spec, readable)
        committed = self._committed(spec, readable)
        try:
            return {partition: _offset(spec, partition, r, committed) for partition, r in readable.items()}
        except OffsetOutOfRangeException:
            self.view.cluster.check_current()
            raise

    def _committed(
        self, spec: OffsetSpec, readable: Mapping[TopicPartition, OpenPartition]
    ) -> dict[TopicPartition, int]:
        """The offsets that the group has committed; none unless `spec` asks for them."""
        if not spec.is_group or self.options.group is None:
            return {}
        kept = self.view.cluster.groups.committed(self.options.group)
        found = {partition: kept.get(r.registration.topic_id_partition) for partition, r in readable.items()}
        return {partition: offset for partition, offset in found.items() if offset is not None}


def partition_view(options: SourceOptions) -> PartitionView:
    """A view of the cluster. Views of one cluster in this process share their open tables."""
    return PartitionView(options, open_view(options.cluster, options.config, reads_go_on=True))


def _check_named(spec: OffsetSpec, readable: Mapping[TopicPartition, object]) -> None:
    named = set(spec.named)
    if not named or named == set(readable):
        return
    missing, unknown = sorted(set(readable) - named), sorted(named - set(readable))
    words = f"lacks {missing[0]}" if missing else f"has {unknown[0]}, which is not read"
    more = "" if spec.timestamps else ", -1 for latest, -2 for earliest"
    raise InvalidConfigurationException(
        f"option {spec.option}: it {words}; allowed: a number for each partition that is read{more}"
    )


def _offset(
    spec: OffsetSpec, partition: TopicPartition, readable: OpenPartition,
    committed: Mapping[TopicPartition, int],
) -> int:  # fmt: skip
    timestamp = spec.timestamp_of(partition)
    if timestamp is not None:
        return _offset_at(spec, partition, readable, timestamp)
    offset = committed.get(partition, spec.offset_of(partition))
    if offset in (LATEST, EARLIEST):
        found = offset_for(readable, offset)
        assert found is not None, "every log has a start and an end"
        return found.offset
    first, high_watermark = readable.log.log_start_offset, readable.high_watermark
    if offset > high_watermark and readable.is_leader:
        check_offset_available(offset, high_watermark, readable.log.epoch_start, str(partition))
    if not first <= offset <= high_watermark:
        raise OffsetOutOfRangeException(
            f"option {spec.option}: offset {offset} of {partition} is out of range, committed: {first} to "
            f"{high_watermark}"
        )
    return offset


def _offset_at(
    spec: OffsetSpec, partition: TopicPartition, readable: OpenPartition, timestamp: int
) -> int:  # fmt: skip
    found = offset_for(readable, timestamp)
    if found is not None:
        return found.offset
    if not spec.or_latest:
        raise OffsetOutOfRangeException(
            f"option {spec.option}: no record of {partition} is as late as {timestamp}; option "
            "startingOffsetsByTimestampStrategy=latest starts at the end instead"
        )
    return readable.high_watermark
