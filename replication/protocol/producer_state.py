"""Idempotence: a log's memory of its producers, so that it does not append a resent batch again.

Each record of a producer has a sequence number in its partition; a batch header has that of its first record. Sequences
rise by one and wrap around: 0 follows 2**31 - 1.

Kafka: `ProducerStateManager`, `ProducerStateEntry`, `ProducerAppendInfo`. KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from lakelog.replication.errors import OutOfOrderSequenceException, ProducerFencedException
from lakelog.replication.protocol.record_batch import BatchHeader

RUNS_TO_RETAIN = 5
# Kafka keeps five batches, one of each request in flight. A send of ours may have many batches.
BATCHES_TO_RETAIN = 50
_SEQUENCES = 2**31

# The most records of a run. All runs together stay well below one turn of the sequence numbers. Otherwise an
# out-of-order batch could pass for one appended a turn ago, and its records would be lost.
_LONGEST_RUN = 2**28


class SequenceRun(NamedTuple):
    """Consecutive sequences at consecutive offsets, both ends included: one batch, or several in a row."""

    base_sequence: int
    last_sequence: int
    base_offset: int

    @property
    def records(self) -> int:
        """Number of records."""
        return (self.last_sequence - self.base_sequence) % _SEQUENCES + 1

    def offset_of(self, sequence: int) -> int | None:
        """The offset of the record with this sequence; None if the run lacks it."""
        distance = (sequence - self.base_sequence) % _SEQUENCES
        return self.base_offset + distance if distance < self.records else None


class KnownBatch(NamedTuple):
    """The offsets of a batch, both ends included, and the digest of its records."""

    base_offset: int
    last_offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """A partition's memory of a producer: its epoch, and its latest runs of sequences, oldest first.

    `batches`: the latest of its batches that were deleted, oldest first. The log has the headers of the others. An
    entry that an older version has written has none.
    """

    producer_epoch: int
    runs: tuple[SequenceRun, ...]
    batches: tuple[KnownBatch, ...] = ()

    @property
    def next_sequence(self) -> int:
        """The sequence with which the next batch must begin."""
        return increment_sequence(self.runs[-1].last_sequence, 1)

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return max((run.base_offset + run.records for run in self.runs), default=0)


class KnownRun(NamedTuple):
    """Records of a request that are in the log one after the other: the offset of the first one, its place in the
    request, and their number."""

    base_offset: int
    place: int
    records: int


class KnownRecords(NamedTuple):
    """The first records of a request that are already in the log: their number, and their first and last offset."""

    base_offset: int
    last_offset: int
    records: int


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence that comes `increment` records later. Kafka: `DefaultRecordBatch.incrementSequence`."""
    return (sequence + increment) % _SEQUENCES


