"""Delayed operations on real tables, with a clock that the test moves: when they wake, and when they expire."""

import pytest

from lakelog.replication.clients.purgatory import DelayedOperation, Purgatory
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from tests.clients.world import World
from tests.clock import Clock
from tests.storage.logs import P1, TOPIC

DEADLINE = 105.0


class Attempts:
    """An operation that answers at attempt number `answers_at`, and records the argument of each attempt."""

    def __init__(self, answers_at=None):
        self.told = []
        self._answers_at = answers_at

    def __call__(self, time_is_over):
        self.told.append(time_is_over)
        return len(self.told) == self._answers_at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def purgatory(clock):
    return Purgatory(clock)


def test_do_01_an_operation_that_completes_at_once_is_not_watched(purgatory):
    attempts = Attempts(answers_at=1)
    assert purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    purgatory.check_and_complete({0})
    assert (attempts.told, purgatory.watched) == ([False], 0)


def test_do_01_a_watched_operation_is_tried_again_when_its_key_moves(purgatory):
    attempts = Attempts(answers_at=3)
    assert not purgatory.try_complete_else_watch(DelayedOperation({0, 1}, DEADLINE, attempts))
    for moved, tries, watched in [({2}, 1, 1), ((), 1, 1), ({1, 2}, 2, 1), ({0}, 3, 0), ({0, 1}, 3, 0)]:
        purgatory.check_and_complete(moved)
        assert (attempts.told, purgatory.watched) == ([False] * tries, watched)


@pytest.mark.parametrize(("passes", "expires"), [(4.999, False), (5.0, True), (50.0, True)])
def test_do_01_an_operation_expires_at_its_deadline(purgatory, clock, passes, expires):
    """It is completed then, whatever the attempt returns; the attempt is called with True."""
    attempts = Attempts()
    purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    clock.now += passes
    purgatory.check_and_complete(())
    assert (attempts.told, purgatory.watched) == (([False, True], 0) if expires else ([False], 1))


@pytest.mark.parametrize("answers_at", [2, None], ids=["by an attempt", "by its deadline"])
def test_do_01_an_operation_completes_exactly_once(purgatory, clock, answers_at):
    attempts = Attempts(answers_at)
    operation = DelayedOperation({0}, DEADLINE, attempts)
    purgatory.try_complete_else_watch(operation)
    clock.now = DEADLINE
    for _ in range(3):
        purgatory.check_and_complete({0})
        assert operation.try_complete(clock())
    assert (attempts.told, operation.is_completed) == ([False, True], True)


def test_do_01_an_operation_past_its_deadline_completes_at_the_first_attempt(purgatory, clock):
    attempts = Attempts()
    clock.now = DEADLINE
    assert purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    assert attempts.told == [True]


def test_do_01_wait_returns_when_the_last_operation_has_completed(purgatory, clock, monkeypatch):
    """Each pause ends no later than the next deadline."""
    paused = []

    def pause(milliseconds, deadline):
        paused.append((milliseconds, deadline))
        clock.now += 2

    monkeypatch.setattr("lakelog.replication.clients.purgatory.pause", pause)
    early, late = Attempts(answers_at=2), Attempts()
    purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE - 2, early))
    purgatory.try_complete_else_watch(DelayedOperation({1}, DEADLINE, late))
    purgatory.wait(lambda: {0}, 50)
    assert paused == [(50, DEADLINE - 2), (50, DEADLINE), (50, DEADLINE)]
    assert (early.told, late.told) == ([False, False], [False, True])


@pytest.fixture
def world(root):
    return World(root)


def test_do_02_a_partition_moves_with_its_metadata_and_its_leaders_row(world):
    world.say(0)
    world.say(0, P1)
    watch = TopicWatch(TopicView(world.cluster), TOPIC, [0, 1])
    for happens, moved in [
        (lambda: None, set()),
        (lambda: world.say(0), set()),
        (lambda: world.say(1), {0}),
        (lambda: world.say(0, P1, log_start_offset=1), {1}),
        (lambda: world.say(5, broker=2), set()),
        (lambda: world.change(isr=(1,)), {0}),
        (lambda: world.change(P1, leader=-1, leader_epoch=1), {1}),
    ]:
        happens()
        assert watch.moved() == moved
    assert watch.seen[1].row is None
