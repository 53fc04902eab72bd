"""Committed offsets are read back, and concurrent commits of consumers lose nothing."""

import os

import pytest
from deltalake import DeltaTable

from lakelog.replication.errors import IllegalGenerationException, KafkaStorageException, UnknownMemberIdException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.group_tables import CommittedOffset, GroupTable
from tests.processes import race

COMMITS = 20


@pytest.fixture
def storage(root):
    made = StorageRoot.of(root)
    GroupTable.create(made)
    return made


def row(offset, group="g", partition=0, topic_id="id"):
    return CommittedOffset(group, "t", topic_id, partition, offset)


def key(partition=0, topic_id="id"):
    return TopicIdPartition(topic_id, partition)


def test_ap_04_committed_offsets_come_back(storage):
    table, other = GroupTable.open(storage), GroupTable.open(storage)
    table.commit([row(3), row(0, partition=1)])
    other.commit([row(5), row(7, topic_id="another"), row(9, group="h")])
    assert table.committed("g") == other.committed("g") == {key(): 5, key(1): 0, key(0, "another"): 7}
    assert table.committed("h") == {key(): 9}
    assert table.committed("nobody") == {}
    other.commit([row(4)])
    assert table.committed("g")[key()] == 4, "an offset may go back"


@pytest.mark.parametrize("rows", [[], [row(3)]])
def test_ap_04_what_is_committed_already_is_not_written_again(storage, rows):
    table = GroupTable.open(storage)
    table.commit([row(3), row(4, partition=1)])
    table.commit(rows)
    assert last_version(storage.child("groups")) == 1


def test_ap_04_a_commit_says_whose_it_is(storage):
    GroupTable.open(storage).commit([row(3)])
    info = read_commit(storage.child("groups"), 1).info
    assert (info["who"], info["why"], info["groups"]) == ("consumer", "commit", ["g"])


def test_ap_04_a_commit_whose_answer_is_lost_is_not_made_again_over_a_later_one(storage, monkeypatch):
    """By then another consumer has taken over the partition and committed a later offset."""
    table, other = GroupTable.open(storage), GroupTable.open(storage)
    table.commit([row(5)])
    commit = DeltaLog.commit

    def lands(log, cause, *args, **options):
        monkeypatch.setattr(DeltaLog, "commit", commit)
        commit(log, cause, *args, **options)
        other.commit([row(20)])
        raise CommitUnknown("the answer was lost")

    monkeypatch.setattr(DeltaLog, "commit", lands)
    table.commit([row(10)])
    assert table.committed("g") == other.committed("g") == {key(): 20}
    assert last_version(storage.child("groups")) == 3


def test_ap_04_a_commit_that_lands_late_is_not_made_again_over_a_later_one(storage, monkeypatch):
    """It is still under way when its answer times out, and lands just before the retry."""
    table, other = GroupTable.open(storage), GroupTable.open(storage)
    commit, under_way = DeltaLog.commit, []

    def is_late(log, *args, **options):
        if not under_way:
            under_way.append((args, options))
            raise CommitUnknown("no answer")
        monkeypatch.setattr(DeltaLog, "commit", commit)
        commit(log, *under_way[0][0], **under_way[0][1])
        other.commit([row(20)])
        return commit(log, *args, **options)

    monkeypatch.setattr(DeltaLog, "commit", is_late)
    table.commit([row(10)])
    assert other.committed("g") == {key(): 20}


def test_ap_04_a_commit_that_fell_into_a_hole_is_made_again(storage, monkeypatch):
    """A clean-up removed the commits around it while it was under way, so nobody has read it."""
    table, other, groups = GroupTable.open(storage), GroupTable.open(storage), storage.child("groups")
    commit = DeltaLog.commit

    def falls_into_a_hole(log, cause, *args, **options):
        monkeypatch.setattr(DeltaLog, "commit", commit)
        commit(log, cause, *args, **options)
        late = groups.read(commit_name(1))
        for offset in (17, 18, 19, 20):
            other.commit([row(offset)])
        DeltaTable(groups.uri).create_checkpoint()
        for version in range(last_version(groups)):
            groups.delete(commit_name(version))
        groups.child("_delta_log").write(os.path.basename(commit_name(1)), late)
        raise CommitUnknown("slow")

    monkeypatch.setattr(DeltaLog, "commit", falls_into_a_hole)
    table.commit([row(10)])
    assert GroupTable.open(storage).committed("g") == {key(): 10}


