"""A leader's duties: broker 1 leads at epoch 5 and looks at its followers, 2 and 3."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol.isr import AlterIsrOutcome, FollowerProgress, IsrChange, change_to
from lakelog.replication.protocol.leadership import (
    HostedPartition,
    LeaderInputs,
    follow_registration,
    host,
    observe_followers,
    raise_high_watermark,
    settle_isr_change,
)
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, PlacedBatch, Role
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, ReplicaStatus
from tests.protocol.chains import GENESIS, chained, one_by_one

LAG, NOW = 10.0, 1000.0
WHOLE = PartitionRegistration("t", "id", 0, (1, 2, 3), 1, 5, (1, 2, 3), 8)
EPOCHS = {1: 10, 2: 20, 3: 30}
BATCHES = chained(*one_by_one(100))
CHAINS = [GENESIS, *(batch.chain for batch in BATCHES)]


def with_isr(*isr, partition_epoch=8):
    return replace(WHOLE, isr=isr, partition_epoch=partition_epoch)


def log_to(end, start=0, role=None, epoch_start=0):
    log = PartitionLog(
        log_start_offset=start, start_chain=CHAINS[start], role=role or Role(5, LEADER), epoch_start=epoch_start
    )
    log.place(PlacedBatch(batch.base_offset, batch, "segment") for batch in BATCHES[start:end])
    return log


def row(broker, end, **said):
    epoch, chain = EPOCHS[broker], CHAINS[end]
    return replace(
        ReplicaStatus("t", "id", 0, broker, epoch, 5, FOLLOWER_ROLE, "Fetching", 0, end, 0, (), None, 1, chain=chain),
        **said,
    )


def leader_inputs(end=50, ends=None, log=None, now=NOW, eligible=EPOCHS, min_isr=1, may_shrink=True, rows=None):
    rows = rows or {broker: row(broker, leo) for broker, leo in (ends or {}).items()}
    return LeaderInputs(log or log_to(end), rows, EPOCHS, eligible, now, LAG, min_isr, may_shrink)


def caught_up(age=0.0, end=0):
    return FollowerProgress(end, caught_up_at=NOW - age)


@pytest.mark.parametrize(
    ("before", "published", "log", "high_watermark"),
    [
        pytest.param(30, None, log_to(50), 30, id="goes on from what it was"),
        pytest.param(30, 40, log_to(50), 30, id="what this process knows is newer than its row"),
        pytest.param(None, 40, log_to(50), 40, id="after a restart: as published"),
        pytest.param(None, 60, log_to(50), 50, id="no further than the log goes"),
        pytest.param(None, None, log_to(50), 0, id="never heard of"),
        pytest.param(None, None, log_to(50, start=20), 20, id="no less than the log has"),
        pytest.param(60, None, log_to(50, start=50), 50, id="an empty log"),
    ],
)
@pytest.mark.parametrize("leader", [1, 2, NO_LEADER])
def test_hw_02_a_hw_continues_from_its_last_value_capped_at_the_leo(leader, before, published, log, high_watermark):
    registration = replace(WHOLE, leader=leader)
    known = None if before is None else HostedPartition(replace(WHOLE, leader_epoch=4), before)
    row_before = None if published is None else row(1, 99, high_watermark=published)
    hosted = host(known, row_before, registration, log, 1, NOW)
    assert (hosted.registration, hosted.high_watermark) == (registration, high_watermark)


def test_bl_05_a_new_leader_forgets_its_followers_and_counts_the_isr_as_caught_up_now():
    pending = change_to(WHOLE, (1,))
    known = HostedPartition(WHOLE, 30, {2: caught_up(3, end=40), 3: caught_up(4, end=40)}, pending)
    hosted = host(known, None, with_isr(1, 2), log_to(50), 1, NOW)
    assert {b: p for b, p in hosted.progress.items() if b != 1} == {2: FollowerProgress(caught_up_at=NOW)}
    assert hosted.pending is None


@pytest.mark.parametrize("leader", [1, 2])
def test_bl_05_only_a_leader_has_follower_progress(leader):
    hosted = host(None, None, replace(WHOLE, leader=leader), log_to(50), 1, NOW)
    assert (hosted.progress == {}) is (leader != 1)


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "is_taken"),
    [(5, 9, True), (5, 8, False), (5, 7, False), (6, 9, False), (4, 9, False)],
)
def test_bl_08_a_later_registration_of_the_same_epoch_keeps_the_role(leader_epoch, partition_epoch, is_taken):
    """The same leader epoch is the same role. Another epoch would take the steps to a new role."""
    hosted = HostedPartition(WHOLE, 30, {2: caught_up()}, change_to(WHOLE, (1,)))
    offered = replace(WHOLE, isr=(1,), leader_epoch=leader_epoch, partition_epoch=partition_epoch)
    expected = replace(hosted, registration=offered) if is_taken else hosted
    assert follow_registration(hosted, offered) == expected


@pytest.mark.parametrize(
    "said",
    [
        {"topic_id": "older"},
        {"leader_epoch": 4},
        {"leader_epoch": 6},
        {"broker_epoch": 29},
        {"role": "leader"},
        {"state": "Truncating"},
        {"state": "Delayed"},
        {"chain": "of another history"},
        {"log_end_offset": 51, "chain": CHAINS[51]},
    ],
    ids=str,
)
def test_fe_03_a_row_that_does_not_count_changes_no_progress(said):
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up(), 3: caught_up(99, end=7)})
    polled = observe_followers(hosted, leader_inputs(rows={2: row(2, 40), 3: row(3, 50, **said)}))
    assert polled.progress[3] == hosted.progress[3]
    assert polled.pending is None, "nobody joins"
    assert observe_followers(hosted, leader_inputs(ends={2: 40, 3: 50})).pending is not None, (
        "the same row, if it counted"
    )
    whole = replace(hosted, registration=WHOLE)
    assert raise_high_watermark(whole, leader_inputs(rows={2: row(2, 40), 3: row(3, 50, **said)})).high_watermark == 30
    assert raise_high_watermark(whole, leader_inputs(ends={2: 40, 3: 50})).high_watermark == 40


def test_fe_03_is_03_a_round_updates_the_progress_of_each_follower():
    hosted = HostedPartition(WHOLE, 0, {2: FollowerProgress(30, 990.0, 995.0, 40)})
    polled = observe_followers(hosted, leader_inputs(end=50, ends={2: 45, 3: 50}))
    assert polled.progress == {2: FollowerProgress(45, 995.0, NOW, 50), 3: FollowerProgress(50, NOW, NOW, 50)}


def change(isr, joiners=None):
    return IsrChange(WHOLE.topic_id_partition, 1, 5, 8, isr, joiners or {})


@pytest.mark.parametrize(
    ("isr", "ages", "ends", "may_shrink", "wanted"),
    [
        pytest.param((1, 2, 3), {2: 11, 3: 0}, {2: 40, 3: 40}, True, change((1, 3)), id="is_02: out"),
        pytest.param((1, 2, 3), {2: 11, 3: 0}, {2: 40, 3: 40}, False, None, id="is_01: lags are not looked at now"),
        pytest.param((1, 2, 3), {2: 10, 3: 0}, {2: 40, 3: 40}, True, None, id="is_02: exactly the lag time"),
        pytest.param((1, 2, 3), {2: 11, 3: 0}, {2: 50, 3: 40}, True, None, id="is_02: the leader's LEO"),
        pytest.param((1, 2), {2: 0}, {2: 40, 3: 30}, False, change((1, 2, 3), {3: 30}), id="is_04: in, at any look"),
        pytest.param((1, 2), {2: 0}, {2: 40, 3: 29}, True, None, id="is_04: below the HW"),
        pytest.param((1, 2), {2: 11}, {2: 40, 3: 40}, True, change((1,)), id="out comes before in"),
        pytest.param((1, 2), {2: 11}, {2: 40, 3: 40}, False, change((1, 2, 3), {3: 30}), id="in, as out must wait"),
        pytest.param((1, 2, 3), {2: 11, 3: 0}, {3: 40}, True, change((1, 3)), id="no row: it has lagged since"),
    ],
)
def test_is_01_is_02_is_04_a_round_decides_to_shrink_or_expand_the_isr(isr, ages, ends, may_shrink, wanted):
    hosted = HostedPartition(with_isr(*isr), 30, {broker: caught_up(age) for broker, age in ages.items()})
    assert observe_followers(hosted, leader_inputs(ends=ends, may_shrink=may_shrink)).pending == wanted


@pytest.mark.parametrize(("end", "joins"), [(44, False), (45, True)])
def test_is_04_the_start_of_the_leaders_epoch_is_reached(end, joins):
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up()})
    polled = observe_followers(hosted, leader_inputs(ends={2: 40, 3: end}, log=log_to(50, epoch_start=45)))
    assert (polled.pending is not None) is joins


@pytest.mark.parametrize("eligible", [{1: 10, 2: 20}, {1: 10, 2: 20, 3: 30}], ids=["shutting down", "alive"])
def test_is_04_only_a_live_broker_that_does_not_shut_down_joins(eligible):
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up()})
    assert (observe_followers(hosted, leader_inputs(ends={2: 40, 3: 40}, eligible=eligible)).pending is not None) is (
        3 in eligible
    )


def test_is_05_a_partition_has_one_pending_change_at_a_time():
    pending = change((1, 3))
    hosted = HostedPartition(WHOLE, 30, {2: caught_up(11), 3: caught_up(11)}, pending)
    polled = observe_followers(hosted, leader_inputs(ends={2: 40, 3: 40}))
    assert polled.pending is pending
    assert observe_followers(replace(hosted, pending=None), leader_inputs(ends={2: 40, 3: 40})).pending == change((1,))


@pytest.mark.parametrize("role", [Role(5, FOLLOWER), Role(5, STOPPED), Role(4, LEADER), Role(6, LEADER)], ids=str)
def test_ep_06_bl_05_a_log_at_another_epoch_is_not_led(role):
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up(11), 3: caught_up(11)})
    inputs = leader_inputs(ends={2: 40, 3: 40}, log=log_to(50, role=role))
    assert observe_followers(hosted, inputs) == raise_high_watermark(hosted, inputs) == hosted


WRITTEN = with_isr(1, 3, partition_epoch=9)
OTHERS = with_isr(1, 2, partition_epoch=9)
NEXT_LEADERS = replace(WHOLE, leader=2, leader_epoch=6, partition_epoch=9)


@pytest.mark.parametrize(
    ("outcome", "current", "registration"),
    [
        pytest.param(AlterIsrOutcome.APPLIED, WRITTEN, WRITTEN, id="applied"),
        pytest.param(AlterIsrOutcome.FOUND, WRITTEN, WRITTEN, id="found"),
        pytest.param(AlterIsrOutcome.LOST, OTHERS, OTHERS, id="lost to an earlier change"),
        pytest.param(AlterIsrOutcome.LOST, WHOLE, WHOLE, id="lost: the joiner has begun anew"),
        pytest.param(AlterIsrOutcome.LOST, NEXT_LEADERS, WHOLE, id="lost to the controller: a role to take up first"),
        pytest.param(AlterIsrOutcome.LOST, None, WHOLE, id="lost: the partition is gone"),
    ],
)
def test_is_05_each_outcome_settles_the_pending_change(outcome, current, registration):
    hosted = HostedPartition(WHOLE, 30, {2: caught_up()}, change((1, 3)))
    expected = replace(hosted, registration=registration, pending=None)
    assert settle_isr_change(hosted, outcome, current) == expected


def test_is_05_without_a_change_under_way_nothing_is_settled():
    hosted = HostedPartition(WHOLE, 30)
    assert settle_isr_change(hosted, AlterIsrOutcome.APPLIED, WRITTEN) is hosted


def test_hw_01_is_05_the_larger_set_counts_over_all_small_worlds():
    """The larger of the ISR in force and the pending ISR counts."""
    sets = [(1,), (1, 2), (1, 3), (1, 2, 3)]
    ends = [dict(pair) for pair in itertools.product([(2, None), (2, 0), (2, 2)], [(3, None), (3, 1), (3, 3)])]
    for isr, pending, leos, current, min_isr in itertools.product(sets, [None, *sets], ends, (0, 1), (1, 2)):
        told = {broker: end for broker, end in leos.items() if end is not None}
        counted = {broker: end for broker, end in told.items() if end <= 2}  # above its own end a leader cannot compare
        hosted = HostedPartition(with_isr(*isr), current, {}, pending and change(pending))
        raised = raise_high_watermark(hosted, leader_inputs(end=2, ends=told, min_isr=min_isr))
        members = {*isr, *(pending or ())} - {1}
        may_move = len(isr) >= min_isr and members <= counted.keys()
        expected = max(current, min([2, *(counted[b] for b in members)])) if may_move else current
        assert raised == replace(hosted, high_watermark=expected), (isr, pending, leos, current, min_isr)


def test_hw_01_a_replica_that_was_caught_up_within_the_lag_time_is_waited_for():
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up(), 3: caught_up(10.0)})
    inputs = leader_inputs(ends={2: 50, 3: 40})
    assert raise_high_watermark(hosted, inputs).high_watermark == 40
    assert raise_high_watermark(hosted, replace(inputs, now=NOW + 0.1)).high_watermark == 50


def test_is_02_hw_01_the_hw_moves_on_once_a_shrink_is_in_force_and_not_before():
    hosted = HostedPartition(WHOLE, 30, {2: caught_up(), 3: caught_up(11)})
    inputs = leader_inputs(ends={2: 50, 3: 35})
    polled = observe_followers(hosted, inputs)
    assert polled.pending == change((1, 2))
    unknown = raise_high_watermark(polled, inputs)
    assert unknown.high_watermark == 35
    settled = settle_isr_change(unknown, AlterIsrOutcome.APPLIED, with_isr(1, 2, partition_epoch=9))
    assert raise_high_watermark(settled, inputs).high_watermark == 50


def test_is_04_hw_01_a_joiner_holds_the_hw_from_the_moment_it_is_wanted():
    hosted = HostedPartition(with_isr(1, 2), 30, {2: caught_up()})
    inputs = leader_inputs(ends={2: 50, 3: 35})
    polled = observe_followers(hosted, inputs)
    assert polled.pending == change((1, 2, 3), {3: 30})
    for known in (polled, settle_isr_change(polled, AlterIsrOutcome.FOUND, with_isr(1, 2, 3, partition_epoch=9))):
        assert raise_high_watermark(known, inputs).high_watermark == 35
    lost = settle_isr_change(polled, AlterIsrOutcome.LOST, with_isr(1, 2))
    assert raise_high_watermark(lost, inputs).high_watermark == 50
