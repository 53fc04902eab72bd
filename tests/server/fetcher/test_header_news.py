"""When a leader's log has news for a follower, on a disk and in an object store."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.server.fetcher import header_fetch
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import new_segments
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.clock import monotonic_clock
from tests.hanging import raises
from tests.looks import counted_store
from tests.server.fetcher.test_header_fetch import UNBOUNDED, begun, fetched
from tests.storage.log.test_new_segments import commits_read, follow_commit
from tests.storage.logs import P0, P1, fill, lead, new_log


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1; its log's version is 1."""
    return new_log(root, P0, P1)


@pytest.fixture
def watch(log):
    made = begun(log)
    assert not made.has_new_commits()
    return made


def test_ft_05_a_header_fetch_that_does_not_follow_reads_nothing(log):
    fetch = HeaderFetch("broker-2", log.root, 1, UNBOUNDED)
    fill(log, P0, 1)
    assert not fetch.has_new_commits()


def test_ft_05_new_segments_make_a_round_due_once(log, watch):
    for _ in range(2):
        fill(log, P0, 1)
        assert (watch.has_new_commits(), watch.has_new_commits()) == (True, False)


def test_ft_05_segments_that_the_leader_fetched_make_no_round_due(log, watch):
    lead(log, P0, epoch=1)
    follow_commit(log)
    assert not watch.has_new_commits()
    fill(log, P0, 1, epoch=1)
    assert watch.has_new_commits()


def test_ft_05_each_commit_is_read_once_by_the_poll_that_finds_it(log, watch, monkeypatch):
    read = commits_read(monkeypatch)
    follow_commit(log)
    fill(log, P0, 1, 1)
    assert watch.has_new_commits()
    assert fetched(watch, {P0: 0}, looks=False) == [(0, 0, 0), (0, 1, 1)]
    assert not watch.has_new_commits()
    assert read == [2, 3, 4]


def test_ft_05_a_follower_polls_no_further_until_it_has_fetched(log, watch, monkeypatch):
    """Otherwise what it has found would fill the memory."""
    monkeypatch.setattr(header_fetch, "_MOST_FOUND", 2)
    fill(log, P0, 1, 1)
    assert watch.has_new_commits()
    fill(log, P0, 1)
    assert not watch.has_new_commits()
    assert fetched(watch, {P0: 0}, looks=False) == [(0, 0, 0), (0, 1, 1)]
    assert watch.has_new_commits()
    assert fetched(watch, {P0: 2}, looks=False) == [(0, 2, 2)]


@pytest.mark.parametrize("commits", [0, 3])
def test_a_recreated_log_makes_a_round_due(log, watch, commits):
    fill(log, P0, *[1] * commits)
    assert watch.has_new_commits() == (commits > 0)
    log.root.delete_folder()
    again = new_log(log.root, P0, P1)
    assert (watch.has_new_commits(), watch.has_new_commits()) == (True, False)
    fill(again, P0, 1)
    assert watch.has_new_commits()


def test_ft_06_an_error_of_the_store_makes_one_round_due_and_later_polls_rare(log, watch, monkeypatch, clock):
    fill(log, P0, 1)
    looks = []
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "read", lambda *_: looks.append(1) or raises(KafkaStorageException("503"))())
        found = []
        for _ in range(200):
            found.append(watch.has_new_commits())
            clock.now += 0.05
    assert (found.count(True), found[0]) == (1, True)
    assert len(looks) == 6, "after 0.2, 0.4, 0.8, 1.6 and 3.2 s more"
    clock.now += 5
    assert (watch.has_new_commits(), watch.has_new_commits()) == (True, False)


def test_ft_06_a_fetch_after_an_error_reads_again_and_fails_only_if_that_read_does(log, watch, monkeypatch):
    """One lost answer of a store would else delay all partitions."""
    fill(log, P0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "read", raises(KafkaStorageException("503 Slow Down")))
        assert watch.has_new_commits()
    assert watch.has_found
    assert fetched(watch, {P0: 0}, looks=False) == [(0, 0, 0)]
    assert not watch.has_found


