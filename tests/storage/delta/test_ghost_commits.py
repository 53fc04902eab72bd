"""A writer that was frozen for long commits into the hole of removed commits: nobody takes it for one of those."""

import dataclasses

import pytest
from deltalake import DeltaTable

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta import commit_reader
from lakelog.replication.storage.delta.commit_reader import commit_name, drop_commits_before, is_commit, read_commit
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.known_commits import KnownCommits
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import broken_segments, replica_log
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.memory.store import MemoryStore
from tests.storage.log.test_replay import fails_once
from tests.storage.logs import P0, P1, facts, fill, lead, leo, new_log


@pytest.fixture
def log(root):
    made = new_log(root, P0)
    fill(made, P0, 1, 1)
    return made


def ghost(root, version, content=b'{"commitInfo":{}}\n'):
    """Puts a late commit at a version whose name is free again."""
    assert not root.exists(commit_name(version))
    root.child("_delta_log").write(commit_name(version).split("/")[1], content)


def leave_behind(log, version):
    """The log goes on and drops its commits up to a version, whose place a ghost takes."""
    fill(log, P0, *[1] * 8)
    handle = DeltaTable(log.root.uri)
    handle.create_checkpoint()
    drop_commits_before(log.root, version + 3)
    ghost(log.root, version)


def test_who_stands_at_a_dropped_commit_sees_that_the_table_has_moved(log):
    other, table = ReplicaLog.open(log.root), DeltaLog.open(log.root)
    assert table.move() == []
    leave_behind(log, log.current().version)
    assert table.move() is None
    assert facts(other, P0) == facts(log, P0)
    fill(other, P0, 1)
    assert leo(log) == 11


def test_a_stream_that_stands_at_a_dropped_commit_sees_that_the_table_has_moved(log):
    reader = NewSegments(log.root, 1)
    start = reader.newest()
    assert reader.read(start)[1] == start
    leave_behind(log, start.log)
    rows, end, _ = reader.read(start)
    assert [row[-1] for row in rows] == [f"commits up to {end.log} of {log.root.uri} have been cleaned up"]
    assert end.log == log.current().version


def test_a_stream_does_not_take_what_lies_in_the_hole_for_a_commit_that_follows(log):
    """All commits from the ghost on can be read, but a clean-up has removed those before it."""
    reader = NewSegments(log.root, 1)
    start = reader.newest()
    fill(log, P0, *[1] * 4)
    drop_commits_before(log.root, start.log + 2)
    ghost(log.root, start.log + 1)
    rows, end, _ = reader.read(start)
    assert [row[-1] for row in rows] == [f"commits up to {end.log} of {log.root.uri} have been cleaned up"]


def test_a_newest_version_is_looked_for_from_a_commit_that_is_still_the_one_that_was_seen(log):
    version = log.current().version
    seen, unseen = KnownCommits(log.root), KnownCommits(log.root)
    assert seen.newest(version) == version
    leave_behind(log, version)
    assert [known.newest(version) for known in (seen, unseen)] == [log.current().version, version]
    assert seen.newest(log.current().version) == log.current().version


def test_a_commit_that_was_passed_on_the_way_is_known_too(log):
    known, first = KnownCommits(log.root), log.current().version
    assert known.newest(first) == first
    fill(log, P0, 1, 1)
    assert known.newest(first) == first + 2
    leave_behind(log, first + 2)
    assert known.newest(first + 2) == log.current().version


def test_a_late_commit_after_a_ghost_is_not_believed(log, monkeypatch):
    """A commit with the name of the version before exists, but it was as late as this one."""
    late, write = DeltaLog.open(log.root), StorageRoot.put_if_absent
    version = late.version

    def frozen(*args):
        monkeypatch.setattr(StorageRoot, "put_if_absent", write)
        leave_behind(log, version)
        return write(*args)

    monkeypatch.setattr(StorageRoot, "put_if_absent", frozen)
    with pytest.raises(CommitUnknown, match=f"version {version} is gone"):
        late.commit({"why": "late"})


