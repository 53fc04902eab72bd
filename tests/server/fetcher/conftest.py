"""A fetcher for the tests of its query and of its thread."""

from types import SimpleNamespace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.server.fetcher import follower_query, replica_fetcher
from lakelog.replication.server.fetcher.replica_fetcher import LoopHolder, QueryStart
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from tests.clock import Clock
from tests.server.fetcher.streams import Elapsed, Round, Writer, fetcher_of


@pytest.fixture
def fetcher(root, monkeypatch):
    """A fetcher with the test's query and without a running thread."""
    writer, work, states = Writer(), Round(), SharedFetchStates(Clock())
    monkeypatch.setattr(follower_query, "HeaderStream", writer.for_stream)
    time = Elapsed()
    monkeypatch.setattr(replica_fetcher, "time", time)
    monkeypatch.setattr(replica_fetcher, "random", SimpleNamespace(random=lambda: 0.5))
    monkeypatch.setattr(QueryStart, "begin", QueryStart.run)
    stops = []
    monkeypatch.setattr(replica_fetcher, "kill_if_stopped", lambda *arguments: stops.append(arguments))
    made = fetcher_of(root, states, work, Config(replica_fetch_wait_max_ms=1))
    made._loop = LoopHolder(0.0)
    made.keep_running()
    work.runs.clear()
    return SimpleNamespace(it=made, writer=writer, work=work, states=states, time=time, stops=stops)
