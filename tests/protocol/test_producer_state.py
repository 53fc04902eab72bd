import pytest

from lakelog.replication.errors import OutOfOrderSequenceException, ProducerFencedException
from lakelog.replication.protocol.producer_state import (
    KnownRecords,
    ProducerEntry,
    SequenceRun,
    check_sequence,
    increment_sequence,
    record,
    truncate_from_end,
)
from lakelog.replication.protocol.record_batch import BatchHeader

LAST = 2**31 - 1


def header(base_sequence, records, base_offset, epoch=2):
    return BatchHeader(
        topic="t",
        topic_id="id",
        partition=0,
        leader_epoch=0,
        base_offset=base_offset,
        last_offset=base_offset + records - 1,
        max_timestamp=0,
        bytes=0,
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )


def entry(*runs, epoch=2):
    return ProducerEntry(epoch, tuple(SequenceRun(*run) for run in runs))


def check(known, base_sequence, records, epoch=2):
    return check_sequence(known, 7, epoch, base_sequence, records)


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"), [(0, 1, 1), (LAST, 1, 0), (LAST - 1, 3, 1), (LAST, 0, LAST), (5, LAST, 4)]
)
def test_kip_98_a_sequence_wraps_after_the_largest_integer(sequence, increment, expected):
    assert increment_sequence(sequence, increment) == expected


@pytest.mark.parametrize(
    ("before", "batch", "after"),
    [
        pytest.param(None, header(40, 5, 100), entry((40, 44, 100)), id="unknown producer"),
        pytest.param(entry((0, 4, 100)), header(5, 3, 105), entry((0, 7, 100)), id="adjacent: one run"),
        pytest.param(entry((0, 4, 100)), header(5, 3, 110), entry((0, 4, 100), (5, 7, 110)), id="others in between"),
        pytest.param(entry((0, 4, 100)), header(9, 3, 105), entry((0, 4, 100), (9, 11, 105)), id="a gap in sequence"),
        pytest.param(entry((0, LAST, 0)), header(0, 2, 2**31), entry((0, LAST, 0), (0, 1, 2**31)), id="a full turn"),
        pytest.param(entry((LAST, LAST, 9)), header(0, 2, 10), entry((LAST, 1, 9)), id="a run across the wrap"),
        pytest.param(entry((0, 4, 100)), header(0, 2, 105, 3), entry((0, 1, 105), epoch=3), id="newer epoch"),
        pytest.param(entry((0, 4, 100)), header(5, 2, 105, 1), entry((0, 4, 100)), id="older epoch"),
        pytest.param(entry((0, 4, 100)), header(0, 5, 100), entry((0, 4, 100)), id="the same header again"),
        pytest.param(entry((0, 9, 100)), header(5, 5, 105), entry((0, 9, 100)), id="the rest of a rewritten batch"),
        pytest.param(
            entry(*((n, n, 10 * n) for n in range(5))),
            header(5, 1, 50),
            entry(*((n, n, 10 * n) for n in range(1, 6))),
            id="five runs are kept",
        ),
        pytest.param(
            entry((0, 2**28 - 2, 0)), header(2**28 - 1, 1, 2**28 - 1), entry((0, 2**28 - 1, 0)), id="the longest run"
        ),
        pytest.param(
            entry((0, 2**28 - 1, 0)),
            header(2**28, 1, 2**28),
            entry((0, 2**28 - 1, 0), (2**28, 2**28, 2**28)),
            id="a run stops to grow",
        ),
    ],
)
def test_kip_98_a_batch_extends_or_starts_a_run_of_its_producer(before, batch, after):
    assert record(before, batch) == after


TWO_RUNS = entry((0, 9, 100), (10, 14, 200))
WRAPPED = entry((LAST - 1, 1, 100))


@pytest.mark.parametrize(
    ("known", "base_sequence", "records", "epoch"),
    [
        pytest.param(None, 77, 5, 0, id="an unknown producer begins anywhere"),
        pytest.param(TWO_RUNS, 15, 5, 2, id="next"),
        pytest.param(TWO_RUNS, 0, 5, 3, id="a new epoch begins at 0"),
        pytest.param(WRAPPED, 2, 1, 2, id="next after the wrap"),
        pytest.param(entry((3, LAST, 100)), 0, 1, 2, id="0 follows the last"),
        pytest.param(entry((5, 9, 0), (0, 4, 2**31)), 5, 1, 2, id="next, and known from a turn ago"),
    ],
)
def test_kip_98_the_next_sequence_is_accepted(known, base_sequence, records, epoch):
    assert check(known, base_sequence, records, epoch) is None


