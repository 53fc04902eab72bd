import pytest

from lakelog.replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch, plan_appends
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition

P, Q = TopicIdPartition("t", 0), TopicIdPartition("t", 1)


def at(offset, chain=None):
    """The end of a log that agrees with the leader's. Its chain is named after the offset."""
    return LogEnd(offset, chain or f"@{offset}")


def batch(base, last, segment="a", partition=P, size=10, epoch=0, payload=0, previous=None):
    return FetchedBatch(
        partition, base, last, epoch, segment, size, payload, previous or f"@{base}", f"@{last + 1}"
    )  # fmt: skip


def planned(plan):
    return [(b.topic_id_partition.partition, b.segment, b.base_offset, b.last_offset + 1) for b in plan.batches]


def offsets(plan):
    return {partition: end.offset for partition, end in plan.log_ends.items()}


@pytest.mark.parametrize(
    ("batches", "end", "appended", "after", "gap"),
    [
        pytest.param([], at(0), [], at(0), False, id="nothing"),
        pytest.param([batch(5, 9)], at(5), [(0, "a", 5, 10)], at(10), False, id="whole"),
        pytest.param([batch(0, 4)], at(5), [], at(5), False, id="below the LEO: skipped"),
        pytest.param([batch(0, 4, previous="x")], at(5), [], at(5), False, id="skipped, whatever it follows"),
        pytest.param([batch(0, 4), batch(5, 9)], at(5), [(0, "a", 5, 10)], at(10), False, id="one skipped, one whole"),
        pytest.param([batch(6, 9)], at(5), [], at(5), True, id="a gap"),
        pytest.param([batch(6, 9, previous="x")], at(5), [], at(5), True, id="a gap, whatever it follows"),
        pytest.param([batch(5, 5), batch(7, 9)], at(5), [(0, "a", 5, 6)], at(6), True, id="a gap after what follows"),
        pytest.param([batch(6, 9), batch(10, 12)], at(5), [], at(5), True, id="what follows a gap does not follow"),
        pytest.param([batch(0, 2), batch(6, 9)], at(5), [], at(5), True, id="skipped, then a gap"),
        pytest.param(
            [batch(0, 4), batch(5, 6, "b"), batch(7, 9, "c")],
            at(0),
            [(0, "a", 0, 5), (0, "b", 5, 7), (0, "c", 7, 10)],
            at(10),
            False,
            id="a chain",
        ),
        pytest.param(
            [batch(7, 9, "c"), batch(0, 6, "b")],
            at(0),
            [(0, "b", 0, 7), (0, "c", 7, 10)],
            at(10),
            False,
            id="in any order",
        ),
        pytest.param([batch(5, 9), batch(5, 9)], at(5), [(0, "a", 5, 10)], at(10), False, id="delivered twice"),
        pytest.param([batch(5, 9, "a"), batch(5, 9, "b")], at(5), [(0, "a", 5, 10)], at(10), False, id="rewritten"),
        pytest.param(
            [batch(0, 9)], at(5, "@0"), [(0, "a", 0, 10)], at(10), False, id="whole, to a log that starts within it"
        ),
        pytest.param(
            [batch(0, 5)], at(5, "@0"), [(0, "a", 0, 6)], at(6), False, id="whole, though only its last is above it"
        ),
        pytest.param([batch(0, 4, partition=Q)], at(0), [], at(0), False, id="a partition that is not fetched"),
    ],
)
def test_ft_10_batches_that_follow_the_chain_are_appended_once(batches, end, appended, after, gap):
    plan = plan_appends(batches, {P: end})
    assert planned(plan) == appended
    assert plan.log_ends == {P: after}
    assert (plan.gaps, plan.diverged) == ({P} if gap else frozenset(), frozenset())


@pytest.mark.parametrize(
    ("batches", "end", "appended", "after"),
    [
        pytest.param([batch(5, 9, previous="x")], at(5), [], at(5), id="the batch at the log end follows another"),
        pytest.param([batch(0, 9)], at(5), [], at(5), id="the leader's batch goes on where ours ends"),
        pytest.param([batch(0, 5)], at(5), [], at(5), id="also by one record"),
        pytest.param(
            [batch(5, 6), batch(7, 9, "b", previous="x")], at(5), [(0, "a", 5, 7)], at(7), id="after what follows"
        ),
        pytest.param(
            [batch(5, 6, previous="x"), batch(7, 9, "b")], at(5), [], at(5), id="nothing after it is appended"
        ),
        pytest.param(
            [batch(0, 9, "a"), batch(0, 6, "b")], at(0), [(0, "b", 0, 7)], at(7), id="of two histories the first counts"
        ),
        pytest.param(
            [batch(5, 6, previous="x"), batch(8, 9)], at(5), [], at(5), id="it is no gap, whatever comes later"
        ),
        pytest.param([batch(0, 9, previous="x")], at(5, "@0"), [], at(5, "@0"), id="to a log that starts within it"),
    ],
)
def test_ft_10_tr_08_a_batch_after_another_chain_is_not_appended_and_is_no_gap(batches, end, appended, after):
    """A gap would be fetched again for ever. Here the log must be truncated first."""
    plan = plan_appends(batches, {P: end})
    assert (planned(plan), plan.log_ends) == (appended, {P: after})
    assert (plan.gaps, plan.diverged) == (frozenset(), {P})


