"""KIP-320: a query finds the records that an unclean election has replaced, whatever log is in their place."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakelog.replication.clients.source.topic_reader import TopicTask
from lakelog.replication.clients.source.topic_stream import LastEpoch, SourceOffset
from lakelog.replication.errors import CorruptRecordException, OffsetNotAvailableException, OffsetOutOfRangeException
from lakelog.replication.protocol.record_batch import TopicIdPartition, TopicPartition
from tests.clients.source.reads import batch_reader, places, rows, stream_reader
from tests.clients.source.test_topic_stream import made_again
from tests.storage.logs import P0, P1, TOPIC, fill, lead, replicate, start_at

EVERYTHING = ReadAllAvailable()


def stream(world, **given):
    return stream_reader(world, startingOffsets="earliest", **given)


def read_all(reader, end):
    """The records of all micro-batches until nothing is new."""
    found = []
    while (last := reader.latestOffset(end, EVERYTHING)) != end:
        found, end = found + places(rows(reader, reader.partitions(end, last))), last
    return found


def elect_uncleanly(world, records):
    """Broker 2, which has nothing, leads epoch 1 and takes so many records."""
    world.change(leader=2, leader_epoch=1, isr=(2,))
    lead(world.logs[2], P0, epoch=1)
    fill(world.logs[2], P0, records, epoch=1)


@pytest.fixture
def older(world):
    """Broker 2 led epoch 1, and has records 5-8 of it that nobody else has. Broker 1 leads epoch 2 from 5 to 7."""
    replicate(world.logs[1], world.logs[2], P0)
    lead(world.logs[2], P0, epoch=1)
    fill(world.logs[2], P0, 4, epoch=1)
    world.change(leader_epoch=2)
    lead(world.logs[1], P0, epoch=2)
    fill(world.logs[1], P0, 3, epoch=2)
    world.say(8)
    return world


@pytest.mark.parametrize("more", [0, 2])
def test_kip_320_records_of_an_older_epoch_in_their_place_are_found(older, more):
    reader = stream(older)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert end["epochs"][TOPIC]["0"] == [2, 5]
    older.change(leader=2, leader_epoch=3, isr=(2,))
    lead(older.logs[2], P0, epoch=3)
    if more:
        fill(older.logs[2], P0, more, epoch=3)
    older.say(9 + more, broker=2)
    for ask in (lambda: reader.latestOffset(end, EVERYTHING), lambda: reader.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeException, match="an unclean election has replaced records 5 to 7"):
            ask()
    assert read_all(stream(older, failOnDataLoss="false"), end) == [(0, n) for n in range(5, 9 + more)]


@pytest.mark.parametrize("more", [0, 3])
def test_kip_320_a_task_whose_segment_has_gone_reads_no_records_that_have_replaced_its_own(older, more):
    """Broker 1's file is gone since the plan, and broker 2 leads: the task finds others at these offsets."""
    reader = batch_reader(older)
    tasks = reader.partitions()
    for name in {each.rows.file.name for task in tasks for each in task.planned}:
        older.logs[1].root.delete(name)
    older.change(leader=2, leader_epoch=3, isr=(2,))
    lead(older.logs[2], P0, epoch=3)
    fill(older.logs[2], P0, *([more] if more else []), epoch=3)
    older.say(9 + more, broker=2)
    ranges = sorted(
        (each for task in tasks for each in task.planned if each.topic_partition.partition == 0),
        key=lambda r: r.rows.start,
    )
    ours = [TopicTask([each]) for each in ranges]
    assert places(rows(reader, ours[:2])) == [(0, n) for n in range(5)], "these are the same in both logs"
    with pytest.raises(CorruptRecordException, match=f"{TOPIC}-0: an unclean election has replaced records 5 to 7"):
        rows(reader, ours[2:])


def test_a_task_does_not_read_a_topic_that_was_made_again_with_fewer_partitions(world):
    reader = batch_reader(world)
    tasks = [TopicTask([each]) for task in reader.partitions() for each in task.planned]
    for name in world.logs[1].refresh().segments:
        world.logs[1].root.delete(name)
    world.make_again(5)
    for task in tasks:
        (planned,) = task.planned
        with pytest.raises(CorruptRecordException, match=f"{planned.topic_partition}: the topic was deleted and made"):
            rows(reader, [task])


def test_kip_320_an_epoch_stays_known_when_its_records_are_deleted(world):
    """The other partition goes on meanwhile, so the offset in the checkpoint is a new one."""
    reader = stream(world)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    start_at(world.logs[1], P0, 4)
    world.say(4)
    fill(world.logs[1], P1, 1)
    world.say(3, P1)
    end = reader.latestOffset(end, EVERYTHING)
    assert end["epochs"] == {TOPIC: {"0": [0, 0], "1": [0, 0]}}
    elect_uncleanly(world, 7)
    world.say(7, broker=2)
    with pytest.raises(OffsetOutOfRangeException, match="an unclean election has replaced records 0 to 3"):
        reader.latestOffset(end, EVERYTHING)


def test_kip_320_a_clean_election_and_deletions_are_no_loss(older):
    """The next leader's log starts elsewhere, and has the records of each epoch."""
    reader = stream(older)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    for first, epoch in ((6, 3), (8, 4)):
        start_at(older.logs[1], P0, first)
        lead(older.logs[1], P0, epoch=epoch)
        older.change(leader_epoch=epoch)
        older.say(8)
        assert reader.latestOffset(end, EVERYTHING) == end
    fill(older.logs[1], P0, 1, epoch=4)
    older.say(9)
    assert read_all(reader, end) == [(0, 8)]


def test_trigger_available_now_does_not_wait_for_records_that_an_unclean_election_has_cost(world):
    """The query has not read them either, and ends where the log does now."""
    reader, patient = stream(world), stream(world, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    for each in (reader, patient):
        each.prepareForTriggerAvailableNow()
    elect_uncleanly(world, 2)
    world.say(1, broker=2)
    with pytest.raises(OffsetNotAvailableException, match="flights-0: the leader does not know yet"):
        patient.latestOffset(start, EVERYTHING)
    world.say(2, broker=2)
    with pytest.raises(OffsetOutOfRangeException, match="an unclean election has removed records 2 to 3"):
        reader.latestOffset(start, EVERYTHING)
    assert read_all(patient, end) == [(0, 0), (0, 1)]
    assert read_all(patient, start) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_trigger_available_now_does_not_wait_for_records_of_a_topic_that_was_made_again(world):
    reader, patient = stream(world), stream(world, failOnDataLoss="false")
    start = reader.initialOffset()
    for each in (reader, patient):
        each.prepareForTriggerAvailableNow()
    made_again(world)
    again = TopicIdPartition("another-id", 0)
    lead(world.logs[1], again, epoch=0)
    fill(world.logs[1], again, 1)
    world.rows[1] = {}
    world.say(1, again, topic_id="another-id")
    with pytest.raises(OffsetOutOfRangeException, match="the topic was made again"):
        reader.latestOffset(start, EVERYTHING)
    assert read_all(patient, start) == [(0, 0)]


def test_an_offset_read_from_a_checkpoint_equals_the_written_one():
    place = TopicPartition(TOPIC, 0)
    offset = SourceOffset("c", {TOPIC: "id"}, {place: 8}, epochs={place: LastEpoch(2, 5)})
    written = offset.to_json()
    assert SourceOffset.from_json(json.loads(json.dumps(written)), "c") == offset
