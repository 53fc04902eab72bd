"""A heartbeat continues through errors, and ends with its broker."""

import threading

import pytest

from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint, PeriodicTask, WhileMoving
from tests.clock import Clock
from tests.hanging import Hanging
from tests.processes import wait_until


class Beats:
    """Counts beats. The first ones raise the given errors."""

    def __init__(self, *errors):
        self.count = 0
        self._errors = list(errors)

    def __call__(self):
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)


class WatchedPausePoint(PausePoint):
    """Signals when a thread has reached it."""

    def __init__(self):
        super().__init__()
        self.reached = threading.Event()

    def pass_through(self):
        self.reached.set()
        super().pass_through()


@pytest.fixture
def pause_point():
    return WatchedPausePoint()


@pytest.fixture
def start(pause_point):
    """Starts heartbeats that end with the test."""
    started = []

    def begin(beat, interval_ms=1):
        heartbeat = PeriodicTask("broker-77", "heartbeat", interval_ms, pause_point, beat)
        heartbeat.start()
        started.append(heartbeat)
        return heartbeat

    yield begin
    pause_point.kill()
    for heartbeat in started:
        heartbeat.stop()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "broker-77-heartbeat"]


def test_bc_01_a_periodic_task_works_until_it_is_stopped(start):
    beats = Beats()
    heartbeat = start(beats)
    wait_until(lambda: beats.count >= 3, "three beats")
    heartbeat.stop()
    assert threads() == [], "no beat is under way any more"


def test_a_woken_task_works_at_once_and_once_more_if_it_is_at_work(start):
    beat = Hanging()
    counted = []
    heartbeat = start(lambda: (beat(), counted.append(1)), interval_ms=3_600_000)
    heartbeat.wake()
    assert beat.is_entered.wait(10)
    heartbeat.wake()
    beat.let_go()
    wait_until(lambda: len(counted) == 2, "a beat for each wake")
    heartbeat.stop()
    assert (len(counted), threads()) == (2, []), "a stop does not wait for the interval either"


def test_bc_01_a_transient_error_does_not_end_a_periodic_task(start, caplog):
    error = KafkaStorageException("later")
    beats = Beats(error, error)
    start(beats)
    wait_until(lambda: beats.count >= 4, "beats after the errors")
    assert [record.getMessage() for record in caplog.records][:1] == [f"broker-77: heartbeat: {error}"]


def test_an_unexpected_error_is_logged_and_does_not_end_a_periodic_task(start, caplog):
    beats = Beats(ZeroDivisionError("a bug"))
    start(beats)
    wait_until(lambda: beats.count >= 2, "a beat after the error")
    assert "broker-77: heartbeat: unexpected error" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.parametrize("error", [StaleBrokerEpochException("fenced"), BrokerKilled()], ids=repr)
def test_bc_01_a_fenced_or_killed_broker_sends_no_heartbeat(start, error):
    beats = Beats(error)
    start(beats)
    wait_until(lambda: threads() == [], "the end of the heartbeat")
    assert beats.count == 1


def test_bc_01_a_paused_broker_sends_no_heartbeat_until_it_is_resumed(start, pause_point):
    beats = Beats()
    pause_point.pause()
    start(beats)
    assert pause_point.reached.wait(10)
    assert (beats.count, len(threads())) == (0, 1)
    pause_point.resume()
    wait_until(lambda: beats.count >= 1, "a beat")


def test_bc_01_a_broker_killed_during_a_pause_never_sends_a_heartbeat(start, pause_point):
    beats = Beats()
    pause_point.pause()
    heartbeat = start(beats)
    assert pause_point.reached.wait(10)
    pause_point.kill()
    heartbeat.stop()
    assert (beats.count, threads()) == (0, [])


def test_a_task_that_was_never_started_can_be_stopped(pause_point):
    PeriodicTask("broker-77", "heartbeat", 1, pause_point, Beats()).stop()
    assert threads() == []


def test_bc_01_heartbeats_stop_while_the_broker_thread_hangs_with_one_log_line(caplog):
    clock, beats = Clock(), Beats()
    pause_point = PausePoint(clock)
    pause_point.watch(threading.current_thread())
    beat = WhileMoving("broker-77", pause_point, 12.0, beats)
    counts = []
    for seconds in (12.0, 0.1, 30.0):
        clock.now += seconds
        beat()
        counts.append(beats.count)
    pause_point.pass_through()
    beat()
    assert [*counts, beats.count] == [1, 1, 1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "broker-77: its own thread has not moved for 12 s: no heartbeats until it does"
    ]
