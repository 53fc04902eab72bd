"""Which members are dead, by the observer's clock, and how long a member trusts itself. The test moves the clock."""

import dataclasses

import pytest

from lakelog.replication.protocol.consumer_group import ConsumerGroup, MemberLiveness, is_trusted
from tests.clock import Clock
from tests.protocol.test_consumer_group import member


def group(**beats):
    return ConsumerGroup(1, tuple(dataclasses.replace(member(name), heartbeat=beat) for name, beat in beats.items()))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def liveness(clock):
    return MemberLiveness(clock)


def test_ap_04_a_member_is_dead_when_its_heartbeat_has_not_moved_for_its_session_timeout(liveness, clock):
    found = []
    for a, b in ((1, 1), (2, 1), (3, 1), (3, 2), (3, 3)):
        found.append(liveness.dead(group(a=a, b=b)))
        clock.now += 3
    assert found == [set(), set(), {"b"}, set(), {"a"}], "6 s, the end of the time-out, are too long"


def test_ap_04_a_new_observer_waits_for_the_whole_session_timeout(liveness, clock):
    clock.now += 1000
    assert liveness.dead(group(a=7)) == set()


def test_ap_04_a_member_that_rejoined_is_timed_anew(liveness, clock):
    liveness.dead(group(a=1))
    liveness.dead(group(b=1))
    clock.now += 6
    assert liveness.dead(group(a=1, b=1)) == {"b"}


@pytest.mark.parametrize(("passed", "trusted"), [(0, True), (3.9, True), (4, False), (6, False)])
def test_ap_04_a_member_stops_a_heartbeat_interval_before_others_take_it_for_dead(passed, trusted):
    assert is_trusted(100 + passed, 100, 6000, 2000) == trusted
