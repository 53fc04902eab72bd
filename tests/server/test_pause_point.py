"""A pause point: where a broker may be frozen or killed."""

import threading

import pytest

from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint
from tests.clock import Clock
from tests.hanging import ends, in_background


def killed(pause_point):
    with pytest.raises(BrokerKilled):
        pause_point.pass_through()
    return True


def test_a_running_broker_passes_the_pause_point():
    pause_point = PausePoint()
    pause_point.pass_through()
    assert (pause_point.is_paused, pause_point.is_killed) == (False, False)


def test_a_killed_broker_stops_at_each_later_step():
    pause_point = PausePoint()
    pause_point.kill()
    assert killed(pause_point)
    pause_point.resume()
    assert killed(pause_point)
    assert pause_point.is_killed


@pytest.mark.parametrize("end", [PausePoint.resume, PausePoint.kill], ids=["resumed", "killed"])
def test_a_paused_broker_waits_until_it_is_resumed_or_killed(end):
    pause_point, passed, outcomes = PausePoint(), threading.Event(), []

    def work():
        try:
            pause_point.pass_through()
            outcomes.append("passed")
        except BrokerKilled:
            outcomes.append("killed")
        passed.set()

    pause_point.pause()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert pause_point.is_paused
    assert not passed.wait(0.05), "it waits"
    end(pause_point)
    assert passed.wait(30)
    thread.join()
    assert outcomes == ["killed" if end is PausePoint.kill else "passed"]
    assert not pause_point.is_paused


def test_a_pause_point_measures_the_time_since_its_watched_thread_passed():
    clock = Clock()
    pause_point, watched = PausePoint(clock), threading.current_thread()
    pause_point.watch(watched)
    clock.now += 3
    assert ends(in_background(pause_point.pass_through))
    assert pause_point.seconds_since_passed() == 3, "another thread has passed"
    pause_point.pass_through()
    assert pause_point.seconds_since_passed() == 0