class Frozen:
    """A writer that is frozen just before it puts its commit. Meanwhile `happens` is called."""

    def __init__(self, root, monkeypatch, happens, answer=None):
        self.log, kind, write = DeltaLog.open(root), type(root), type(root).put_if_absent
        self.version = self.log.version + 1

        def put(*args):
            monkeypatch.setattr(kind, "put_if_absent", write)
            happens()
            stamp = write(*args)
            if answer:
                raise answer
            return stamp

        monkeypatch.setattr(kind, "put_if_absent", put)

    def commit(self):
        """Commits, and fails. Returns the versions whose commits are there."""
        with pytest.raises(CommitUnknown, match=f"version {self.version - 1} is gone"):
            self.log.commit({"why": "late"})
        return [int(name[:20]) for name in self.log.root.child("_delta_log").list() if is_commit(name)]


@pytest.fixture(params=["a disk", "an object store"])
def home(request, root):
    """The root of a broker."""
    with MemoryStore("ghost").opened() as store:
        yield root if request.param == "a disk" else f"{store.uri}/broker"


@pytest.mark.parametrize("answer", [None, KafkaStorageException("timed out")], ids=["answered", "lost answer"])
def test_a_late_commit_to_a_table_that_was_made_again_is_taken_back(home, monkeypatch, answer):
    """A root is emptied and formatted while a producer writes. If the commit stayed, nobody could open the log."""
    log = new_log(home, P0)
    fill(log, P0, 1, 1)

    def make_again():
        log.root.delete_folder()
        new_log(home, P0)

    assert Frozen(log.root, monkeypatch, make_again, answer).commit() == [0, 1]
    assert leo(ReplicaLog.open(log.root)) == 0


def test_a_late_commit_to_a_bucket_that_was_emptied_is_taken_back(monkeypatch):
    """Without it the bucket can be formatted. A disk has no folder for it."""
    with MemoryStore("ghost").opened() as store:
        log = new_log(f"{store.uri}/broker", P0)
        fill(log, P0, 1, 1)
        assert Frozen(log.root, monkeypatch, log.root.delete_folder).commit() == []


def test_a_commit_that_others_follow_is_not_taken_back(log, monkeypatch):
    """Its writer looks so late that a clean-up has deleted the commit before it."""
    version, handle = log.current().version, log.root

    def goes_on():
        late.log.root.delete(commit_name(version))
        ghost(handle, version + 2)

    late = Frozen(log.root, monkeypatch, goes_on)
    assert late.commit()[-2:] == [version + 1, version + 2]


def test_a_commit_after_one_of_another_table_is_not_taken_back(log, monkeypatch):
    """Somebody may have followed it already."""
    version = log.current().version

    def put_another():
        log.root.delete(commit_name(version))
        ghost(log.root, version)

    assert Frozen(log.root, monkeypatch, put_another).commit()[-2:] == [version, version + 1]


def test_a_commit_that_others_have_followed_before_it_was_gone_is_put_back(log, monkeypatch):
    """A writer is frozen between its look and its deletion. Meanwhile the new table reaches the commit's version."""
    delete = StorageRoot.delete
    late = Frozen(log.root, monkeypatch, lambda: delete(log.root, commit_name(late.version - 1)))

    def others_first(root, name):
        ghost(root, late.version - 1)
        ghost(root, late.version + 1)
        delete(root, name)

    monkeypatch.setattr(StorageRoot, "delete", others_first)
    assert late.commit()[-3:] == [late.version - 1, late.version, late.version + 1]
    assert read_commit(log.root, late.version).info["why"] == "late"


def test_a_commit_that_cannot_be_taken_back_is_unknown_all_the_same(log, monkeypatch):
    def fails(*_):
        raise KafkaStorageException("timed out")

    def lose_the_version_before():
        log.root.delete(commit_name(late.version - 1))
        monkeypatch.setattr(StorageRoot, "delete", fails)

    late = Frozen(log.root, monkeypatch, lose_the_version_before)
    assert late.commit()[-1] == late.version


