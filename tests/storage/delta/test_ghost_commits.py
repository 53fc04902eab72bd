"""A writer that was frozen for long commits into the hole of removed commits: nobody takes it for one of those."""

import dataclasses
import os
from itertools import groupby

import pytest
from deltalake import DeltaTable

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.delta import commit_format, log_recovery
from lakelog.replication.storage.delta.commit_format import commit_name, drop_commits_before, is_commit, read_commit
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitTracker, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.log_recovery import ASIDE
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import broken_segments, replica_log
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.verification.memory_root import MemoryRoot, MemoryStore
from tests.storage.log.test_replay import fails_once
from tests.storage.logs import P0, P1, facts, fill, lead, leo, new_log, offsets, request, send


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


def test_a_clean_up_that_ends_half_way_has_dropped_no_commit_after_one_that_is_there(log, monkeypatch):
    """A commit that exists proves that none after it was dropped: writers rely on that."""
    fill(log, P0, *[1] * 8)
    left, delete = [], LocalRoot.delete

    def watched(root, name):
        delete(root, name)
        left.append([int(each[:20]) for each in sorted(root.child("_delta_log").list()) if is_commit(each)])

    monkeypatch.setattr(LocalRoot, "delete", watched)
    drop_commits_before(log.root, 5)
    newest = log.current().version
    assert left == [list(range(first, newest + 1)) for first in range(1, 6)]


def test_who_stands_at_a_dropped_commit_sees_that_the_table_has_moved(log):
    other, table = ReplicaLog.open(log.root), DeltaLog.open(log.root)
    assert table.move() == []
    leave_behind(log, log.current().version)
    assert table.move() is None
    assert facts(other, P0) == facts(log, P0)
    fill(other, P0, 1)
    assert leo(log) == 11


def test_a_reader_that_stands_at_a_dropped_commit_sees_that_the_table_has_moved(log):
    reader = NewSegments(log.root, 1)
    reader.begin()
    assert reader.read() == []
    leave_behind(log, reader.version)
    version = log.current().version
    assert [row[-1] for row in reader.read()] == [f"commits up to {version} of {log.root.uri} have been cleaned up"]
    assert reader.version == version


def test_a_reader_does_not_take_what_lies_in_the_hole_for_a_commit_that_follows(log):
    """All commits from the ghost on can be read, but a clean-up has removed those before it."""
    reader = NewSegments(log.root, 1)
    reader.begin()
    fill(log, P0, *[1] * 4)
    drop_commits_before(log.root, reader.version + 2)
    ghost(log.root, reader.version + 1)
    version = log.current().version
    assert [row[-1] for row in reader.read()] == [f"commits up to {version} of {log.root.uri} have been cleaned up"]


def test_a_newest_version_is_looked_for_from_a_commit_that_is_still_the_one_that_was_seen(log):
    version = log.current().version
    seen, unseen = CommitTracker(log.root), CommitTracker(log.root)
    assert seen.newest(version) == version
    leave_behind(log, version)
    assert [known.newest(version) for known in (seen, unseen)] == [log.current().version, version]
    assert seen.newest(log.current().version) == log.current().version


def test_a_commit_that_was_passed_on_the_way_is_known_too(log):
    known, first = CommitTracker(log.root), log.current().version
    assert known.newest(first) == first
    fill(log, P0, 1, 1)
    assert known.newest(first) == first + 2
    leave_behind(log, first + 2)
    assert known.newest(first + 2) == log.current().version


def test_a_late_commit_after_a_ghost_is_not_believed(log, monkeypatch):
    """A commit with the name of the version before exists, but it was as late as this one."""
    late, write = DeltaLog.open(log.root), LocalRoot.put_if_absent
    version = late.version

    def frozen(*args):
        monkeypatch.setattr(LocalRoot, "put_if_absent", write)
        leave_behind(log, version)
        return write(*args)

    monkeypatch.setattr(LocalRoot, "put_if_absent", frozen)
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
def test_a_late_commit_to_a_table_that_was_made_again_does_not_count(home, monkeypatch, answer, caplog):
    """A root is emptied and formatted while a producer writes. The new log opens all the same, and its owner puts the
    commit aside."""
    log = new_log(home, P0)
    fill(log, P0, 1, 1)

    def make_again():
        log.root.delete_folder()
        new_log(home, P0)

    assert Frozen(log.root, monkeypatch, make_again, answer).commit() == [0, 1, 4]
    reader = ReplicaLog.open(log.root)
    assert leo(reader) == 0
    owner = ReplicaLog.open(log.root)
    owner.claim(7)
    assert aside(log.root) == [4]
    assert f"put aside, to {log.root.path(ASIDE)}: {4:020}.json" in caplog.text
    fill(reader, P0, *[1] * 5)
    assert facts(owner, P0) == facts(ReplicaLog.open(log.root), P0)
    assert leo(owner) == 5


