"""Consumers that subscribe, on real tables without brokers: the tests write the logs and the replica rows."""

import contextlib
import dataclasses

import pytest

from lakelog.replication.clients import group_consumer
from lakelog.replication.clients.client_config import ConsumerConfig
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.group_membership import GroupMembership, remove_members
from lakelog.replication.errors import (
    CommitFailedException,
    FencedInstanceIdException,
    GroupNotEmptyException,
    IllegalGenerationException,
    IllegalStateException,
    InconsistentGroupProtocolException,
    InvalidConfigurationException,
    InvalidGroupIdException,
    InvalidRequestException,
    KafkaStorageException,
    NoOffsetForPartitionException,
    OffsetOutOfRangeException,
    UnknownMemberIdException,
)
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.tables.group_tables import CommittedOffset, MemberTable
from tests.clients.world import RARELY, filled_world
from tests.clock import Clock
from tests.registrations import joined
from tests.storage.logs import P0, P1, P2, TOPIC, TOPIC_ID, fill, start_at

P = TOPIC


@pytest.fixture
def world(root):
    return filled_world(root)


@pytest.fixture
def member(world):
    """Makes consumers of group g that have subscribed, and closes them."""
    made = []

    def make(name, **settings):
        heard = []
        listeners = {f"on_{what}": lambda given, what=what: heard.append((what, sorted(p for _, p in given)))
                     for what in ("assign", "revoke", "lost")}  # fmt: skip
        given = {"client_id": name, "auto_offset_reset": "earliest", **RARELY, **settings}
        made.append(Consumer(world.uri, "g", **given))
        made[-1].subscribe([TOPIC], **listeners)
        made[-1].heard = heard
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def got(records):
    return list(zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True))


def assigned(consumer):
    return sorted(p for _, p in consumer.assignment())


def expel(world, consumer):
    """Others take the consumer for dead."""
    table = MemberTable.open_or_create(world.cluster.root, "g")
    remove_members(world.cluster, table, "g", lambda _: {consumer._member.membership.member_id})


def test_ap_04_members_share_the_partitions_and_each_record_goes_to_one(world, member):
    a = member("a")
    assert got(a.poll(0)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    b = member("b")
    assert (got(b.poll(0)), assigned(b)) == ([], []), "a has not given anything up yet"
    fill(world.logs[1], P1, 1, producer_id=8)
    world.say(3, P1)
    assert (got(a.poll(0)), assigned(a)) == ([], [0])
    assert (got(b.poll(0)), assigned(b)) == ([(1, 2)], [1])
    assert (a.heard, b.heard) == ([("assign", [0, 1]), ("revoke", [1])], [("assign", [1])])
    a.close()
    assert (got(b.poll(0)), assigned(b)) == ([], [0, 1])
    assert a.heard[-1] == ("revoke", [0])


def test_ap_04_closed_consumers_leave_their_offsets_to_the_next_one(world, member):
    with Consumer(world.uri, "g", auto_offset_reset="earliest") as first:
        first.subscribe([TOPIC])
        assert len(got(first.poll(0))) == 5
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 2}
    assert got(member("next").poll(0)) == []


def test_ap_04_records_of_a_block_that_ends_with_an_error_are_read_again(world):
    settings = {"auto_offset_reset": "earliest", **RARELY}
    with pytest.raises(ZeroDivisionError), Consumer(world.uri, "g", **settings) as first:  # noqa: PT012
        first.subscribe([TOPIC])
        assert len(got(first.poll(0))) == 5
        raise ZeroDivisionError
    assert world.consumer("g").committed(TOPIC) == {}


def test_ap_04_without_auto_commit_the_next_owner_begins_at_what_was_committed(member):
    a = member("a", enable_auto_commit=False)
    assert len(got(a.poll(0))) == 5
    a.commit({TOPIC: {1: 1}})
    b = member("b")
    a.poll(0)
    assert got(b.poll(0)) == [(1, 1)]
    a.commit()
    assert b.committed(TOPIC) == {0: 3, 1: 1}


def test_ap_04_offsets_are_committed_at_the_next_poll_after_the_interval(member):
    a = member("a", auto_commit_interval_ms=0)
    a.poll(0)
    assert a.committed(TOPIC) == {0: 0, 1: 0}, "the records may not be processed yet"
    a.poll(0)
    assert a.committed(TOPIC) == {0: 3, 1: 2}


