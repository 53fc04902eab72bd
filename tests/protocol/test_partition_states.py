import itertools

import pytest

from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.partition_states import VALID_PREVIOUS_STATES, initial_state, is_valid
from tests.registrations import joined

NON_EXISTENT, NEW, ONLINE, OFFLINE = STATES = (
    "NonExistentPartition",
    "NewPartition",
    "OnlinePartition",
    "OfflinePartition",
)
VALID = {
    (NON_EXISTENT, NEW),
    (NEW, ONLINE),
    (NEW, OFFLINE),
    (ONLINE, ONLINE),
    (ONLINE, OFFLINE),
    (OFFLINE, ONLINE),
    (OFFLINE, OFFLINE),
    (OFFLINE, NON_EXISTENT),
}


def test_ps_01_partition_states_have_kafkas_names():
    assert set(VALID_PREVIOUS_STATES) == set(STATES)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_ps_01_partition_moves_are_kafkas(before, after):
    assert is_valid(before, after) is ((before, after) in VALID)


@pytest.mark.parametrize(
    ("leader", "isr", "live", "expected"),
    [
        pytest.param(1, (1, 2), {1, 2}, ONLINE, id="the leader is live"),
        pytest.param(1, (1, 2), {1}, ONLINE, id="a dead follower does not matter"),
        pytest.param(1, (1, 2), {2, 3}, OFFLINE, id="the leader is dead"),
        pytest.param(NO_LEADER, (1,), {2, 3}, OFFLINE, id="the last member is dead"),
        pytest.param(NO_LEADER, (1,), {1, 2, 3}, OFFLINE, id="the last member is back but not elected yet"),
        pytest.param(NO_LEADER, (), {1, 2, 3}, NEW, id="no leader yet"),
        pytest.param(NO_LEADER, (), (), NEW, id="no leader yet and nobody alive"),
    ],
)
def test_ps_03_the_initial_state_of_a_partition_follows_from_its_leader(leader, isr, live, expected):
    registration = joined(PartitionRegistration("flights", "id-1", 4, (1, 2, 3), leader, leader_epoch=5, isr=isr))
    assert initial_state(registration, dict.fromkeys(live, 1)) == expected


@pytest.mark.parametrize(("elected", "now", "expected"), [(7, 7, ONLINE), (7, 8, OFFLINE), (8, 7, OFFLINE)])
def test_ps_03_bc_01_a_leader_whose_process_is_another_one_leads_no_more(elected, now, expected):
    registration = joined(PartitionRegistration("flights", "id-1", 4, (1, 2), 1, leader_epoch=5, isr=(1, 2)), elected)
    assert initial_state(registration, {1: now, 2: elected}) == expected


@pytest.mark.parametrize(("live", "expected"), [({2}, ONLINE), ((), NEW)], ids=["somebody alive", "nobody alive"])
def test_ps_03_a_partition_that_never_had_a_leader_is_new(live, expected):
    made = joined(new_partition("flights", "id-1", 4, (1, 2, 3), live))
    assert initial_state(made, dict.fromkeys(live, 1)) == expected
