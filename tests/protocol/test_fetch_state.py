import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol import fetch_state
from lakelog.replication.protocol.fetch_state import (
    NEVER,
    TRANSITIONS,
    FollowerState,
    PartitionFetchState,
    advanced,
    assigned,
    caught_up,
    delayed,
    diverged,
    fell_behind,
    ready,
    truncated,
)

TRUNCATING = PartitionFetchState("id", 0, leader_epoch=3, fetch_offset=100)
FETCHING = truncated(TRUNCATING, 90)
DELAYED_FETCHING = delayed(FETCHING, "KafkaStorageException", until=10.0)
DELAYED_TRUNCATING = delayed(TRUNCATING, "KafkaStorageException", until=10.0)
EVERY_STATE = {
    "Truncating": TRUNCATING,
    "Fetching": FETCHING,
    "Delayed, Fetching below": DELAYED_FETCHING,
    "Delayed, Truncating below": DELAYED_TRUNCATING,
}

MOVES = {
    "assigned": lambda state: assigned(state, "id", 0, 4, 100),
    "truncated": lambda state: truncated(state, 80),
    "diverged": lambda state: diverged(state, "DIVERGED"),
    "advanced": lambda state: advanced(state, 120),
    "fell_behind": fell_behind,
    "caught_up": caught_up,
    "delayed": lambda state: delayed(state, "later", 20.0),
    "ready": lambda state: ready(state, 30.0),
}


def test_fs_01_fetch_states_have_the_names_of_the_replicas_table():
    assert (FollowerState.FETCHING, FollowerState.TRUNCATING, FollowerState.DELAYED) == (
        "Fetching",
        "Truncating",
        "Delayed",
    )


@pytest.mark.parametrize(
    ("state", "shown", "is_ready", "is_ready_after_the_delay"),
    [
        (TRUNCATING, "Truncating", False, False),
        (FETCHING, "Fetching", True, True),
        (DELAYED_FETCHING, "Delayed", False, True),
        (DELAYED_TRUNCATING, "Delayed", False, False),
    ],
)
def test_fs_01_only_a_fetching_partition_without_delay_is_fetched(state, shown, is_ready, is_ready_after_the_delay):
    assert state.shown_state == shown
    assert state.is_ready_for_fetch is is_ready
    assert ready(state, 10.0).is_ready_for_fetch is is_ready_after_the_delay


@pytest.mark.parametrize("name", EVERY_STATE)
@pytest.mark.parametrize("transition", MOVES)
def test_fs_01_transitions_outside_the_table_are_refused(transition, name):
    state = EVERY_STATE[name]
    allowed = {before for before, _ in TRANSITIONS[transition]}
    if state.shown_state in allowed:
        after = MOVES[transition](state)
        assert (state.shown_state, after.shown_state) in TRANSITIONS[transition]
    elif transition == "ready":
        assert ready(state, 30.0) is state
    else:
        with pytest.raises(ValueError, match=f"partition 0 is {state.shown_state}"):
            MOVES[transition](state)


def test_fs_01_every_transition_is_tested_and_every_listed_move_happens():
    assert MOVES.keys() == TRANSITIONS.keys()
    for transition, listed in TRANSITIONS.items():
        able = [state for state in EVERY_STATE.values() if state.shown_state in {before for before, _ in listed}]
        assert {(state.shown_state, MOVES[transition](state).shown_state) for state in able} == listed


@pytest.mark.parametrize(
    ("current", "epoch", "expected"),
    [
        pytest.param(None, 3, TRUNCATING, id="new"),
        pytest.param(FETCHING, 3, FETCHING, id="same epoch: kept"),
        pytest.param(DELAYED_FETCHING, 3, DELAYED_FETCHING, id="same epoch: kept with its delay"),
        pytest.param(FETCHING, 4, replace(TRUNCATING, leader_epoch=4), id="new epoch: from scratch"),
        pytest.param(DELAYED_FETCHING, 4, replace(TRUNCATING, leader_epoch=4), id="new epoch ends a delay"),
        pytest.param(replace(FETCHING, topic_id="old"), 3, TRUNCATING, id="the topic was made again"),
    ],
)
def test_fs_02_only_a_new_epoch_or_topic_id_restarts_at_truncating(current, epoch, expected):
    assert assigned(current, "id", 0, epoch, 100) == expected


def test_fs_02_a_new_partition_reads_a_snapshot_first():
    assert assigned(None, "id", 0, 3, 100) == PartitionFetchState("id", 0, 3, 100, "Truncating", None, lagging=True)


def test_fs_01_truncated_starts_from_a_snapshot():
    assert truncated(TRUNCATING, 90) == PartitionFetchState("id", 0, 3, 90, "Fetching", None, lagging=True)


def test_fs_01_a_partition_lags_until_the_snapshot_is_read():
    followed = caught_up(FETCHING)
    assert (followed.lagging, fell_behind(followed).lagging) == (False, True)


@pytest.mark.parametrize("state", [FETCHING, caught_up(FETCHING), TRUNCATING])
def test_tr_08_a_diverged_partition_keeps_its_error_until_it_is_truncated_again(state):
    found = diverged(state, "DIVERGED: it differs")
    assert (found.shown_state, found.is_ready_for_fetch, found.error) == ("Truncating", False, "DIVERGED: it differs")
    assert (found.diverged, found.lagging, found.fetch_offset) == (True, True, state.fetch_offset)
    assert diverged(found, "DIVERGED: it differs") == found, "told twice before it is truncated"
    assert truncated(found, 40) == replace(FETCHING, fetch_offset=40)


