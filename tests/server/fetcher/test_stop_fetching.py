"""StopFetching precedes a change of role: it returns when no more is appended under the old role."""

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.protocol.fetch_state import InitialFetchState, NoLongerFetched
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.clock import Clock
from tests.hanging import SECONDS, Hanging, ends, in_background
from tests.storage.logs import P0, P1

STEPS = 50


class Appending:
    """A round that appends slowly, in the block in which rounds write."""

    def __init__(self, states):
        self.begun, self.appended = threading.Event(), []
        self.plan = lambda: None
        self._states = states

    def run(self):
        pause = threading.Event()
        removals, fetched = self._states.removals, set(self._states.all())
        self.plan()
        with suppress(NoLongerFetched), self._states.held(removals):
            self.begun.set()
            for _ in range(STEPS):
                pause.wait(0.002)
                self.appended.append(fetched)
        return False


@pytest.fixture
def world(root):
    """A fetcher of two partitions behind its manager, without a query: the test runs its micro-batches."""
    home, states = StorageRoot.of(root), SharedFetchStates(Clock())
    work = Appending(states)
    fetcher = ReplicaFetcher(
        None, 2, BrokerIdAndFetcherId(1, 0), home, home.child("checkpoints"), Config(), states, work, PausePoint()
    )  # fmt: skip
    fetcher.start = lambda: None
    manager = ReplicaFetcherManager(1, lambda _key, _uri: fetcher, lambda _broker: SourceBroker(home.uri, 1))
    manager.add_fetcher_for_partitions({p: InitialFetchState("flights", 1, 0, 0) for p in (P0, P1)})
    return SimpleNamespace(fetcher=fetcher, manager=manager, work=work, states=states)


@pytest.mark.parametrize("stop", ["one partition", "the fetcher"])
def test_fm_07_fm_09_once_fetching_is_stopped_nothing_more_is_appended(world, stop):
    """The stop waits for an append under way. It runs in another thread than the fetcher."""
    batch = in_background(lambda: world.fetcher._fetch())
    assert world.work.begun.wait(SECONDS)
    if stop == "one partition":
        world.manager.remove_fetcher_for_partitions([P0])
    else:
        world.manager.close_all_fetchers()
    appended = len(world.work.appended)
    assert ends(batch)
    assert (appended, len(world.work.appended)) == (STEPS, STEPS)
    assert P0 not in world.states.all()
    assert (P1 in world.states.all()) == (stop == "one partition"), "the others are fetched on"


def test_fm_07_fm_09_the_next_micro_batch_has_no_partition_that_was_stopped(world):
    """A micro-batch that began before the stop appends nothing after it. The next one has the other partition."""
    plan = world.work.plan = Hanging()
    batch = in_background(lambda: world.fetcher._fetch())
    assert plan.is_entered.wait(SECONDS)
    world.manager.remove_fetcher_for_partitions([P0])
    plan.let_go()
    assert ends(batch)
    assert world.work.appended == []
    world.fetcher._fetch()
    assert world.work.appended == [{P1}] * STEPS
