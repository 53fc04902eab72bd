"""Polls of tables in object stores: a process shares them, and makes fewer while nothing changes."""

import gc
import threading

import pytest

from lakelog.replication.storage.delta import freshness
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_format import commit_content, commit_name
from lakelog.replication.storage.delta.delta_log import CommitTracker, DeltaLog
from lakelog.replication.storage.delta.freshness import KEPT_BYTES, LONGEST_SECONDS, VersionCache
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.schemas import LOG
from lakelog.verification.memory_root import MemoryStore
from tests.clock import monotonic_clock
from tests.looks import Looks, counted_store

clock = pytest.fixture(monotonic_clock)
store = pytest.fixture(counted_store)


@pytest.fixture
def root(store):
    return StorageRoot.of(f"{store.uri}/log")


@pytest.fixture
def logs(root, clock):
    """Two users of one table in which nothing has happened for a long time."""
    assert root.version_cache.max_staleness() == 0.2
    found = DeltaLog.create(root, LOG), DeltaLog.open(root)
    clock.now += 1000
    return found


def elsewhere(root, version, why="append"):
    """A commit of another process."""
    assert root.put_if_absent(commit_name(version), commit_content({"why": why}, "nonce", [], [], {}))


def poll(log, max_staleness=LONGEST_SECONDS):
    """The versions that a poll has found; None where the table was opened anew."""
    found = log.move(max_staleness)
    return found if found is None else [commit.version for commit in found]


def write(log, why="append"):
    log.commit({"why": why})
    return log.move_own().version


def test_a_poll_takes_what_another_has_just_seen(store, logs, clock):
    one, other = logs
    assert store.faults.of(lambda: poll(one)) == ([], 2)
    assert store.faults.of(lambda: poll(other)) == ([], 0)
    clock.now += LONGEST_SECONDS - 0.1
    assert store.faults.of(lambda: poll(other)) == ([], 0)
    clock.now += 0.2
    assert store.faults.of(lambda: poll(other))[1] > 0


def test_threads_that_look_at_the_same_time_look_once(store, logs, monkeypatch):
    """The first poll takes long enough for the second thread to begin one."""
    began, second = threading.Event(), threading.Event()
    looking = []

    def slow(_):
        looking.append(threading.current_thread())
        (second if looking[0] is not looking[-1] else began).set()
        second.wait(0.3)

    monkeypatch.setattr(store.faults, "read", slow)
    first, other = (threading.Thread(target=poll, args=(log,)) for log in logs)
    first.start()
    assert began.wait(10)
    other.start()
    first.join()
    other.join()
    assert set(looking) == {first}


def test_a_look_that_a_decision_depends_on_is_never_shared(store, logs):
    one, other = logs
    assert poll(one) == []
    assert store.faults.of(other.move) == ([], 2)
    assert store.faults.of(one.move) == ([], 2)


def test_a_commit_of_this_process_is_known_at_once_and_nobody_reads_it(store, logs):
    one, other = logs
    assert [poll(one), poll(other)] == [[], []]
    write(one)
    assert store.faults.of(lambda: poll(other)) == ([1], 0)
    assert (facts_of(other), other.polled_at) == (facts_of(one), one.polled_at)


def facts_of(log):
    return log.version, log.active_files(), log.transaction_version("app")


def test_a_look_that_is_not_shared_reads_only_what_the_process_does_not_know(root, store, logs):
    one, other = logs
    write(one)
    write(one)
    elsewhere(root, 3)
    found, looks = store.faults.of(other.move)
    assert [commit.version for commit in found] == [1, 2, 3]
    assert looks == 3, "commit 3, that there is no commit 4, and commit 2, which the process knows"


def test_what_the_process_knows_of_a_commit_counts_only_if_it_is_still_that_commit(root, clock, logs):
    """The table was put back to version 1 from a copy, and has another commit 2 now."""
    one, other = logs
    write(one)
    assert poll(other) == [1]
    write(one)
    root.delete(commit_name(2))
    elsewhere(root, 2, "another")
    assert other.move() is None
    clock.now += 61
    assert poll(one) is None
    assert [facts_of(log) for log in logs] == [(2, [], None)] * 2


def test_after_a_table_was_opened_anew_its_earlier_commits_are_forgotten(root, clock, logs):
    one, other = logs
    late = DeltaLog.open(root)
    write(one)
    write(one)
    for version in (1, 2):
        root.delete(commit_name(version))
    clock.now += 61
    assert one.move() is None
    elsewhere(root, 1, "another")
    (commit,) = late.move()
    assert commit.info["why"] == "another"
    assert other.move() == [commit]


def test_few_commits_are_kept(root, logs):
    one, other = logs
    for _ in range(20):
        write(one)
    assert sorted(root.version_cache.commits._commits[root.uri]) == [*range(5, 21)]
    assert poll(other) == [*range(1, 21)]


