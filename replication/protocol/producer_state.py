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


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """A partition's memory of a producer: its epoch, and its latest runs of sequences, oldest first."""

    producer_epoch: int
    runs: tuple[SequenceRun, ...]

    @property
    def next_sequence(self) -> int:
        """The sequence with which the next batch must begin."""
        return increment_sequence(self.runs[-1].last_sequence, 1)


class KnownRecords(NamedTuple):
    """The first records of a request that are already in the log: their number, and their first and last offset."""

    base_offset: int
    last_offset: int
    records: int


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence that comes `increment` records later. Kafka: `DefaultRecordBatch.incrementSequence`."""
    return (sequence + increment) % _SEQUENCES


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

    They may span several runs, if they were resent in other batches or appended in several attempts.
    """
    known: KnownRecords | None = None
    wanted, missing = base_sequence, records
    for run in entry.runs:
        offset = run.offset_of(wanted)
        if offset is None or not missing:
            continue
        found = min(missing, run.base_offset + run.records - offset)
        wanted, missing = increment_sequence(wanted, found), missing - found
        known = KnownRecords(known.base_offset if known else offset, offset + found - 1, records - missing)
    return known if not missing or wanted == entry.next_sequence else None


def truncate_from_end(entry: ProducerEntry, offset: int) -> ProducerEntry | None:
    """The entry after the log was truncated to `offset`; None if nothing of it is left.

    A truncated batch must not pass for a duplicate when its producer sends it again: it would be lost.

    Kafka: `ProducerStateManager.truncateAndReload`.
    """
    kept = tuple(_truncated(run, offset) for run in entry.runs if run.base_offset < offset)
    return replace(entry, runs=kept) if kept else None


def _truncated(run: SequenceRun, offset: int) -> SequenceRun:
    records = min(run.records, offset - run.base_offset)
    return run._replace(last_sequence=increment_sequence(run.base_sequence, records - 1))
