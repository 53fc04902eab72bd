"""The ISR: shrinking, expanding, and a compare-and-set that recognises its own write."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol.isr import (
    NEVER_CAUGHT_UP,
    AlterIsrOutcome,
    FollowerProgress,
    IsrChange,
    alter_partition,
    caught_up_replicas,
    change_to,
    fence_isr_changes,
    is_out_of_sync,
    maybe_expand_isr,
    maybe_shrink_isr,
    observe,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

LAG, NOW = 10.0, 1000.0
# Every other field is set, so that the tests notice a lost field.
WHOLE = PartitionRegistration("t", "id", 4, (3, 1, 2), 1, 6, (1, 2, 3), 8, 2, (9,), (5,))


def with_isr(*isr):
    return replace(WHOLE, isr=isr)


def progress(end, age):
    return FollowerProgress(end, caught_up_at=NOW - age)


# The poll that a follower still has to catch up with was at 20, when the leader ended at 40.
BEHIND = FollowerProgress(35, caught_up_at=5.0, seen_at=20.0, leader_end_offset_then=40)


@pytest.mark.parametrize(
    ("end", "leader_end", "after"),
    [
        pytest.param(50, 50, FollowerProgress(50, 30.0, 30.0, 50), id="all that the leader has"),
        pytest.param(51, 50, FollowerProgress(51, 30.0, 30.0, 50), id="more than it had when it looked at itself"),
        pytest.param(49, 50, FollowerProgress(49, 20.0, 30.0, 50), id="all that the leader had at that poll"),
        pytest.param(40, 50, FollowerProgress(40, 20.0, 30.0, 50), id="just that"),
        pytest.param(39, 50, replace(BEHIND, log_end_offset=39), id="less: that poll stays the goal"),
        pytest.param(0, 50, replace(BEHIND, log_end_offset=0), id="nothing"),
    ],
)
def test_is_03_a_follower_is_caught_up_now_or_as_of_the_read_whose_leo_it_reaches(end, leader_end, after):
    assert observe(BEHIND, end, leader_end, now=30.0) == after


def test_is_03_the_last_caught_up_time_never_falls():
    before = FollowerProgress(40, caught_up_at=25.0, seen_at=20.0, leader_end_offset_then=40)
    assert observe(before, 40, 50, now=30.0).caught_up_at == 25.0


def test_is_03_a_follower_behind_at_the_first_read_was_never_caught_up():
    assert observe(FollowerProgress(), 4, 5, now=30.0).caught_up_at == NEVER_CAUGHT_UP


def test_is_03_caught_up_times_are_right_over_all_short_histories():
    """A caught-up time is always true: at that poll the leader's log ended no later than the follower's does now."""
    rising = list(itertools.combinations_with_replacement(range(4), 4))
    for leader_ends, ends in itertools.product(rising, repeat=2):
        known = FollowerProgress()
        for time, (end, leader_end) in enumerate(zip(ends, leader_ends, strict=True)):
            before, known = known, observe(known, end, leader_end, float(time))
            caught_up_at = known.caught_up_at
            assert caught_up_at >= before.caught_up_at
            assert (caught_up_at == time) == (end >= leader_end)
            assert caught_up_at == NEVER_CAUGHT_UP or end >= leader_ends[int(caught_up_at)], (leader_ends, ends)


@pytest.mark.parametrize("behind", range(1, 40))
@pytest.mark.parametrize("fetches_every", [1, 3, 10])
def test_is_03_a_follower_always_a_little_behind_a_busy_leader_is_in_sync(behind, fetches_every):
    """The leader appends at each poll; the follower has what the leader had `behind` looks ago, and tells it now and
    then: it was caught up no longer ago than twice that."""
    known, end = FollowerProgress(), 0
    for now in range(1, 400):
        if now % fetches_every == 0:
            end = max(0, now - behind)
        known = observe(known, end, now, float(now))
        if now > 3 * (behind + fetches_every):
            assert now - known.caught_up_at <= 2 * (behind + fetches_every)


@pytest.mark.parametrize(
    ("end", "age", "is_out"),
    [
        pytest.param(49, 10.1, True, id="too long ago"),
        pytest.param(49, 10.0, False, id="as long ago as is allowed"),
        pytest.param(49, 0.0, False, id="just now"),
        pytest.param(50, 10.1, False, id="the leader's LEO: never out"),
        pytest.param(50, float("inf"), False, id="the leader's LEO, never seen caught up"),
        pytest.param(-1, float("inf"), True, id="never seen at all"),
    ],
)
def test_is_01_is_02_a_follower_is_out_of_sync_only_above_the_lag_time(end, age, is_out):
    assert is_out_of_sync(progress(end, age), 50, NOW, LAG) is is_out


@pytest.mark.parametrize(
    ("isr", "seen", "kept"),
    [
        pytest.param((1, 2, 3), {2: (40, 11), 3: (40, 11)}, (1,), id="all followers: the leader stays"),
        pytest.param((1, 2, 3), {2: (40, 11), 3: (40, 9)}, (1, 3), id="one"),
        pytest.param((3, 2, 1), {2: (40, 11), 3: (40, 9)}, (3, 1), id="the others keep their order"),
        pytest.param((1, 2, 3), {2: (40, 9), 3: (50, 99)}, None, id="nobody"),
        pytest.param((1, 3), {2: (40, 11), 3: (40, 9)}, None, id="who is out already does not matter"),
        pytest.param((1, 2, 3), {2: (40, 9)}, (1, 2), id="one that nothing is known of"),
        pytest.param((1,), {}, None, id="the leader alone"),
        pytest.param((1, 2), {1: (0, 99), 2: (50, 0)}, None, id="the leader is not asked"),
    ],
)
def test_is_02_a_shrink_removes_followers_that_are_out_of_sync(isr, seen, kept):
    known = {broker: progress(*found) for broker, found in seen.items()}
    change = maybe_shrink_isr(with_isr(*isr), known, 50, NOW, LAG)
    assert change == (None if kept is None else IsrChange(TopicIdPartition("id", 4), 1, 6, 8, kept, {}))


EPOCHS = {2: 20, 3: 30}


@pytest.mark.parametrize(
    ("isr", "ends", "eligible", "grown"),
    [
        pytest.param((1,), {2: 50, 3: 50}, EPOCHS, ((3, 1, 2), {2: 20, 3: 30}), id="both, in the order of AR"),
        pytest.param((2, 1), {2: 50, 3: 50}, EPOCHS, ((3, 1, 2), {3: 30}), id="the other one"),
        pytest.param((1, 2), {2: 50, 3: 40}, EPOCHS, ((3, 1, 2), {3: 30}), id="at the HW"),
        pytest.param((1, 2), {2: 50, 3: 39}, EPOCHS, None, id="below the HW"),
        pytest.param((1, 2), {2: 50}, EPOCHS, None, id="without a row that counts"),
        pytest.param((1, 2), {2: 50, 3: 50}, {2: 20}, None, id="not alive, or shutting down"),
        pytest.param((1, 2, 3), {2: 50, 3: 50}, EPOCHS, None, id="all are in"),
        pytest.param((1,), {2: 50, 3: 39}, EPOCHS, ((1, 2), {2: 20}), id="one of two"),
        pytest.param((1,), {2: 39, 3: 39, 7: 50}, {**EPOCHS, 7: 70}, None, id="a broker that is not assigned"),
    ],
)
def test_is_04_an_expansion_adds_followers_that_have_caught_up(isr, ends, eligible, grown):
    change = maybe_expand_isr(with_isr(*isr), ends, 40, 30, eligible)
    assert change == (None if grown is None else IsrChange(TopicIdPartition("id", 4), 1, 6, 8, *grown))


@pytest.mark.parametrize(
    ("end", "high_watermark", "epoch_start", "joins"),
    [
        (39, 40, 30, False), (40, 40, 30, True), (29, 20, 30, False), (30, 20, 30, True), (0, 0, 0, True),
    ],
)  # fmt: skip
def test_is_04_both_the_hw_and_the_start_of_the_leaders_epoch_are_reached(end, high_watermark, epoch_start, joins):
    """A new leader's HW may be too low. By the HW alone, a follower without committed records could join."""
    assert (maybe_expand_isr(with_isr(1, 2), {3: end}, high_watermark, epoch_start, EPOCHS) is not None) is joins


