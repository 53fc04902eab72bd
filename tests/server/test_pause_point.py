"""A gate: where a broker may be frozen or ended."""

import threading

import pytest

from lakelog.replication.server.pause_point import BrokerKilled, Gate
from tests.clock import Clock
from tests.hanging import ends, in_background


def killed(gate):
    with pytest.raises(BrokerKilled):
        gate.pass_through()
    return True


def test_who_is_alive_passes():
    gate = Gate()
    gate.pass_through()
    assert (gate.is_paused, gate.is_killed) == (False, False)


def test_who_is_killed_stops_at_the_next_step_and_at_every_later_one():
    gate = Gate()
    gate.kill()
    assert killed(gate)
    gate.resume()
    assert killed(gate)
    assert gate.is_killed


@pytest.mark.parametrize("end", [Gate.resume, Gate.kill], ids=["resumed", "killed"])
def test_who_is_paused_waits_until_it_is(end):
    gate, passed, outcomes = Gate(), threading.Event(), []

    def work():
        try:
            gate.pass_through()
            outcomes.append("passed")
        except BrokerKilled:
            outcomes.append("killed")
        passed.set()

    gate.pause()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert gate.is_paused
    assert not passed.wait(0.05), "it waits"
    end(gate)
    assert passed.wait(30)
    thread.join()
    assert outcomes == ["killed" if end is Gate.kill else "passed"]
    assert not gate.is_paused


def test_of_the_thread_that_it_watches_a_gate_knows_when_it_passed_last():
    clock = Clock()
    gate, watched = Gate(clock), threading.current_thread()
    gate.watch(watched)
    clock.now += 3
    assert ends(in_background(gate.pass_through))
    assert gate.seconds_since_passed() == 3, "another thread has passed"
    gate.pass_through()
    assert gate.seconds_since_passed() == 0