def test_ap_04_a_claim_fences_older_members_and_everybody_else(storage):
    table, late = GroupTable.open(storage), GroupTable.open(storage)
    table.commit([row(3), row(9, group="h")], generation=1)
    assert table.claim("g", 2) == {key(): 3}
    for generation, error in ((1, IllegalGenerationException), (None, UnknownMemberIdException)):
        with pytest.raises(error, match="group g"):
            late.commit([row(1)], generation=generation)
    with pytest.raises(UnknownMemberIdException):
        late.delete("g")
    with pytest.raises(IllegalGenerationException):
        late.claim("g", 1)
    late.commit([row(4)], generation=2)
    late.commit([row(10, group="h")])
    assert (table.committed("g"), table.committed("h")) == ({key(): 4}, {key(): 10})
    table.release("g", 3)
    table.release("g", 2)
    late.commit([row(0)])
    assert (table.committed("g"), table.newest_fence("g")) == ({key(): 0}, 6)
    late.delete("g")
    assert (table.committed("g"), table.committed("h"), table.newest_fence("g")) == ({}, {key(): 10}, 6)


def test_ap_04_a_release_does_not_undo_the_claim_of_a_newer_generation(storage):
    table = GroupTable.open(storage)
    table.claim("g", 4)
    table.release("g", 3)
    with pytest.raises(UnknownMemberIdException):
        table.commit([row(3)])


def test_ap_04_a_commit_that_is_under_way_during_a_claim_is_refused(storage, monkeypatch):
    """The member was stopped between its check and its commit, and is expelled meanwhile."""
    table, heir = GroupTable.open(storage), GroupTable.open(storage)
    table.claim("g", 1)
    table.commit([row(3)], generation=1)
    commit = DeltaLog.commit

    def is_stopped(log, *args, **options):
        monkeypatch.setattr(DeltaLog, "commit", commit)
        assert heir.claim("g", 2) == {key(): 3}
        heir.commit([row(20)], generation=2)
        return commit(log, *args, **options)

    monkeypatch.setattr(DeltaLog, "commit", is_stopped)
    with pytest.raises(IllegalGenerationException, match="group g: generation 1 is over, the group is in generation 2"):
        table.commit([row(10)], generation=1)
    assert heir.committed("g") == {key(): 20}


def test_ap_04_a_claim_is_always_written_so_that_no_earlier_commit_lands_after_it(storage, monkeypatch):
    """The commit of an earlier owner is still under way when its answer times out."""
    table, heir, under_way = GroupTable.open(storage), GroupTable.open(storage), []
    heir.claim("g", 2)
    commit = DeltaLog.commit
    monkeypatch.setattr(DeltaLog, "commit", lambda log, *a, **o: under_way.append((log, a, o)) or late())

    def late():
        raise CommitUnknown("no answer")

    with pytest.raises(KafkaStorageException):
        table.commit([row(10)], generation=2)
    monkeypatch.setattr(DeltaLog, "commit", commit)
    assert heir.claim("g", 2) == {}, "the same fence again"
    for log, args, options in under_way[:1]:
        with pytest.raises(CommitConflict):
            commit(log, *args, **options)
    assert heir.committed("g") == {}


def commit_often(start, uri, partition):
    table = GroupTable.open(StorageRoot.of(uri))
    start()
    for offset in range(1, COMMITS + 1):
        table.commit([row(offset, partition=partition)])
    return table.committed("g")[key(partition)]


def test_ap_04_two_processes_commit_at_the_same_time(storage):
    assert race(commit_often, (storage.uri, 0), (storage.uri, 1)) == [COMMITS, COMMITS]
    assert GroupTable.open(storage).committed("g") == {key(0): COMMITS, key(1): COMMITS}
    assert last_version(storage.child("groups")) == 2 * COMMITS


def test_td_03_ap_04_offsets_of_topics_that_are_gone_are_forgotten(storage):
    table = GroupTable.open(storage)
    table.commit([row(3), row(7, topic_id="another"), row(9, group="h")])
    table.forget_all_but(lambda: {"id"}, {"who": "test"})
    assert (table.committed("g"), table.committed("h")) == ({key(): 3}, {key(): 9})
    before = last_version(storage.child("groups"))
    table.forget_all_but(lambda: {"id"}, {"who": "test"})
    assert last_version(storage.child("groups")) == before, "nothing to write"


def test_td_03_ap_04_a_topic_that_comes_meanwhile_is_asked_for_once_its_offsets_are_read(storage):
    """A topic exists before its first offsets, so a read after the offsets sees it."""
    table, consumer = GroupTable.open(storage), GroupTable.open(storage)
    table.commit([row(3)])
    topics = {"id"}

    def ask():
        asked = set(topics)
        if "new" not in topics:
            topics.add("new")
            consumer.commit([row(1, topic_id="new")])
        return asked

    consumer.commit([row(5, topic_id="gone")])
    table.forget_all_but(ask, {"who": "test"})
    assert table.committed("g") == {key(): 3, key(0, "new"): 1}
