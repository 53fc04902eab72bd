"""The fetch states of one fetcher, shared by its query's thread and its broker's threads."""

import pytest

from lakelog.replication.protocol.fetch_state import NEVER, InitialFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates, backoff_ms
from tests.clock import Clock
from tests.hanging import ends, in_background

P0, P1 = TopicIdPartition("t", 0), TopicIdPartition("t", 1)


def assigned(*partitions, clock=None, drawn=0.5):
    states = SharedFetchStates(clock or Clock(), lambda: drawn)
    states.assign({p: InitialFetchState("t", 1, 0, 0) for p in partitions})
    return states


def test_fm_07_a_removal_waits_for_a_running_write():
    states = assigned(P0, P1)
    with states.held(states.removals):
        removal = in_background(lambda: states.remove([P0]))
        removal.join(0.05)
        assert removal.is_alive(), "it waits"
        assert states.all().get(P0) is not None
    assert ends(removal)
    assert (states.all().get(P0), states.all().get(P1) is None) == (None, False)


def test_fm_07_a_removal_does_not_wait_for_a_fetcher_without_the_partitions():
    states = assigned(P1)
    with states.held(states.removals):
        assert ends(in_background(lambda: states.remove([P0])))
    with states.held(0):
        pass


@pytest.mark.parametrize(
    ("failures", "drawn", "wait"),
    [
        (1, 0.5, 1000), (2, 0.5, 2000), (3, 0.5, 4000), (4, 0.5, 5000), (5, 0.5, 5000), (10**6, 0.5, 5000),
        (1, 0.0, 800), (1, 1.0, 1200), (3, 0.0, 3200), (5, 0.0, 4000), (5, 1.0, 5000),
    ],
)  # fmt: skip
def test_ft_13_a_backoff_doubles_up_to_five_times_the_first_with_a_fifth_of_jitter(failures, drawn, wait):
    assert backoff_ms(1000, failures, drawn) == pytest.approx(wait)


def waits(states, clock, error="error", backoff=1000):
    """How long the partition waits after a failure. Lets the wait end."""
    states.delay(P0, error, backoff)
    seconds = states.all().get(P0).delayed_until - clock.now
    clock.now += seconds
    assert states.end_delays()
    return seconds


def test_ft_13_a_partition_that_fails_in_a_row_waits_longer_until_it_has_been_fetched():
    clock = Clock()
    states = assigned(P0, P1, clock=clock)
    states.truncated(P0, 0)
    assert [waits(states, clock) for _ in range(5)] == [1, 2, 4, 5, 5]
    states.advanced(P0, 0)
    assert waits(states, clock) == 1


def test_ft_13_a_partition_that_follows_another_epoch_begins_with_the_first_backoff():
    clock = Clock()
    states = assigned(P0, clock=clock)
    assert [waits(states, clock) for _ in range(2)] == [1, 2]
    states.remove([P0])
    states.assign({P0: InitialFetchState("t", 1, 1, 0)})
    assert waits(states, clock) == 1


def test_ft_13_an_error_during_a_delay_does_not_lengthen_the_backoff():
    clock = Clock()
    states = assigned(P0, clock=clock)
    states.delay(P0, "first", 1000)
    states.delay(P0, "second", 1000)
    assert states.all().get(P0).delayed_until == clock.now + 1
    clock.now += 1
    states.end_delays()
    assert waits(states, clock) == 2


def test_th_01_a_delay_by_a_quota_is_not_a_failure():
    clock = Clock()
    states = assigned(P0, clock=clock, drawn=0.0)
    assert [waits(states, clock, None, 3000) for _ in range(3)] == [3, 3, 3]
    assert waits(states, clock) == pytest.approx(0.8)


def test_ft_14_a_partition_that_waits_for_another_epoch_has_no_end_of_its_delay():
    states = assigned(P0, drawn=0.0)
    states.delay(P0, "fenced", NEVER)
    assert states.all().get(P0).delayed_until == NEVER


def test_ft_13_fetchers_that_fail_together_retry_at_different_times():
    due = set()
    for drawn in (0.0, 0.3, 0.9):
        states = assigned(P0, P1, drawn=drawn)
        for partition in (P0, P1):
            states.delay(partition, "error", 1000)
        due.add(tuple({state.delayed_until for state in states.all().values()}))
    assert [len(together) for together in due] == [1, 1, 1]
    assert len(due) == 3