def aside(root):
    """The versions that were put aside."""
    return [int(name[:20]) for name in root.child(ASIDE).list()]


def made_again_with_as_many_commits(log, home):
    def make_again():
        log.root.delete_folder()
        new = new_log(home, P0)
        fill(new, P0, *[1] * (log.current().version - new.current().version))

    return make_again


def test_a_late_commit_with_the_next_version_of_a_table_that_was_made_again_does_not_count(home, monkeypatch):
    """It lands as if it followed. Its writer is not told so, no other one builds on it, and its owner puts it aside."""
    log = new_log(home, P0)
    fill(log, P0, 1, 1)
    handles = []

    def make_again():
        made_again_with_as_many_commits(log, home)()
        handles.extend(ReplicaLog.open(log.root) for _ in range(2))

    late = Frozen(log.root, monkeypatch, make_again)
    assert late.commit()[-1] == late.version
    reader, owner = handles
    for _ in range(2):
        with pytest.raises(KafkaStorageException, match=rf"{late.version:020}\.json was written after another"):
            send(reader, request(P0, 1, producer_id=9))
    assert facts(ReplicaLog.open(log.root), P0) == facts(reader, P0), "nobody opens it, either"
    owner.claim(7)
    assert aside(log.root) == [late.version]
    fill(reader, P0, 1, producer_id=9)
    assert facts(owner, P0) == facts(ReplicaLog.open(log.root), P0)


def test_an_owner_puts_aside_what_it_meets_later(home, monkeypatch):
    log = new_log(home, P0)
    fill(log, P0, 1, 1)
    owners = []

    def make_again():
        made_again_with_as_many_commits(log, home)()
        owners.append(ReplicaLog.open(log.root))
        owners[0].claim(7)

    late = Frozen(log.root, monkeypatch, make_again)
    late.version += 1
    with pytest.raises((CommitConflict, CommitUnknown)):
        late.log.commit({"why": "late"})
    other = Frozen(log.root, monkeypatch, lambda: None)
    assert other.log.version == owners[0].current().version
    ghost(log.root, other.version, read_commit_bytes(log.root, other.version - 1))
    fill(owners[0], P0, 1)
    assert aside(log.root) == [other.version]
    assert facts(owners[0], P0) == facts(ReplicaLog.open(log.root), P0)


def read_commit_bytes(root, version):
    return root.read(commit_name(version))


def power_cut(log, *lost):
    """Commits are lost that a producer has replayed. It goes on above the hole, as long as the last one is there."""
    producer = ReplicaLog.open(log.root)
    fill(producer, P0, 1, 1)
    lose(log, *lost)
    return producer


def test_li_04_a_log_with_a_hole_opens_below_it_and_its_owner_puts_the_rest_aside(log, caplog):
    """A power cut has taken commits that a producer had replayed, and it has committed more since."""
    version = log.current().version
    power_cut(log, version, version - 1)
    reader = ReplicaLog.open(log.root)
    assert (reader.current().version, leo(reader)) == (version - 2, 0)
    assert batches_from(log.root, {P0: 0}, {}) == ([], {}), "nor does a follower read what is above it"
    assert f"opened at version {version - 2}: version {version - 1} is missing" in caplog.text
    owner = ReplicaLog.open(log.root)
    owner.claim(7)
    assert aside(log.root) == [version + 1, version + 2]
    assert f"its last version is {version - 2}: the next one is missing" in caplog.text
    fill(owner, P0, *[1] * 8)
    assert facts(reader, P0) == facts(owner, P0)
    assert leo(owner) == 8


def test_a_commit_is_not_acknowledged_once_the_one_before_it_is_lost(log):
    """Its writer decides again, on what the log still has."""
    producer, version = ReplicaLog.open(log.root), log.current().version
    lose(log, version)
    fill(producer, P0, 1, producer_id=9)
    assert producer.current().version == version
    assert facts(producer, P0) == facts(ReplicaLog.open(log.root), P0)


def test_li_04_who_fills_the_hole_before_its_owner_comes_does_not_run_into_the_ghosts(log):
    """A producer appends to the log of a dead broker, up to the version before a ghost. The ghost does not follow."""
    version = log.current().version
    power_cut(log, version)
    producer = ReplicaLog.open(log.root)
    fill(producer, P0, 1, producer_id=99)
    with pytest.raises(KafkaStorageException, match="was written after another version"):
        fill(producer, P0, 1, producer_id=99)
    owner = ReplicaLog.open(log.root)
    assert owner.current().version == version
    owner.claim(7)
    assert aside(log.root) == [version + 1, version + 2]
    assert facts(producer, P0) == facts(owner, P0)


