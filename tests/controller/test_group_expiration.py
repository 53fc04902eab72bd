"""The controller expires the offsets of groups without members, and removes the members of groups that have died."""

import logging
import time

import pytest

from lakelog.replication.errors import KafkaStorageException, UnknownMemberIdException
from lakelog.replication.protocol.consumer_group import GroupMember, fence_of, join, take, without
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.storage.tables.group_tables import CommittedOffset, GroupTable, MemberTable
from tests.controller.world import World

CHECK, WEEK = 600, 7 * 24 * 3600
SESSION = 45


@pytest.fixture
def world(root):
    made = World(root)
    made.add_topic("other", (1, 2))
    return made


def commit(world, topic="flights", group="g", generation=None, offset=5):
    world.cluster.groups.commit([CommittedOffset(group, topic, f"{topic}-id", 0, offset)], generation=generation)


def committed(world, group="g"):
    return sorted(partition.topic_id for partition in world.cluster.groups.committed(group))


def look(world, after=CHECK):
    world.poll(1, 2, 3, after=after)


def partitions_of(topics):
    return [AssignedPartition(topic, f"{topic}-id", 0) for topic in sorted(topics)]


class Member:
    """A member of group g, which reads some topics."""

    def __init__(self, world, *topics, name="m"):
        self.name, self.world = name, world
        self.table = MemberTable.open_or_create(world.cluster.root, "g")
        new = GroupMember(name, name, "host", 0, SESSION * 1000, topics, ("range",))
        self.table.change("g", "join", lambda group: join(group, new, partitions_of), name)

    def take(self):
        group = self.table.change("g", "take", lambda group: take(group, self.name))
        return self.world.cluster.groups.claim("g", group.generation)

    def beat(self):
        self.table.change("g", "heartbeat", lambda group: group, self.name)

    def leave(self, crashes=False):
        group = self.table.change("g", "leave", lambda group: without(group, {self.name}, partitions_of))
        if not crashes:
            self.world.cluster.groups.release("g", group.generation)


def come_and_go(world):
    member = Member(world, "flights")
    member.take()
    member.leave()


def test_ap_04_offsets_of_a_group_without_members_expire_after_a_week(world, caplog):
    commit(world)
    look(world)
    look(world, WEEK - 1)
    assert committed(world) == ["flights-id"]
    with caplog.at_level(logging.INFO):
        look(world)
    assert committed(world) == []
    assert "group g: its offsets of 1 partitions have expired" in caplog.text


def test_ap_04_the_retention_is_a_setting(world):
    commit(world)
    world.fail_over({"offsets.retention.minutes": "30"})
    look(world)
    look(world, 1799)
    assert committed(world) == ["flights-id"]
    look(world)
    assert committed(world) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda world: commit(world, offset=6),
        commit,
        come_and_go,
        lambda world: Member(world, "another").leave(),
    ],
    ids=["another offset", "the same offset", "a member", "a member without partitions"],
)
def test_ap_04_each_use_begins_the_retention_anew(world, use):
    """Also under the next controller, which has not seen the use itself."""
    commit(world)
    look(world)
    look(world, WEEK - CHECK)
    use(world)
    world.fail_over()
    look(world)
    look(world, WEEK - 1)
    assert committed(world) == ["flights-id"]
    look(world)
    assert committed(world) == []


def test_ap_04_the_same_offset_between_two_looks_begins_the_retention_anew(world):
    commit(world)
    look(world)
    world.clock.now += CHECK - 1
    commit(world)
    look(world, 1)
    look(world, WEEK - 1)
    assert committed(world) == ["flights-id"]


def test_ap_04_offsets_beside_a_folder_without_a_table_expire(world):
    """A first member has died while it made the table."""
    commit(world)
    world.cluster.root.child("members", "g").create_folder()
    look(world)
    look(world, WEEK)
    assert committed(world) == []


def test_ap_04_the_next_controller_adds_to_the_time_that_the_last_one_saw(world):
    commit(world)
    look(world)
    look(world, WEEK - CHECK)
    world.fail_over()
    look(world)
    assert committed(world) == ["flights-id"], "nobody has watched between the two"
    look(world)
    assert committed(world) == []


def test_ap_04_no_time_of_day_removes_offsets(world, monkeypatch):
    commit(world)
    look(world)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    look(world)
    world.fail_over()
    look(world)
    assert committed(world) == ["flights-id"]


def test_ap_04_a_controller_that_was_stopped_counts_no_time_for_what_was_used_meanwhile(world):
    commit(world)
    look(world)
    stopped = world.controller
    look(world)
    world.fail_over()
    commit(world)
    look(world)
    world.clock.now += WEEK
    stopped._groups.check_if_due()
    assert committed(world) == ["flights-id"]