def test_ap_04_a_member_whose_group_was_deleted_loses_its_partitions_and_joins_the_next_table(world, member):
    a = member("a")
    assert len(got(a.poll(0))) == 5
    expel(world, a)
    table = MemberTable.open_or_create(world.cluster.root, "g")
    assert table.close(table.group.generation)
    world.cluster.groups.move_on("g", table.number)
    table.root.delete_table()
    with pytest.raises(CommitFailedException, match="nothing was committed: "):
        a.commit()
    assert got(a.poll(0)) == []
    assert a.heard[-1] == ("lost", [0, 1])
    assert len(got(a.poll(0))) == 5
    a.commit()
    assert a.committed(TOPIC) == {0: 3, 1: 2}


def test_ap_04_a_member_that_was_expelled_cannot_commit_and_begins_anew(world, member):
    a = member("a")
    a.poll(0)
    expel(world, a)
    heir = member("b")
    assert len(got(heir.poll(0))) == 5, "a has not committed"
    with pytest.raises(CommitFailedException, match="nothing was committed: "):
        a.commit()
    assert a.committed(TOPIC) == {}
    assert [got(a.poll(0)) for _ in range(2)] == [[], []]
    assert a.heard[-1] == ("lost", [0, 1])
    heir.poll(0)
    assert (got(a.poll(0)), assigned(a), assigned(heir)) == ([], [0], [1])


def generation(world):
    return MemberTable.open_or_create(world.cluster.root, "g").group.generation


def test_ap_04_kip_345_a_static_member_that_restarts_keeps_its_partitions(world, member):
    """The other member hears nothing of it, and commits as before."""
    a, b = member("a", group_instance_id="first"), member("z")
    for consumer in (a, b, a, b):
        consumer.poll(0)
    assert (assigned(a), assigned(b)) == ([0], [1])
    heard = list(b.heard)
    a.close()
    assert a.heard[-1] == ("revoke", [0])
    fill(world.logs[1], P0, 1, producer_id=8)
    world.say(4)
    b.poll(0)
    assert (assigned(b), b.heard) == ([1], heard), "its partition waits for it"
    again = member("a", group_instance_id="first")
    assert (got(again.poll(0)), assigned(again)) == ([(0, 3)], [0])
    b.commit({TOPIC: {1: 1}})
    b.poll(0)
    assert (assigned(b), b.heard, again.heard) == ([1], heard, [("assign", [0])])
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 1}


def test_ap_04_kip_345_of_two_processes_with_one_instance_id_the_older_one_is_fenced(world, member):
    a = member("a", group_instance_id="first")
    assert len(got(a.poll(0))) == 5
    before = generation(world)
    heir = member("b", group_instance_id="first")
    assert len(got(heir.poll(0))) == 5, "a has not committed"
    late = [CommittedOffset("g", TOPIC, TOPIC_ID, 0, 3)]
    with pytest.raises(IllegalGenerationException):
        world.cluster.groups.commit(late, generation=before)
    fenced = "group.instance.id is first, but member first-.* has the same and has taken the place of this consumer"
    old = a._member.membership
    for call in (old.take, lambda: old.give_up(()), old.beat):
        with pytest.raises(FencedInstanceIdException, match=fenced):
            call()
    calls = a.commit, lambda: a.poll(0), lambda: a.poll(0), lambda: a.commit({TOPIC: {0: 3}})
    for call in calls:
        with pytest.raises(FencedInstanceIdException, match=fenced):
            call()
    a._member._heartbeat.work()
    assert (a.heard[-1], assigned(a)) == (("lost", [0, 1]), [])
    a.close()
    heir.commit()
    assert (assigned(heir), heir.heard) == ([0, 1], [("assign", [0, 1])])
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 2}


def test_ap_04_kip_345_partitions_of_a_static_member_that_stays_away_move(world, member):
    a = member("a", group_instance_id="first")
    a.poll(0)
    a.close()
    clock = Clock()
    heir = GroupMembership(world.cluster, "g", ConsumerConfig(), lambda: (clock.now, 0.0))
    heir.join([TOPIC])
    heir.beat()
    clock.now += a._settings.session_timeout_ms / 1000 - 1
    heir.beat()
    assert len(heir.group.members) == 2
    clock.now += 1
    heir.beat()
    heir.take()
    assert sorted(p.partition for p in heir.member.owned) == [0, 1]


def test_ap_04_kip_345_a_static_member_that_subscribes_to_other_topics_stays_one_member(world, member):
    a = member("a", group_instance_id="first")
    a.poll(0)
    a.subscribe(["another"])
    a.poll(0)
    found = MemberTable.open_or_create(world.cluster.root, "g").group
    assert [(m.instance_id, m.topics, m.assigned, m.owned) for m in found.members] == [("first", ("another",), (), ())]