def test_tr_08_a_diverged_partition_does_not_stop_the_plan_of_others():
    plan = plan_appends([batch(5, 9, previous="x"), batch(3, 4, partition=Q)], {P: at(5), Q: at(3)})
    assert (planned(plan), plan.diverged) == ([(1, "a", 3, 5)], {P})
    assert plan.without({P}).diverged == frozenset()


def test_fe_02_tr_08_a_batch_of_another_history_takes_nothing_of_a_limit():
    batches = [batch(5, 9, "a", size=99, previous="x"), batch(0, 1, "b", Q), batch(2, 3, "c", Q)]
    assert offsets(plan_appends(batches, {P: at(5), Q: at(0)}, 20)) == {P: 5, Q: 4}


def test_partitions_are_planned_independently():
    plan = plan_appends([batch(9, 9), batch(3, 4, partition=Q)], {P: at(5), Q: at(3)})
    assert planned(plan) == [(1, "a", 3, 5)]
    assert (offsets(plan), plan.gaps) == ({P: 5, Q: 5}, {P})


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
def test_fe_02_a_plan_is_bounded_in_bytes_and_the_rest_is_fetched_again(max_bytes, segments, gaps):
    batches = [batch(0, 4, "a"), batch(5, 9, "b"), batch(0, 9, "c", Q)]
    plan = plan_appends(batches, {P: at(0), Q: at(0)}, max_bytes)
    assert "".join(plan.by_segment()) == segments
    assert plan.gaps == gaps


def test_fe_02_a_segment_counts_once_for_all_its_partitions():
    batches = [batch(0, 4, "a", P), batch(0, 4, "a", Q)]
    assert not plan_appends(batches, {P: at(0), Q: at(0)}, 10).gaps


def test_fe_02_batches_after_one_that_was_left_out_are_left_out_too():
    """A small batch after one that was too large must not be taken."""
    batches = [batch(0, 4, "a", size=10), batch(5, 6, "b", size=99), batch(7, 9, "c", size=1)]
    plan = plan_appends(batches, {P: at(0)}, 20)
    assert planned(plan) == [(0, "a", 0, 5)]
    assert offsets(plan) == {P: 5}


def test_batches_of_a_segment_stand_together():
    first, second, third = batch(0, 1, "a"), batch(2, 3, "b"), batch(4, 5, "a")
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
    plan = plan_appends(batches, {P: at(0), Q: at(0)}, partition_max_bytes=limit)
    assert (offsets(plan), plan.gaps) == (ends, gaps)


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
    """Otherwise a batch above the limit could never be replicated."""
    batches = [batch(offset, offset, payload=size) for offset, size in enumerate(sizes)]
    plan = plan_appends(batches, {P: at(0)}, partition_max_bytes=10)
    assert offsets(plan) == {P: taken}
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
def test_th_01_partitions_of_one_limit_share_it(limits, ends, gaps):
    batches = [batch(base, base + 1, partition=P, payload=10) for base in (0, 2, 4)]
    batches += [batch(base, base + 1, partition=Q, payload=10) for base in (0, 2)]
    plan = plan_appends(batches, {P: at(0), Q: at(0)}, limits=limits)
    assert (offsets(plan), plan.gaps) == (ends, gaps)


def test_th_02_the_bytes_that_a_plan_takes_of_each_partition():
    batches = [batch(0, 4, payload=3), batch(5, 9, payload=4), batch(12, 13, payload=9), batch(0, 1, "b", Q, payload=5)]
    assert plan_appends(batches, {P: at(2, "@0"), Q: at(0)}).bytes_by_partition() == {P: 7, Q: 5}
    assert AppendPlan().bytes_by_partition() == {}


def test_fe_02_skipped_batches_do_not_count_towards_a_limit():
    batches = [batch(0, 4, "a", size=99, payload=99), batch(5, 6, "b", payload=10), batch(7, 8, "c", payload=10)]
    assert not plan_appends(batches, {P: at(5)}, 20, 20).gaps


def test_fe_02_a_plan_keeps_the_total_and_the_partition_limit():
    batches = [batch(0, 1, "a", P, payload=10), batch(2, 3, "b", P, payload=10), batch(0, 1, "c", Q, payload=10)]
    assert offsets(plan_appends(batches, {P: at(0), Q: at(0)}, 20, 10)) == {P: 2, Q: 2}
    assert offsets(plan_appends(batches, {P: at(0), Q: at(0)}, 10, 20)) == {P: 2, Q: 0}


def test_ft_10_a_plan_has_the_end_chain_of_each_partition():
    """The commit checks that the log still ends with this chain."""
    third = TopicIdPartition("u", 0)
    batches = [batch(5, 9), batch(10, 12, "b"), batch(0, 4, partition=Q), batch(8, 9, partition=third)]
    plan = plan_appends(batches, {P: at(5), Q: at(3, "@0"), third: at(7)})
    assert plan.starts() == {P: "@5", Q: "@0"}
    assert AppendPlan().starts() == {}


def test_ft_12_a_plan_without_failed_partitions_keeps_the_others():
    third = TopicIdPartition("u", 0)
    batches = [batch(0, 4), batch(0, 1, partition=Q), batch(3, 4, partition=Q), batch(5, 9, partition=third)]
    plan = plan_appends(batches, {P: at(0), Q: at(0), third: at(0)})
    rest = plan.without({Q})
    assert planned(rest) == [(0, "a", 0, 5)]
    assert (offsets(rest), rest.gaps) == ({P: 5, third: 0}, {third})
    assert plan.without(()) == plan
    assert plan.without({P, Q, third}) == AppendPlan()
