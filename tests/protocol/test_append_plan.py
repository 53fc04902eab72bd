import pytest

from replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch, Range, plan_appends
from replication.protocol.record_batch import TopicIdPartition

P, Q = TopicIdPartition("t", 0), TopicIdPartition("t", 1)


def batch(base, last, segment="a", partition=P, size=10, epoch=0, payload=0):
    return FetchedBatch(partition, base, last, epoch, segment, size, payload)


def planned(plan):
    return [(r.batch.partition.partition, r.batch.segment, r.start, r.stop) for r in plan.ranges]


@pytest.mark.parametrize(
    ("batches", "leo", "ranges", "end", "gap"),
    [
        pytest.param([], 0, [], 0, False, id="nothing"),
        pytest.param([batch(5, 9)], 5, [(0, "a", 5, 10)], 10, False, id="whole"),
        pytest.param([batch(0, 4)], 5, [], 5, False, id="below the LEO: skipped"),
        pytest.param([batch(0, 4), batch(5, 9)], 5, [(0, "a", 5, 10)], 10, False, id="one skipped, one whole"),
        pytest.param([batch(0, 9)], 5, [(0, "a", 5, 10)], 10, False, id="the part above the LEO"),
        pytest.param([batch(0, 5)], 5, [(0, "a", 5, 6)], 6, False, id="its last record"),
        pytest.param([batch(6, 9)], 5, [], 5, True, id="a gap"),
        pytest.param([batch(5, 5), batch(7, 9)], 5, [(0, "a", 5, 6)], 6, True, id="a gap after what follows"),
        pytest.param([batch(6, 9), batch(10, 12)], 5, [], 5, True, id="what follows a gap does not follow the log"),
        pytest.param([batch(0, 2), batch(6, 9)], 5, [], 5, True, id="skipped, then a gap"),
        pytest.param(
            [batch(0, 4), batch(5, 6, "b"), batch(7, 9, "c")],
            0,
            [(0, "a", 0, 5), (0, "b", 5, 7), (0, "c", 7, 10)],
            10,
            False,
            id="a chain",
        ),
        pytest.param(
            [batch(7, 9, "c"), batch(0, 6, "b")], 0, [(0, "b", 0, 7), (0, "c", 7, 10)], 10, False, id="in any order"
        ),
        pytest.param([batch(5, 9), batch(5, 9)], 5, [(0, "a", 5, 10)], 10, False, id="delivered twice"),
        pytest.param([batch(5, 9, "a"), batch(5, 9, "b")], 5, [(0, "a", 5, 10)], 10, False, id="rewritten: once"),
        pytest.param(
            [batch(0, 9, "a"), batch(0, 6, "b")],
            0,
            [(0, "b", 0, 7), (0, "a", 7, 10)],
            10,
            False,
            id="overlapping",
        ),
        pytest.param([batch(0, 4, partition=Q)], 0, [], 0, False, id="a partition that is not fetched"),
    ],
)
def test_ft_10_what_follows_the_log_end_is_appended_each_offset_once(batches, leo, ranges, end, gap):
    plan = plan_appends(batches, {P: leo})
    assert planned(plan) == ranges
    assert plan.log_end_offsets == {P: end}
    assert plan.gaps == ({P} if gap else frozenset())


def test_partitions_do_not_concern_each_other():
    plan = plan_appends([batch(9, 9), batch(3, 4, partition=Q)], {P: 5, Q: 3})
    assert planned(plan) == [(1, "a", 3, 5)]
    assert (plan.log_end_offsets, plan.gaps) == ({P: 5, Q: 5}, {P})


@pytest.mark.parametrize(
    ("max_bytes", "segments", "gaps"),
    [
        pytest.param(None, "abc", set(), id="no bound"),
        pytest.param(30, "abc", set(), id="all within"),
        pytest.param(29, "ab", {Q}, id="the last is too much"),
        pytest.param(10, "a", {P, Q}, id="one"),
        pytest.param(1, "a", {P, Q}, id="at least one, however large"),
    ],
)
def test_fe_02_bytes_are_bounded_and_what_is_left_is_fetched_again(max_bytes, segments, gaps):
    batches = [batch(0, 4, "a"), batch(5, 9, "b"), batch(0, 9, "c", Q)]
    plan = plan_appends(batches, {P: 0, Q: 0}, max_bytes)
    assert "".join(plan.by_segment()) == segments
    assert plan.gaps == gaps


def test_fe_02_a_segment_counts_once_for_all_its_partitions():
    batches = [batch(0, 4, "a", P), batch(0, 4, "a", Q)]
    assert not plan_appends(batches, {P: 0, Q: 0}, 10).gaps


def test_fe_02_what_is_left_out_leaves_no_hole():
    """A small batch behind one that was too much must not be taken."""
    batches = [batch(0, 4, "a", size=10), batch(5, 6, "b", size=99), batch(7, 9, "c", size=1)]
    plan = plan_appends(batches, {P: 0}, 20)
    assert planned(plan) == [(0, "a", 0, 5)]
    assert plan.log_end_offsets == {P: 5}


@pytest.mark.parametrize(("start", "is_whole"), [(0, True), (1, False)])
def test_a_range_knows_whether_it_is_all_of_its_batch(start, is_whole):
    assert Range(batch(0, 4), start, 5).is_whole == is_whole


def test_ranges_of_a_segment_stand_together():
    first, second, third = Range(batch(0, 1, "a"), 0, 2), Range(batch(2, 3, "b"), 2, 4), Range(batch(4, 5, "a"), 4, 6)
    assert AppendPlan((first, second, third)).by_segment() == {"a": [first, third], "b": [second]}


