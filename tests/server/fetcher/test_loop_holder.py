"""One thread at a time holds a fetcher's loop: that of a micro-batch, or the fetcher's own."""

import pytest

from lakelog.replication.server.fetcher.replica_fetcher import LoopHolder
from tests.hanging import ends, in_background

LONG, SOON = 60.0, 0.05


@pytest.fixture
def loop():
    return LoopHolder()


class Taking:
    """A micro-batch that takes the loop in a thread of its own."""

    def __init__(self, loop):
        self._loop, self._own, self._answers = loop, loop.begin(), []
        self._thread = in_background(lambda: self._answers.append(loop.take(self._own)))

    @property
    def waits(self):
        self._thread.join(SOON)
        return self._thread.is_alive()

    @property
    def has_it(self):
        assert ends(self._thread)
        assert self._answers == [self._loop.has(self._own)]
        return self._answers[0]

    def hand_back(self):
        self._loop.hand_back(self._own)


def taken(loop):
    """A micro-batch that holds the loop."""
    own = loop.begin()
    assert loop.take(own)
    return own


def test_ft_01_the_thread_runs_steps_until_a_micro_batch_takes_the_loop_and_after_it(loop):
    own = loop.begin()
    loop.hand_back(loop.take_if_free())
    assert loop.take(own)
    assert loop.has(own)
    assert loop.take_if_free() is None
    loop.hand_back(own)
    assert not loop.has(own)
    assert loop.take_if_free() is not None


def test_ft_01_a_micro_batch_takes_the_loop_after_the_step_under_way_and_the_thread_begins_no_other(loop):
    step = loop.take_if_free()
    batch = Taking(loop)
    assert batch.waits
    with loop._condition:  # before the one that waits can take it
        loop.hand_back(step)
        assert loop.take_if_free() is None
    assert batch.has_it


def test_ft_01_a_micro_batch_ends_the_one_before_it_and_waits_for_its_step(loop):
    """The query of the older one was stopped, and the next one has begun. A store may hang."""
    old, answers = taken(loop), []
    waiting = in_background(lambda: answers.append(loop.wait(old, LONG)))
    new = Taking(loop)
    assert ends(waiting)
    assert answers == [False]
    assert new.waits
    loop.hand_back(old)
    assert new.has_it


def test_ft_01_of_two_that_wait_the_newer_one_takes_the_loop(loop):
    step, older = loop.take_if_free(), Taking(loop)
    assert older.waits
    newer = Taking(loop)
    assert not older.has_it
    older.hand_back()
    assert newer.waits
    loop.hand_back(step)
    assert newer.has_it


@pytest.mark.parametrize("ended_by", ["begin", "recall"])
def test_ft_01_a_micro_batch_whose_query_ended_while_spark_planned_takes_nothing(loop, ended_by):
    own = loop.begin()
    getattr(loop, ended_by)()
    assert not loop.take(own)
    assert loop.take_if_free() is not None, "and keeps nobody from it"


def test_ft_01_the_end_of_an_older_micro_batch_takes_nothing_from_the_next_one(loop):
    old = taken(loop)
    new = Taking(loop)
    for _ in range(2):
        loop.hand_back(old)
        assert new.has_it
    assert loop.take_if_free() is None


def test_ft_01_the_micro_batch_of_a_query_that_has_ended_is_recalled_after_its_step(loop):
    own = taken(loop)
    loop.recall()
    assert not loop.has(own)
    assert loop.take_if_free() is None, "its step is under way"
    loop.hand_back(own)
    assert loop.take_if_free() is not None


@pytest.mark.parametrize("end", ["wake", "recall", "end"])
def test_br_04_ft_05_a_wait_ends_with(loop, end):
    own, answers = taken(loop), []
    waiting = in_background(lambda: answers.append(loop.wait(own, LONG)))
    waiting.join(SOON)
    assert waiting.is_alive()
    getattr(loop, end)()
    assert ends(waiting)
    assert answers == [end == "wake"]


def test_do_01_what_woke_it_before_it_waits_is_not_lost(loop):
    """It came during a step, which may have looked before."""
    own = taken(loop)
    loop.wake()
    assert ends(in_background(lambda: loop.wait(own, LONG)))
    again = in_background(lambda: loop.wait(own, LONG))
    again.join(SOON)
    assert again.is_alive(), "once"
    loop.wake()
    assert ends(again)


def test_ft_05_a_wait_ends_when_a_poll_is_due(loop):
    assert loop.wait(taken(loop), 0.01)


def test_br_04_who_waits_for_the_loop_of_a_fetcher_that_ends_does_not_get_it(loop):
    """A store that hangs holds up the step under way, and nobody else."""
    step, batch = loop.take_if_free(), Taking(loop)
    assert batch.waits
    loop.end()
    assert not batch.has_it
    loop.hand_back(step)
    assert loop.is_over
    assert loop.take_if_free() is None
