"""Histories in which followers read the shipped stream of segments, and run only the rounds that something calls for.

Elsewhere in this tier a follower runs a round at each of its steps, and reads its leader's snapshot. That would hide a
round that nobody has asked for, and a header that nobody has kept.
"""

import sys

import pytest

from lakelog.replication.protocol.append_plan import plan_appends
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.server.fetcher.fetch_runner import FetchRunner
from lakelog.replication.server.fetcher.follower_query import OpenMicroBatch, StreamPlan, batch_key
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.simulation.stack.history import run
from lakelog.replication.simulation.stack.one_thread import InlineFetcher

NO_BOUNDS = {"response_max_bytes": sys.maxsize, "partition_max_bytes": sys.maxsize}


class Streamed:
    """Stands for the query and the thread of a fetcher: each step is a look at the log, and a look at what is due."""

    def __init__(self):
        self.micro_batches, self.rounds, self.idle = 0, 0, 0
        self._streams = set()

    def step(self, fetcher, all_of_it=False):
        limits = fetcher._round._limits
        fetcher._round._limits = limits._replace(**NO_BOUNDS) if all_of_it else limits
        fetcher.is_fetching = True
        try:
            self._micro_batch(fetcher)
            self._round(fetcher)
        finally:
            fetcher.is_fetching = False
            fetcher._round._limits = limits

    def _micro_batch(self, fetcher):
        if fetcher not in self._streams:
            self._streams.add(fetcher)
            fetcher._follower_query.open = OpenMicroBatch(0.0)  # in one thread nobody tells an open one of news
            fetcher._watch.has_news()
            return fetcher._process(None, 0)
        if fetcher._watch.has_news():
            self.micro_batches += 1
            fetcher._process(fetcher._follower_query.behind, 1)
        return None

    def _round(self, fetcher):
        if fetcher._is_due():
            self.rounds += 1
            if fetcher._fetch():
                fetcher._ask()
        else:
            self.idle += 1


def plan_without_spark(runner, behind, _):
    """What Spark plans of these batches: `tests/frames/test_fetch_plan.py` holds its rule and `plan_appends` equal."""
    metadata, log, me = runner._context.metadata(), runner._context.log.current(), runner._context.broker_id
    states = {
        p: state
        for p, state in runner._states.all().items()
        if state.shown_state == FollowerState.FETCHING
        and (found := metadata.get(p)) is not None
        and (found.leader, found.leader_epoch) == (runner._context.leader, state.leader_epoch)
        and me in found.replicas
    }
    found = plan_appends(behind, {p: log.known(p).log_end for p in states})
    stopped = found.gaps | found.diverged
    chosen = {*found.batches, *(b for b in behind if b.topic_id_partition in stopped)}
    left_out = {b.topic_id_partition for b in behind} - states.keys()
    return StreamPlan(frozenset(map(batch_key, chosen)), frozenset(left_out))


@pytest.fixture
def streamed(monkeypatch):
    followers = Streamed()
    monkeypatch.setattr(FetchRunner, "plan", plan_without_spark)
    monkeypatch.setattr(InlineFetcher, "fetch_once", lambda *given: followers.step(*given))
    return followers


def test_ft_01_rounds_that_are_called_for_are_enough(streamed):
    assert [violation for seed in range(1, 3) if (violation := run(seed).violation)] == []
    assert min(streamed.micro_batches, streamed.rounds, streamed.idle) > 0


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize(
    ("of", "name", "answer"), [(FetchRunner, "has_news", False), (ReplicaFetcher, "_ask", None)], ids=["news", "asked"]
)
def test_ft_01_each_call_for_a_round_is_needed(monkeypatch, of, name, answer):
    """The first of these histories is known to notice both."""
    monkeypatch.setattr(of, name, lambda _: answer)
    found = next(violation for seed in range(4, 60) if (violation := run(seed).violation))
    assert found.invariant != "every_loop_ends"
