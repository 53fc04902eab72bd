"""What a log still knows of producers whose batches have been deleted: a file without rows, whose footer tells it.

Batch headers are what a log remembers producers by, so that retention would take the memory with the batches, and a
record that is sent once more would be taken for new. The snapshot goes into the commit that removes the segments.

Kafka: the `.snapshot` files of `ProducerStateManager`. [AP-06]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lakelog.replication.protocol.producer_state import ProducerEntry, SequenceRun
from lakelog.replication.protocol.record_batch import TopicIdPartition

SNAPSHOT_KEY = b"lakelog.producers.v1"


class RememberedProducer(NamedTuple):
    """What one partition still knows of one producer. `max_timestamp`: of its last record that is gone, in µs."""

    topic_id_partition: TopicIdPartition
    producer_id: int
    entry: ProducerEntry
    max_timestamp: int


def to_json(producers: Iterable[RememberedProducer]) -> bytes:
    """The snapshot as it stands in a footer."""
    rows = [
        [*p.topic_id_partition, p.producer_id, p.entry.producer_epoch, p.max_timestamp, p.entry.runs] for p in producers
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def from_json(text: bytes) -> tuple[RememberedProducer, ...]:
    """The snapshot in a footer."""
    return tuple(
        RememberedProducer(
            TopicIdPartition(topic_id, partition), producer,
            ProducerEntry(epoch, tuple(SequenceRun(*run) for run in runs)), timestamp,
        )
        for topic_id, partition, producer, epoch, timestamp, runs in json.loads(text)
    )  # fmt: skip


def by_partition(producers: Iterable[RememberedProducer]) -> Mapping[TopicIdPartition, dict[int, ProducerEntry]]:
    """The entries of each partition, by producer id."""
    grouped: dict[TopicIdPartition, dict[int, ProducerEntry]] = {}
    for remembered in producers:
        grouped.setdefault(remembered.topic_id_partition, {})[remembered.producer_id] = remembered.entry
    return grouped
