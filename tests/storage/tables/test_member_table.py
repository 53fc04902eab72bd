"""The members of a group on real tables: they come back, heartbeats need no file, concurrent changes lose nothing."""

import dataclasses
import os

import pytest

from lakelog.replication.errors import GroupIdNotFoundException, InvalidGroupIdException, UnknownMemberIdException
from lakelog.replication.protocol.consumer_group import ConsumerGroup, give_up, join, take, to_give_up, without
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.group_tables import (
    GroupTable,
    MemberTable,
    folder_of,
    groups_with_tables,
    tables_at_roots,
)
from tests.processes import race
from tests.protocol.test_consumer_group import FOUR, member, shown

ROUNDS = 15


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def table(storage):
    return MemberTable.open_or_create(storage, "g")


def joins(name):
    return lambda group: join(group, member(name), FOUR)


def other(storage):
    found = MemberTable.open_if_there(storage, "g")
    assert found is not None
    return found


def test_ap_04_members_come_back(storage, table):
    table.change("g", "join", joins("a"))
    table.change("g", "take", lambda group: take(group, "a"))
    written = table.change("g", "join", joins("b"))
    assert other(storage).group == table.read() == written
    assert (written.generation, shown(written)["a"]) == (2, ("t0 t1", "t0 t1 t2 t3"))
    row = table.rows[0]
    assert (row["group_id"], row["member_id"], row["topics"]) == ("g", "a", ["t"])


def test_ap_04_kip_345_a_static_member_comes_back_with_its_name_and_counter(storage, table):
    new = dataclasses.replace(member("s-1"), instance_id="s")
    table.change("g", "join", lambda group: join(group, new, FOUR), "s-1")
    heir = dataclasses.replace(new, member_id="s-2")
    table.change("g", "join", lambda group: join(group, heir, FOUR), "s-2")
    (found,) = other(storage).group.members
    assert (found.member_id, found.instance_id, found.slot, found.heartbeat) == ("s-2", "s", 0, 2)


def test_ap_04_a_heartbeat_moves_one_counter_and_writes_no_file(storage, table):
    for name in ("a", "b"):
        table.change("g", "join", joins(name))
    before = other(storage).group
    for _ in range(3):
        table.change("g", "heartbeat", lambda group: group, beats="b")
    after = other(storage).group
    assert [m.heartbeat for m in after.members] == [0, 3]
    assert after.with_member(before.member("b")) == before
    assert not read_commit(storage.child("members", "g"), last_version(storage.child("members", "g"))).adds


def test_ap_04_who_is_expelled_has_no_heartbeat(table):
    table.change("g", "join", joins("a"))
    table.change("g", "expire", lambda group: without(group, {"a"}, FOUR))
    with pytest.raises(UnknownMemberIdException):
        table.change("g", "heartbeat", lambda group: group.with_member(group.member("a")), beats="a")


def test_ap_04_the_generation_and_the_heartbeats_of_a_slot_never_go_back(storage, table):
    table.change("g", "join", joins("a"), beats="a")
    table.change("g", "leave", lambda group: without(group, {"a"}, FOUR))
    table.maintain()
    found = other(storage).group
    assert found == ConsumerGroup(2, ())
    joined = other(storage).change("g", "join", joins("b"))
    assert (joined.generation, joined.member("b").slot) == (3, 0)


def test_ap_04_what_is_decided_already_is_not_written(storage, table):
    table.change("g", "join", joins("a"))
    before = last_version(storage.child("members", "g"))
    assert table.change("g", "nothing", lambda _: None) == table.group
    assert last_version(storage.child("members", "g")) == before


def test_ap_04_a_change_whose_answer_is_lost_is_recognised(table, monkeypatch):
    commit = DeltaLog.commit

    def lands(log, *args, **options):
        monkeypatch.setattr(DeltaLog, "commit", commit)
        commit(log, *args, **options)
        raise CommitUnknown("the answer was lost")

    monkeypatch.setattr(DeltaLog, "commit", lands)
    joined = table.change("g", "join", lambda g: None if g.members else join(g, member("a"), FOUR))
    assert (joined.generation, len(joined.members)) == (1, 1)