def test_a_commit_that_lands_while_its_owner_looks_is_no_ghost(log, monkeypatch):
    """The hole is filled between the owner's listing and its next poll."""
    owner, producer = ReplicaLog.open(log.root), ReplicaLog.open(log.root)
    listed = log_recovery.find_end

    def and_then(*given):
        found = listed(*given)
        monkeypatch.setattr(log_recovery, "find_end", listed)
        fill(producer, P0, 1, 1)
        return found._replace(ghosts=[commit_name(owner.current().version + 2).split("/")[1]])

    monkeypatch.setattr(log_recovery, "find_end", and_then)
    log_recovery.recover_log(log.root)
    assert aside(log.root) == []
    assert facts(owner, P0) == facts(producer, P0)


ON_DISK = [(log_recovery, "put_aside"), (LocalRoot, "move_out"), (os, "replace")]
IN_MEMORY = [(log_recovery, "put_aside"), (MemoryRoot, "read_buffer"), (StorageRoot, "write")]


@pytest.mark.parametrize("step", ON_DISK, ids=lambda step: step[1])
def test_an_owner_that_was_frozen_leaves_commits_with_the_names_of_ghosts(log, monkeypatch, step):
    """A newer process of the broker has recovered the log before this step, and producers have filled it."""
    assert_leaves_new_commits(log, monkeypatch, step)


@pytest.mark.parametrize("step", IN_MEMORY, ids=lambda step: step[1])
def test_an_owner_in_a_store_that_cannot_move_files_leaves_commits_that_it_sees(monkeypatch, step):
    with MemoryStore("frozen").opened() as store:
        log = new_log(f"{store.uri}/broker", P0)
        fill(log, P0, 1, 1)
        assert_leaves_new_commits(log, monkeypatch, step)


def assert_leaves_new_commits(log, monkeypatch, step):
    version, carried_out, records = log.current().version, getattr(*step), []
    fill(log, P0, 1, 1, 1)
    log.root.child("_delta_log").delete(commit_name(version + 1).split("/")[1])
    ghosts, last = [log.root.read(commit_name(version + number)) for number in (2, 3)], f"{version + 3:020d}.json"

    def frozen(root, *given):
        if last in given[0]:
            monkeypatch.setattr(*step, carried_out)
            log_recovery.recover_log(log.root)
            newer = ReplicaLog.open(log.root)
            fill(newer, P0, 2, 2, 2)
            assert newer.current().version == version + 3
            records.append(offsets(newer))
        return carried_out(root, *given)

    monkeypatch.setattr(*step, frozen)
    log_recovery.recover_log(log.root)
    assert getattr(*step) is carried_out
    assert DeltaLog.open(log.root).version == version + 3
    assert records == [offsets(ReplicaLog.open(log.root))]
    assert [log.root.child(ASIDE).read(name) for name in sorted(log.root.child(ASIDE).list())] == ghosts


def test_an_owner_that_was_frozen_leaves_a_commit_that_has_taken_the_place_of_a_torn_one(root, monkeypatch):
    """Only the checkpoint of the torn one is left, so a newer process of the broker has written an empty commit."""
    log = new_log(root, P0)
    fill(log, P0, 1, 1)
    version, replace = log.current().version, os.replace
    log.root.checkpoint_table(version)
    log.root.child("_delta_log").write(commit_name(version).split("/")[1], b"")
    records = []

    def frozen(source, target):
        monkeypatch.setattr(os, "replace", replace)
        log_recovery.recover_log(log.root, is_after_crash=True)
        newer = ReplicaLog.open(log.root)
        fill(newer, P0, 2, 2)
        records.append(offsets(newer))
        replace(source, target)

    monkeypatch.setattr(os, "replace", frozen)
    log_recovery.recover_log(log.root, is_after_crash=True)
    assert [offsets(ReplicaLog.open(log.root))] == records == [list(range(6))]
    assert [log.root.child(ASIDE).read(name) for name in log.root.child(ASIDE).list()] == [b""]


def test_an_owner_that_ends_half_way_has_left_no_ghost_after_one_that_it_took(log, monkeypatch):
    """A commit that lands in between would seem to follow a ghost that was left."""
    version, left, replace = log.current().version, [], os.replace
    fill(log, P0, 1, 1, 1, 1)
    log.root.delete(commit_name(version + 1))

    def watched(source, target):
        replace(source, target)
        names = filter(is_commit, log.root.child("_delta_log").list())
        left.append(sorted(int(each[:20]) - version for each in names if int(each[:20]) > version))

    monkeypatch.setattr(os, "replace", watched)
    log_recovery.recover_log(log.root)
    assert [each for each, _ in groupby(left)] == [[2, 3], [2], []]


