"""Operations that wait, under a clock that the test holds, and acks=all, which waits on real tables."""

import time
from dataclasses import dataclass

import pytest

from replication.clients.acknowledgement import acknowledge
from replication.clients.delayed_operation import DelayedOperation, Purgatory
from replication.clients.topic_view import TopicView, TopicWatch
from replication.errors import KafkaStorageException, LakelogException, NotLeaderOrFollowerException
from replication.protocol.leader_epoch import EpochEntry
from replication.storage.log_cleaning import delete_old_segments, raise_log_starts
from replication.storage.replica_table import ReplicaTable
from tests.clients.world import LONG, World
from tests.clock import Clock
from tests.storage.logs import P0, P1, TOPIC, chain, fill, lead, replicate, truncate

DEADLINE = 105.0


class Attempts:
    """An operation that answers at its attempt number `answers_at`, and remembers what each attempt was told."""

    def __init__(self, answers_at=None):
        self.told = []
        self._answers_at = answers_at

    def __call__(self, time_is_over):
        self.told.append(time_is_over)
        return len(self.told) == self._answers_at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def purgatory(clock):
    return Purgatory(clock)


def test_do_01_what_is_answered_at_once_is_not_watched(purgatory):
    attempts = Attempts(answers_at=1)
    assert purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    purgatory.check_and_complete({0})
    assert (attempts.told, purgatory.watched) == ([False], 0)


def test_do_01_what_is_watched_is_tried_again_when_its_key_moves(purgatory):
    attempts = Attempts(answers_at=3)
    assert not purgatory.try_complete_else_watch(DelayedOperation({0, 1}, DEADLINE, attempts))
    for moved, tries, watched in [({2}, 1, 1), ((), 1, 1), ({1, 2}, 2, 1), ({0}, 3, 0), ({0, 1}, 3, 0)]:
        purgatory.check_and_complete(moved)
        assert (attempts.told, purgatory.watched) == ([False] * tries, watched)


@pytest.mark.parametrize(("passes", "expires"), [(4.999, False), (5.0, True), (50.0, True)])
def test_do_01_an_operation_expires_at_its_deadline(purgatory, clock, passes, expires):
    """It is then completed whatever the attempt says, and told so."""
    attempts = Attempts()
    purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    clock.now += passes
    purgatory.check_and_complete(())
    assert (attempts.told, purgatory.watched) == (([False, True], 0) if expires else ([False], 1))


@pytest.mark.parametrize("answers_at", [2, None], ids=["by an attempt", "by its deadline"])
def test_do_01_an_operation_completes_exactly_once(purgatory, clock, answers_at):
    attempts = Attempts(answers_at)
    operation = DelayedOperation({0}, DEADLINE, attempts)
    purgatory.try_complete_else_watch(operation)
    clock.now = DEADLINE
    for _ in range(3):
        purgatory.check_and_complete({0})
        assert operation.try_complete(clock())
    assert (attempts.told, operation.is_completed) == ([False, True], True)


def test_do_01_an_operation_whose_time_is_over_before_it_begins(purgatory, clock):
    attempts = Attempts()
    clock.now = DEADLINE
    assert purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE, attempts))
    assert attempts.told == [True]


def test_do_01_waiting_ends_with_the_last_operation(purgatory, clock, monkeypatch):
    """Each pause ends at the next deadline at the latest."""
    paused = []

    def pause(milliseconds, deadline):
        paused.append((milliseconds, deadline))
        clock.now += 2

    monkeypatch.setattr("replication.clients.delayed_operation.pause", pause)
    early, late = Attempts(answers_at=2), Attempts()
    purgatory.try_complete_else_watch(DelayedOperation({0}, DEADLINE - 2, early))
    purgatory.try_complete_else_watch(DelayedOperation({1}, DEADLINE, late))
    purgatory.wait(lambda: {0}, 50)
    assert paused == [(50, DEADLINE - 2), (50, DEADLINE), (50, DEADLINE)]
    assert (early.told, late.told) == ([False, False], [False, True])


@pytest.fixture
def world(root):
    return World(root)


def test_do_02_a_partition_moves_with_its_metadata_and_its_leaders_row(world):
    world.say(0)
    world.say(0, P1)
    watch = TopicWatch(TopicView(world.cluster), TOPIC, [0, 1])
    for happens, moved in [
        (lambda: None, set()),
        (lambda: world.say(0), set()),
        (lambda: world.say(1), {0}),
        (lambda: world.say(0, P1, log_start_offset=1), {1}),
        (lambda: world.say(5, broker=2), set()),
        (lambda: world.change(isr=(1,)), {0}),
        (lambda: world.change(P1, leader=-1, leader_epoch=1), {1}),
    ]:
        happens()
        assert watch.moved() == moved
    assert watch.seen[1].row is None


@dataclass
class Appended:
    """Offsets 1 to 2, under leader epoch 0."""

    base_offset: int = 1
    last_offset: int = 2
    leader_epoch: int = 0
    chain: str = ""
    error: LakelogException | None = None


@pytest.fixture
def filled(world):
    """Both brokers have the offsets 0 to 2 of partition 0."""
    fill(world.logs[1], P0, 1, 2)
    replicate(world.logs[1], world.logs[2])
    return world


def acknowledged(world, timeout_ms=LONG, **appended):
    """What acks=all is answered for the offsets 1 to 2 of partition 0."""
    deadline = time.monotonic() + timeout_ms / 1000
    records = Appended(chain=chain(world.logs[2]), **appended)
    return acknowledge(TopicView(world.cluster), TOPIC, {0: records}, deadline, timeout_ms)


KEEPS, CUTS = (EpochEntry(0, 0), EpochEntry(1, 3)), (EpochEntry(0, 0), EpochEntry(1, 1))