@pytest.mark.parametrize("name", ["g", "my group", "a/b", "..", "ü=x", "a_b-c", "x" * 200])
def test_ap_04_a_group_of_any_name_has_a_folder(storage, name):
    folder = folder_of(name)
    assert set(folder) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=_-")
    MemberTable.open_or_create(storage, name)
    assert groups_with_tables(storage) == [name]


@pytest.mark.parametrize("name", ["g", "my group", "g=n1", "=n", "n1", "x" * 200])
def test_ap_04_a_later_table_of_a_group_has_a_folder_of_its_own(storage, name):
    for number in (0, 1, 23):
        assert MemberTable.open_or_create(storage, name, number).number == number
    assert tables_at_roots(storage) == {name: [0, 1, 23]}
    assert groups_with_tables(storage) == [name]


CLOSED = {
    "no member": ((), True),
    "has left": (("join", "leave"), True),
    "a member": (("join",), False),
    "joined since": (("join", "leave", "join", "leave"), False),
}


@pytest.mark.parametrize(("changes", "is_closed"), CLOSED.values(), ids=CLOSED)
def test_ap_04_a_table_is_closed_unless_somebody_has_joined_since(storage, changes, is_closed):
    table = MemberTable.open_or_create(storage, "g")
    for why in changes:
        table.change("g", why, joins("a") if why == "join" else lambda group: without(group, {"a"}, FOUR))
    seen = min(len(changes), 2)
    assert table.close(seen) is is_closed
    assert other(storage).group.is_closed is is_closed
    assert table.close(seen) is is_closed, "again"


def test_ap_04_a_member_makes_the_table_although_another_has_begun_to_make_it(root, monkeypatch):
    """The other one has written its first commit to a temporary file, and is slow, or was killed."""
    storage, link, made = LocalRoot(str(root)), os.link, []

    def late(temporary, name):
        monkeypatch.setattr(os, "link", link)
        made.append(MemberTable.open_or_create(storage, "g"))
        return link(temporary, name)

    monkeypatch.setattr(os, "link", late)
    slow = MemberTable.open_or_create(storage, "g")
    assert made[0].change("g", "join", joins("a")) == slow.read()


def test_ap_04_nobody_joins_a_closed_table(table):
    assert table.close(0)
    with pytest.raises(GroupIdNotFoundException, match="is closed"):
        table.change("g", "join", joins("a"))
    assert table.read() == ConsumerGroup(0, (), is_closed=True)


def test_ap_04_the_number_of_a_table_never_falls(storage):
    groups = GroupTable.create(storage)
    for number, newest in ((0, 1), (0, 1), (1, 2), (0, 2)):
        groups.move_on("g", number)
        assert groups.newest_table_number("g") == newest
    assert GroupTable.open(storage).newest_table_number("other") == 0


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 34])
def test_ap_04_a_name_without_a_folder_is_refused(name):
    with pytest.raises(InvalidGroupIdException, match="has a name of 1 to 200 characters"):
        folder_of(name)


def test_ap_04_a_group_without_a_table_never_had_a_member(storage):
    assert MemberTable.open_if_there(storage, "g") is None
    assert groups_with_tables(storage) == []


def come_and_go(start, uri, name):
    """Joins, takes and leaves again and again; returns how often others owned what it took."""
    table, doubled = MemberTable.open_or_create(StorageRoot.of(uri), "g"), 0
    start()
    for _ in range(ROUNDS):
        table.change("g", "join", joins(name))
        table.change("g", "give up", lambda group: give_up(group, name, to_give_up(group, name)), beats=name)
        found = table.change("g", "take", lambda group: take(group, name))
        owned: list[AssignedPartition] = [p for m in found.members for p in m.owned]
        doubled += len(owned) - len(set(owned))
        table.change("g", "leave", lambda group: without(group, {name}, FOUR))
    return doubled


def test_ap_04_processes_that_join_and_leave_at_the_same_time(storage):
    """The table does not exist when they begin, and no change of one undoes another's."""
    assert race(come_and_go, (storage.uri, "a"), (storage.uri, "b")) == [0, 0]
    assert other(storage).group == ConsumerGroup(2 * 2 * ROUNDS, ())
    assert dataclasses.asdict(other(storage).group)["members"] == ()


def test_a_group_with_a_name_that_is_too_long_has_no_members(storage):
    """An older version has committed offsets under such names: they are described and deleted as others."""
    assert MemberTable.open_if_there(storage, "x" * 201) is None