def test_nothing_is_told_of_a_hole(log):
    """Not even for a moment: other threads may read the replayed state."""
    late, version = DeltaLog.open(log.root), log.current().version
    leave_behind(log, version)
    ghost(log.root, version + 1)
    assert late.move() is None
    assert late.version == log.current().version


def test_a_hole_that_comes_while_commits_are_read_is_found(log, monkeypatch):
    late, version = DeltaLog.open(log.root), log.current().version
    fill(log, P0, 1, 1)

    def reads_and_drops(*args):
        monkeypatch.setattr(commit_reader, "read_commit", read_commit)
        found = read_commit(*args)
        DeltaTable(log.root.uri).create_checkpoint()
        drop_commits_before(log.root, version + 2)
        ghost(log.root, version + 1)
        return found

    monkeypatch.setattr(commit_reader, "read_commit", reads_and_drops)
    assert late.move() is None
    assert late.version == log.current().version


def test_few_commits_are_kept_in_mind(log):
    fill(log, P0, *[1] * 40)
    known = KnownCommits(log.root)
    assert known.newest(1) == 43
    assert len(known._seen) == 16


def test_a_table_that_was_put_back_is_read_anew(log):
    """Its commits have the same names, but other content."""
    other = ReplicaLog.open(log.root)
    newest = log.root.path(commit_name(log.current().version))
    with open(newest, "rb") as file:
        content = file.read()
    log.root.delete(commit_name(log.current().version))
    log.root.child("_delta_log").write(newest.rsplit("/", 1)[1], content)
    assert dataclasses.astuple(other.refresh().partition(P0)) == dataclasses.astuple(log.current().partition(P0))


def test_a_handle_sees_that_versions_have_been_used_again(log):
    """As after a power cut: the last commits are gone, and others have taken their versions."""
    behind = ReplicaLog.open(log.root)
    version = behind.current().version
    for lost in (version, version - 1):
        log.root.delete(commit_name(lost))
    again = ReplicaLog.open(log.root)
    fill(again, P0, 4, 1, producer_id=99)
    assert again.current().version == version
    assert facts(behind, P0) == facts(ReplicaLog.open(log.root), P0)


def lose(log, *versions):
    """As after a power cut: the last commits are gone."""
    for version in versions:
        log.root.delete(commit_name(version))


def appends(number):
    return lambda log: fill(log, P0, *[1] * number, producer_id=99)


@pytest.mark.parametrize(
    "more",
    [appends(0), appends(1), appends(3), lambda log: lead(log, P1, epoch=0)],
    ids=["as many as before", "one more", "three more", "one that would follow anything"],
)
@pytest.mark.parametrize("fails", ["read_segment", "check_commits"])
def test_a_log_whose_versions_were_used_again_is_read_anew_until_that_has_worked(log, monkeypatch, more, fails):
    """The handle is at the new commits by then. Only the failure shows that the state is of the old ones."""
    behind = ReplicaLog.open(log.root)
    version = behind.current().version
    lose(log, version, version - 1)
    again = ReplicaLog.open(log.root)
    fill(again, P0, 4, 1, producer_id=99)
    module = {"read_segment": broken_segments, "check_commits": replica_log}[fails]
    failing = fails_once(getattr(module, fails), KafkaStorageException("timed out"))
    monkeypatch.setattr(module, fails, failing)
    with pytest.raises(KafkaStorageException, match="timed out"):
        behind.refresh()
    more(again)
    assert facts(behind, P0) == facts(ReplicaLog.open(log.root), P0)


def test_a_log_that_has_lost_its_end_is_read_anew_where_that_could_not_be_told_at_first(log, monkeypatch):
    """The handle is at the log's new end, whose commit has not changed."""
    behind = ReplicaLog.open(log.root)
    lose(log, behind.current().version)
    monkeypatch.setattr(KnownCommits, "remember", fails_once(KnownCommits.remember, KafkaStorageException("timed out")))
    with pytest.raises(KafkaStorageException, match="timed out"):
        behind.refresh()
    assert facts(behind, P0) == facts(ReplicaLog.open(log.root), P0)