CHANGE = change_to(WHOLE, (1, 3), {3: 30})
AS_WANTED, AS_BEFORE, OTHERWISE = (1, 3), (1, 2, 3), (1, 2)
JOINER_IS_CURRENT, JOINER_BEGAN_ANEW, JOINER_IS_UNKNOWN = {3: 30}, {3: 31}, {}


def test_is_05_every_outcome_of_a_compare_and_set():
    """Over all registrations that a change may meet: applied to the one it was decided on, found right after it."""
    applied, found = set(), set()
    leaders, leader_epochs, partition_epochs = (1, 2), (5, 6, 7), (7, 8, 9, 10)
    isrs = (AS_WANTED, AS_BEFORE, OTHERWISE)
    joiners = (JOINER_IS_CURRENT, JOINER_BEGAN_ANEW, JOINER_IS_UNKNOWN)
    for leader, epoch, version, isr, known in itertools.product(
        leaders, leader_epochs, partition_epochs, isrs, joiners
    ):
        known_since = dict.fromkeys(isr, 9)
        current = replace(
            WHOLE, leader=leader, leader_epoch=epoch, partition_epoch=version, isr=isr, isr_epochs=known_since
        )
        outcome, now = alter_partition(current, CHANGE, known)
        case = (leader, epoch, version, isr, known.get(3))
        if outcome is AlterIsrOutcome.APPLIED:
            applied.add(case)
            after = {1: 9, 3: 30}  # a member that stays keeps its epoch, a new one gets the observed epoch
            assert now == replace(current, isr=AS_WANTED, partition_epoch=version + 1, isr_epochs=after)
            continue
        assert now == current, "what is lost or found writes nothing"
        if outcome is AlterIsrOutcome.FOUND:
            found.add(case)
    assert applied == {(1, 6, 8, isr, 30) for isr in isrs}
    assert found == {(1, 6, 9, AS_WANTED, epoch) for epoch in (30, 31, None)}


