import pytest

from lakelog.replication.protocol.high_watermark import (
    effective_min_isr,
    follower_high_watermark,
    leader_high_watermark,
)

CASES = {
    # case: (current, leader LEO, LEOs of others, ISR, caught up, min ISR) -> HW; broker 1 leads
    "least LEO of the ISR": ((5, 20, {2: 12, 3: 15}, {1, 2, 3}, (), 1), 12),
    "leader alone": ((5, 20, {}, {1}, (), 1), 20),
    "the leader itself may be the least": ((5, 20, {2: 25}, {1, 2}, (), 1), 20),
    "out of the ISR does not count": ((5, 20, {2: 12, 3: 7}, {1, 2}, (), 1), 12),
    "caught up holds it back": ((5, 20, {2: 12, 3: 7}, {1, 2}, {3}, 1), 7),
    "caught up and in the ISR": ((5, 20, {2: 12, 3: 7}, {1, 2}, {2}, 1), 12),
    "never falls": ((15, 20, {2: 12}, {1, 2}, (), 1), 15),
    "a member without a row that counts": ((5, 20, {2: 12}, {1, 2, 3}, (), 1), 5),
    "caught up without a row that counts": ((5, 20, {2: 12}, {1, 2}, {3}, 1), 5),
    "a row of the leader is not asked": ((5, 20, {1: 3, 2: 12}, {1, 2}, (), 1), 12),
    "KIP-966: below min ISR": ((5, 20, {2: 12}, {1}, (), 2), 5),
    "KIP-966: at min ISR": ((5, 20, {2: 12}, {1, 2}, (), 2), 12),
    "KIP-966: caught up is not in sync": ((5, 20, {2: 12}, {1}, {2}, 2), 5),
}


@pytest.mark.parametrize("case", CASES)
def test_hw_01_the_leader_hw_is_the_least_leo_of_isr_and_caught_up_followers(case):
    (current, leader_leo, leos, isr, caught_up, min_isr), expected = CASES[case]
    assert leader_high_watermark(current, leader_leo, leos, isr, 1, caught_up, min_isr) == expected


@pytest.mark.parametrize(("leader", "leo", "expected"), [(10, 20, 10), (20, 10, 10), (10, 10, 10), (10, 0, 0)])
def test_hw_03_the_follower_hw_is_capped_at_its_leo(leader, leo, expected):
    assert follower_high_watermark(leader, leo) == expected


@pytest.mark.parametrize(("min_insync_replicas", "replicas", "expected"), [(2, 3, 2), (3, 1, 1), (1, 3, 1)])
def test_hw_01_min_isr_is_at_most_the_number_of_replicas(min_insync_replicas, replicas, expected):
    assert effective_min_isr(min_insync_replicas, replicas) == expected
