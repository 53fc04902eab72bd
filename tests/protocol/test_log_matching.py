"""Logs that differ although their epochs agree: how rows reveal it, and where the common part ends."""

import dataclasses
import itertools

import pytest

from lakelog.replication.protocol.append_plan import FetchedBatch, plan_appends
from lakelog.replication.protocol.leader_epoch import EpochEntry, assign
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.truncation import (
    Truncation,
    are_of_the_log,
    common_end,
    has_other_history,
    leader_lost_its_end,
    truncation_for,
)
from tests.protocol.chains import GENESIS, chained_log, ends_of, header

P = TopicIdPartition("id", 0)


def leader_row(log, **said):
    """The row of a leader at epoch 9 that has written nothing under that epoch."""
    epochs = assign(log.lineage, 9, *log.log_end)
    row = ReplicaStatus(
        "t", "id", 0, 1, 1, 9, LEADER_ROLE, "Fetching", log.log_start_offset, log.log_end_offset, 0, epochs, None, 1,
        chain=log.log_end.chain,
    )  # fmt: skip
    return dataclasses.replace(row, **said)


A, B, C = header(0, 3), header(4, 6), header(7, 9)
OTHER_A, OTHER_B, OTHER_C = (dataclasses.replace(batch, digest="other") for batch in (A, B, C))
LATER_B, LATER_C = (dataclasses.replace(batch, leader_epoch=1) for batch in (B, C))
WHOLE = chained_log(A, B, C)
OWN_START = 5  # within B


@pytest.mark.parametrize(
    ("own", "leader", "is_told"),
    [
        pytest.param((A, B, C), (A, B, C), False, id="the same"),
        pytest.param((A, B), (A, B, C), False, id="behind, and the same so far"),
        pytest.param((), (A, B, C), False, id="an empty log"),
        pytest.param((A, B, C), (A, B), False, id="longer: that is what epochs tell"),
        pytest.param((A, B, C), (), False, id="an empty leader, whose epoch begins at 0"),
        pytest.param((A, B, OTHER_C), (A, B, C), True, id="the last batch is another, at the leader's LEO"),
        pytest.param((OTHER_A, B, C), (A, B, C), True, id="the first batch is another"),
        pytest.param((A, OTHER_B, C), (A, B), True, id="above the leader's LEO"),
        pytest.param((A, OTHER_B), (A, B, C), False, id="below the leader's LEO the first fetch tells"),
        pytest.param((OTHER_A, LATER_B), (A, LATER_B, LATER_C), True, id="at the start of an epoch"),
        pytest.param((A, dataclasses.replace(LATER_B, digest="x")), (A, LATER_B, LATER_C), False, id="within an epoch"),
        pytest.param((A, LATER_B), (A, B, C), False, id="another epoch: that is what epochs tell"),
        pytest.param((A, LATER_B, LATER_C), (A, B, C), False, id="another epoch, as far as the leader's LEO"),
        pytest.param((header(0, 6), C), (A, B, C), True, id="the same offsets in other batches"),
    ],
)
def test_tr_08_histories_differ_where_the_leaders_row_has_another_chain(own, leader, is_told):
    assert has_other_history(chained_log(*own), leader_row(chained_log(*leader))) is is_told


@pytest.mark.parametrize(
    ("own", "leader", "is_told"),
    [
        pytest.param((A, B, C), (A, B, C), False, id="the same"),
        pytest.param((A, B, OTHER_C), (A, B, C), True, id="at the leader's LEO"),
        pytest.param((A, OTHER_B, C), (A, B), True, id="above it"),
        pytest.param((A, OTHER_B), (A, B, C), False, id="below it"),
        pytest.param((A, B, C), (A, B), False, id="longer"),
        pytest.param((OTHER_A,), (), False, id="of an empty leader only the epochs tell"),
    ],
)
def test_tr_08_logs_of_one_epoch_are_compared_at_the_leaders_leo(own, leader, is_told):
    of_leader = chained_log(*leader)
    row = leader_row(of_leader, leader_epoch=0, epochs=of_leader.lineage or (EpochEntry(0, 0, GENESIS),))
    assert has_other_history(chained_log(*own), row) is is_told