def test_ft_06_no_round_follows_at_once_after_a_failed_poll(log, watch, monkeypatch):
    monkeypatch.setattr(new_segments, "FULL_POLL", 2)
    fill(log, P0, *[1] * 3)
    watch.has_new_commits()
    with monkeypatch.context() as broken:
        broken.setattr(new_segments, "read_commit", raises(KafkaStorageException("503 Slow Down")))
        with pytest.raises(KafkaStorageException):
            fetched(watch, {P0: 0}, looks=False)
    assert fetched(watch, {P0: 0}, looks=False) == [(0, 0, 0), (0, 1, 1)]
    assert not watch.has_more
    assert watch.has_new_commits()
    assert fetched(watch, {P0: 2}, looks=False) == [(0, 2, 2)]


def test_ft_06_an_error_that_no_fetch_has_raised_is_forgotten_once_the_log_can_be_read(log, watch, monkeypatch, clock):
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "read", raises(KafkaStorageException("503 Slow Down")))
        assert watch.has_new_commits()
    clock.now += 5
    fill(log, P0, 1)
    assert watch.has_new_commits()
    assert fetched(watch, {P0: 0}, looks=False) == [(0, 0, 0)]


def test_a_store_may_be_away_for_hours(watch, monkeypatch, clock):
    with monkeypatch.context() as broken:
        broken.setattr(NewSegments, "read", raises(KafkaStorageException("503 Slow Down")))
        for _ in range(1_100):
            watch.has_new_commits()
            clock.now += 5
    assert not watch.has_new_commits()


def test_many_waiting_commits_are_read_in_parts_so_that_the_thread_has_time_for_other_work(log, watch, monkeypatch):
    monkeypatch.setattr(new_segments, "FULL_POLL", 2)
    fill(log, P0, *[1] * 5)
    assert [watch.has_new_commits() for _ in range(4)] == [True, True, True, False]


def test_ft_05_where_there_is_no_log_yet_it_is_listed_rarely(store, clock):
    watch = HeaderFetch("broker-2", StorageRoot.of(f"{store.uri}/broker-9/log"), 1, UNBOUNDED)
    watch.begin()
    listed, names = [], store.names
    store.names = lambda folder: listed.append(folder) or names(folder)
    for _ in range(100):
        watch.has_new_commits()
        clock.now += 0.05
    assert len(listed) <= 2
    fill(new_log(StorageRoot.of(f"{store.uri}/broker-9/log"), P0), P0, 1)
    clock.now += 5
    assert watch.has_new_commits()


clock = pytest.fixture(monotonic_clock)
store = pytest.fixture(counted_store)


@pytest.fixture
def far(store):
    return new_log(StorageRoot.of(f"{store.uri}/broker-1/log"), P0)


def looks(store, *watches):
    """Which have news, and the look-ups that all of them take."""
    return store.faults.of(lambda: [watch.has_new_commits() for watch in watches])


def test_ft_05_followers_in_one_process_share_polls_which_are_rare_on_an_idle_log(store, far, clock):
    watches = [begun(far) for _ in range(2)]
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


def test_ft_05_a_commit_of_the_same_process_makes_a_round_due_without_a_request(store, far, clock):
    watches = [begun(far) for _ in range(2)]
    looks(store, *watches)
    clock.now += 1000
    looks(store, *watches)
    for _ in range(3):
        fill(far, P0, 1)
        assert looks(store, *watches) == ([True, True], 0)


def test_ft_05_what_another_process_commits_is_read_once_for_all(store, far, clock):
    watches = [begun(far) for _ in range(2)]
    looks(store, *watches)
    clock.now += 1000
    own, store.process = store.process, lambda: "producer"
    fill(ReplicaLog.open(far.root), P0, 1)
    store.process = own
    found, cost = looks(store, *watches)
    assert (found, cost) == ([True, True], 3), "the commit, the next one, and whether the one before is still there"