def records_between(sequence: int, later: int) -> int:
    """How many records of a producer lie between two sequences; negative if `later` comes before `sequence`."""
    return (later - sequence + _SEQUENCES // 2) % _SEQUENCES - _SEQUENCES // 2


def record(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """The entry after a batch of an idempotent producer is in the log. `entry` is None for an unknown producer.

    The log is the truth, so nothing is refused here. A header that is known (its segment was rewritten) or has an older
    epoch changes nothing; a newer epoch starts a new entry. A batch that continues the last run in sequence and offset
    extends it. Any other batch begins a new run, and only the latest five runs stay.

    Kafka: `ProducerAppendInfo.appendDataBatch`, `ProducerStateEntry.addBatch`. KIP-98.
    """
    run = SequenceRun(
        header.base_sequence, increment_sequence(header.base_sequence, header.records - 1), header.base_offset
    )
    if entry is None or header.producer_epoch > entry.producer_epoch:
        return ProducerEntry(header.producer_epoch, (run,))
    if header.producer_epoch < entry.producer_epoch or _holds(entry, run):
        return entry
    return replace(entry, runs=_joined(entry.runs, run))


def forget(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """The entry after a batch was deleted with its segment, like `record`. It keeps the digests of the latest ones."""
    known = record(entry, header)
    if header.producer_epoch != known.producer_epoch:
        return known
    batch = KnownBatch(header.base_offset, header.last_offset, header.digest)
    return replace(known, batches=(*known.batches, batch)[-BATCHES_TO_RETAIN:])


def _holds(entry: ProducerEntry, run: SequenceRun) -> bool:
    return any(known.offset_of(run.base_sequence) == run.base_offset for known in entry.runs)


def _joined(runs: tuple[SequenceRun, ...], run: SequenceRun) -> tuple[SequenceRun, ...]:
    last = runs[-1]
    follows = run.base_sequence == increment_sequence(last.last_sequence, 1)
    is_adjacent = run.base_offset == last.base_offset + last.records
    if follows and is_adjacent and last.records + run.records <= _LONGEST_RUN:
        return (*runs[:-1], last._replace(last_sequence=run.last_sequence))
    return (*runs, run)[-RUNS_TO_RETAIN:]


def check_sequence(
    entry: ProducerEntry | None, producer_id: int, producer_epoch: int, base_sequence: int, records: int
) -> KnownRecords | None:
    """Checks the sequence of an append: None if the records come next, else the records that the log already has.

    Those are all of the request's records, or the first ones: a new leader may have replicated only a part of a send of
    several batches. The rest then comes next. Kafka never meets this, because its client sends batch by batch.

    An unknown producer may begin with any sequence, because retention may have removed its earlier records. A new epoch
    begins at 0. Any other sequence is refused: a batch before it is missing, or the log has forgotten it.

    Kafka: `ProducerAppendInfo.checkProducerEpoch` and `checkSequence`, `ProducerStateEntry.findDuplicateBatch`. KIP-98.

    Raises:
        ProducerFencedException: the epoch is older than the known one.
        OutOfOrderSequenceException: the sequence does not come next, and the log does not know its offset.
    """
    if entry is None:
        return None
    if producer_epoch < entry.producer_epoch:
        raise ProducerFencedException(
            f"producer {producer_id} has epoch {producer_epoch}: one with epoch {entry.producer_epoch} has taken over"
        )
    expected = entry.next_sequence if producer_epoch == entry.producer_epoch else 0
    # Checked before the runs: after a whole turn of the numbers, the next sequence may also be in a run.
    if base_sequence == expected:
        return None
    known = _known_records(entry, base_sequence, records) if producer_epoch == entry.producer_epoch else None
    if known is None:
        raise OutOfOrderSequenceException(
            f"producer {producer_id}, epoch {producer_epoch}: {records} records from sequence {base_sequence} on "
            f"do not follow, {expected} comes next"
        )
    return known


def _known_records(entry: ProducerEntry, base_sequence: int, records: int) -> KnownRecords | None:
    """The records that the runs know, if those are all, or all up to the producer's last record here; else None.

    They span several runs if they were appended in several attempts.
    """
    runs = known_runs(entry, base_sequence, records)
    known = sum(run.records for run in runs)
    if not known or (known < records and increment_sequence(base_sequence, known) != entry.next_sequence):
        return None
    return KnownRecords(runs[0].base_offset, runs[-1].base_offset + runs[-1].records - 1, known)


def known_runs(entry: ProducerEntry, base_sequence: int, records: int) -> list[KnownRun]:
    """Where the log has the first records of a request, in their order."""
    found = list[KnownRun]()
    place = 0
    for run in entry.runs:
        offset = run.offset_of(increment_sequence(base_sequence, place))
        if offset is None or place == records:
            continue
        found.append(KnownRun(offset, place, min(records - place, run.base_offset + run.records - offset)))
        place += found[-1].records
    return found


def truncate_from_end(entry: ProducerEntry, offset: int) -> ProducerEntry | None:
    """The entry after the log was truncated to `offset`; None if nothing of it is left.

    A truncated batch must not pass for a duplicate when its producer sends it again: it would be lost.

    Kafka: `ProducerStateManager.truncateAndReload`.
    """
    kept = tuple(_truncated(run, offset) for run in entry.runs if run.base_offset < offset)
    batches = tuple(batch for batch in entry.batches if batch.last_offset < offset)
    return replace(entry, runs=kept, batches=batches) if kept else None


def _truncated(run: SequenceRun, offset: int) -> SequenceRun:
    records = min(run.records, offset - run.base_offset)
    return run._replace(last_sequence=increment_sequence(run.base_sequence, records - 1))
