"""Commits of this process wake those that wait for them; polls are rarer while nothing is committed."""

import gc
import threading
from weakref import WeakSet

import pytest

from lakelog.replication.storage.delta import commit_listeners
from lakelog.replication.storage.delta.commit_listeners import CommitListener, CommitWaiter, note_commit, until_poll
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.schemas import LOG
from lakelog.verification.memory_root import MemoryStore
from tests.clock import monotonic_clock

clock = pytest.fixture(monotonic_clock)
POLL_MS = 50


@pytest.fixture(params=["disk", "object store"])
def log(request, tmp_path):
    """A table, and a handle that another process might have."""
    if request.param == "disk":
        yield DeltaLog.create(StorageRoot.of(str(tmp_path / "log")), LOG)
        return
    with MemoryStore("news").opened() as store:
        yield DeltaLog.create(StorageRoot.of(f"{store.uri}/log"), LOG)


def commit(log, why="append"):
    log.commit({"why": why})
    log.move_own()


@pytest.mark.parametrize(
    ("why", "told", "wakes"),
    [(None, "append", True), (None, "fetched", True), ("append", "append", True), ("append", "fetched", False)],
)
def test_do_01_a_commit_of_this_process_wakes_the_listeners_of_the_table(log, why, told, wakes):
    woken = []
    listener = CommitListener(lambda: woken.append("this")).listen(log.root.uri, why)
    other = CommitListener(lambda: woken.append("another")).listen(f"{log.root.uri}/another")
    commit(log, told)
    assert woken == ["this"] * wakes
    assert listener is not other  # both are held until here


def test_do_01_a_commit_wakes_only_once_it_is_there(log):
    """Who is woken looks at once, and must find it."""
    found = []
    listener = CommitListener(lambda: found.append(DeltaLog.open(log.root).version)).listen(log.root.uri)
    commit(log)
    assert found == [1]
    assert listener is not None  # it is held until here


def test_a_listener_that_nobody_holds_is_not_woken(log):
    woken = []
    listeners = [CommitListener(lambda: woken.append(1)).listen(log.root.uri)]
    del listeners[0]
    gc.collect()
    commit(log)
    commit(log)
    assert woken == []


def test_a_commit_before_the_wait_ends_it_and_a_later_wait_goes_on(log, monkeypatch):
    waiter, waits = CommitWaiter().listen(log.root.uri), []
    monkeypatch.setattr(
        "lakelog.replication.storage.delta.commit_listeners.until_poll", lambda ms: waits.append(ms) or 60
    )
    commit(log)
    assert waiter.wait(POLL_MS)
    thread = threading.Thread(target=lambda: waiter.wait(7))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    commit(log)
    thread.join(30)
    assert (thread.is_alive(), waits) == (False, [POLL_MS, 7])


def test_stop_ends_the_wait(monkeypatch):
    monkeypatch.setattr(commit_listeners, "until_poll", lambda _: 60)
    waiter, answers = CommitWaiter(), []
    thread = threading.Thread(target=lambda: answers.append(waiter.wait(POLL_MS)))
    thread.start()
    waiter.stop()
    thread.join(30)
    assert (answers, waiter.stopping.is_set(), waiter.wait(POLL_MS)) == ([False], True, False)


@pytest.mark.parametrize(
    ("poll_ms", "idle_seconds", "expected"),
    [
        (50, 0, 0.05), (50, 0.2, 0.05), (50, 0.4, 0.1), (50, 0.6, 0.15), (50, 0.8, 0.2), (50, 3600, 0.25),
        (200, 3600, 0.5), (500, 3600, 0.5), (2000, 3600, 2.0),
    ],
)  # fmt: skip
def test_polls_are_rarer_while_nothing_is_committed(clock, poll_ms, idle_seconds, expected):
    note_commit("append")
    clock.now += idle_seconds
    assert until_poll(poll_ms) == pytest.approx(expected)


@pytest.mark.parametrize("why", ["heartbeat", "renewed"])
def test_a_sign_of_life_makes_polls_no_more_frequent(clock, log, why):
    note_commit("append")
    clock.now += 3600
    commit(log, why)
    assert until_poll(POLL_MS) == 0.25


def test_a_commit_of_another_process_makes_polls_frequent(clock, log):
    reader = DeltaLog.open(log.root)
    log.commit({"why": "append"})  # without `move_own`, this process knows nothing of it
    note_commit("append")
    clock.now += 3600
    assert until_poll(POLL_MS) == 0.25
    reader.move()
    assert until_poll(POLL_MS) == 0.05


def test_a_commit_that_a_follower_finds_makes_polls_frequent(clock, log):
    segments = NewSegments(log.root, 1)
    segments.begin()
    log.commit({"why": "append"})
    note_commit("append")
    clock.now += 3600
    segments.read()
    assert until_poll(POLL_MS) == 0.05


def test_tables_to_which_nobody_listens_any_more_take_no_memory():
    def kept():
        gc.collect()
        return sum(isinstance(found, WeakSet) for found in gc.get_objects())

    before = kept()
    for table in range(500):
        CommitListener(int).listen(f"/cluster/members/{table}")
    assert kept() < before + 10