def test_ap_04_kip_345_a_static_member_that_hangs_stays_for_its_session(member, caplog):
    a = member("a", max_poll_interval_ms=1, group_instance_id="first")
    a.poll(0)
    heartbeat, membership = a._member._heartbeat, a._member.membership
    heartbeat._polled_at -= 1
    for _ in range(2):
        heartbeat.work()
    (found,) = membership.table.read().members
    assert (found.heartbeat, len(found.owned)) == (1, 2), "no heartbeat since it has joined"
    assert caplog.text.count("stops heartbeats: poll was not called for") == 1
    assert got(a.poll(0)) == []
    assert (membership.table.read().members[0].heartbeat, assigned(a)) == (2, [0, 1])


def test_ap_04_kip_345_of_two_copies_of_a_static_member_one_ends(member):
    a, copied = member("a", group_instance_id="first"), member("b", group_instance_id="second")
    a.poll(0)
    original, copy = a._member.membership, copied._member.membership
    copy.member_id, copy.instance_id, copy._heartbeat = original.member_id, "first", original._heartbeat
    original.beat()
    with pytest.raises(FencedInstanceIdException):
        copy.beat()
    original.beat()
    a.poll(0)
    assert (assigned(a), a.heard) == ([0], [("assign", [0])]), "it is still a member"


def test_ap_04_a_copied_member_and_its_original_become_two_members(member, caplog):
    """A copied virtual machine has the member's id, too. At its next heartbeat one of the two finds the other's."""
    a, copied = member("a"), member("b")
    a.poll(0)
    original, copy = a._member.membership, copied._member.membership
    copy.leave()
    copy.member_id, copy._heartbeat = original.member_id, original._heartbeat
    a_id = original.member_id
    for _ in range(2):
        original.beat()
    with pytest.raises(UnknownMemberIdException, match="not in the group"):
        copy.beat()
    assert f"another process sends the heartbeats of member {a_id}" in caplog.text
    original.beat()
    for consumer in (copied, copied, a, copied):  # it loses, joins, and waits until the other has given one up
        consumer.poll(0)
    assert original.member_id == a_id != copy.member_id
    assert (assigned(a), assigned(copied)) in (([0], [1]), ([1], [0]))


def test_ap_04_a_heartbeat_whose_answer_was_lost_does_not_expel_the_member(member, monkeypatch):
    membership = member("a")._member.membership
    commit, lost = DeltaLog.commit, [KafkaStorageException("the answer is lost")]

    def loses_its_answer(*given, **named):
        commit(*given, **named)
        if lost:
            raise lost.pop()

    monkeypatch.setattr(DeltaLog, "commit", loses_its_answer)
    with contextlib.suppress(KafkaStorageException):
        membership.beat()
    assert not lost
    me = membership.member_id
    membership.beat()
    assert (membership.member_id, membership.is_trusted) == (me, True)


def test_ap_04_a_process_that_was_stopped_while_it_read_returns_nothing_of_what_it_lost(world, member, monkeypatch):
    """It was stopped for longer than its session: its clock shows it, and the table that others have its partitions."""
    a, clock = member("a"), Clock()
    membership, fetch = a._member.membership, group_consumer.fetch_records
    membership._clock = lambda: (clock.now, 0.0)
    membership._beat_at = (clock.now, 0.0)

    def is_stopped(*arguments):
        fetched = fetch(*arguments)
        if fetched:
            clock.now += 600
            expel(world, a)
            monkeypatch.setattr(group_consumer, "fetch_records", fetch)
        return fetched

    monkeypatch.setattr(group_consumer, "fetch_records", is_stopped)
    assert got(a.poll(0)) == []
    assert a.heard == [("assign", [0, 1]), ("lost", [0, 1])]


def test_ap_04_a_member_with_a_late_heartbeat_sends_one_before_it_returns_records(member):
    a, clock = member("a"), Clock()
    membership = a._member.membership
    membership._clock = lambda: (clock.now, 0.0)
    membership._beat_at = (clock.now, 0.0)
    before = membership.member.heartbeat
    clock.now += 539
    assert len(got(a.poll(0))) == 5
    assert membership.member.heartbeat == before
    clock.now += 1
    a.poll(0)
    assert (membership.member.heartbeat, membership.is_trusted) == (before + 1, True)


