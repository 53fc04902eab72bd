import pytest

from lakelog.replication.protocol.leader_epoch import (
    EpochEntry,
    assign,
    covers,
    end_offset_for,
    epoch_at,
    truncate_from_start,
)


def lineage(*entries):
    return tuple(EpochEntry(*entry) for entry in entries)


LINEAGE = lineage((2, 10), (4, 20), (7, 30))


@pytest.mark.parametrize(
    ("before", "epoch", "offset", "after"),
    [
        pytest.param((), 0, 0, lineage((0, 0)), id="first"),
        pytest.param((), 5, 40, lineage((5, 40)), id="first, of a log that starts late"),
        pytest.param(LINEAGE, 9, 50, lineage(*LINEAGE, (9, 50)), id="newer"),
        pytest.param(LINEAGE, 7, 30, LINEAGE, id="same again"),
        pytest.param(LINEAGE, 7, 45, LINEAGE, id="same, further on"),
        pytest.param(LINEAGE, 7, 25, lineage((2, 10), (4, 20), (7, 25)), id="same, earlier"),
        pytest.param(LINEAGE, 9, 30, lineage((2, 10), (4, 20), (9, 30)), id="newer, nothing written under the last"),
        pytest.param(LINEAGE, 9, 20, lineage((2, 10), (9, 20)), id="newer, at the start of an older one"),
        pytest.param(LINEAGE, 9, 5, lineage((9, 5)), id="newer, before all"),
        pytest.param(LINEAGE, 4, 40, lineage((2, 10), (4, 40)), id="older, known"),
        pytest.param(LINEAGE, 5, 40, lineage((2, 10), (4, 20), (5, 40)), id="older, unknown"),
        pytest.param(LINEAGE, 1, 60, lineage((1, 60)), id="older than all"),
    ],
)
def test_ep_02_a_new_epoch_is_added_to_the_lineage(before, epoch, offset, after):
    assert assign(before, epoch, offset) == after


def test_ep_02_an_entry_has_the_chain_of_the_log_at_its_start():
    """Logs compare it: it is the chain at the epoch's first batch, not at a later one of the same epoch."""
    begun = assign(assign((), 0, 0, "genesis"), 4, 20, "at 20")
    assert begun == lineage((0, 0, "genesis"), (4, 20, "at 20"))
    assert assign(begun, 4, 25, "at 25") == begun
    assert assign(begun, 9, 20, "at 20, too") == lineage((0, 0, "genesis"), (9, 20, "at 20, too"))


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_ep_02_an_undefined_epoch_is_refused(epoch, offset):
    with pytest.raises(ValueError, match="negative"):
        assign(LINEAGE, epoch, offset)


@pytest.mark.parametrize(
    ("epochs", "epoch", "expected"),
    [
        pytest.param(LINEAGE, 7, (7, 99), id="latest: LEO"),
        pytest.param(LINEAGE, 4, (4, 30), id="known: start of the next"),
        pytest.param(LINEAGE, 2, (2, 20), id="first"),
        pytest.param(LINEAGE, 5, (4, 30), id="unknown: the largest below"),
        pytest.param(LINEAGE, 3, (2, 20), id="unknown, after the first"),
        pytest.param(LINEAGE, 1, (1, 10), id="below all: first start"),
        pytest.param(LINEAGE, 8, (-1, -1), id="above all"),
        pytest.param(LINEAGE, -1, (-1, -1), id="undefined"),
        pytest.param((), 0, (-1, -1), id="empty"),
        pytest.param(lineage((0, 0)), 0, (0, 99), id="single"),
    ],
)
def test_ep_03_the_end_offset_of_an_epoch_is_the_start_of_the_next_or_the_leo(epochs, epoch, expected):
    assert end_offset_for(epochs, 99, epoch) == expected


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (5, LINEAGE),
        (10, LINEAGE),
        (15, lineage((2, 15), (4, 20), (7, 30))),
        (20, lineage((4, 20), (7, 30))),
        (29, lineage((4, 29), (7, 30))),
        (30, lineage((7, 30))),
        (70, lineage((7, 70))),
    ],
)
def test_ep_04_entries_below_the_log_start_are_dropped(offset, after):
    assert truncate_from_start(LINEAGE, offset) == after


def test_ep_04_an_entry_that_is_moved_has_the_chain_of_the_log_start():
    chained = lineage((2, 10, "a"), (4, 20, "b"), (7, 30, "c"))
    assert truncate_from_start(chained, 25, "at 25") == lineage((4, 25, "at 25"), (7, 30, "c"))
    assert truncate_from_start(chained, 5, "at 5") == chained


def test_ep_04_an_empty_lineage_stays_empty():
    assert truncate_from_start((), 5) == ()


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, None), (9, None), (10, 2), (19, 2), (20, 4), (29, 4), (30, 7), (10**12, 7)]
)
def test_ep_01_an_offset_belongs_to_the_last_epoch_that_starts_before_it(offset, epoch):
    assert epoch_at(LINEAGE, offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "base_offset", "last_offset", "covered"),
    [
        pytest.param(4, 20, 29, True, id="the whole epoch"),
        pytest.param(4, 25, 25, True, id="one record"),
        pytest.param(7, 30, 10**6, True, id="the last epoch is open-ended"),
        pytest.param(4, 25, 30, False, id="runs into the next"),
        pytest.param(4, 19, 25, False, id="begins in the one before"),
        pytest.param(2, 15, 35, False, id="spans three"),
        pytest.param(3, 15, 16, False, id="an epoch that wrote nothing"),
        pytest.param(2, 5, 12, False, id="begins before all"),
        pytest.param(4, 25, 24, False, id="no records"),
    ],
)
def test_ep_01_a_lineage_covers_a_batch_of_the_same_epoch_only(epoch, base_offset, last_offset, covered):
    assert covers(LINEAGE, epoch, base_offset, last_offset) is covered
