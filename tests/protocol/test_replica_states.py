import itertools

import pytest

from lakelog.replication.protocol.replica_states import VALID_PREVIOUS_STATES, initial_state, is_valid

NON_EXISTENT, NEW, ONLINE, OFFLINE, STARTED, SUCCESSFUL, INELIGIBLE = STATES = (
    "NonExistentReplica",
    "NewReplica",
    "OnlineReplica",
    "OfflineReplica",
    "ReplicaDeletionStarted",
    "ReplicaDeletionSuccessful",
    "ReplicaDeletionIneligible",
)
VALID = {
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, ONLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, ONLINE),
    (OFFLINE, OFFLINE),
    (OFFLINE, STARTED),
    (OFFLINE, INELIGIBLE),
    (STARTED, SUCCESSFUL),
    (STARTED, INELIGIBLE),
    (INELIGIBLE, ONLINE),
    (INELIGIBLE, OFFLINE),
    (SUCCESSFUL, NON_EXISTENT),
}


def test_rs_01_replica_states_have_kafkas_names():
    assert set(VALID_PREVIOUS_STATES) == set(STATES)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_rs_01_replica_moves_are_kafkas(before, after):
    assert is_valid(before, after) is ((before, after) in VALID)


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param({1, 2}, ONLINE, id="live"),
        pytest.param({2}, INELIGIBLE, id="dead"),
        pytest.param((), INELIGIBLE, id="nobody alive"),
    ],
)
def test_rs_04_the_initial_state_of_a_replica_follows_from_its_broker(live, expected):
    assert initial_state(1, live) == expected


@pytest.mark.parametrize("live", [{1}, ()], ids=["live", "dead"])
def test_rs_04_from_where_a_replica_starts_it_may_come_online_when_its_broker_does(live):
    assert is_valid(initial_state(1, live), ONLINE)
