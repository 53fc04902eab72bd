"""Throttles: which replicas are throttled, how much is allowed, and how long the excess waits."""

from functools import reduce

import pytest

from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.protocol.throttle import (
    UNLIMITED,
    Quota,
    allowance,
    bytes_between,
    is_exceeded,
    is_throttled,
    leader_share,
    rate,
    recorded,
    seconds_to_wait,
    should_follower_throttle,
    throttled_followers,
    under_bound,
)

WINDOW, ALL_WINDOWS = 1.0, 11.0


def quota(bound, *history):
    """A quota after a history of (seconds, bytes)."""
    return reduce(lambda before, entry: recorded(before, *entry), history, Quota(bound))


@pytest.mark.parametrize(
    ("text", "partition", "broker", "expected"),
    [
        ("", 0, 1, False),
        ("*", 0, 1, True),
        ("0:1", 0, 1, True),
        ("0:1", 0, 2, False),
        ("0:1", 1, 0, False),
        ("0:1,1:2", 1, 2, True),
        ("0:1,1:2", 1, 1, False),
        ("10:21", 0, 2, False),
        ("10:21", 1, 1, False),
        ("00:01", 0, 1, True),
    ],
)
def test_th_02_a_setting_names_all_or_single_throttled_replicas(text, partition, broker, expected):
    assert is_throttled(text, partition, broker) is expected


@pytest.mark.parametrize(
    ("throttled", "exceeded", "in_sync", "expected"),
    [
        (True, True, False, True),
        (True, True, True, False),
        (True, False, False, False),
        (False, True, False, False),
        (True, False, True, False),
        (False, True, True, False),
        (False, False, False, False),
        (False, False, True, False),
    ],
)
def test_th_01_a_throttled_partition_above_the_quota_and_out_of_sync_is_left_out(
    throttled, exceeded, in_sync, expected
):
    assert should_follower_throttle(throttled, exceeded, in_sync) is expected


def registration(number=0, replicas=(1, 2, 3), leader=1, isr=(1,), topic="t"):
    return PartitionRegistration(topic, f"{topic}-id", number, replicas, leader, 0, isr)


@pytest.mark.parametrize(
    ("registrations", "expected"),
    [
        ([], set()),
        ([registration()], {2, 3}),
        ([registration(isr=(1, 3))], {2}),
        ([registration(isr=(1, 2, 3))], set()),
        ([registration(isr=(1, 2)), registration(1, (1, 4))], {3, 4}),
        ([registration(leader=2, isr=(2,))], set()),
        ([registration(2)], set()),
        ([registration(topic="other")], set()),
    ],
    ids=[
        "nothing", "all", "one is in sync", "all are in sync", "of two partitions", "another leads",
        "another partition is throttled", "another topic is throttled",
    ],
)  # fmt: skip
def test_th_02_throttled_followers_out_of_sync_share_the_leader_quota(registrations, expected):
    assert throttled_followers(1, registrations, {"t": "0:1,1:1,0:2"}) == expected


@pytest.mark.parametrize(
    ("total", "followers", "share"),
    [(900, 3, 300), (1000, 3, 333), (1000, 1, 1000), (1000, 0, 1000), (2, 3, 1), (0, 3, 0), (UNLIMITED, 3, UNLIMITED)],
)
def test_th_02_each_follower_gets_an_equal_share(total, followers, share):
    assert leader_share(total, followers) == share


@pytest.mark.parametrize(
    ("history", "now", "expected"),
    [
        ([], 50.0, 0),
        ([(0.0, 100)], 0.0, 100),  # over one window at least
        ([(0.0, 100)], 0.5, 100),
        ([(0.0, 100)], 2.0, 50),
        ([(0.0, 100), (0.9, 100)], 2.0, 100),  # one window
        ([(0.0, 100), (1.0, 100)], 2.0, 100),  # two windows
        ([(float(second), 100) for second in range(11)], 10.0, 110),
        ([(0.0, 100)], 10.9, 100 / 10.9),
        ([(0.0, 100)], ALL_WINDOWS, 0),
        ([(0.0, 100), (5.0, 60)], 11.0, 10),  # the first is forgotten
    ],
)
def test_th_02_the_rate_is_of_11_windows_of_a_second(history, now, expected):
    assert rate(quota(1000, *history), now) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("bound", "history", "now", "expected"),
    [
        (100, [], 0.0, False),
        (100, [(0.0, 100)], 0.0, False),
        (100, [(0.0, 101)], 0.0, True),
        (100, [(0.0, 200)], 1.9, True),
        (100, [(0.0, 200)], 2.0, False),
        (0, [], 0.0, True),
        (UNLIMITED, [(0.0, 10**15)], 0.0, False),
    ],
)
def test_th_02_a_quota_is_exceeded_above_its_bound(bound, history, now, expected):
    assert is_exceeded(quota(bound, *history), now) is expected


