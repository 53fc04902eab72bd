"""Histories in which followers run only the rounds that something calls for.

Elsewhere in this tier every third step of a follower is a micro-batch, which begins with a round. That may hide a round
that was not requested.
"""

import pytest

from lakelog.replication.server.fetcher.fetch_runner import FetchRunner
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.verification.simulation.stack.one_thread import InlineFetcher
from lakelog.verification.simulation.stack.stack_history import run


class Streamed:
    """Stands for the query and the thread of a fetcher: each step polls the leader's log, and runs a round if one is
    due."""

    def __init__(self):
        self.micro_batches, self.rounds, self.idle = 0, 0, 0
        self._streams = set()

    def step(self, fetcher):
        if fetcher not in self._streams:
            self._streams.add(fetcher)
            fetcher._round.is_round_due()
            fetcher._process(None, 0)
        elif fetcher._round.is_round_due():
            self.micro_batches += 1
            fetcher._process(fetcher._follower_query.behind, 1)
        if fetcher._is_due():
            self.rounds += 1
            fetcher._fetch()
        else:
            self.idle += 1


@pytest.fixture
def streamed(monkeypatch):
    followers = Streamed()
    monkeypatch.setattr(InlineFetcher, "step", lambda fetcher, *_: followers.step(fetcher))
    return followers


def test_ft_01_rounds_that_are_called_for_are_enough(streamed):
    assert [violation for seed in range(1, 3) if (violation := run(seed).violation)] == []
    assert min(streamed.micro_batches, streamed.rounds, streamed.idle) > 0


def asks_for_no_more(fetcher):
    """Runs a round, and forgets that it has left something."""
    fetcher._is_asked.clear()
    fetcher._round.run()


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize(
    ("of", "name", "sabotage"),
    [(FetchRunner, "is_round_due", lambda _: False), (ReplicaFetcher, "_fetch", asks_for_no_more)],
    ids=["new-commits", "asked"],
)
def test_ft_01_each_call_for_a_round_is_needed(monkeypatch, of, name, sabotage):
    """The first of these histories is known to notice both."""
    monkeypatch.setattr(of, name, sabotage)
    found = next(violation for seed in range(4, 60) if (violation := run(seed).violation))
    assert found.invariant != "every_loop_ends"
