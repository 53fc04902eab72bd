"""Batch reads of real logs, without brokers and without Spark."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType

from lakelog.replication.clients.source.topic_reader import TopicReader, TopicTask
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidConfigurationException,
    InvalidPartitionsException,
    LeaderNotAvailableException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.clients.source.reads import batch_reader, options_of, places, read_batch, rows, schema
from tests.storage.logs import NOON, P0, P1, TOPIC, fill, lead, replicate, start_at, truncate

NOON_MS = int(NOON.timestamp() * 1000)
ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def offsets(p0, p1):
    return f'{{"{TOPIC}": {{"0": {p0}, "1": {p1}}}}}'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ALL),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"startingOffsets": offsets(1, -2), "endingOffsets": offsets(3, 1)}, [(0, 1), (0, 2), (1, 0)]),
        ({"startingOffsets": offsets(4, 2)}, []),
        ({"assign": f'{{"{TOPIC}": [1]}}'}, [(1, 0), (1, 1)]),
        ({"subscribePattern": "fl.*"}, ALL),
        ({"subscribePattern": "fl"}, []),
        ({"startingTimestamp": str(NOON_MS + 1)}, [(0, 1), (0, 2), (0, 3), (1, 1)]),
        ({"endingTimestamp": str(NOON_MS + 1)}, [(0, 0), (1, 0)]),
        ({"endingTimestamp": str(NOON_MS + 10)}, ALL),
        ({"startingOffsetsByTimestamp": offsets(NOON_MS + 2, NOON_MS)}, [(0, 2), (0, 3), (1, 0), (1, 1)]),
        ({"startingTimestamp": str(NOON_MS + 2), "startingOffsetsByTimestampStrategy": "latest"}, [(0, 2), (0, 3)]),
        ({"minPartitions": "4"}, ALL),
        ({"maxRecordsPerPartition": "1"}, ALL),
    ],
)
def test_fe_01_what_is_committed_within_the_offsets_is_read_once(world, given, expected):
    assert read_batch(world, **given) == expected


def test_a_record_has_the_columns_of_the_kafka_source(world):
    reader = batch_reader(world, includeHeaders="true", includeLeaderEpoch="true")
    first = rows(reader, reader.partitions())[0]
    assert first == {
        "key": b"k", "value": b"0", "topic": TOPIC, "partition": 0, "offset": 0, "timestamp": NOON, "timestampType": 0,
        "headers": None, "leader_epoch": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"startingOffsets": offsets(5, 0)}, OffsetOutOfRangeException, "offset 5 of flights-0 is out of range"),
        ({"endingOffsets": offsets(5, 0)}, OffsetOutOfRangeException, "option endingOffsets: offset 5 of flights-0"),
        (
            {"startingOffsets": offsets(2, 0), "endingOffsets": offsets(1, 1)}, OffsetOutOfRangeException,
            "flights-0: the read starts at offset 2, after its end 1",
        ),
        ({"startingOffsets": f'{{"{TOPIC}": {{"0": 1}}}}'}, InvalidConfigurationException, "it lacks flights-1"),
        ({"startingOffsets": '{"x": {"0": 1}}'}, InvalidConfigurationException, "it lacks flights-0"),
        (
            {"assign": f'{{"{TOPIC}": [1]}}', "startingOffsets": offsets(0, 0)}, InvalidConfigurationException,
            "it has flights-0, which is not read",
        ),
        ({"assign": f'{{"{TOPIC}": [7]}}'}, InvalidPartitionsException, "there is no partition flights-7, "),
        ({"subscribePattern": "x", "assign": "{}"}, InvalidConfigurationException, "exclude one another"),
        ({"startingTimestamp": str(NOON_MS + 9)}, OffsetOutOfRangeException, "no record of flights-0 is as late as"),
    ],
)  # fmt: skip
def test_a_read_of_a_wrong_range_or_partition_is_an_error_that_names_it(world, given, error, text):
    with pytest.raises(error, match=text):
        read_batch(world, **given)


def test_a_read_of_an_unknown_topic_is_an_error_with_the_known_ones(world):
    reader = TopicReader(options_of(world, subscribe="nobody"), schema(offset=LongType()))
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic nobody; there are: flights"):
        reader.partitions()


def test_a_read_from_a_deleted_offset_is_an_error_with_the_committed_range(world):
    start_at(world.logs[1], P0, 3)
    world.say(4)
    assert read_batch(world) == ALL[3:]
    with pytest.raises(OffsetOutOfRangeException, match="offset 1 of flights-0 is out of range, committed: 3 to 4"):
        read_batch(world, startingOffsets=offsets(1, 0))


def test_records_that_are_deleted_while_a_read_is_planned_are_no_error(world, monkeypatch):
    """The leader commits and deletes records after its row is read, and before its log is: the row's HW is 4 still."""

    def delete(log, *given, refresh=ReplicaLog.refresh):
        if log is not world.logs[1] and world.logs[1].current().partition(P0).log_start_offset == 0:
            fill(world.logs[1], P0, 3)
            start_at(world.logs[1], P0, 6)
        return refresh(log, *given)

    monkeypatch.setattr(ReplicaLog, "refresh", delete)
    assert read_batch(world, startingOffsets="earliest") == ALL[4:]
    world.say(7)
    assert read_batch(world, startingOffsets="earliest") == [(0, 6), *ALL[4:]]


