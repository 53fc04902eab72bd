"""A micro-batch fetches the news that come while it is open."""

import time

import pytest

from lakelog.replication.server.fetcher.follower_query import OpenMicroBatch
from tests.hanging import Hanging, ends, in_background, raises
from tests.processes import wait_until

LONG = 60.0


class Rounds:
    """Rounds of one micro-batch. The first hangs until the test lets it go; the others are counted."""

    def __init__(self, again=False):
        self.again, self.more, self.first = again, 0, Hanging(lambda: again)

    def begin(self, batch):
        """Begins the micro-batch, which is open afterwards."""
        self.answers = []
        thread = in_background(lambda: self.answers.append(batch.run(self.first, self.next)))
        assert self.first.is_entered.wait(30)
        return thread

    def next(self):
        self.more += 1
        return self.again


@pytest.mark.parametrize("news", [0, 1, 3])
def test_ft_05_news_that_come_during_a_round_are_one_more_round(news):
    batch, rounds = OpenMicroBatch(0.0), Rounds()
    running = rounds.begin(batch)
    assert all(batch.tell() for _ in range(news))
    rounds.first.let_go()
    assert ends(running)
    assert (rounds.more, rounds.answers) == (min(news, 1), [False])
    assert not batch.tell(), "it is closed"


def test_ft_05_an_open_micro_batch_waits_for_news():
    batch, rounds = OpenMicroBatch(LONG), Rounds()
    rounds.next = hanging = Hanging(lambda: False)
    running = rounds.begin(batch)
    rounds.first.let_go()
    assert batch.tell()
    assert hanging.is_entered.wait(30), "it has waited, and goes on at once"
    hanging.let_go()
    batch.end()
    assert ends(running)


def test_ft_05_news_after_the_longest_time_are_for_the_next_micro_batch():
    """Otherwise a busy leader's followers would stay in one micro-batch forever."""
    batch, rounds, told = OpenMicroBatch(0.0), Rounds(), []
    rounds.next = lambda: told.append(batch.tell())
    running = rounds.begin(batch)
    assert batch.tell()
    rounds.first.let_go()
    assert ends(running)
    assert told == [False], "news from before it end are fetched, and no later ones"


def test_ft_05_more_to_fetch_at_once_is_fetched_in_the_same_micro_batch_without_a_wait():
    batch, rounds, left = OpenMicroBatch(LONG), Rounds(again=True), [False, True, True]
    rounds.next = left.pop
    running = rounds.begin(batch)
    rounds.first.let_go()
    wait_until(lambda: not left, "all rounds")
    batch.end()
    assert ends(running)
    assert rounds.answers == [False]


def test_ft_05_what_is_left_when_its_time_is_over_is_for_the_next_micro_batch():
    batch, rounds = OpenMicroBatch(0.0), Rounds(again=True)
    rounds.first.let_go()
    assert ends(rounds.begin(batch))
    assert (rounds.more, rounds.answers) == (0, [True])


def test_br_04_a_shutdown_ends_a_long_catch_up():
    batch, rounds = OpenMicroBatch(LONG), Rounds(again=True)
    running = rounds.begin(batch)
    batch.end()
    rounds.first.let_go()
    assert ends(running)
    assert (rounds.more, rounds.answers, batch.is_over) == (0, [True], True)


def test_ft_05_a_new_micro_batch_ends_the_wait_of_an_older_one():
    """Its query has ended by itself, and the next one has begun."""
    batch, old, new = OpenMicroBatch(LONG), Rounds(), Rounds()
    ending = old.begin(batch)
    old.first.let_go()
    running = new.begin(batch)
    assert ends(ending)
    batch.end()
    new.first.let_go()
    assert ends(running)


def test_ft_05_a_micro_batch_that_fails_is_not_open():
    batch = OpenMicroBatch(LONG)
    with pytest.raises(ValueError, match="broken"):
        batch.run(raises(ValueError("broken")), lambda: False)
    assert not batch.tell()


def test_ft_05_the_end_of_an_older_micro_batch_loses_no_news():
    """Its query was stopped, and hung in a round; the next one has begun meanwhile."""
    batch, old, new = OpenMicroBatch(0.0), Rounds(), Rounds()
    ending, running = old.begin(batch), new.begin(batch)
    assert batch.tell()
    old.first.let_go()
    assert ends(ending)
    new.first.let_go()
    assert ends(running)
    assert (old.more, new.more) == (0, 1)


def test_br_04_a_wait_for_news_ends_with_the_fetcher():
    batch, rounds = OpenMicroBatch(LONG), Rounds()
    running = rounds.begin(batch)
    rounds.first.let_go()
    began = time.monotonic()
    batch.end()
    assert ends(running)
    assert time.monotonic() - began < LONG / 2
    assert rounds.more == 0


@pytest.mark.parametrize("is_told", [True, False])
def test_ft_05_news_that_come_when_a_micro_batch_has_enough_are_handed_on(is_told):
    """Who told it believes that a round follows."""
    batch, rounds = OpenMicroBatch(LONG), Rounds()
    rounds.answers = []
    running = in_background(lambda: rounds.answers.append(batch.run(rounds.first, rounds.next, lambda: True)))
    assert rounds.first.is_entered.wait(30)
    assert not is_told or batch.tell()
    rounds.first.let_go()
    assert ends(running)
    assert (rounds.more, rounds.answers) == (0, [is_told])