def lead_elsewhere(world, high_watermark, epochs):
    """Broker 2 leads under epoch 1."""
    world.change(leader=2, leader_epoch=1)
    lead(world.logs[2], P0, epoch=1)
    world.say(high_watermark, broker=2, role="leader", leader_epoch=1, epochs=epochs)


ANSWERS = {
    # case: what happens while it is waited for -> error
    "the HW passes": ([lambda w: w.say(2), lambda w: w.say(3)], None),
    "the ISR is small by then": (
        [lambda w: w.change(isr=(1,)), lambda w: w.say(3)], r"NotEnoughReplicasAfterAppend.*ISR \(1,\) .*\(2\)",
    ),
    "a new leader, slow, that has them": (
        [lambda w: w.change(leader=2, leader_epoch=1), lambda w: lead_elsewhere(w, 1, KEEPS),
         lambda w: lead_elsewhere(w, 3, KEEPS)], None,
    ),
    "the same leader, not at its new epoch yet": (
        [lambda w: w.change(leader_epoch=1), lambda w: w.say(3), lambda w: lead(w.logs[1], P0, epoch=1),
         lambda w: w.say(3)], None,
    ),
    "a new leader that lacks them": (
        [lambda w: lead_elsewhere(w, 1, CUTS)],
        r"NotLeaderOrFollower.*offsets 1 to 2 of leader epoch 0 .* leader 2 \(epoch 1\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_ap_07_acks_all_waits_for_the_hw(filled, while_waiting, case):
    world = filled
    things, message = ANSWERS[case]
    world.cluster.topics._table.update({}, lambda rows: [{**rows[0], "configs": [("min.insync.replicas", "2")]}])
    world.say(1)
    left = while_waiting(*(lambda happens=happens: happens(world) for happens in things))
    errors = acknowledged(world)
    assert next(left, None) is None
    if message is None:
        assert errors == {}
        return
    with pytest.raises(LakelogException, match=message):
        raise LakelogException(f"{errors[0].name}: {errors[0]}")


@pytest.mark.parametrize(("end", "error", "lacking"), [(1, "disk full", r"broker 2 ends at 1 \(disk full\)"),
                                                       (3, None, "all have them")])  # fmt: skip
def test_ap_07_when_the_time_is_over_it_is_said_who_lacks_what(world, end, error, lacking):
    world.say(1)
    world.say(1, broker=2, log_end_offset=end, error=error)
    (answer,) = acknowledged(world, timeout_ms=1).values()
    assert answer.name == "TimeoutException"
    with pytest.raises(LakelogException, match=rf"{TOPIC}-0: offsets 1 to 2 .* within 1 ms: {lacking}"):
        raise answer


def test_ap_07_what_is_committed_is_acknowledged_also_when_the_time_is_over(filled):
    filled.say(3)
    assert acknowledged(filled, timeout_ms=0) == {}


@pytest.mark.parametrize("again", [0, 1, 2, 3])
def test_ap_07_tr_08_the_row_of_a_leader_that_has_lost_the_end_of_its_log_acknowledges_nothing(filled, again):
    """A power cut took the log's end and not the row; a producer is first, before the broker is back."""
    filled.say(3)
    truncate(filled.logs[1], {P0: 1})
    for _ in range(again):
        fill(filled.logs[1], P0, 1, producer_id=8)
    (error,) = acknowledged(filled, timeout_ms=1).values()
    assert (error.name, error.__cause__.name) == ("TimeoutException", "LeaderNotAvailableException")
    assert "the log of broker 1 has lost its end" in str(error)


def test_ap_07_tr_08_records_that_a_restored_log_has_not_are_not_acknowledged(filled):
    """Its row is its own again, and others have passed the offsets under the same leader epoch."""
    truncate(filled.logs[1], {P0: 1})
    fill(filled.logs[1], P0, 2, producer_id=8)
    filled.say(3)
    (error,) = acknowledged(filled).values()
    assert isinstance(error, NotLeaderOrFollowerException)


def test_ap_07_records_that_have_been_deleted_since_were_there(filled):
    fill(filled.logs[1], P0, 1, 1)
    filled.say(5)
    raise_log_starts(filled.logs[1], {P0: lambda _log: 4}, "admin", "test")
    delete_old_segments(filled.logs[1], 0, "test")
    assert filled.logs[1].refresh().partition(P0).chain_at(3) is None
    assert acknowledged(filled) == {}


def test_ap_07_partitions_are_acknowledged_each_for_itself(world, while_waiting):
    fill(world.logs[1], P0, 3)
    world.say(3)
    world.say(0, P1)
    appended = {0: Appended(0, chain=chain(world.logs[1])), 1: Appended()}
    while_waiting(lambda: world.say(3, P1, leader_epoch=1, epochs=CUTS), lambda: world.change(P1, leader_epoch=1))
    errors = acknowledge(TopicView(world.cluster), TOPIC, appended, time.monotonic() + LONG, LONG)
    assert {partition: type(error) for partition, error in errors.items()} == {1: NotLeaderOrFollowerException}


def test_ap_07_what_was_not_appended_is_not_waited_for(world, while_waiting):
    while_waiting()
    assert acknowledged(world, error=KafkaStorageException("disk full")) == {}


def test_ap_07_a_leader_that_cannot_be_read_is_waited_for_and_then_named(world, monkeypatch):
    def refuse(_):
        raise KafkaStorageException("broker 1: cannot be read")

    monkeypatch.setattr(ReplicaTable, "refresh", refuse)
    (error,) = acknowledged(world, timeout_ms=1).values()
    assert (error.name, str(error)) == ("KafkaStorageException", "broker 1: cannot be read")