def test_a_read_without_a_leader_waits_and_then_raises_leader_not_available(world):
    world.change(leader=-1, leader_epoch=1)
    with pytest.raises(LeaderNotAvailableException, match="flights-0: no leader; replicas are"):
        read_batch(world)


def test_kip_207_a_read_waits_for_a_new_leader_that_does_not_know_what_is_committed(world):
    world.change(leader_epoch=1)
    lead(world.logs[1], P0, epoch=1)
    world.say(4)
    with pytest.raises(OffsetNotAvailableException, match="how much is committed is not known yet"):
        read_batch(world)


def test_records_whose_segment_was_compacted_since_the_plan_are_read_from_another(world):
    fill(world.logs[1], P0, 1, 1, 1, 1)
    world.say(4)
    reader = batch_reader(world)
    tasks = reader.partitions()
    compact(world.logs[1], 1 << 20, 2, 1 << 20, "test")
    names = {each.rows.file.name for task in tasks for each in task.planned}
    gone = [name for name in names if name not in world.logs[1].refresh().segments]
    assert gone
    for name in gone:
        world.logs[1].root.delete(name)
    assert places(rows(reader, tasks)) == ALL


def test_a_task_returns_the_planned_records_although_the_planned_rows_are_wrong(world):
    reader = batch_reader(world)
    (task,) = reader.partitions()
    wrong = TopicTask([replace(each, rows=each.rows._replace(row=each.rows.row + 1)) for each in task.planned])
    assert places(rows(reader, [wrong])) == ALL


def test_a_broken_file_fails_a_task_with_an_error_that_names_it(world):
    reader = batch_reader(world)
    tasks = reader.partitions()
    path = world.logs[1].root.path(tasks[0].planned[0].rows.file.name)
    content = bytearray(Path(path).read_bytes())
    content[20:40] = bytes(20)
    Path(path).write_bytes(content)
    with pytest.raises(CorruptRecordException, match=path):
        rows(reader, tasks)


def test_a_read_with_a_users_schema_has_only_its_columns(world):
    reader = TopicReader(options_of(world), schema(value=BinaryType(), offset=LongType()))
    (task,) = reader.partitions()
    batches = list(reader.read(task))
    assert batches[0].schema.names == ["value", "offset"]
    assert pa.types.is_int64(batches[0].schema.field("offset").type)
    with pytest.raises(InvalidConfigurationException, match="a topic has no column value string; allowed: key binary"):
        TopicReader(options_of(world), schema(value=StringType()))


class TestNearestReplica:
    """KIP-392: an in-sync replica in the reader's rack, never past its own HW."""

    @pytest.fixture
    def near(self, world):
        replicate(world.logs[1], world.logs[2], P0)
        replicate(world.logs[1], world.logs[2], P1)
        world.put_in_rack(2, "eu")
        return world

    def brokers(self, world, **given):
        reader = batch_reader(world, **given)
        tasks = reader.partitions()
        assert places(rows(reader, tasks)) == ALL
        return {int(each.rows.file.root.uri.split("broker-")[1][0]) for task in tasks for each in task.planned}

    def test_kip_392_tasks_read_a_near_replica_that_has_all_planned_records(self, near):
        near.say(4, broker=2)
        near.say(2, P1, broker=2)
        assert self.brokers(near) == {1}
        assert self.brokers(near, **{"client.rack": "eu"}) == {2}
        assert self.brokers(near, **{"kafka.client.rack": "us"}) == {1}

    def test_kip_392_tasks_read_the_leader_if_the_hw_of_the_near_replica_is_behind(self, near):
        near.say(3, broker=2)
        near.say(2, P1, broker=2)
        assert self.brokers(near, **{"client.rack": "eu"}) == {1, 2}

    @pytest.mark.parametrize("changes", [{"state": "Truncating"}, {"leader_epoch": 7}, {"chain": "another"}])
    def test_kip_392_a_replica_that_is_not_in_sync_is_not_read(self, near, changes):
        near.say(4, broker=2, **changes)
        near.say(2, P1, broker=2, **changes)
        assert self.brokers(near, **{"client.rack": "eu"}) == {1}

    def test_kip_392_tasks_do_not_read_a_near_replica_outside_of_the_isr(self, near):
        near.say(4, broker=2)
        near.say(2, P1, broker=2)
        for partition in (P0, P1):
            near.change(partition, isr=(1,))
        assert self.brokers(near, **{"client.rack": "eu"}) == {1}

    def test_kip_392_tasks_do_not_read_a_near_replica_that_has_lost_its_end(self, near):
        near.say(4, broker=2)
        near.say(2, P1, broker=2)
        truncate(near.logs[2], {P0: 3})
        assert self.brokers(near, **{"client.rack": "eu"}) == {1, 2}
