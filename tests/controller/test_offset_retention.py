"""The controller removes the committed offsets of deleted topics."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.group_tables import CommittedOffset, GroupTable
from tests.controller.world import World

INTERVAL = 600


@pytest.fixture
def world(root):
    return World(root)


def commit(world, *topics):
    world.cluster.groups.commit([CommittedOffset("g", topic, f"{topic}-id", 0, 5) for topic in topics])


def committed(world):
    return sorted(partition.topic_id for partition in world.cluster.groups.committed("g"))


def delete_flights(world):
    world.cluster.admin.add(AdminRequest("request", "delete_topic", {"topic": "flights"}))
    world.controller.poll()
    for beat in world.beats.values():
        beat.heartbeat(1, "applied", metadata_version=world.controller.context.deletions["flights-id"])
    world.controller.poll()


def test_td_03_ap_04_committed_offsets_are_deleted_with_their_topic(world):
    world.add_topic("other", (1, 2))
    commit(world, "flights", "other")
    world.fail_over()
    world.controller.poll()
    assert committed(world) == ["flights-id", "other-id"]
    delete_flights(world)
    assert committed(world) == ["other-id"]


def test_td_03_ap_04_offsets_committed_late_are_deleted_at_the_next_check(world):
    world.controller.poll()
    commit(world, "gone", "flights")
    world.poll(1, 2, 3, after=INTERVAL - 1)
    assert committed(world) == ["flights-id", "gone-id"]
    world.poll(1, 2, 3, after=1)
    assert committed(world) == ["flights-id"]


def test_td_03_ap_04_a_failed_deletion_of_offsets_delays_no_other_work(world, monkeypatch, caplog):
    commit(world, "gone")

    def refuse(*_):
        raise KafkaStorageException("503")

    with monkeypatch.context() as patched:
        patched.setattr(GroupTable, "forget_all_but", refuse)
        world.controller.poll()
    assert "offsets of deleted topics stay for now: 503" in caplog.text
    world.poll(1, 2, 3, after=INTERVAL)
    assert world.cluster.groups.committed("g") == {}
    assert TopicIdPartition("flights-id", 0) in world.all()