def test_tr_08_ft_15_a_delay_keeps_the_divergence():
    waiting = delayed(diverged(FETCHING, "DIVERGED"), "KafkaStorageException", until=10.0)
    assert (waiting.diverged, waiting.shown_state) == (True, "Delayed")
    assert (ready(waiting, 10.0).diverged, ready(waiting, 10.0).shown_state) == (True, "Truncating")


def test_tr_08_fs_02_a_new_epoch_clears_the_divergence():
    assert assigned(diverged(FETCHING, "DIVERGED"), "id", 0, 4, 80) == PartitionFetchState("id", 0, 4, 80)


@pytest.mark.parametrize(
    ("offset", "high_watermark", "lag"),
    [
        pytest.param(110, 130, 20, id="committed and not here yet"),
        pytest.param(110, 110, 0, id="all that is committed is here"),
        pytest.param(110, 105, 0, id="ahead of the HW, not behind it"),
        pytest.param(110, None, None, id="unknown as long as the leader has told no HW"),
    ],
)
def test_ft_08_the_lag_is_what_the_leaders_hw_is_ahead_of_the_next_offset(offset, high_watermark, lag):
    assert advanced(truncated(TRUNCATING, 90), offset, high_watermark).lag == lag


def test_ft_07_a_fetch_offset_only_rises():
    assert advanced(FETCHING, 95) == replace(FETCHING, fetch_offset=95)
    assert advanced(FETCHING, 90) == FETCHING
    with pytest.raises(ValueError, match="fetch offset 90 cannot go back to 89"):
        advanced(FETCHING, 89)


@pytest.mark.parametrize("state", [FETCHING, TRUNCATING])
def test_ft_15_offset_and_state_are_kept_under_a_delay(state):
    waiting = delayed(state, "CorruptRecordException", until=10.0)
    assert (waiting.fetch_offset, waiting.state) == (state.fetch_offset, state.state)
    assert (waiting.error, waiting.delayed_until) == ("CorruptRecordException", 10.0)
    assert ready(waiting, 9.9) is waiting
    assert ready(waiting, 10.0) == replace(state, error="CorruptRecordException")


@pytest.mark.parametrize("error", ["CorruptRecordException: gone", "DIVERGED"])
def test_ft_15_tr_08_a_partition_keeps_its_error_until_it_has_fetched_again(error):
    """The end of a delay, or a quota, is no progress: the fetch may fail again."""
    again = ready(delayed(FETCHING, error, until=10.0), 10.0)
    throttled = ready(delayed(again, None, until=20.0), 20.0)
    assert (again.error, fell_behind(again).error, throttled.error) == (error, error, error)
    assert advanced(throttled, 95).error is None
    diverges = ready(delayed(diverged(again, error), "KafkaStorageException", until=10.0), 10.0)
    assert (diverges.error, truncated(diverges, 80).error) == ("KafkaStorageException", None)


def test_th_01_a_delay_by_a_quota_has_no_error():
    waiting = delayed(fell_behind(FETCHING), None, until=10.0)
    assert (waiting.shown_state, waiting.error, waiting.lagging) == ("Delayed", None, True)
    failed = delayed(waiting, "FencedLeaderEpochException", NEVER)
    assert delayed(failed, None, 99.0) is failed, "a quota does not revive what has failed"


def test_ft_15_the_longer_of_two_delays_holds():
    failed = delayed(DELAYED_FETCHING, "FencedLeaderEpochException", NEVER)
    assert (failed.delayed_until, failed.error) == (NEVER, "FencedLeaderEpochException")
    assert delayed(failed, "TimeoutException", 99.0) is failed
    assert ready(failed, 1e12) is failed


@pytest.mark.parametrize("error", ["CorruptRecordException", "KafkaStorageException", "NotLeaderOrFollowerException"])
@pytest.mark.parametrize("state", [FETCHING, caught_up(FETCHING), TRUNCATING])
def test_ft_13_ft_14_an_error_that_may_pass_delays_and_takes_nothing_back(state, error):
    waiting = delayed(fell_behind(state), error, until=10.0)
    assert (waiting.shown_state, waiting.error, waiting.is_ready_for_fetch) == ("Delayed", error, False)
    assert ready(waiting, 10.0) == replace(state, lagging=True, error=error)


@pytest.mark.parametrize("name", EVERY_STATE)
def test_ft_14_fm_10_a_failed_partition_waits_for_a_new_leader_epoch(name):
    failed = delayed(EVERY_STATE[name], "FencedLeaderEpochException", NEVER)
    assert not ready(failed, 1e12).is_ready_for_fetch
    assert assigned(failed, "id", 0, 3, 100) is failed, "the same epoch says nothing new"
    assert assigned(failed, "id", 0, 4, 80) == PartitionFetchState("id", 0, 4, 80)


def test_fs_01_fs_02_tr_08_only_a_new_epoch_or_another_history_leads_back_to_truncating_in_any_order_of_moves():
    """Over all short sequences of moves: a replica that may be fetched has been truncated under its epoch, and since
    its history was found to differ."""
    for names in itertools.product(MOVES, repeat=4):
        state, is_truncated = TRUNCATING, False
        for name in names:
            before = state
            try:
                state = MOVES[name](state)
            except ValueError:
                continue
            is_truncated = (is_truncated or name == "truncated") and before.leader_epoch == state.leader_epoch
            is_truncated = is_truncated and name != "diverged"
            assert state.diverged <= (state.state == FollowerState.TRUNCATING), names
            assert (state.state == FollowerState.FETCHING) == is_truncated, names


def test_every_transition_is_a_function():
    functions = {name for name in TRANSITIONS if hasattr(fetch_state, name)}
    assert functions == TRANSITIONS.keys()
