"""A user's code between the two halves of a change: listeners of a consumer, interruptions, and other threads."""

import sys
import threading

import pytest

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.group_membership import GroupMembership, remove_members
from lakelog.replication.errors import (
    CommitFailedException,
    ConcurrentModificationException,
    IllegalStateException,
    KafkaStorageException,
    UnknownMemberIdException,
)
from lakelog.replication.storage.tables.group_tables import MemberTable
from tests.clients.world import RARELY, filled_world
from tests.storage.logs import TOPIC

BY_HAND = {"enable_auto_commit": False}


@pytest.fixture
def world(root):
    return filled_world(root)


@pytest.fixture
def member(world):
    """Makes consumers of group g with these listeners, and closes them. A listener gets the consumer, and the numbers
    of the partitions."""
    made = []

    def make(settings=BY_HAND, **listeners):
        name = f"member-{len(made)}"  # members share the partitions out in the order of their names
        consumer = Consumer(world.uri, "g", client_id=name, auto_offset_reset="earliest", **RARELY, **settings)
        told = {
            name: lambda given, call=call: call(consumer, [p for _, p in given]) for name, call in listeners.items()
        }
        made.append(consumer)
        consumer.subscribe([TOPIC], **told)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def members(world):
    return [m.member_id for m in GroupAccess(world.cluster, "g").refresh().members]


def committed(world):
    return world.consumer("g").committed(TOPIC)


def expel(world, consumer):
    """Others take the consumer for dead."""
    table = MemberTable.open_or_create(world.cluster.root, "g")
    remove_members(world.cluster, table, "g", lambda _: {consumer._member.membership.member_id})


LEAVE = {
    "close": Consumer.close,
    "unsubscribe": Consumer.unsubscribe,
    "subscribe": lambda consumer: consumer.subscribe([TOPIC]),
    "with": lambda consumer: consumer.__exit__(None),
    "a with block that ends with an error": lambda consumer: consumer.__exit__(ZeroDivisionError),
}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
def test_ap_04_a_listener_commits_before_the_consumer_leaves(world, member, leave):
    calls = []
    a = member(on_revoke=lambda consumer, partitions: calls.append((partitions, consumer.commit())))
    a.poll(5)
    leave(a)
    assert (calls, committed(world)) == ([([0, 1], None)], {0: 3, 1: 2})


@pytest.mark.parametrize("leave", [LEAVE["close"], LEAVE["unsubscribe"], LEAVE["subscribe"]])
@pytest.mark.parametrize("when", ["on_assign", "on_revoke"])
def test_ap_04_after_a_listener_has_left_the_poll_ends(world, member, leave, when):
    """The poll that has called it does not join again as a member without heartbeats."""
    calls, once = [], []

    def listener(consumer, partitions):
        calls.append(partitions)
        if not once:
            once.append(True)
            leave(consumer)

    a = member(**{when: listener})
    first, heartbeat = a._member, a._member._heartbeat
    if when == "on_revoke":
        a.poll(5)
        member()
    assert a.poll(1).num_rows == 0
    assert (a._member is first, heartbeat.is_alive()) == (False, False)
    assert first.membership.member_id not in members(world)
    assert calls == ([[0, 1]] if when == "on_assign" else [[1], [0]]), "each partition is told of once"


def test_ap_04_a_listener_that_raises_keeps_no_partition(world, member):
    def fails(_, partitions):
        raise ZeroDivisionError(partitions)

    a = member({}, on_revoke=fails)
    a.poll(5)
    b = member()
    with pytest.raises(ZeroDivisionError, match=r"\[1\]"):
        a.poll(0)
    b.poll(0)
    assert (a.assignment(), b.assignment()) == ({(TOPIC, 0)}, {(TOPIC, 1)})
    with pytest.raises(ZeroDivisionError, match=r"\[0\]"):
        a.close()
    assert members(world) == [b._member.membership.member_id]
    assert committed(world) == {0: 3, 1: 2}


def test_ap_04_errors_of_listeners_are_not_taken_for_those_of_the_group(member):
    def fails(*_):
        raise UnknownMemberIdException("of another client")

    a = member(on_assign=fails)
    with pytest.raises(UnknownMemberIdException, match="of another client"):
        a.poll(0)
    assert a.poll(0).num_rows == 5, "it is still a member, and is not told again"


def test_ap_04_without_on_lost_on_revoke_is_called(world, member):
    calls = []
    a = member(on_revoke=lambda _, partitions: calls.append(partitions))
    a.poll(5)
    expel(world, a)
    a._member.membership._beat_at = (float("-inf"), float("-inf"))
    assert a.poll(0).num_rows == 0
    assert calls == [[0, 1]]
    assert a.poll(0).num_rows == 5


def test_ap_04_a_commit_of_lost_partitions_fails_also_in_the_listener(world, member):
    a = member(on_revoke=lambda consumer, _: consumer.commit())
    a.poll(5)
    expel(world, a)
    a._member.membership._beat_at = (float("-inf"), float("-inf"))
    with pytest.raises(CommitFailedException, match="nothing was committed"):
        a.poll(0)
    assert (committed(world), a.poll(0).num_rows) == ({}, 5)


