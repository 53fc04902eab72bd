"""Which brokers are alive, by the observer's clock. The test moves it."""

import dataclasses

import pytest

from lakelog.replication.protocol.broker_registration import BrokerRegistration, Liveness
from tests.clock import Clock

BROKER = BrokerRegistration(1, "/1", None, 7, -1, False, None, "log", 0)


def broker(broker_id=1, **changes):
    return {broker_id: dataclasses.replace(BROKER, broker_id=broker_id, **changes)}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def liveness(clock):
    return Liveness(6000, clock)


def test_bc_01_a_broker_seen_first_is_alive_for_one_session_timeout(liveness, clock):
    """An observer that has just started knows nothing of the past, and declares no broker dead."""
    seen = []
    for _ in range(4):
        seen.append(liveness.observe(broker()))
        clock.now += 3
    assert seen == [{1}, {1}, {1}, set()], "6 s are allowed, 9 s are not"


@pytest.mark.parametrize(
    ("changes", "lives"),
    [
        ({"heartbeat": 1}, True),
        ({"heartbeat": 0, "broker_epoch": 8}, True),
        ({"log_version": 9, "metadata_version": 9}, False),
        ({"root": "/elsewhere"}, False),
        ({"heartbeat": 1, "shutting_down": True}, False),
    ],
    ids=str,
)
def test_bc_01_only_a_heartbeat_or_a_new_epoch_counts_as_life(liveness, clock, changes, lives):
    liveness.observe(broker())
    clock.now += 7
    assert liveness.observe(broker(**changes)) == ({1} if lives else set())


def test_bc_01_a_heartbeat_that_is_read_late_counts_from_when_it_is_read(liveness, clock):
    """No clocks are compared: the observer knows only when it saw the counter move."""
    liveness.observe(broker())
    clock.now += 100
    assert liveness.observe(broker(heartbeat=1)) == {1}
    clock.now += 6
    assert liveness.observe(broker(heartbeat=1)) == {1}
    clock.now += 1
    assert liveness.observe(broker(heartbeat=1)) == set()


def test_bc_01_a_dead_broker_is_alive_again_after_a_heartbeat(liveness, clock):
    liveness.observe(broker())
    clock.now += 7
    assert liveness.observe(broker()) == set()
    assert liveness.observe(broker(heartbeat=1)) == {1}


def test_cs_04_a_broker_that_shuts_down_is_not_alive_until_it_starts_again(liveness):
    assert liveness.observe(broker(shutting_down=True)) == set()
    assert liveness.observe(broker(broker_epoch=8)) == {1}


def test_each_broker_has_its_own_session(liveness, clock):
    liveness.observe({**broker(1), **broker(2)})
    clock.now += 4
    liveness.observe({**broker(1, heartbeat=1), **broker(2)})
    clock.now += 4
    assert liveness.observe({**broker(1, heartbeat=1), **broker(2), **broker(3)}) == {1, 3}
    assert liveness.observe({}) == set()
