"""Delays and transitions of a fetcher's partitions, with a clock that the test moves."""

import pytest

from lakelog.replication.protocol.fetch_state import FetchStates, FollowerState, InitialFetchState, NoLongerFetched
from lakelog.replication.protocol.record_batch import TopicIdPartition
from tests.clock import Clock

P0, P1 = TopicIdPartition("t", 0), TopicIdPartition("t", 1)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def states(clock):
    made = FetchStates(clock)
    made.assign({p: InitialFetchState("t", 1, 0, 5) for p in (P0, P1)})
    return made


def test_fs_02_a_new_partition_is_truncating_and_lags(states):
    assert states.all().get(P0).state == FollowerState.TRUNCATING
    assert states.all().get(P0).lagging
    assert set(states.truncating()) == {P0, P1}
    assert states.fetchable() == {}


def test_fs_02_the_same_assignment_again_changes_nothing(states):
    states.truncated(P0, 5)
    assert not states.assign({P0: InitialFetchState("t", 1, 0, 5)})
    assert states.all().get(P0).state == FollowerState.FETCHING


def test_fs_02_a_new_epoch_is_truncating_again(states):
    states.truncated(P0, 5)
    assert states.assign({P0: InitialFetchState("t", 2, 1, 5)})
    assert states.all().get(P0).state == FollowerState.TRUNCATING


def test_ft_15_a_delayed_partition_is_left_out_until_its_delay_is_over(states, clock):
    for partition in (P0, P1):
        states.truncated(partition, 5)
    states.delay(P0, "KafkaStorageException: gone", backoff_ms=1000)
    assert set(states.fetchable()) == {P1}
    assert (states.all().get(P0).shown_state, states.all().get(P0).error) == (
        FollowerState.DELAYED,
        "KafkaStorageException: gone",
    )
    assert not states.has_due()
    clock.now += 1
    assert states.has_due()
    assert states.end_delays()
    assert set(states.fetchable()) == {P0, P1}
    assert states.all().get(P0).error == "KafkaStorageException: gone"
    states.advanced(P0, 5)
    assert states.all().get(P0).error is None


def test_ft_15_a_partition_lags_after_a_delay(states):
    states.truncated(P0, 5)
    states.caught_up(P0)
    states.delay(P0, "error", backoff_ms=1000)
    assert states.all().get(P0).lagging
    assert states.all().get(P0).fetch_offset == 5


def test_fm_07_a_removed_partition_is_not_moved_any_more(states):
    states.remove([P0])
    states.truncated(P0, 5)
    assert states.all().get(P0) is None
    assert len(states) == 1


@pytest.mark.parametrize("is_given_back", [False, True])
def test_fm_09_a_round_writes_nothing_once_any_of_its_partitions_was_removed(is_given_back):
    """Also if the partition is fetched again by then: the round decided before its removal."""
    states = FetchStates(Clock())
    states.assign({p: InitialFetchState("t", 1, 0, 0) for p in (P0, P1)})
    removals = states.removals
    states.remove([P0])
    if is_given_back:
        states.assign({P0: InitialFetchState("t", 1, 0, 0)})
    with pytest.raises(NoLongerFetched), states.held(removals):
        raise AssertionError("nothing may be written")