@pytest.mark.parametrize(
    ("read", "before", "now", "first", "are"),
    [
        pytest.param((A, B, C), (A, B, C), (A, B, C), 0, True, id="they end where the row says"),
        pytest.param((A, B, C), (A, B), (A, B, C), 0, True, id="the row is of a time before"),
        pytest.param((A, B, C), (A, B), (A, B), 0, True, id="the row is late"),
        pytest.param((A, B), (A, B), (A, B, C), 0, True, id="the leader has gone on since"),
        pytest.param((A, B), (A, B, C), (A, B, C), 0, False, id="the log has lost its end"),
        pytest.param((), (A, B, C), (A, B, C), 0, False, id="it has lost all"),
        pytest.param((A, OTHER_B, C), (A, B), (A, B), 0, False, id="it was another at that offset"),
        pytest.param((A, B, C), (A, B, C), (A, OTHER_B), 0, False, id="it is another by now"),
        pytest.param((A, B, C), (A, B, C), (), 0, True, id="all of it was deleted since: nothing speaks against it"),
        pytest.param((), (), (), 0, True, id="an empty log"),
        pytest.param((), (A,), (A,), 4, True, id="all of it lies before"),
        pytest.param((), (A,), (A, B), 4, True, id="all of it lay before"),
        pytest.param((B,), (A,), (A,), 4, False, id="more was read than the row tells of, and nothing of that"),
        pytest.param((B, C), (A, B, C), (A, B, C), 4, True, id="from there on"),
    ],
)
def test_tr_08_batches_count_only_if_the_leaders_rows_describe_their_log(read, before, now, first, are):
    previous = chained_log(A).log_end.chain if first else GENESIS
    ends = ends_of(chained_log(*read, start_chain=previous))
    rows = [leader_row(chained_log(*batches)) for batches in (before, now)]
    assert are_of_the_log(ends, *rows, first) is are


def test_tr_08_batches_count_also_with_a_newer_row_of_a_longer_log():
    own = chained_log(A, B, C)
    assert truncation_for(own, leader_row(chained_log(A, LATER_B)), ends_of(own)) == Truncation(9, 4)


def test_tr_08_where_logs_begin_elsewhere_they_are_compared_at_what_both_know():
    late = PartitionLog(log_start_offset=OWN_START, start_chain=GENESIS)
    for batch in WHOLE.batches[1:]:
        late.add(batch.header, batch.segment)
    other = chained_log(OTHER_A, B, C)
    assert not has_other_history(late, leader_row(WHOLE))
    assert not has_other_history(WHOLE, leader_row(late))
    assert has_other_history(other, leader_row(late)), "at the leader's log start"
    assert has_other_history(late, leader_row(other)), "at the leader's end"


@pytest.mark.parametrize(
    ("own", "end"),
    [
        pytest.param((A, B, C), 10, id="the same"),
        pytest.param((A, B), 7, id="behind"),
        pytest.param((A, B, OTHER_C), 7, id="the last is another"),
        pytest.param((A, OTHER_B, C), 4, id="what follows another batch is another"),
        pytest.param((OTHER_A, B, C), 0, id="nothing in common"),
        pytest.param((A, header(4, 9)), 4, id="the same offsets in other batches"),
        pytest.param((A, B, C, header(10, 12)), 10, id="longer"),
        pytest.param((), 0, id="empty"),
    ],
)
def test_tr_08_the_common_part_ends_with_the_last_batch_of_both(own, end):
    assert common_end(chained_log(*own), ends_of(WHOLE)) == end


def test_tr_08_without_a_batch_in_common_the_common_part_ends_at_the_own_log_start():
    own = chained_log(OTHER_A, B, C)
    own.start_at(OWN_START)
    assert common_end(own, ends_of(WHOLE)) == common_end(own, []) == OWN_START


