"""Records are deleted at the leader. The request returns when no live replica has any of them."""

import pytest

from lakelog.replication.clients import record_deletion
from lakelog.replication.clients.purgatory import Purgatory
from lakelog.replication.clients.record_deletion import delete_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    InvalidTopicException,
    LeaderNotAvailableException,
    OffsetOutOfRangeException,
    PolicyViolationException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.log.log_start import follow_log_starts
from tests.clients.world import LONG, World
from tests.clock import Clock
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill, lead, offsets, replicate, truncate

AT_ONCE = 0


@pytest.fixture
def world(root):
    """Broker 1 leads P0 with six records, five of them committed. Broker 2's row says that its log is empty."""
    made = World(root)
    fill(made.logs[1], P0, 3, 3)
    made.say(5)
    made.say(0, broker=2)
    return made


def delete(world, before, timeout_ms=LONG, topic=TOPIC):
    return delete_records(TopicView(Cluster.open(world.uri)), topic, before, timeout_ms)


def follow(world, offset):
    """Broker 2 follows the leader's log start."""
    log = world.logs[2]
    log.transact({"why": "test"}, lambda _: None)
    follow_log_starts(log, {P0: (0, offset)}, "test")
    world.say(0, broker=2)


@pytest.mark.parametrize(("before", "start"), [(3, 3), (4, 4), (-1, 5), (0, 0)])
def test_dr_01_dr_02_a_deletion_completes_when_the_low_watermark_reaches_its_offset(
    world, while_waiting, before, start
):
    steps = while_waiting(*([lambda: world.say(5), lambda: follow(world, start)] if start else []))
    assert delete(world, {0: before}) == {0: start}
    assert next(steps, None) is None
    assert offsets(world.logs[1]) == list(range(start, 6))


def test_dr_02_a_deletion_that_is_not_confirmed_in_time_has_still_been_made(world):
    (outcome,) = delete(world, {0: 3}, AT_ONCE).values()
    assert isinstance(outcome, TimeoutException)
    assert "deleted at the leader, but not everywhere yet; log starts by broker: {1: 0, 2: 0}" in str(outcome)
    assert offsets(world.logs[1]) == [3, 4, 5]


def test_dr_02_a_deletion_does_not_wait_for_a_dead_broker(world, while_waiting, monkeypatch):
    """Its heartbeat stands still. The leader's moves."""
    monkeypatch.setattr(record_deletion.Liveness, "observe", lambda *_: {1})
    while_waiting(lambda: world.say(5))
    assert delete(world, {0: 3}) == {0: 3}


@pytest.mark.parametrize(("before", "found"), [(6, OffsetOutOfRangeException), (-2, OffsetOutOfRangeException)])
def test_dr_01_uncommitted_records_are_not_deleted(world, before, found):
    (outcome,) = delete(world, {0: before}).values()
    assert isinstance(outcome, found)
    assert offsets(world.logs[1]) == list(range(6))


def test_dr_01_tr_08_nothing_is_deleted_by_the_row_of_a_leader_that_has_lost_the_end_of_its_log(world):
    """Later appends to that log are committed nowhere."""
    truncate(world.logs[1], {P0: 0})
    fill(world.logs[1], P0, 6, producer_id=8)
    (outcome,) = delete(world, {0: -1}, AT_ONCE).values()
    assert isinstance(outcome, LeaderNotAvailableException)
    assert offsets(world.logs[1]) == list(range(6))


@pytest.mark.parametrize("policy", ["none", "compact"])
def test_dr_01_a_topic_whose_cleanup_policy_lacks_delete_refuses_a_deletion(world, policy):
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {"cleanup.policy": policy})], (), {"who": "test"})
    (outcome,) = delete(world, {0: 3}).values()
    assert isinstance(outcome, PolicyViolationException)
    assert offsets(world.logs[1]) == list(range(6))


def test_dr_01_each_partition_has_an_outcome_of_its_own(world, while_waiting):
    fill(world.logs[1], P1, 2)
    world.say(2, partition=P1)
    while_waiting(lambda: world.say(5), lambda: follow(world, 3))
    found = delete(world, {0: 3, 1: 9, 7: 1})
    assert found[0] == 3
    assert isinstance(found[1], OffsetOutOfRangeException)
    assert isinstance(found[7], UnknownTopicOrPartitionException)
    assert "flights-7: topic flights has no such partition" in str(found[7])


def test_dr_01_a_deletion_waits_for_a_leader(world, while_waiting):
    """Broker 2 is elected, and takes some time to publish its row as leader."""
    world.change(leader=2, leader_epoch=1, partition_epoch=1)
    (outcome,) = delete(world, {0: 0}, AT_ONCE).values()
    assert isinstance(outcome, LeaderNotAvailableException)

    def takes_up():
        lead(world.logs[2], P0, epoch=1)
        world.say(0, broker=2)

    while_waiting(takes_up)
    assert delete(world, {0: 0}) == {0: 0}


@pytest.mark.parametrize(("before", "start"), [(3, 3), (-1, 5)])
def test_dr_01_dr_02_a_broker_that_leads_before_it_has_followed_the_deletion_deletes_too(
    world, while_waiting, before, start
):
    """It has never heard of it. -1 means the offset that the first leader had, which the next one knows later."""

    def takes_over():
        replicate(world.logs[1], world.logs[2])
        lead(world.logs[2], P0, epoch=1)
        world.change(leader=2, leader_epoch=1, partition_epoch=1)
        world.say(2, broker=2)

    steps = while_waiting(
        takes_over, lambda: world.say(6, broker=2), lambda: (world.say(6), world.say(6, broker=2))
    )  # fmt: skip
    assert delete(world, {0: before}) == {0: start}
    assert next(steps, None) is None
    assert offsets(world.logs[2]) == list(range(start, 6))


def test_dr_01_a_timeout_at_the_next_leader_reports_that_the_first_one_has_deleted(world, while_waiting, monkeypatch):
    """The next leader does not know yet that the records are committed, which is no error of the request."""

    def takes_over():
        replicate(world.logs[1], world.logs[2])
        lead(world.logs[2], P0, epoch=1)
        world.change(leader=2, leader_epoch=1, partition_epoch=1)
        world.say(2, broker=2)
        clock.now = float("inf")

    clock = Clock()
    monkeypatch.setattr(record_deletion, "Purgatory", lambda: Purgatory(clock))
    while_waiting(takes_over)
    (outcome,) = delete(world, {0: 3}).values()
    assert isinstance(outcome, TimeoutException)
    assert "records below 3 are deleted at the leader, but not everywhere yet" in str(outcome)
    assert "high watermark" in str(outcome)


@pytest.mark.parametrize(
    ("topic", "found"), [("nowhere", UnknownTopicOrPartitionException), ("__offsets", InvalidTopicException)]
)
def test_dr_01_a_deletion_in_an_unknown_or_internal_topic_is_refused(world, topic, found):
    with pytest.raises(found):
        delete(world, {0: 1}, topic=topic)


def test_dr_01_a_deletion_of_records_that_are_already_deleted_succeeds(world, while_waiting):
    log = world.logs[1]
    log.transact({"why": "test"}, lambda _: None)
    while_waiting(lambda: (world.say(5), follow(world, 4)))
    assert delete(world, {0: 4}) == {0: 4}
    assert delete(world, {0: 2}) == {0: 4}
