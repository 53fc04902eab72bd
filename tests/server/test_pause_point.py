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


def test_who_is_alive_passes():
    pause_point = PausePoint()
    pause_point.pass_through()
    assert (pause_point.is_paused, pause_point.is_killed) == (False, False)


def test_who_is_killed_stops_at_the_next_step_and_at_every_later_one():
    pause_point = PausePoint()
    pause_point.kill()
    assert killed(pause_point)
    pause_point.resume()
    assert killed(pause_point)
    assert pause_point.is_killed


@pytest.mark.parametrize("end", [PausePoint.resume, PausePoint.kill], ids=["resumed", "killed"])
def test_who_is_paused_waits_until_it_is(end):
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


def test_a_pause_point_knows_when_the_thread_that_it_watches_passed_last():
    clock = Clock()
    pause_point, watched = PausePoint(clock), threading.current_thread()
    pause_point.watch(watched)
    clock.now += 3
    assert ends(in_background(pause_point.pass_through))
    assert pause_point.seconds_since_passed() == 3, "another thread has passed"
    pause_point.pass_through()
    assert pause_point.seconds_since_passed() == 0