@pytest.mark.parametrize(("now", "is_over"), [(0.0, True), (11.0, True), (31.9, True), (32.0, False)])
def test_th_02_a_debt_beyond_11_windows_is_kept(now, is_over):
    assert is_exceeded(quota(100, (0.0, 3200)), now) is is_over


@pytest.mark.parametrize(
    ("bound", "history", "now", "expected"),
    [
        (100, [], 0.0, 100),
        (100, [(0.0, 30)], 0.0, 70),
        (100, [(0.0, 100)], 0.0, 0),
        (100, [(0.0, 500)], 1.0, 0),
        (100, [(0.0, 100)], 3.0, 200),
        (0, [], 0.0, 0),
    ],
)
def test_th_02_the_bytes_allowed_at_once_do_not_exceed_the_quota(bound, history, now, expected):
    found = quota(bound, *history)
    assert allowance(found, now) == expected
    assert not expected or not is_exceeded(recorded(found, now, expected), now)
    assert not expected or is_exceeded(recorded(found, now, expected + 1), now)


@pytest.mark.parametrize(
    ("bound", "history", "now", "expected"),
    [
        (100, [(0.0, 500)], 0.0, 5.0),
        (100, [(0.0, 500)], 3.0, 2.0),
        (100, [(0.0, 500), (1.0, 100)], 3.0, 3.0),
        (100, [(0.0, 101)], 1.0, WINDOW),  # a fetch has a cost of its own
        (100, [(0.0, 10**6)], 0.0, ALL_WINDOWS),  # the bound may have changed by then
        (0, [], 0.0, ALL_WINDOWS),
        (0, [(0.0, 1)], 5.0, ALL_WINDOWS),
    ],
)
def test_th_01_the_delay_lasts_until_the_rate_is_below_the_quota(bound, history, now, expected):
    assert seconds_to_wait(quota(bound, *history), now) == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "bound"), [(10, 100), (99, 100), (1000, 100), (32_000, 1000)])
def test_th_01_th_02_in_the_long_run_the_bound_is_kept_whatever_the_size_of_a_batch(batch, bound):
    """A follower with an endless backlog takes one batch whenever it may."""
    now, total, found = 0.0, 0, Quota(bound)
    while now < 1000:
        if is_exceeded(found, now):
            now += seconds_to_wait(found, now)
            continue
        taken = max(batch, allowance(found, now) // batch * batch)
        total, found = total + taken, recorded(found, now, taken)
    assert 0.5 * bound < total / now <= 1.2 * bound + batch / now


@pytest.mark.parametrize("bound", [0, 1])
def test_th_02_the_samples_of_a_quota_are_bounded(bound):
    """Members of the ISR fetch without limit, and their bytes are counted."""
    found = quota(bound, *((float(second), 10**9) for second in range(1000)))
    assert 11 <= len(found.samples) < 200
    assert rate(found, 1000.0) == pytest.approx(10**9, rel=0.01)


def test_th_02_a_changed_bound_counts_from_now_on():
    before = quota(100, (0.0, 10**6))
    assert under_bound(before, 100) == before
    assert under_bound(before, 200) == Quota(200)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 0, 0), (0, 3, 1), (0, 4, 11), (3, 9, 110), (4, 9, 100), (0, 20, 111), (20, 30, 0), (9, 3, 0)],
)
def test_th_02_the_bytes_of_the_batches_that_a_follower_has_got(start, stop, expected):
    log = PartitionLog()
    for base, last, size in ((0, 2, 1), (3, 5, 10), (6, 9, 100)):
        log.add(BatchHeader("t", "t-id", 0, 0, base, last, 0, size), "segment")
    assert bytes_between(log, start, stop) == expected