def test_is_05_an_isr_change_of_a_deleted_partition_is_lost():
    assert alter_partition(None, CHANGE, JOINER_IS_CURRENT) == (AlterIsrOutcome.LOST, None)


def test_is_05_a_change_that_was_sent_twice_is_written_once():
    _, written = alter_partition(WHOLE, CHANGE, JOINER_IS_CURRENT)
    assert alter_partition(written, CHANGE, JOINER_IS_CURRENT) == (AlterIsrOutcome.FOUND, written)
    _, later = alter_partition(written, change_to(written, AS_BEFORE), {})
    assert alter_partition(later, CHANGE, JOINER_IS_CURRENT) == (AlterIsrOutcome.LOST, later), "overtaken since"


def test_is_05_a_broker_that_leaves_the_isr_needs_no_broker_epoch():
    assert alter_partition(WHOLE, change_to(WHOLE, (1,)), {})[0] is AlterIsrOutcome.APPLIED


@pytest.mark.parametrize(
    ("isr", "counted", "ages", "waited_for"),
    [
        pytest.param((1,), {2, 3}, {2: 0, 3: 10.0}, {2, 3}, id="up to the lag time, included"),
        pytest.param((1,), {2, 3}, {2: 0, 3: 10.1}, {2}, id="longer ago"),
        pytest.param((1, 2), {2, 3}, {2: 0, 3: 0}, {3}, id="members are waited for anyway"),
        pytest.param((1,), {2}, {2: 0, 3: 0}, {2}, id="without a row that counts"),
        pytest.param((1,), {2, 3}, {2: 0}, {2}, id="never seen"),
        pytest.param((1,), {1, 2, 3}, {1: 0}, set(), id="the leader does not wait for itself"),
    ],
)
def test_hw_01_the_hw_waits_for_replicas_that_are_about_to_join(isr, counted, ages, waited_for):
    known = {broker: progress(0, age) for broker, age in ages.items()}
    assert caught_up_replicas(with_isr(*isr), known, counted, NOW, LAG) == waited_for


@pytest.mark.parametrize("broker", [2, 3])
def test_ol_01_is_05_a_follower_that_gives_up_its_log_fails_what_was_decided_before(broker):
    before = with_isr(1)
    change = change_to(before, (broker, 1), {broker: 20})
    after = fence_isr_changes(before, broker)
    assert after == replace(before, partition_epoch=before.partition_epoch + 1)
    assert alter_partition(after, change, {broker: 20}) == (AlterIsrOutcome.LOST, after)


@pytest.mark.parametrize(
    "current",
    [
        pytest.param(None, id="there is no such partition"),
        pytest.param(with_isr(1, 2), id="it is in the ISR"),
        pytest.param(replace(WHOLE, leader=2, isr=(1,)), id="it leads"),
        pytest.param(replace(WHOLE, leader=-1, isr=(1,)), id="nobody leads"),
        pytest.param(replace(WHOLE, leader=-2, isr=(1,)), id="the topic is being deleted"),
    ],
)
def test_ol_01_an_isr_member_or_leader_is_not_fenced_for_repair(current):
    assert fence_isr_changes(current, 2) is None
