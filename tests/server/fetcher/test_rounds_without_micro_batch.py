"""The steps of a fetcher's loop, by its thread and by a micro-batch."""

import pytest

from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.fetch_state import InitialFetchState
from lakelog.replication.protocol.rounds.fetch_round import FetchRound, ReadLeaderRows
from lakelog.replication.server.fetcher.replica_fetcher import LoopHolder
from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.hanging import Hanging, ends, in_background, raises
from tests.processes import wait_until
from tests.server.fetcher.streams import ROUND
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.logs import P0, P1


@pytest.fixture
def begun(fetcher):
    """The same, and its stream has begun."""
    fetcher.writer.process(None, 0)
    fetcher.work.runs.clear()
    return fetcher


def assign(fetcher):
    """Gives the fetcher P0, which is Fetching and has read the snapshot; no round is asked for any more."""
    fetcher.it.add_partitions({P0: InitialFetchState("flights", 1, 0, 0)})
    fetcher.states.truncated(P0, 0)
    fetcher.states.caught_up(P0)
    fetcher.it.keep_running()
    fetcher.work.runs.clear()


def test_ft_01_an_idle_fetcher_runs_no_round(begun):
    assign(begun)
    for _ in range(3):
        begun.it.keep_running()
        begun.time.now += 1
    assert begun.work.runs == []


def is_given_a_partition(fetcher):
    fetcher.it.add_partitions({P1: InitialFetchState("flights", 1, 0, 0)})


def has_a_delay_that_is_over(fetcher):
    fetcher.states.delay(P0, None, 0)


def has_more_to_fetch(fetcher):
    fetcher.work.answer = True
    fetcher.writer.process(None, 1)
    fetcher.work.answer = False
    fetcher.work.runs.clear()


def sees_news_of_its_leader(fetcher):
    fetcher.work.news = True


@pytest.mark.parametrize(
    "event", [is_given_a_partition, has_a_delay_that_is_over, has_more_to_fetch, sees_news_of_its_leader]
)
def test_ft_01_a_round_without_new_segments_needs_no_micro_batch(begun, event):
    """A micro-batch costs a job of Spark."""
    assign(begun)
    event(begun)
    begun.it.keep_running()
    assert begun.work.runs == [ROUND]


@pytest.mark.parametrize("event", [is_given_a_partition, has_more_to_fetch])
def test_ft_01_a_requested_round_does_not_wait_for_a_poll(begun, event):
    assign(begun)
    begun.it._thread._woken.clear()
    event(begun)
    assert begun.it._thread._woken.is_set()


def test_ft_01_the_thread_is_woken_once_the_round_is_over(begun):
    """It comes back at the next poll if it finds a round under way."""
    assign(begun)
    loop, was_free = begun.it._loop, []

    def looks():
        own = loop.take_if_free()
        was_free.append(own is not None)
        loop.hand_back(own)

    begun.it._thread.wake = looks
    has_more_to_fetch(begun)
    assert was_free == [True]


def test_ft_01_a_round_serves_requests_from_before_it_but_none_from_during_it(begun):
    assign(begun)
    is_given_a_partition(begun)
    begun.writer.process(None, 1)
    begun.it.keep_running()
    assert begun.work.runs == [ROUND]
    begun.work.run, run = lambda: begun.it._ask() or run(), begun.work.run
    begun.writer.process(None, 2)
    begun.work.run = run
    begun.it.keep_running()
    assert begun.work.runs == [ROUND, ROUND, ROUND]


def test_ft_01_a_requested_round_takes_new_segments_too(begun):
    assign(begun)
    is_given_a_partition(begun)
    begun.work.news = True
    for _ in range(2):
        begun.it.keep_running()
    assert begun.work.runs == [ROUND]


def test_ft_01_the_thread_does_not_wait_for_a_micro_batch_and_comes_back_after_it(begun):
    """Otherwise a micro-batch that hangs would keep the thread from the query, and the broker from stopping."""
    assign(begun)
    begun.work.run, run = Hanging(begun.work.run), begun.work.run
    under_way = in_background(lambda: begun.writer.process(None, 1))
    assert begun.work.run.is_entered.wait(30)
    is_given_a_partition(begun)
    begun.it._thread._woken.clear()
    assert ends(in_background(begun.it.keep_running))
    assert begun.work.runs == []
    begun.work.run.let_go()
    assert ends(under_way)
    assert begun.it._thread._woken.is_set(), "it waits for no poll"
    begun.work.run = run
    begun.it.keep_running()
    assert begun.work.runs == [ROUND, ROUND]