def test_ap_04_a_dead_member_s_partitions_move_when_its_session_is_over(world, member):
    a, clock = member("a", session_timeout_ms=6000, heartbeat_interval_ms=2000), Clock()
    a.poll(0)
    heir = GroupMembership(world.cluster, "g", ConsumerConfig(), lambda: (clock.now, 0.0))
    heir.join([TOPIC])
    a._member._heartbeat.stop()
    for _ in range(3):
        heir.beat()
        clock.now += 2
        assert a._member.membership.member_id in {m.member_id for m in heir.table.read().members}
    heir.beat()
    assert [(m.member_id, len(m.assigned)) for m in heir.group.members] == [(heir.member_id, 2)]
    assert len(heir.take().member(heir.member_id).owned) == 2


def test_ap_04_new_partitions_of_a_topic_are_assigned_to_members(world, member):
    a = member("a")
    a.poll(0)
    world.cluster.metadata.put([joined(new_partition(TOPIC, TOPIC_ID, 2, (1, 2), {1, 2}))], {"who": "test"})
    a._member.membership.beat()
    group = a._member.membership.group
    assert (group.generation, [p.partition for p in group.members[0].assigned]) == (2, [0, 1, P2.partition])


def test_ap_04_a_consumer_that_hangs_leaves_the_group(member):
    a = member("a", max_poll_interval_ms=1)
    a.poll(0)
    heartbeat = a._member._heartbeat
    heartbeat._polled_at -= 1
    for _ in range(2):
        heartbeat.work()
    assert a._member.membership.group.members == ()
    assert got(a.poll(0)) == []
    assert a.heard[-1] == ("lost", [0, 1])
    assert len(got(a.poll(0))) == 5


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [(0, 1), (0, 2)]), ("latest", [])])
def test_ap_04_a_group_without_offsets_starts_by_auto_offset_reset(world, member, reset, expected):
    start_at(world.logs[1], P0, 1)
    world.consumer("g").commit({TOPIC: {1: 2}})
    assert got(member("a", auto_offset_reset=reset).poll(0)) == expected


def test_ap_04_without_a_reset_poll_raises_no_offset_for_partition(member):
    a = member("a", auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartitionException, match=f"{TOPIC}-0: the group has committed no offset"):
        a.poll(0)
    for partition, offset in ((0, 1), (1, 99)):
        a.seek(TOPIC, partition, offset)
    with pytest.raises(OffsetOutOfRangeException, match=f"{TOPIC}-1: offset 99 is out of range"):
        a.poll(0)
    a.seek(TOPIC, 1, 1)
    assert got(a.poll(0)) == [(0, 1), (0, 2), (1, 1)]


def test_ap_04_a_committed_offset_whose_record_is_deleted_is_reset(world, member):
    a = member("a")
    a.poll(0)
    a.seek(TOPIC, 0, 0)
    start_at(world.logs[1], P0, 2)
    assert got(a.poll(1)) == [(0, 2)]


def test_ap_04_paused_partitions_stay_but_return_nothing(member):
    a = member("a")
    a._member._reconcile()
    a.pause([(TOPIC, 0)])
    assert (got(a.poll(0)), assigned(a)) == ([(1, 0), (1, 1)], [0, 1])
    a.resume([(TOPIC, 0)])
    assert got(a.poll(0)) == [(0, 0), (0, 1), (0, 2)]
    assert (a.position(TOPIC, 0), a.position(TOPIC, 1)) == (3, 2)


def test_ap_04_partitions_take_turns_if_a_fetch_has_room_for_one_batch(member):
    """Each fetch has room for one batch."""
    a = member("a", fetch_max_bytes=1)
    assert [got(a.poll(0))[0] for _ in range(2)] == [(0, 0), (1, 0)]


def test_ap_04_calls_for_a_partition_that_is_not_assigned_are_refused(member):
    a = member("a")
    a.poll(0)
    for call in (
        lambda: a.seek(TOPIC, 7, 0), lambda: a.position("other", 0), lambda: a.pause([(TOPIC, 7)]),
        lambda: a.resume([(TOPIC, 7)]),
    ):  # fmt: skip
        with pytest.raises(IllegalStateException, match=f"not assigned to this consumer, which has {TOPIC}-0, {TOPIC}"):
            call()


def test_ap_04_a_member_commits_only_what_it_owns(member):
    a = member("a")
    with pytest.raises(CommitFailedException, match=f"{TOPIC}-0 is not assigned to this consumer"):
        a.commit({TOPIC: {0: 1}})