def test_ap_04_on_revoke_is_called_once_for_partitions_that_cannot_be_given_up_at_once(member, monkeypatch):
    calls, give_up = [], GroupMembership.give_up

    def fails(*_):
        monkeypatch.setattr(GroupMembership, "give_up", give_up)
        raise KafkaStorageException("for a moment")

    a = member(on_revoke=lambda _, partitions: calls.append(partitions))
    a.poll(5)
    b = member()
    monkeypatch.setattr(GroupMembership, "give_up", fails)
    for _ in range(2):
        a.poll(0)
    b.poll(0)
    assert (calls, b.assignment()) == ([[1]], {(TOPIC, 1)})


def test_ap_04_a_listener_that_polls_or_subscribes_while_the_consumer_leaves_is_refused(world, member):
    refused = []

    def on_assign(consumer, _):
        with pytest.raises(IllegalStateException, match="a listener must not call poll"):
            consumer.poll(0)
        refused.append("poll")

    def on_revoke(consumer, _):
        consumer.close()  # nothing: it is closing
        with pytest.raises(IllegalStateException, match="while the consumer leaves"):
            consumer.subscribe([TOPIC])
        refused.append("subscribe")

    a = member(on_assign=on_assign, on_revoke=on_revoke)
    assert a.poll(0).num_rows == 5
    with pytest.raises(IllegalStateException, match="closed"):
        a.subscribe([TOPIC])
    assert (refused, members(world)) == (["poll", "subscribe"], [])


# The modules whose lines a poll is interrupted at.
INTERRUPTED = ("consumer.py", "group_consumer.py", "positions.py")


class Interruption:
    """Ctrl-C at one line of the modules above, or at none if they have fewer lines to execute."""

    def __init__(self, number):
        self.left = number

    def __enter__(self):
        sys.settrace(self._called)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _called(self, frame, *_):
        is_ours = frame.f_code.co_filename.endswith(tuple(f"clients/{name}" for name in INTERRUPTED))
        return self._line if is_ours else None

    def _line(self, _, event, __):
        if event == "line":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self._line


def test_ap_04_records_of_an_interrupted_poll_are_read_again(member):
    """Wherever Ctrl-C comes: no record counts as read that nobody has seen."""
    a = member()
    a.poll(5)
    polled = None
    for number in range(1, 1000):
        for partition in (0, 1):
            a.seek(TOPIC, partition, 0)
        with Interruption(number):
            polled = a.poll(0)
        if polled is not None:
            break
        assert (a.position(TOPIC, 0), a.position(TOPIC, 1)) == (0, 0), f"interrupted at line {number}"
    assert (polled.num_rows, number > 50) == (5, True)
    assert (a.position(TOPIC, 0), a.position(TOPIC, 1)) == (3, 2)


def test_ap_04_a_close_after_an_interruption_commits_no_record_that_was_not_returned(world, member, monkeypatch):
    a = member({})

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lakelog.replication.clients.group_consumer.all_records", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a.poll(5)
    monkeypatch.undo()
    a.close()
    assert committed(world) == {0: 0, 1: 0}


def test_ap_04_on_assign_is_called_for_partitions_that_an_interrupted_poll_has_taken(member, monkeypatch):
    heard = []
    a = member(on_assign=lambda _, partitions: heard.append(partitions))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lakelog.replication.clients.group_consumer.GroupConsumer._announce", interrupted)
    with pytest.raises(KeyboardInterrupt):
        a.poll(0)
    monkeypatch.undo()
    assert (a.poll(0).num_rows, heard) == (5, [[0, 1]])


def test_ap_04_a_join_that_is_interrupted_leaves_no_member_behind(world, monkeypatch):
    """Without heartbeats a member would block its partitions for a session."""
    change = MemberTable.change

    def interrupted(table, group_id, why, *more):
        group = change(table, group_id, why, *more)
        if why == "join":
            raise KeyboardInterrupt
        return group

    monkeypatch.setattr(MemberTable, "change", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Consumer(world.uri, "g", **RARELY).subscribe([TOPIC])
    assert members(world) == []


def test_ap_04_a_call_from_a_second_thread_is_refused(world, member):
    """Both would get every record. The first one waits in a listener meanwhile."""
    errors = []

    def others(consumer, _):
        def use():
            for call in (
                lambda: consumer.poll(0), consumer.commit, consumer.close, consumer.assignment, consumer.unsubscribe,
                lambda: consumer.seek(TOPIC, 0, 0), lambda: consumer.fetch(TOPIC, {0: 0}),
                lambda: consumer.subscribe([TOPIC]), lambda: consumer.__exit__(None),
            ):  # fmt: skip
                try:
                    call()
                except ConcurrentModificationException as error:
                    errors.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()

    a = member(on_assign=others)
    assert a.poll(0).num_rows == 5
    assert (len(errors), {text[:53] for text in errors}) == (
        9, {"the consumer is not safe for multi-threaded access: a"},
    )  # fmt: skip
    thread = threading.Thread(target=a.close)  # one after the other is allowed
    thread.start()
    thread.join()
    assert members(world) == []
