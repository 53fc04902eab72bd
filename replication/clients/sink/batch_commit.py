"""Commits a batch of a query exactly once: stages it, sends it, and notes that it is done.

A crash between any two of these writes leaves a batch that a later run finishes. KIP-98 gives the sequences, by which
logs recognise what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lakelog.replication.clients.sink.sink_stage import Part, Sequences, SinkStage, Staged, StagedBatch
from lakelog.replication.errors import ProducerFencedException
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.storage.tables.producer_table import new_producer_id

# Sends the records of parts under a producer id, the first in each partition under the given sequence, until all are
# committed.
Send = Callable[[int, Sequence[Part], Sequences], None]
_GROUPS = 2  # a log remembers the last five runs of sequences of a producer, and a failover may split one
_GROUP_BYTES = 128 * 1024 * 1024


def commit_batch(stage: SinkStage, batch_id: int, parts: Sequence[Part], send: Send) -> None:
    """Commits a batch that the tasks of this run have put on the stage as `parts`. If another run has staged it, the
    records of that run count, and these go.

    Raises ProducerFencedException if a later batch is staged: another driver has this checkpoint. Raises what `send`
    raises; the next run of the batch goes on from there.
    """
    found = stage.look()
    if batch_id > found.done:
        _finish_earlier(stage, found, batch_id, send)
        batch = _staged(stage, found, batch_id, parts)
        if batch is not None:
            _send(batch, send)
            stage.put_done(batch_id)
    stage.clean(stage.look())


def _finish_earlier(stage: SinkStage, found: Staged, batch_id: int, send: Send) -> None:
    """A batch that was staged and not finished comes first. Spark runs it again, unless its checkpoint was restored."""
    for earlier in found.batches:
        if found.done < earlier < batch_id:
            _send(stage.read_batch(earlier), send)
            stage.put_done(earlier)


def _staged(stage: SinkStage, found: Staged, batch_id: int, parts: Sequence[Part]) -> StagedBatch | None:
    """The batch as it counts; None if it has no records, or another driver has finished it meanwhile."""
    if found.batches and found.batches[-1] > batch_id:
        raise ProducerFencedException(
            f"batch {batch_id} comes after batch {found.batches[-1]}: another driver runs a query with this checkpoint"
        )
    if batch_id in found.batches:
        return stage.read_batch(batch_id)
    if not parts:
        return None
    last = stage.read_batch(found.batches[-1]) if found.batches else None
    batch = _described(batch_id, last, parts)
    if not stage.put_batch(batch):
        return stage.read_batch(batch_id)
    # It may have been staged, finished and removed since the look: then what was put just now is no batch.
    return batch if stage.look().done < batch_id else None


def _described(batch_id: int, last: StagedBatch | None, parts: Sequence[Part]) -> StagedBatch:
    """A new batch. The first one draws a producer id: if somebody removes the stage of a query, its sequences begin
    again, and no log takes its records for duplicates."""
    producer_id, following = (last.producer_id, last.following) if last else (new_producer_id(), {})
    bases: dict[str, dict[int, int]] = {}
    after: dict[str, dict[int, int]] = {topic: dict(each) for topic, each in following.items()}
    for part in parts:
        for topic, counts in part.counts.items():
            for partition, count in counts.items():
                known = after.setdefault(topic, {}).setdefault(partition, 0)
                bases.setdefault(topic, {}).setdefault(partition, known)
                after[topic][partition] = increment_sequence(known, count)
    return StagedBatch(batch_id, producer_id, tuple(parts), bases, after)


def _send(batch: StagedBatch, send: Send) -> None:
    """Sends the batch in groups of parts, the same ones each time."""
    sequences = {topic: dict(each) for topic, each in batch.bases.items()}
    for group in groups_of(batch.parts):
        send(batch.producer_id, group, sequences)
        for part in group:
            _advance(sequences, part.counts)


def _advance(sequences: Mapping[str, dict[int, int]], counts: Sequences) -> None:
    for topic, each in counts.items():
        for partition, count in each.items():
            sequences[topic][partition] = increment_sequence(sequences[topic][partition], count)


def groups_of(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in at most two groups, of 128 MB or more where there are two."""
    least = max(_GROUP_BYTES, -(-sum(part.size for part in parts) // _GROUPS))
    groups: list[list[Part]] = []
    size = least
    for part in parts:
        if size >= least:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups
