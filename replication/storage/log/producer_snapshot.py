"""The state of producers whose batches were deleted: a file without rows, with the state in its footer.

A log derives the state of producers from batch headers. Without a snapshot, retention would delete that state with the
batches, and the log would accept a repeated record as new. The commit that removes the segments adds the snapshot.

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
    """The state of one producer in one partition. `max_timestamp`: of its last deleted record, in µs since the
    epoch."""

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
    """The snapshot from a footer. Raises ValueError, TypeError or KeyError if the text is not a snapshot."""
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