@pytest.mark.parametrize(
    ("known", "base_sequence", "records", "expected"),
    [
        pytest.param(TWO_RUNS, 10, 5, (200, 204), id="the last batch"),
        pytest.param(TWO_RUNS, 0, 10, (100, 109), id="an earlier one"),
        pytest.param(TWO_RUNS, 3, 4, (103, 106), id="inside a run: offsets are interpolated"),
        pytest.param(TWO_RUNS, 8, 4, (108, 201), id="over two runs"),
        pytest.param(TWO_RUNS, 14, 1, (204, 204), id="the last record"),
        pytest.param(WRAPPED, LAST, 2, (101, 102), id="across the wrap"),
        pytest.param(entry((LAST, LAST, 9), (0, 3, 20)), LAST, 3, (9, 21), id="over two runs, across the wrap"),
    ],
)
def test_kip_98_a_known_batch_is_a_duplicate(known, base_sequence, records, expected):
    assert check(known, base_sequence, records) == KnownRecords(*expected, records)


@pytest.mark.parametrize(
    ("known", "base_sequence", "records", "expected"),
    [
        pytest.param(TWO_RUNS, 12, 4, (202, 204, 3), id="the end is new"),
        pytest.param(TWO_RUNS, 14, 2, (204, 204, 1), id="all but the first are new"),
        pytest.param(TWO_RUNS, 8, 9, (108, 204, 7), id="known over two runs, the end is new"),
        pytest.param(WRAPPED, LAST, 4, (101, 103, 3), id="across the wrap"),
        pytest.param(entry((5, 9, 0)), 5, 60, (0, 4, 5), id="the first batch of a send of several"),
    ],
)
def test_kip_98_the_first_records_are_known(known, base_sequence, records, expected):
    """A send of several batches, of which a follower had fetched only the first ones when it was elected."""
    assert check(known, base_sequence, records) == KnownRecords(*expected)


@pytest.mark.parametrize(
    ("known", "base_sequence", "records", "epoch", "expected"),
    [
        pytest.param(TWO_RUNS, 16, 1, 2, 15, id="one is missing"),
        pytest.param(entry((5, 9, 100)), 4, 2, 2, 10, id="the start was forgotten"),
        pytest.param(entry((0, 4, 100), (8, 9, 200)), 3, 6, 2, 10, id="a hole in the middle"),
        pytest.param(entry((0, 4, 100), (8, 9, 200)), 3, 9, 2, 10, id="a hole in the middle, and the end is new"),
        pytest.param(entry((5, 9, 100)), 4, 9, 2, 10, id="the start was forgotten, and the end is new"),
        pytest.param(TWO_RUNS, 15, 1, 3, 0, id="a new epoch that does not begin at 0"),
        pytest.param(TWO_RUNS, 10, 5, 3, 0, id="known, but under the older epoch"),
    ],
)
def test_kip_98_a_gap_in_sequences_is_out_of_order(known, base_sequence, records, epoch, expected):
    with pytest.raises(OutOfOrderSequenceException, match=rf"producer 7, .* {expected} comes next"):
        check(known, base_sequence, records, epoch)


@pytest.mark.parametrize("base_sequence", [0, 10, 15])
def test_kip_98_an_older_producer_epoch_is_refused(base_sequence):
    with pytest.raises(ProducerFencedException, match=r"producer 7 has epoch 1: .* 2 has taken over"):
        check(TWO_RUNS, base_sequence, 1, epoch=1)


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (300, TWO_RUNS),
        (205, TWO_RUNS),
        (202, entry((0, 9, 100), (10, 11, 200))),
        (200, entry((0, 9, 100))),
        (110, entry((0, 9, 100))),
        (101, entry((0, 0, 100))),
        (100, None),
    ],
)
def test_tr_05_a_truncation_removes_batches_of_producers(offset, after):
    assert truncate_from_end(TWO_RUNS, offset) == after


def test_tr_05_a_truncated_batch_is_no_duplicate():
    truncation = truncate_from_end(TWO_RUNS, 200)
    assert check(TWO_RUNS, 10, 5) == KnownRecords(200, 204, 5)
    assert check(truncation, 10, 5) is None


def test_kip_98_a_log_of_batches_that_are_all_sent_twice():
    known, offset, batches = None, 0, []
    for number in range(50):
        batch = header((LAST - 60 + 3 * number) % 2**31, 3, offset)
        known = record(known, batch)
        batches.append(batch)
        offset += 3 if number % 20 else 10  # sometimes another producer writes
        assert check(known, batch.base_sequence, 3) == KnownRecords(batch.base_offset, batch.last_offset, 3)
    assert [check(known, b.base_sequence, 3) for b in batches] == [(b.base_offset, b.last_offset, 3) for b in batches]