def test_a_commit_of_another_process_is_seen_when_the_look_is_too_old(root, logs, clock):
    (one, _) = logs
    assert poll(one) == []
    elsewhere(root, 1)
    assert poll(one) == []
    clock.now += LONGEST_SECONDS + 0.1
    assert poll(one) == [1]


@pytest.mark.parametrize(
    ("why", "max_staleness"), [("append", 0.2), ("heartbeat", LONGEST_SECONDS), ("renewed", LONGEST_SECONDS)]
)
def test_polls_become_frequent_when_something_happens_and_heartbeats_are_nothing(root, logs, why, max_staleness):
    (one, _) = logs
    elsewhere(root, 1, why)
    one.move()
    assert root.version_cache.max_staleness() == root.poll_staleness(LONGEST_SECONDS) == max_staleness


def test_the_less_happens_the_older_a_look_may_be(root, logs, clock):
    (one, _) = logs
    write(one)
    ages = []
    for _ in range(4):
        clock.now += 4
        ages.append(root.version_cache.max_staleness())
    assert ages == [1, 2, 3, 4]
    clock.now += 100
    assert (root.version_cache.max_staleness(), root.version_cache.max_staleness(2.0)) == (LONGEST_SECONDS, 2.0)


def test_a_poll_does_not_look_again_at_a_commit_that_was_just_there(store, logs, clock):
    (one, _) = logs
    looks = []
    for _ in range(13):
        looks.append(store.faults.of(lambda: poll(one))[1])
        clock.now += LONGEST_SECONDS + 0.1
    assert looks == [2, *[1] * 11, 2]
    assert store.faults.of(one.move) == ([], 2), "a decision depends on it"


def test_a_commit_right_after_a_look_asks_only_whether_the_commit_before_it_is_still_there(store, logs, clock):
    (one, _) = logs
    one.move()
    assert [store.faults.of(lambda: write(one)) for _ in range(2)] == [(1, 1), (2, 1)]
    clock.now += 11
    assert store.faults.of(lambda: write(one)) == (3, 2)


def test_two_stores_with_a_bucket_of_one_name_share_nothing():
    here, there = (StorageRoot.of("s3://bucket", {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}) for port in (1, 2))
    here.version_cache.polled("s3://bucket/log", 5, 1.0)
    assert here.child("log").version_cache.polled_at("s3://bucket/log", 5, 1.0) == 1.0
    assert here.child("log").version_cache.polled_at("s3://bucket/log", 5, 1.1) is None
    assert there.version_cache.polled_at("s3://bucket/log", 5, 0.0) is None


def test_where_the_newest_commit_has_vanished_that_is_seen_a_while_later(root, logs, clock):
    (one, _) = logs
    write(one)
    assert poll(one) == []
    root.delete(commit_name(1))
    clock.now += 61
    assert poll(one) is None
    assert one.version == 0


def test_a_poll_does_not_hang_on_versions_of_a_table_that_was_made_again(root, logs, clock):
    one, other = logs
    for _ in range(3):
        write(one)
    root.child("_delta_log").delete_folder()
    again = DeltaLog.create(root, LOG)
    assert poll(again) == []
    clock.now += 61
    assert poll(other) is None
    assert other.table_id == again.table_id


def test_commits_of_a_table_that_was_made_again_are_not_taken_for_those_that_follow(root, clock, logs):
    """They were made within the time in which a look at the last commit counts."""
    (one, _) = logs
    segments = NewSegments(root, 1)
    write(one)
    segments.begin()
    assert (poll(one), segments.read(), segments.version) == ([], [], 1)
    root.child("_delta_log").delete_folder()
    DeltaLog.create(root, LOG)
    for version in (1, 2, 3):
        elsewhere(root, version, "another")
    clock.now += 1
    (gap,) = segments.read(max_staleness=0.0)
    assert gap.gap is not None
    assert segments.version == 3
    assert poll(one, 0.0) is None
    assert one.version == 3


def test_a_look_for_the_newest_version_finds_that_the_table_was_made_again(root):
    DeltaLog.create(root, LOG)
    commits = CommitTracker(root)
    assert commits.newest(-1) == 0
    root.child("_delta_log").delete_folder()
    root.put_if_absent(commit_name(0), commit_content({"why": "made again"}, "nonce", [], [], {}))
    elsewhere(root, 1)
    stamps = [commits.stamps.get(version) for version in (0, 1)]
    assert commits.newest(0) == 1
    assert [commits.stamps.get(version) for version in (0, 1)] != stamps


def test_when_a_look_began_is_told_only_of_one_that_found_the_version_to_be_the_newest(root, logs, clock):
    (one, _) = logs
    assert one.move() == []
    before = one.polled_at
    assert before == clock.now
    elsewhere(root, 1)
    clock.now += 1
    assert poll(one) == []
    assert one.polled_at == before
    one.move()
    assert one.polled_at == clock.now