def test_ap_04_offsets_that_members_read_stay_and_those_of_other_topics_expire(world):
    commit(world)
    commit(world, "other")
    member = Member(world, "flights")
    member.take()
    for after in (CHECK, WEEK, CHECK):
        member.beat()
        look(world, after)
    assert committed(world) == ["flights-id"]


def test_ap_04_the_last_members_of_a_group_are_removed_once_they_are_dead(world):
    commit(world)
    members = [Member(world, "flights", name=name) for name in ("m", "n")]
    members[0].take()
    look(world)
    members[1].beat()
    look(world)
    assert len(members[0].table.read().members) == 2, "the one that lives removes the other by itself"
    look(world)
    assert members[0].table.read().members == ()
    commit(world, offset=6)
    look(world)
    look(world, WEEK)
    assert committed(world) == []


def test_ap_04_a_member_that_lives_again_at_that_moment_is_not_removed(world, monkeypatch):
    member = Member(world, "flights")
    commit(world, "other")
    look(world)
    change = MemberTable.change

    def is_late(table, group_id, why, *rest):
        monkeypatch.setattr(MemberTable, "change", change)
        assert why == "expire"
        member.beat()
        return change(table, group_id, why, *rest)

    monkeypatch.setattr(MemberTable, "change", is_late)
    look(world)
    assert MemberTable.change is change
    assert [m.member_id for m in member.table.read().members] == ["m"]


def test_ap_04_a_crash_between_the_last_leave_and_its_release_is_made_good(world):
    commit(world)
    look(world)
    member = Member(world, "flights")
    member.take()
    member.leave(crashes=True)
    with pytest.raises(UnknownMemberIdException):
        commit(world, offset=6)
    look(world)
    assert world.cluster.groups.newest_fence("g") == fence_of(member.table.read().generation, False)
    look(world)
    look(world, WEEK)
    assert committed(world) == []


def test_ap_04_a_member_that_takes_partitions_at_that_moment_keeps_its_offsets(world, monkeypatch):
    commit(world)
    MemberTable.open_or_create(world.cluster.root, "g")
    look(world)
    expire, taken = GroupTable.expire, []

    def is_late(*args):
        member = Member(world, "flights")
        taken.append(member.take())
        return expire(*args)

    monkeypatch.setattr(GroupTable, "expire", is_late)
    look(world, WEEK)
    assert [list(found.values()) for found in taken] == [[5]]
    assert committed(world) == ["flights-id"]


def test_ap_04_a_zombie_of_an_expired_group_cannot_commit(world):
    zombie, table = Member(world, "flights"), GroupTable.open(world.cluster.root)
    zombie.take()
    generation = zombie.table.group.generation
    commit(world, generation=generation)
    zombie.leave()
    look(world)
    look(world, WEEK)
    look(world)
    assert committed(world) == []
    with pytest.raises(Exception, match=f"generation {generation} is over"):
        table.commit([CommittedOffset("g", "flights", "flights-id", 0, 9)], generation=generation)
    heir = Member(world, "flights", name="heir")
    assert heir.take() == {}, "it starts by auto.offset.reset"
    assert heir.table.group.generation > generation


def test_ap_04_many_groups_are_read_over_several_polls(world, monkeypatch):
    names, reads = [f"g{number}" for number in range(40)], []
    for name in names:
        MemberTable.open_or_create(world.cluster.root, name)
        commit(world, group=name)
    read = MemberTable.read
    monkeypatch.setattr(MemberTable, "read", lambda table: reads.append(1) or read(table))
    counts = []
    look(world)
    for _ in range(3):
        counts.append(len(reads))
        look(world, 1)
    assert counts == [16, 32, 40]
    look(world, WEEK)
    for _ in range(3):
        look(world, 1)
    assert [committed(world, name) for name in names] == [[]] * 40


def test_ap_04_one_group_that_cannot_be_read_keeps_its_offsets_only(world, monkeypatch, caplog):
    commit(world)
    commit(world, group="broken")
    MemberTable.open_or_create(world.cluster.root, "broken")

    def refuse(_):
        raise KafkaStorageException("503")

    look(world)
    monkeypatch.setattr(MemberTable, "read", refuse)
    look(world, WEEK)
    assert "group broken: its offsets stay for now: 503" in caplog.text
    assert (committed(world), committed(world, "broken")) == ([], ["flights-id"])


def test_ap_04_a_failed_removal_of_offsets_delays_no_other_work(world, monkeypatch, caplog):
    def refuse(*_):
        raise KafkaStorageException("503")

    commit(world)
    look(world)
    with monkeypatch.context() as patched:
        patched.setattr(GroupTable, "expire", refuse)
        look(world, WEEK - CHECK)
    assert "offsets of groups without members stay for now: 503" in caplog.text
    look(world)
    assert committed(world) == [], "the time of the check that failed counts"