def test_ft_06_an_unexpected_error_of_a_round_without_micro_batch_delays_all_partitions(begun, caplog):
    """The thread would else come back at each poll, with a stack trace each time."""
    assign(begun)
    begun.work.answer, begun.work.news = ZeroDivisionError("a bug"), True
    begun.it.keep_running()
    assert begun.work.delayed == ["ZeroDivisionError: a bug"]
    assert "broker-2:ReplicaFetcherThread-0-1: unexpected error" in caplog.text


def test_ft_06_an_unexpected_error_of_a_micro_batch_s_round_delays_all_partitions_and_the_query_goes_on(begun):
    """The rounds begin anew behind the commit that may be its cause. Nothing is tried again at once."""
    begun.it._loop = LoopHolder(60)
    begun.work.answer = ZeroDivisionError("a bug")
    running = in_background(lambda: begun.writer.process(None, 1))
    wait_until(lambda: begun.work.delayed, "the error")
    begun.it.shutdown()
    assert ends(running)
    assert (begun.work.runs, begun.work.delayed, begun.work.stops) == ([ROUND], ["ZeroDivisionError: a bug"], 1)


def test_ft_01_a_thread_that_has_more_to_fetch_waits_for_no_poll(begun):
    assign(begun)
    begun.work.answer = begun.work.news = True
    begun.it._thread._woken.clear()
    begun.it.keep_running()
    assert begun.it._thread._woken.is_set()


@pytest.mark.parametrize("stops", ["pause", "kill"])
def test_a_frozen_or_killed_broker_polls_no_leader(begun, stops):
    looks = []
    begun.work.is_round_due = lambda: looks.append(1) or False
    getattr(begun.it._pause_point, stops)()
    running = in_background(lambda: begun.writer.process(None, 1))
    running.join(0.05)
    assert running.is_alive() == (stops == "pause")
    begun.it._pause_point.kill()
    assert ends(running)
    assert (looks, begun.work.runs) == ([], [])


def test_a_fenced_broker_fetches_no_more(begun):
    """Its own thread finds out by itself."""
    assign(begun)
    begun.work.answer, begun.work.news = StaleBrokerEpochException("fenced"), True
    with pytest.raises(StaleBrokerEpochException):
        begun.it.keep_running()
    added = len(begun.writer.added)
    begun.writer.process(None, 1)
    assert (begun.work.delayed, len(begun.writer.added)) == ([], added), "no micro-batch follows, and none fails"


def runs_a_micro_batch(fetcher):
    fetcher.writer.process(None, 1)


def runs_its_thread(fetcher):
    with pytest.raises(BrokerKilled):
        fetcher.it.keep_running()


@pytest.mark.parametrize("runs", [runs_a_micro_batch, runs_its_thread])
def test_ft_01_a_killed_broker_requests_no_round(begun, runs):
    assign(begun)
    begun.work.answer, begun.work.news = BrokerKilled(), True
    runs(begun)
    assert (begun.work.delayed, begun.it._is_asked.is_set()) == ([], False)


@pytest.fixture
def world(root):
    """A leader and a follower whose rounds read the leader's snapshot."""
    world = World(root, [P0], looks=False)
    world.fetch()
    return world


def test_hw_02_a_leader_s_rows_call_for_one_round(world):
    assert not world.round.is_round_due(), "the round has read them"
    world.publish(epoch=1)
    assert world.round.is_round_due()
    world.fetch()
    assert not world.round.is_round_due()


def test_hw_02_rows_that_change_within_a_round_call_for_another_one(world, monkeypatch):
    """A round goes on with the rows that it has read first."""

    def reads_twice(_):
        yield ReadLeaderRows((P0,))
        world.publish(epoch=1)
        yield ReadLeaderRows((P0,))
        return False

    with monkeypatch.context() as changed:
        changed.setattr(FetchRound, "run", reads_twice)
        world.round.run()
    assert world.round.is_round_due()
    world.fetch()
    assert not world.round.is_round_due()


def test_ft_03_a_fetcher_without_partitions_reads_no_rows(world):
    world.publish(epoch=1)
    world.states.remove([P0])
    world.round._context = None
    assert not world.round.is_round_due()


def test_ft_06_unreadable_rows_make_one_round_due_which_publishes_the_error(world, monkeypatch):
    for poll in ("poll", "refresh"):
        monkeypatch.setattr(ReplicaTable, poll, raises(KafkaStorageException("503 Slow Down")))
    assert world.round.is_round_due()
    world.fetch()
    assert "503 Slow Down" in world.states.all().get(P0).error
    assert not world.round.is_round_due(), "until the delay is over"
