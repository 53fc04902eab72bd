"""Idempotence: what a log remembers of a producer, so that a batch that is sent again is not appended again.

Each record of a producer has a sequence number in its partition; a batch header has that of its first record. They
rise by one and wrap: 0 follows 2**31 - 1.

Kafka: `ProducerStateManager`, `ProducerStateEntry`, `ProducerAppendInfo`. KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from lakelog.replication.errors import OutOfOrderSequenceException, ProducerFencedException
from lakelog.replication.protocol.record_batch import BatchHeader

RUNS_TO_RETAIN = 5
_SEQUENCES = 2**31

# A run stops to grow here, so that all runs together stay well below one turn of the sequence numbers: else a batch
# that is out of order could be taken for one that was appended a turn ago, and its records would be lost.
_LONGEST_RUN = 2**28


class SequenceRun(NamedTuple):
    """Sequences that lie in the log at contiguous offsets, both ends included: one batch, or several in a row."""

    base_sequence: int
    last_sequence: int
    base_offset: int

    @property
    def records(self) -> int:
        """Number of records."""
        return (self.last_sequence - self.base_sequence) % _SEQUENCES + 1

    def offset_of(self, sequence: int) -> int | None:
        """The offset of the record with that sequence, None if it is not in the run."""
        distance = (sequence - self.base_sequence) % _SEQUENCES
        return self.base_offset + distance if distance < self.records else None


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What a partition remembers of a producer: its epoch, and where its latest sequences lie, oldest run first."""

    producer_epoch: int
    runs: tuple[SequenceRun, ...]

    @property
    def next_sequence(self) -> int:
        """The sequence that the next batch must begin with."""
        return increment_sequence(self.runs[-1].last_sequence, 1)


class KnownRecords(NamedTuple):
    """So many records of a request, from its first one on, are in the log already: where the first and the last lie."""

    base_offset: int
    last_offset: int
    records: int


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence `increment` records later. Kafka: `DefaultRecordBatch.incrementSequence`."""
    return (sequence + increment) % _SEQUENCES


def record(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """What is remembered once a batch of an idempotent producer is in the log. `entry`: None if nothing was known.

    The log is the truth, so that nothing is refused here. A header that comes again (its segment was rewritten)
    or that is of an older epoch changes nothing; a newer epoch starts afresh. A batch that follows the last run in
    sequence and offset prolongs it, otherwise it opens a run and the oldest beyond five is forgotten.

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
    """Whether records may be appended: None if they come next, else how many of them are in the log already.

    These are all of them, or the first ones: a send of several batches may have been replicated in part when this
    leader was elected, and then its rest comes next. Kafka never meets that, as its client sends batch by batch.

    An unknown producer may begin anywhere, as retention may have removed what it sent before. A new epoch begins
    at 0. Anything else that does not come next is refused: a batch is missing in between, or was forgotten.

    Kafka: `ProducerAppendInfo.checkProducerEpoch` and `checkSequence`, `ProducerStateEntry.findDuplicateBatch`. KIP-98.

    Raises:
        ProducerFencedException: the epoch is older than the one known.
        OutOfOrderSequenceException: the sequence does not come next, and the log does not know where it lies.
    """
    if entry is None:
        return None
    if producer_epoch < entry.producer_epoch:
        raise ProducerFencedException(
            f"producer {producer_id} has epoch {producer_epoch}: one with epoch {entry.producer_epoch} has taken over"
        )
    expected = entry.next_sequence if producer_epoch == entry.producer_epoch else 0
    # This comes first: after a whole turn of the numbers the next sequence may also lie in a run.
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
    """Where the records lie, if the runs know all of them, or all up to the last one that the producer has here.

    Resent in other portions, or appended in several attempts, they may span runs.
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
    """What is remembered of a log that keeps only what lies below `offset`; None if nothing is.

    A batch that was truncated must not pass for a duplicate when its producer sends it again: it would be lost.

    Kafka: `ProducerStateManager.truncateAndReload`.
    """
    kept = tuple(_truncated(run, offset) for run in entry.runs if run.base_offset < offset)
    return replace(entry, runs=kept) if kept else None


def _truncated(run: SequenceRun, offset: int) -> SequenceRun:
    records = min(run.records, offset - run.base_offset)
    return run._replace(last_sequence=increment_sequence(run.base_sequence, records - 1))