def test_a_commit_is_a_look_that_began_before_it_was_written(store, logs, clock, monkeypatch):
    """What others have committed before that has a lower version."""
    one, other = logs
    one.move()
    put = store.put_if_absent

    def puts_slowly(*given):
        clock.now += 3
        return put(*given)

    monkeypatch.setattr(store, "put_if_absent", puts_slowly)
    began_at = clock.now
    write(one)
    assert (clock.now, one.polled_at) == (began_at + 3, began_at)
    assert poll(other, 4.0) == [1]
    assert other.polled_at == began_at


def test_on_a_disk_every_poll_looks(clock):
    with MemoryStore("disk", is_local=True, faults=Looks()).opened() as store:
        log = DeltaLog.create(StorageRoot.of(f"{store.uri}/log"), LOG)
        clock.now += 1000
        assert [store.faults.of(lambda: poll(log)) for _ in range(3)] == [([], 2)] * 3


def test_what_another_tool_changes_is_seen_though_a_follower_has_looked_before(root, logs, clock):
    one, other = logs
    assert [poll(log) for log in logs] == [[], []]
    follower, start = NewSegments(root, 1), one.version
    follower.begin()
    clock.now += 1000
    content = root.read(commit_name(0))  # with `metaData` and `protocol`
    root.put(commit_name(one.version + 1), content)
    follower.read(max_staleness=5.0)
    assert follower.version == start + 1
    assert [poll(log) for log in logs] == [None, None]
    assert other.version == start + 1


def test_a_folder_is_listed_once_for_all_who_poll_it_and_at_once_for_who_must_know(store, clock):
    listed = []

    def poll(max_staleness):
        return store.version_cache.listing(
            "bucket/brokers", max_staleness, lambda: listed.append(clock.now) or [len(listed)]
        )

    assert [poll(5.0), poll(5.0), poll(0.0), poll(5.0)] == [[1], [1], [2], [2]]
    clock.now += 4.9
    assert poll(5.0) == [2]
    clock.now += 0.1
    assert poll(5.0) == [3]


def test_a_listing_that_fails_is_done_again(store):
    def fails():
        raise OSError("503")

    with pytest.raises(OSError, match="503"):
        store.version_cache.listing("bucket/brokers", 5.0, fails)
    assert store.version_cache.listing("bucket/brokers", 5.0, lambda: ["1"]) == ["1"]


# --- however many tables there are


def commits_of(table, count, size):
    """`count` commits of a table, each with a small file of `size` bytes, and the stamps before them."""
    for version in range(count):
        file = AddedFile(f"{version}.parquet", size, content=bytes(size))
        yield (version, f"{table}"), Commit(version, (file,), stamp=(version + 1, f"{table}"))


def known_commits(noted, tables, count):
    return [
        (table, version)
        for table in range(tables)
        for version in range(count)
        if noted.commits.after(f"{table}", version - 1, (version, f"{table}"))[0] is not None
    ]


def test_the_commits_of_all_tables_together_take_no_more_than_their_share_of_memory():
    noted, tables, size = VersionCache(), 200, 100_000
    for table in range(tables):
        for before, commit in commits_of(table, 20, size):
            noted.commits.add(f"{table}", before, commit)
    known = known_commits(noted, tables, 20)
    assert KEPT_BYTES * 0.9 < len(known) * size < KEPT_BYTES
    assert known == [(table, version) for table in range(tables) for version in range(4, 20)][-len(known) :]


def test_a_commit_that_is_given_up_makes_room_for_others():
    noted, size = VersionCache(), 100_000
    for _ in range(3):
        for table in range(20):
            for before, commit in commits_of(table, 16, size):
                noted.commits.add(f"{table}", before, commit)
            noted.commits.forget(f"{table}")
    for before, commit in commits_of(0, 16, size):
        noted.commits.add("0", before, commit)
        noted.commits.add("0", before, commit)
    assert known_commits(noted, 1, 16) == [(0, version) for version in range(16)]


def test_what_is_known_of_the_tables_that_moved_first_is_given_up(monkeypatch):
    monkeypatch.setattr(freshness, "TABLES_KEPT", 3)
    noted, listed = VersionCache(), []

    def listing(uri):
        return noted.listing(uri, 60, lambda: listed.append(uri) or [uri])

    for uri in "abcad":
        noted.polled(uri, 1, 5.0)
        noted.moved(uri, 2, "append", 6.0)
        assert listing(uri) == [uri]
    assert [uri for uri in "abcd" if noted.polled_at(uri, 2, 0.0)] == ["a", "c", "d"]
    assert listed == ["a", "b", "c", "d"]
    assert listing("b") == ["b"]


def test_threads_that_wait_for_one_look_have_one_lock_and_nobody_has_it_for_ever():
    noted, ended = VersionCache(), []

    def poll():
        with noted.one_poll("a"):
            ended.append("second")

    with noted.one_poll("a"):
        gc.collect()
        thread = threading.Thread(target=poll)
        thread.start()
        thread.join(0.1)
        ended.append("first")
    thread.join()
    assert ended == ["first", "second"]