def test_ap_04_others_commit_only_while_the_group_has_no_live_members(world, member):
    a, outside, clock = member("a", session_timeout_ms=6000, heartbeat_interval_ms=2000), world.consumer("g"), Clock()
    a.poll(0)
    outside._access = GroupAccess(outside._view.cluster, "g", clock)
    for _ in range(2):
        with pytest.raises(GroupNotEmptyException, match=r"group g has live members \(a-.* on .*\): close them first"):
            outside.commit({TOPIC: {0: 1}})
        clock.now += 5
        a._member.membership.beat()
    a._member._heartbeat.stop()
    with pytest.raises(GroupNotEmptyException):
        outside.commit({TOPIC: {0: 1}})
    clock.now += 6
    outside.commit({TOPIC: {0: 1}})
    assert outside.committed(TOPIC) == {0: 1}
    with pytest.raises(CommitFailedException):
        a.commit()


def test_ap_04_a_consumer_that_dies_while_it_leaves_blocks_no_later_commit(world, member, monkeypatch):
    a, outside = member("a"), world.consumer("g")
    a.poll(0)
    monkeypatch.setattr(type(world.cluster.groups), "release", lambda *_: None)
    a.close()
    monkeypatch.undo()
    outside.commit({TOPIC: {0: 1}})
    assert outside.committed(TOPIC) == {0: 1, 1: 2}


def test_ap_04_a_removed_table_of_members_blocks_no_later_commit(world, member):
    member("a").poll(0)
    folder = MemberTable.folder(world.cluster.root, "g")
    for log in folder.child("_delta_log").list():
        folder.child("_delta_log").delete(log)
    world.consumer("g").commit({TOPIC: {0: 1}})
    next_one = Consumer(world.uri, "g", **RARELY)
    next_one.subscribe([TOPIC])
    assert next_one._member.membership.group.generation > 1, "generations do not begin again"
    next_one.close()


def test_ap_04_subscribe_without_a_group_or_topics_is_refused(world):
    with pytest.raises(InvalidGroupIdException, match="group is None"):
        world.consumer().subscribe([TOPIC])
    for topics in ([], TOPIC):
        with pytest.raises(InvalidRequestException, match="give a list of names"):
            world.consumer("g").subscribe(topics)


def test_ap_04_poll_without_a_subscription_is_refused(world, member):
    with pytest.raises(IllegalStateException, match="call subscribe first"):
        world.consumer("g").poll(0)
    a = member("a")
    a.close()
    for call in (lambda: a.poll(0), lambda: a.subscribe([TOPIC])):
        with pytest.raises(IllegalStateException, match="closed"):
            call()


def test_ap_04_a_member_with_another_assignor_is_refused(member):
    member("a", partition_assignment_strategy="range")
    with pytest.raises(InconsistentGroupProtocolException):
        member("b", partition_assignment_strategy="cooperative-sticky")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_offset_reset": "newest"}, "auto_offset_reset is 'newest', it must be latest or earliest or none"),
        ({"session_timeout_ms": "6"}, "session_timeout_ms is '6', it must be an integer from 100"),
        ({"enable_auto_commit": 1}, "enable_auto_commit is 1, it must be true or false"),
        ({"partition_assignment_strategy": "sticky"}, "it must be one or more of range,cooperative-sticky"),
        ({"heartbeat_interval_ms": 22_500}, "it must be below half of session_timeout_ms"),
        ({"group_instance_id": "a b"}, "group_instance_id is 'a b', it must be up to 249 letters, digits"),
        ({"group_instance_id": ".."}, "group_instance_id is '..', it must be up to 249 letters, digits"),
        (
            {"group_instance_id": "x" * 250},
            "it must be up to 249 letters, digits, dots, - and _, but not . or .. alone",
        ),
        ({"client_id": None, "fetch_max_bytes": 0}, "client_id is None.*; fetch_max_bytes is 0"),
    ],
)
def test_ap_04_settings_that_are_not_allowed_are_all_named(settings, message):
    with pytest.raises(InvalidConfigurationException, match=f"consumer: .*{message}"):
        ConsumerConfig(**settings)


@pytest.mark.parametrize(
    ("session", "is_local", "interval"), [(45_000, True, 3000), (45_000, False, 10_000), (6000, True, 2000)]
)
def test_ap_04_heartbeats_are_rarer_where_each_is_paid_for(session, is_local, interval):
    config = ConsumerConfig(session_timeout_ms=session, partition_assignment_strategy="range")
    assert config.with_heartbeat(is_local) == dataclasses.replace(config, heartbeat_interval_ms=interval)
    assert (config.assignors, ConsumerConfig(heartbeat_interval_ms=50).with_heartbeat(True).heartbeat_interval_ms) == (
        ("range",), 50,
    )  # fmt: skip
