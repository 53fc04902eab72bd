"""The state of producers whose batches were deleted: a file without rows, with the state in its footer.

A log derives the state of producers from batch headers. Without a snapshot, retention would delete that state with the
batches, and the log would accept a repeated record as new. The commit that removes the segments adds the snapshot.

Kafka: the `.snapshot` files of `ProducerStateManager`. [AP-06]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from lakelog.replication.protocol.producer_state import KnownBatch, ProducerEntry, SequenceRun
from lakelog.replication.protocol.record_batch import TopicIdPartition

SNAPSHOT_KEY = b"lakelog.producers.v1"
BATCHES_KEY = b"lakelog.producer_batches.v1"  # beside it, because older versions refuse a longer row


class RememberedProducer(NamedTuple):
    """The state of one producer in one partition. `max_timestamp`: of its last deleted record, in µs since the
    epoch."""

    topic_id_partition: TopicIdPartition
    producer_id: int
    entry: ProducerEntry
    max_timestamp: int


def to_footer(producers: Sequence[RememberedProducer]) -> dict[bytes, bytes]:
    """The snapshot as metadata of a footer."""
    rows = [
        [*p.topic_id_partition, p.producer_id, p.entry.producer_epoch, p.max_timestamp, p.entry.runs] for p in producers
    ]
    return {SNAPSHOT_KEY: _json(rows), BATCHES_KEY: _json([p.entry.batches for p in producers])}


def _json(rows: object) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


def from_footer(metadata: Mapping[bytes, bytes]) -> tuple[RememberedProducer, ...]:
    """The snapshot from a footer. Raises ValueError, TypeError or KeyError if it is not a snapshot."""
    rows = json.loads(metadata[SNAPSHOT_KEY])
    batches = json.loads(metadata[BATCHES_KEY]) if BATCHES_KEY in metadata else repeat((), len(rows))
    return tuple(
        RememberedProducer(
            TopicIdPartition(topic_id, partition), producer,
            ProducerEntry(epoch, tuple(SequenceRun(*r) for r in runs), tuple(KnownBatch(*b) for b in known)), timestamp,
        )
        for (topic_id, partition, producer, epoch, timestamp, runs), known in zip(rows, batches, strict=True)
    )  # fmt: skip


def newest(producers: Iterable[RememberedProducer]) -> list[RememberedProducer]:
    """The newest state of each producer in each partition, by its epoch and the offset of its last record.

    A log has several snapshots if one could not be read when the next one was written. Their order has no meaning.
    """
    found: dict[tuple[TopicIdPartition, int], RememberedProducer] = {}
    for each in producers:
        key = each.topic_id_partition, each.producer_id
        known = found.setdefault(key, each)
        later = max(known, each, key=lambda p: (p.entry.producer_epoch, p.entry.next_offset))
        found[key] = later._replace(max_timestamp=max(known.max_timestamp, each.max_timestamp))
    return list(found.values())


def by_partition(producers: Iterable[RememberedProducer]) -> Mapping[TopicIdPartition, dict[int, ProducerEntry]]:
    """The newest entries of each partition, by producer id."""
    grouped: dict[TopicIdPartition, dict[int, ProducerEntry]] = {}
    for remembered in newest(producers):
        grouped.setdefault(remembered.topic_id_partition, {})[remembered.producer_id] = remembered.entry
    return grouped
