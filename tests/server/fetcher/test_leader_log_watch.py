"""When a leader's log has news for a follower, on a disk and in an object store."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.server.fetcher import leader_watch
from lakelog.replication.server.fetcher.leader_watch import LeaderLogWatch
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import new_segments
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.clock import monotonic_clock
from tests.hanging import raises
from tests.looks import counted_store
from tests.storage.log.test_new_segments import follow_commit
from tests.storage.logs import P0, P1, fill, lead, new_log


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1; its log's version is 1."""
    return new_log(root, P0, P1)


@pytest.fixture
def watch(log):
    made = LeaderLogWatch(log.root, 1)
    assert made.has_news(), "at its first look"
    assert not made.has_news()
    return made


def test_ft_05_new_segments_are_news_once(log, watch):
    for _ in range(2):
        fill(log, P0, 1)
        assert (watch.has_news(), watch.has_news()) == (True, False)


def test_ft_05_what_the_leader_itself_fetched_is_no_news(log, watch):
    lead(log, P0, epoch=1)
    follow_commit(log)
    assert not watch.has_news()
    fill(log, P0, 1, epoch=1)
    assert watch.has_news()


def test_many_commits_without_segments_are_news_all_the_same(log, watch, monkeypatch):
    """The follower reads each commit once more when its leader appends again: that must not be all since long ago."""
    monkeypatch.setattr(leader_watch, "_FAR", 3)
    found = []
    for number in range(7):
        follow_commit(log, first=number)
        found.append(watch.has_news())
    assert found == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("commits", [0, 3])
def test_a_log_that_was_made_again_is_news(log, watch, commits):
    fill(log, P0, *[1] * commits)
    assert watch.has_news() == (commits > 0)
    log.root.delete_folder()
    again = new_log(log.root, P0, P1)
    assert (watch.has_news(), watch.has_news()) == (True, False)
    fill(again, P0, 1)
    assert watch.has_news()


def test_ft_06_an_error_of_the_store_is_news_once_so_that_a_fetch_tells_of_it_and_the_next_looks_are_rare(
    log, watch, monkeypatch, clock
):
    fill(log, P0, 1)
    looks = []
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "_newest", lambda *_: looks.append(1) or raises(KafkaStorageException("503"))())
        found = []
        for _ in range(200):
            found.append(watch.has_news())
            clock.now += 0.05
    assert (found.count(True), found[0]) == (1, True)
    assert len(looks) == 6, "after 0.2, 0.4, 0.8, 1.6 and 3.2 s more"
    clock.now += 5
    assert (watch.has_news(), watch.has_news()) == (True, False)


def test_a_store_may_be_away_for_hours(watch, monkeypatch, clock):
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "_newest", raises(KafkaStorageException("503 Slow Down")))
        for _ in range(1_100):
            watch.has_news()
            clock.now += 5
    assert not watch.has_news()


def test_many_waiting_commits_are_read_in_parts_so_that_the_thread_has_time_for_other_work(log, watch, monkeypatch):
    monkeypatch.setattr(new_segments, "FULL_LOOK", 2)
    fill(log, P0, *[1] * 5)
    assert [watch.has_news() for _ in range(4)] == [True, True, True, False]


def test_ft_05_where_there_is_no_log_yet_it_is_listed_rarely(store, clock):
    watch = LeaderLogWatch(StorageRoot.of(f"{store.uri}/broker-9/log"), 1)
    listed, names = [], store.names
    store.names = lambda folder: listed.append(folder) or names(folder)
    for _ in range(100):
        watch.has_news()
        clock.now += 0.05
    assert len(listed) <= 2
    fill(new_log(StorageRoot.of(f"{store.uri}/broker-9/log"), P0), P0, 1)
    clock.now += 5
    assert watch.has_news()


clock = pytest.fixture(monotonic_clock)
store = pytest.fixture(counted_store)


@pytest.fixture
def far(store):
    return new_log(StorageRoot.of(f"{store.uri}/broker-1/log"), P0)


def looks(store, *watches):
    """Which have news, and the look-ups that all of them take."""
    return store.faults.of(lambda: [watch.has_news() for watch in watches])


def test_ft_05_followers_in_one_process_share_their_looks_which_are_rare_where_nothing_happens(store, far, clock):
    watches = [LeaderLogWatch(far.root, 1) for _ in range(2)]
    looks(store, *watches)
    clock.now += 1000
    found, cost = looks(store, *watches)
    assert (found, cost > 0) == ([False, False], True)
    assert looks(store, *watches) == ([False, False], 0)
    clock.now += 4.9
    assert looks(store, *watches) == ([False, False], 0)
    clock.now += 0.2
    found, again = looks(store, *watches)
    assert (found, again) == ([False, False], 1), "one of them looks for the next commit"


def test_ft_05_what_the_process_itself_commits_is_news_at_once_and_costs_no_look_up(store, far, clock):
    watches = [LeaderLogWatch(far.root, 1) for _ in range(2)]
    looks(store, *watches)
    clock.now += 1000
    looks(store, *watches)
    for _ in range(3):
        fill(far, P0, 1)
        assert looks(store, *watches) == ([True, True], 0)


def test_ft_05_what_another_process_commits_is_read_once_for_all(store, far, clock):
    watches = [LeaderLogWatch(far.root, 1) for _ in range(2)]
    looks(store, *watches)
    clock.now += 1000
    own, store.process = store.process, lambda: "producer"
    fill(ReplicaLog.open(far.root), P0, 1)
    store.process = own
    found, cost = looks(store, *watches)
    assert (found, cost) == ([True, True], 3), "the commit, the next one, and whether the one before is still there"