@pytest.mark.parametrize(
    ("own", "leader", "truncation"),
    [
        pytest.param((A, B, OTHER_C), (A, B, C), Truncation(9, 7), id="to the last common batch"),
        pytest.param((A, OTHER_B, OTHER_C), (A, B, C), Truncation(9, 4), id="further down"),
        pytest.param((A, OTHER_B), (A, B, C), Truncation(9, 4), id="below the leader's LEO"),
        pytest.param((A, OTHER_B, OTHER_C), (A, B), Truncation(9, 4), id="above the leader's LEO"),
        pytest.param(
            (OTHER_A, B, C), (A, B, C), Truncation(9, 0), id="nothing in common: all goes, from where both begin"
        ),
        pytest.param((A, B, C), (), Truncation(9, 0), id="the leader was emptied"),
        pytest.param((A, B, C), (A, B, C), Truncation(9, 10), id="nothing differs after all"),
        pytest.param((A, LATER_B, LATER_C), (A, B, C), Truncation(9, 4), id="epochs tell as much"),
        pytest.param((A, B, LATER_C), (A, OTHER_B, C), Truncation(9, 4), id="the batches tell more than the epochs"),
        pytest.param((A, header(4, 9)), (A, B, C), Truncation(9, 4), id="other batches of the same offsets"),
    ],
)
def test_tr_08_a_log_that_has_diverged_is_truncated_to_the_last_batch_of_both(own, leader, truncation):
    has, of_leader = chained_log(*own), chained_log(*leader)
    assert truncation_for(has, leader_row(of_leader), ends_of(of_leader)) == truncation


def late_log(*batches, start, start_chain=GENESIS):
    log = chained_log(*batches, start_chain=start_chain)
    log.start_at(start)
    return log


@pytest.mark.parametrize(
    ("own", "leader", "truncation"),
    [
        pytest.param(
            late_log(OTHER_B, OTHER_C, start=4, start_chain="x"),
            WHOLE,
            Truncation(9, 4, LogEnd(0, GENESIS)),
            id="nothing in common: where the leader's log starts",
        ),
        pytest.param(
            chained_log(OTHER_A, OTHER_B, OTHER_C),
            late_log(B, C, start=4, start_chain="x"),
            Truncation(9, 0, LogEnd(4, "x")),
            id="the leader's starts later",
        ),
        pytest.param(
            WHOLE,
            late_log(A, B, start=4),
            Truncation(9, 7),
            id="the leader's starts later, and they have its start in common",
        ),
        pytest.param(
            WHOLE,
            late_log(OTHER_C, start=7, start_chain=WHOLE.batches[1].header.chain),
            Truncation(9, 7),
            id="only the leader's log start is common",
        ),
        pytest.param(
            late_log(OTHER_B, C, start=4, start_chain="x"),
            late_log(B, C, start=4, start_chain="y"),
            Truncation(9, 4, LogEnd(4, "y")),
            id="both begin at 4, after other records: the beginning is the leader's",
        ),
    ],
)
def test_tr_07_tr_08_a_log_without_common_batches_restarts_at_the_leaders_log_start(own, leader, truncation):
    assert truncation_for(own, leader_row(leader), ends_of(leader)) == truncation


@pytest.mark.parametrize(
    ("start", "leader", "truncation"),
    [
        pytest.param(0, chained_log(A, header(4, 5)), Truncation(9, 4), id="within the second batch: all of it goes"),
        pytest.param(0, chained_log(A, B, header(7, 8)), Truncation(9, 7), id="within the third"),
        pytest.param(0, chained_log(header(0, 1)), Truncation(9, 0), id="within the first: everything"),
        pytest.param(
            OWN_START,
            late_log(A, header(4, 5), start=OWN_START),
            Truncation(9, OWN_START),
            id="the batch that holds the log start: everything, from there on",
        ),
        pytest.param(
            OWN_START,
            chained_log(A, header(4, 5)),
            Truncation(9, OWN_START, LogEnd(0, GENESIS)),
            id="the leader's log starts below: from its start on",
        ),
    ],
)
def test_tr_01_tr_05_a_truncation_within_a_batch_takes_all_of_it(start, leader, truncation):
    """The leader's next epoch begins within a batch of the follower's, so the leader does not have the whole batch."""
    own = late_log(A, B, C, start=start)
    assert truncation_for(own, leader_row(leader)) == truncation


