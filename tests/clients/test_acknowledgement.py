"""acks=all on real tables: when it is granted, and which error it gets otherwise."""

import time

import pytest

from lakelog.replication.clients.send_executor import SendExecutor
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import KafkaStorageException, LakelogException, NotLeaderOrFollowerException
from lakelog.replication.protocol.append import ALL
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.rounds.acknowledge_round import AcknowledgeRound
from lakelog.replication.protocol.rounds.send_round import RecordMetadata, SendOptions
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.clients.world import LONG, World
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, chain, fill, lead, replicate, truncate


@pytest.fixture
def world(root):
    return World(root)


@pytest.fixture
def filled(world):
    """Both brokers have offsets 0 to 2 of partition 0."""
    fill(world.logs[1], P0, 1, 2)
    replicate(world.logs[1], world.logs[2])
    return world


def appended(base_offset=1, **fields):
    """The answer of an append up to offset 2, under leader epoch 0."""
    return RecordMetadata(TOPIC, 0, 3 - base_offset, base_offset, 2, 0, topic_id=TOPIC_ID, **fields)


def acknowledge(world, records, timeout_ms=LONG):
    """Waits for acks=all. Returns the errors of the partitions that do not get it."""
    deadline = time.monotonic() + timeout_ms / 1000
    options = SendOptions("test", ALL, 0, timeout_ms, deadline)
    executor = SendExecutor(TopicView(world.cluster), TOPIC, None, options, None)  # nothing is sent again
    work = AcknowledgeRound(TOPIC, records, options, time.monotonic, None)
    answers = executor.run(work.run())
    return {partition: answer.error for partition, answer in answers.items() if answer.error}


def acknowledged(world, timeout_ms=LONG, **fields):
    """Waits for acks=all of offsets 1 to 2 of partition 0, and returns the answer."""
    return acknowledge(world, {0: appended(chain=chain(world.logs[2]), **fields)}, timeout_ms)


KEEPS, TRUNCATED = (EpochEntry(0, 0), EpochEntry(1, 3)), (EpochEntry(0, 0), EpochEntry(1, 1))


def lead_elsewhere(world, high_watermark, epochs):
    """Makes broker 2 the leader under epoch 1."""
    world.change(leader=2, leader_epoch=1)
    lead(world.logs[2], P0, epoch=1)
    world.say(high_watermark, broker=2, role="leader", leader_epoch=1, epochs=epochs)


ANSWERS = {
    # case: event during the wait -> error
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
        [lambda w: lead_elsewhere(w, 1, TRUNCATED)],
        r"NotLeaderOrFollower.*offsets 1 to 2 of leader epoch 0 .* leader 2 \(epoch 1\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_ap_07_acks_all_waits_for_the_hw(filled, while_waiting, case):
    world = filled
    things, message = ANSWERS[case]
    world.cluster.topics.update({}, lambda rows: [{**rows[0], "configs": [("min.insync.replicas", "2")]}])
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
                                                       (3, None, "all have them, but leader 1 has")])  # fmt: skip
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
    """A power cut took the log's end but not the row. A producer appends before the broker is back."""
    filled.say(3)
    truncate(filled.logs[1], {P0: 1})
    for _ in range(again):
        fill(filled.logs[1], P0, 1, producer_id=8)
    (error,) = acknowledged(filled, timeout_ms=1).values()
    assert (error.name, error.__cause__.name) == ("TimeoutException", "LeaderNotAvailableException")
    assert "the log of broker 1 has lost its end" in str(error)


def test_ap_07_tr_08_records_that_a_restored_log_has_not_are_not_acknowledged(filled):
    """The log agrees with its row again, but has other records at these offsets under the same leader epoch."""
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
    records = {0: appended(0, chain=chain(world.logs[1])), 1: appended()}
    while_waiting(lambda: world.say(3, P1, leader_epoch=1, epochs=TRUNCATED), lambda: world.change(P1, leader_epoch=1))
    errors = acknowledge(world, records)
    assert {partition: type(error) for partition, error in errors.items()} == {1: NotLeaderOrFollowerException}


def test_ap_07_what_was_not_appended_is_not_waited_for(world, while_waiting):
    while_waiting()
    assert acknowledged(world, error=KafkaStorageException("disk full")) == {}


def test_ap_07_a_leader_that_cannot_be_read_is_waited_for_and_then_named(world, monkeypatch):
    def refuse(*_):
        raise KafkaStorageException("broker 1: cannot be read")

    monkeypatch.setattr(ReplicaTable, "poll", refuse)
    (error,) = acknowledged(world, timeout_ms=1).values()
    assert (error.name, str(error)) == ("KafkaStorageException", "broker 1: cannot be read")