@pytest.mark.parametrize(
    ("limit", "ends", "gaps"),
    [
        pytest.param(None, {P: 6, Q: 4}, set(), id="no limit"),
        pytest.param(30, {P: 6, Q: 4}, set(), id="all within"),
        pytest.param(29, {P: 4, Q: 4}, {P}, id="one byte too much for the last of one"),
        pytest.param(20, {P: 4, Q: 4}, {P}, id="two of one, all of the other: each has a limit of its own"),
        pytest.param(19, {P: 2, Q: 2}, {P, Q}, id="one of each"),
        pytest.param(1, {P: 2, Q: 2}, {P, Q}, id="at least one of each, however large"),
    ],
)
def test_ft_04_fe_02_each_partition_has_its_own_limit(limit, ends, gaps):
    batches = [batch(base, base + 1, partition=P, payload=10) for base in (0, 2, 4)]
    batches += [batch(base, base + 1, partition=Q, payload=10) for base in (0, 2)]
    plan = plan_appends(batches, {P: 0, Q: 0}, partition_max_bytes=limit)
    assert (plan.log_end_offsets, plan.gaps) == (ends, gaps)


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        pytest.param([99, 1, 1], 1, id="the first, and then no more"),
        pytest.param([1, 99, 1], 1, id="not the second, nor what is behind it"),
        pytest.param([0, 99, 1], 2, id="a batch without bytes is none that the next could wait for"),
        pytest.param([5, 5, 5], 2, id="up to the limit"),
    ],
)
def test_ft_11_fe_02_a_batch_above_the_limit_is_taken_if_it_is_the_first(sizes, taken):
    """It is never an error: a batch that is larger than the limit could else never be replicated."""
    batches = [batch(offset, offset, payload=size) for offset, size in enumerate(sizes)]
    plan = plan_appends(batches, {P: 0}, partition_max_bytes=10)
    assert plan.log_end_offsets == {P: taken}
    assert plan.gaps == ({P} if taken < 3 else set())


@pytest.mark.parametrize(
    ("limits", "ends", "gaps"),
    [
        pytest.param([], {P: 6, Q: 4}, set(), id="no limit"),
        pytest.param([ByteLimit(frozenset({P}), 30)], {P: 6, Q: 4}, set(), id="all within"),
        pytest.param([ByteLimit(frozenset({P}), 29)], {P: 4, Q: 4}, {P}, id="the others are free"),
        pytest.param([ByteLimit(frozenset({P, Q}), 40)], {P: 6, Q: 2}, {Q}, id="together"),
        pytest.param([ByteLimit(frozenset({P, Q}), 0)], {P: 2, Q: 0}, {P, Q}, id="one batch at least, of all"),
        pytest.param(
            [ByteLimit(frozenset({P, Q}), 40), ByteLimit(frozenset({P}), 10)], {P: 2, Q: 4}, {P}, id="the lower holds"
        ),
        pytest.param([ByteLimit(frozenset({P}), 20)] * 2, {P: 4, Q: 4}, {P}, id="the same twice"),
        pytest.param([ByteLimit(frozenset(), 0)], {P: 6, Q: 4}, set(), id="of nothing"),
    ],
)
def test_th_01_what_is_limited_together_shares_the_limit(limits, ends, gaps):
    batches = [batch(base, base + 1, partition=P, payload=10) for base in (0, 2, 4)]
    batches += [batch(base, base + 1, partition=Q, payload=10) for base in (0, 2)]
    plan = plan_appends(batches, {P: 0, Q: 0}, limits=limits)
    assert (plan.log_end_offsets, plan.gaps) == (ends, gaps)


def test_th_02_the_bytes_that_a_plan_takes_of_each_partition():
    batches = [batch(0, 4, payload=3), batch(5, 9, payload=4), batch(12, 13, payload=9), batch(0, 1, "b", Q, payload=5)]
    assert plan_appends(batches, {P: 2, Q: 0}).bytes_by_partition() == {P: 7, Q: 5}
    assert AppendPlan().bytes_by_partition() == {}


def test_fe_02_what_was_skipped_does_not_count_towards_a_limit():
    batches = [batch(0, 4, "a", size=99, payload=99), batch(5, 6, "b", payload=10), batch(7, 8, "c", payload=10)]
    assert not plan_appends(batches, {P: 5}, 20, 20).gaps


def test_fe_02_both_limits_hold():
    batches = [batch(0, 1, "a", P, payload=10), batch(2, 3, "b", P, payload=10), batch(0, 1, "c", Q, payload=10)]
    assert plan_appends(batches, {P: 0, Q: 0}, 20, 10).log_end_offsets == {P: 2, Q: 2}
    assert plan_appends(batches, {P: 0, Q: 0}, 10, 20).log_end_offsets == {P: 2, Q: 0}


def test_ft_10_a_plan_says_where_each_partition_begins():
    """A commit is checked against it: the log must still end there."""
    batches = [
        batch(3, 9),
        batch(10, 12, "b"),
        batch(0, 4, partition=Q),
        batch(8, 9, partition=TopicIdPartition("u", 0)),
    ]
    assert plan_appends(batches, {P: 5, Q: 0, TopicIdPartition("u", 0): 7}).starts() == {P: 5, Q: 0}
    assert AppendPlan().starts() == {}


def test_ft_12_a_plan_without_some_of_its_partitions():
    third = TopicIdPartition("u", 0)
    batches = [batch(0, 4), batch(0, 1, partition=Q), batch(3, 4, partition=Q), batch(5, 9, partition=third)]
    plan = plan_appends(batches, {P: 0, Q: 0, third: 0})
    rest = plan.without({Q})
    assert planned(rest) == [(0, "a", 0, 5)]
    assert (rest.log_end_offsets, rest.gaps) == ({P: 5, third: 0}, {third})
    assert plan.without(()) == plan
    assert plan.without({P, Q, third}) == AppendPlan()