@pytest.mark.parametrize("end", [LogEnd(0, GENESIS), LogEnd(20, "at 20")])
def test_tr_07_tr_08_a_leader_without_a_lineage_has_the_chain_of_its_log_start_at_its_end(end):
    """Such is the row of a leader whose log has no records and has another role by now."""
    row = leader_row(PartitionLog(log_start_offset=end.offset, start_chain=end.chain), epochs=())
    own = PartitionLog(start_chain=GENESIS)
    assert row.log_start_chain == end.chain
    assert truncation_for(own, row) == Truncation(9, 0, None if end == own.log_end else end)


def histories(batches=3):
    """Every log of a few batches of one or two records, of two kinds, under one epoch."""
    for count in range(batches + 1):
        for kinds in itertools.product(((1, "a"), (2, "a"), (1, "b")), repeat=count):
            bases = itertools.accumulate((size for size, _ in kinds), initial=0)
            yield tuple(
                header(base, base + size - 1, digest=digest) for base, (size, digest) in zip(bases, kinds, strict=False)
            )


def in_common(own: tuple[BatchHeader, ...], leader: tuple[BatchHeader, ...]) -> int:
    same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, leader, strict=False)))
    return same[-1][0].next_offset if same else 0


def test_tr_08_over_all_small_histories_what_differs_is_found_and_nothing_else_is_truncated():
    """The leader's row or the first fetched batch shows the difference. The truncation keeps all common batches."""
    for own_batches, leader_batches in itertools.product(histories(), repeat=2):
        own, leader = chained_log(*own_batches, role=Role(9, FOLLOWER)), chained_log(*leader_batches)
        row, common, case = leader_row(leader), in_common(own_batches, leader_batches), (own_batches, leader_batches)
        assert truncation_for(own, row, ends_of(leader)) == Truncation(9, common), case
        if has_other_history(own, row):
            assert common < min(own.log_end_offset, leader.log_end_offset), case
            continue
        truncation = truncation_for(own, row)
        own.drop({batch.segment for batch in own.batches if batch.header.next_offset > truncation.offset})
        fetched = [
            FetchedBatch(P, h.base_offset, h.last_offset, 0, placed.segment, 1, 0, h.previous, h.chain)
            for placed in leader.batches
            for h in [placed.header]
        ]
        plan = plan_appends(fetched, {P: own.log_end})
        is_same = own.log_end_offset <= common
        assert plan.diverged == (frozenset() if is_same else {P}), case
        assert plan.log_ends[P] == (leader.log_end if is_same else own.log_end), case


def test_ep_05_tr_08_a_leaders_own_epoch_has_the_chain_at_its_start():
    log = chained_log(A, B, role=Role(9, LEADER), epoch_start=7)
    assert log.lineage == (EpochEntry(0, 0, GENESIS), EpochEntry(9, *log.log_end))


@pytest.mark.parametrize(
    ("own", "leader", "epoch", "is_lost"),
    [
        pytest.param((A, B, C), (A, B, OTHER_C), 0, True, id="another batch of the leader's own epoch"),
        pytest.param((A, B, C), (OTHER_A,), 0, True, id="it was emptied and written to"),
        pytest.param((A, B, C), (A, B, C), 0, False, id="the same"),
        pytest.param((A, B), (A, B, C), 0, False, id="behind"),
        pytest.param((A, B, C), (A, B, OTHER_C), 9, False, id="of an older epoch: the controller chose this leader"),
        pytest.param((A, B, C), (A, LATER_B), 1, False, id="epochs tell: an unclean election"),
        pytest.param((A, LATER_B, LATER_C), (A, LATER_B, dataclasses.replace(LATER_C, digest="x")), 1, True,
                     id="the second epoch, which is the leader's own"),
    ],
)  # fmt: skip
def test_tr_08_records_of_the_leaders_own_epoch_are_not_truncated_after_it(own, leader, epoch, is_lost):
    """A leader truncates nothing within its epoch. If it lacks such records, it has lost them."""
    log = chained_log(*leader)
    row = leader_row(log, epochs=assign(log.lineage, epoch, *log.log_end))
    assert leader_lost_its_end(chained_log(*own), row, ends_of(log)) is is_lost