def test_a_state_table_with_a_hole_is_read_below_it_and_goes_on(root):
    storage = StorageRoot.of(root)
    table = BrokerTable.open_or_create(storage, 1)
    table.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    for _ in range(6):
        table.heartbeat(1, "heartbeat")
    folder = storage.child("brokers", "1")
    folder.delete(commit_name(5))
    reader = BrokerTable.open(storage, 1)
    assert reader.version == 4
    owner = BrokerTable.open(storage, 1)
    owner.register(lambda found: dataclasses.replace(found, broker_epoch=2))
    assert aside(folder) == [6, 7]
    for _ in range(5):
        table.heartbeat(2, "heartbeat")
    for other in (reader, owner):
        other.refresh()
        assert other.registration == table.registration


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{', bytes(100)], ids=["empty", "half", "zeros"])
@pytest.mark.parametrize("back", [0, 1])
def test_li_04_after_a_crash_a_torn_commit_is_a_hole(log, left, back):
    """Its writer had not synced it, so that a power cut may leave it empty. Otherwise it is an error for people."""
    version = log.current().version - back
    log.root.child("_delta_log").write(commit_name(version).split("/")[1], left)
    with pytest.raises(CorruptRecordException, match="empty or torn"):
        log_recovery.recover_log(log.root)
    log_recovery.recover_log(log.root, is_after_crash=True)
    assert aside(log.root) == [*range(version, version + back + 1)]
    assert ReplicaLog.open(log.root).current().version == version - 1
    log_recovery.recover_log(log.root, is_after_crash=True)


def test_li_04_after_a_crash_a_state_table_goes_back_to_rows_that_are_whole(root):
    """Its last file is empty. Heartbeats after it have no file of their own."""
    storage = StorageRoot.of(root)
    table = BrokerTable.open_or_create(storage, 1)
    table.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    folder, whole = storage.child("brokers", "1"), table.registration
    table.heartbeat(1, "fenced", shutting_down=True)
    table.heartbeat(1, "heartbeat")
    (torn,) = read_commit(folder, 2).adds
    folder.write(torn.name, b"")
    log_recovery.recover_log(folder, is_after_crash=True, has_rows=True)
    assert aside(folder) == [2, 3]
    assert BrokerTable.open(storage, 1).registration == whole


@pytest.mark.parametrize("has_rows", [False, True])
def test_li_04_after_a_crash_a_log_whose_first_commit_is_torn_is_left_to_its_opening(log, has_rows):
    """No commit before it is left to go back to. Who opens the table names the file."""
    log.root.child("_delta_log").write(commit_name(0).split("/")[1], b"")
    log_recovery.recover_log(log.root, is_after_crash=True, has_rows=has_rows)
    assert aside(log.root) == []
    with pytest.raises(KafkaStorageException, match="this commit is empty or torn"):
        DeltaLog.open(log.root)


def test_li_04_a_checkpoint_after_a_hole_is_put_aside(log):
    """And the hint at it: delta-rs would look for it."""
    version = log.current().version
    fill(log, P0, *[1] * 5)
    DeltaTable(log.root.uri).create_checkpoint()
    lose(log, version, version + 1, version + 5)
    log.root.child("_delta_log").write(f"{version + 5:020}.checkpoint.parquet", b"PAR1")
    log_recovery.recover_log(log.root, is_after_crash=True)
    assert aside(log.root) == [version + 2, version + 3, version + 4, version + 5]
    owner = ReplicaLog.open(log.root)
    fill(owner, P0, *[1] * 8)
    assert facts(ReplicaLog.open(log.root), P0) == facts(owner, P0)


def test_a_commit_after_one_of_another_table_is_left_to_the_owner(log, monkeypatch):
    """Somebody may have followed it already."""
    version = log.current().version

    def put_another():
        log.root.delete(commit_name(version))
        ghost(log.root, version)

    assert Frozen(log.root, monkeypatch, put_another).commit()[-2:] == [version, version + 1]


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
        monkeypatch.setattr(commit_format, "read_commit", read_commit)
        found = read_commit(*args)
        DeltaTable(log.root.uri).create_checkpoint()
        drop_commits_before(log.root, version + 2)
        ghost(log.root, version + 1)
        return found

    monkeypatch.setattr(commit_format, "read_commit", reads_and_drops)
    assert late.move() is None
    assert late.version == log.current().version


def test_few_commits_are_kept_in_mind(log):
    fill(log, P0, *[1] * 40)
    known = CommitTracker(log.root)
    assert known.newest(1) == 43
    assert len(known.stamps) == 16


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
    monkeypatch.setattr(
        CommitTracker, "remember", fails_once(CommitTracker.remember, KafkaStorageException("timed out"))
    )
    with pytest.raises(KafkaStorageException, match="timed out"):
        behind.refresh()
    assert facts(behind, P0) == facts(ReplicaLog.open(log.root), P0)
