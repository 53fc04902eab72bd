"""The stream over real logs, without brokers and without Spark: offsets as Spark asks for them."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from lakelog.replication.errors import (
    InvalidConfigurationException,
    LeaderNotAvailableException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.topic import Topic
from tests.clients.source.reads import places, rows, stream_reader
from tests.registrations import joined
from tests.storage.logs import P0, P1, P2, TOPIC, TOPIC_ID, fill, lead, replicate, start_at

ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
EVERYTHING = ReadAllAvailable()


def stream(world, **given):
    return stream_reader(world, **{"startingOffsets": "earliest", **given})


def offsets(found):
    return found["offsets"]


def read(reader, start, end):
    return places(rows(reader, reader.partitions(start, end)))


def test_a_stream_reads_each_committed_record_once_and_no_other(world):
    reader = stream(world)
    start = reader.initialOffset()
    assert offsets(start) == {TOPIC: {"0": 0, "1": 0}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert offsets(end) == {TOPIC: {"0": 4, "1": 2}}
    assert read(reader, start, end) == ALL
    assert reader.latestOffset(end, EVERYTHING) == end
    assert reader.partitions(end, end) == []
    world.say(5)
    later = reader.latestOffset(end, EVERYTHING)
    assert read(reader, end, later) == [(0, 4)]
    assert reader.reportLatestOffset() == later


def test_a_first_micro_batch_that_runs_again_reads_the_same_records(world):
    """Spark does not log where a query starts, and asks again."""
    reader = stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    start_at(world.logs[1], P0, 1)
    world.say(4)
    again = stream(world)
    with pytest.raises(OffsetOutOfRangeException, match="flights-0: records 0 to 0 are deleted, the log starts at 1"):
        again.partitions(again.initialOffset(), end)
    made_again(world)
    with pytest.raises(OffsetOutOfRangeException, match="flights-0: the topic was made again"):
        again.partitions({**start, "topic_ids": {TOPIC: "another-id"}}, end)


def test_a_new_query_starts_at_latest_by_default(world):
    reader = stream_reader(world)
    assert offsets(reader.initialOffset()) == {TOPIC: {"0": 4, "1": 2}}


@pytest.mark.parametrize(
    ("given", "limit", "expected"),
    [
        ({"maxOffsetsPerTrigger": "3"}, None, {"0": 2, "1": 1}),
        ({"maxOffsetsPerTrigger": "3"}, EVERYTHING, {"0": 4, "1": 2}),
        ({"minOffsetsPerTrigger": "7", "maxTriggerDelay": "1h"}, None, {"0": 4, "1": 2}),
        ({}, None, {"0": 4, "1": 2}),
    ],
)
def test_a_micro_batch_takes_no_more_than_its_limit(world, given, limit, expected):
    """The first micro-batch waits for nothing."""
    reader = stream(world, **given)
    end = reader.latestOffset(reader.initialOffset(), limit or reader.getDefaultReadLimit())
    assert offsets(end) == {TOPIC: expected}


def test_a_micro_batch_waits_for_enough_records_but_not_longer_than_the_delay(world):
    reader = stream(world, minOffsetsPerTrigger="2", maxTriggerDelay="1h")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    world.say(5)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end, "one is not enough"
    fill(world.logs[1], P1, 1)
    world.say(3, P1)
    assert offsets(reader.latestOffset(end, reader.getDefaultReadLimit())) == {TOPIC: {"0": 5, "1": 3}}
    patient = stream(world, minOffsetsPerTrigger="99", maxTriggerDelay="0ms")
    assert offsets(patient.latestOffset(end, ReadMaxRows(9))) == {TOPIC: {"0": 5, "1": 3}}, "the delay is over"


def test_a_stream_waits_for_a_topic_that_does_not_exist_and_reads_it_from_its_start(world):
    reader = stream_reader(world, subscribe="later")
    start = reader.initialOffset()
    assert offsets(start) == {}
    assert reader.latestOffset(start, EVERYTHING) == start
    other = stream_reader(world, subscribePattern="fl.*", startingOffsets="latest")
    nothing = {**other.initialOffset(), "topic_ids": {}, "offsets": {}}
    found = other.latestOffset(nothing, EVERYTHING)
    assert offsets(found) == {TOPIC: {"0": 0, "1": 0}}, "first where it starts"
    assert read(other, nothing, found) == []
    assert read(other, found, other.latestOffset(found, EVERYTHING)) == ALL


def test_a_new_partition_is_read_from_its_earliest_record(world):
    reader = stream(world)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    world.partitions[P2] = joined(new_partition(TOPIC, TOPIC_ID, 2, (1, 2), {1, 2}))
    world.change(P2)
    lead(world.logs[1], P2, epoch=0)
    fill(world.logs[1], P2, 3)
    world.say(3, P2)
    found = reader.latestOffset(end, EVERYTHING)
    assert offsets(found) == {TOPIC: {"0": 4, "1": 2, "2": 0}}
    last = reader.latestOffset(found, EVERYTHING)
    assert read(reader, found, last) == [(2, 0), (2, 1), (2, 2)]


def test_an_offset_of_a_stream_does_not_go_back_when_the_hw_of_a_new_leader_is_behind(world):
    """The new leader's HW is behind; the records are read when it has come as far again."""
    reader = stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    replicate(world.logs[1], world.logs[2], P0)
    world.change(leader=2, leader_epoch=1)
    lead(world.logs[2], P0, epoch=1)
    world.say(3, broker=2)
    assert reader.latestOffset(end, EVERYTHING) == end
    with pytest.raises(LeaderNotAvailableException, match="flights-0: no replica has committed records up to offset 4"):
        reader.partitions(start, end)
    world.say(5, broker=2)
    assert read(reader, start, end) == ALL
    assert read(reader, end, reader.latestOffset(end, EVERYTHING)) == [(0, 4)]


def test_a_partition_without_a_leader_has_nothing_new(world):
    reader = stream(world)
    start = reader.initialOffset()
    world.change(leader=-1, leader_epoch=1)
    end = reader.latestOffset(start, EVERYTHING)
    assert offsets(end) == {TOPIC: {"0": 0, "1": 2}}
    assert read(reader, start, end) == [(1, 0), (1, 1)]


def test_trigger_available_now_ends_at_what_was_committed_when_it_began(world):
    reader = stream(world, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    end = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    world.say(5)
    found = []
    while (last := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
        found, end = found + read(reader, end, last), last
    assert sorted(found) == ALL


def test_trigger_available_now_waits_for_a_leader_instead_of_ending(world):
    reader = stream(world)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    lead(world.logs[1], P0, epoch=1)
    world.change(leader_epoch=1)
    world.say(3)
    with pytest.raises(OffsetNotAvailableException, match="flights-0: the leader does not know yet"):
        reader.latestOffset(start, EVERYTHING)
    world.change(leader=-1, leader_epoch=2)
    with pytest.raises(LeaderNotAvailableException, match="flights-0: no leader"):
        reader.latestOffset(start, EVERYTHING)


def test_kip_207_trigger_available_now_does_not_end_at_the_hw_of_a_leader_that_does_not_know_what_is_committed(world):
    """It would leave out records that consumers have read from the leader before."""
    reader = stream(world)
    end = reader.initialOffset()
    world.change(leader_epoch=1)
    lead(world.logs[1], P0, epoch=1)
    world.say(3)
    with pytest.raises(OffsetNotAvailableException, match="how much is committed is not known yet"):
        reader.prepareForTriggerAvailableNow()
    world.say(5)
    reader.prepareForTriggerAvailableNow()
    last = reader.latestOffset(end, EVERYTHING)
    assert read(reader, end, last) == sorted([*ALL, (0, 4)])


def made_again(world):
    world.cluster.topics.change([Topic(TOPIC, "another-id", 1)], [TOPIC_ID], {"who": "test"})
    again = joined(new_partition(TOPIC, "another-id", 0, (1, 2), {1, 2}))
    world.cluster.metadata.put([again], {"who": "test"})


def lost_by_an_unclean_election(world):
    """Broker 2 leads, lacks what was committed, and has two other records."""
    world.change(leader=2, leader_epoch=1, isr=(2,))
    lead(world.logs[2], P0, epoch=1)
    fill(world.logs[2], P0, 2, epoch=1)
    world.say(2, broker=2)


def deleted(world):
    start_at(world.logs[1], P0, 3)
    world.say(4)


@pytest.mark.parametrize(
    ("happens", "text"),
    [
        (
            made_again,
            "flights-0: the topic was made again: it had id flights-id and has another-id; option failOnDataLoss=false",
        ),
        (deleted, "flights-0: records 0 to 2 are deleted, the log starts at 3; option failOnDataLoss=false"),
    ],
)
def test_lost_records_fail_the_query_with_their_offsets(world, happens, text):
    reader = stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    happens(world)
    for ask in (lambda: reader.latestOffset(start, EVERYTHING), lambda: reader.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeException, match=text):
            ask()


@pytest.mark.parametrize(("more", "lost"), [(0, "removed"), (5, "replaced")])
def test_kip_320_records_that_an_unclean_election_removed_fail_the_query(world, more, lost):
    """Also if the new leader's log is as long by now as the one that was read."""
    reader = stream(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    lost_by_an_unclean_election(world)
    if more:
        fill(world.logs[2], P0, more, epoch=1)
        world.say(2 + more, broker=2)
    text = f"flights-0: an unclean election has {lost} records 0 to 3; option failOnDataLoss=false"
    for ask in (lambda: reader.latestOffset(end, EVERYTHING), lambda: reader.partitions(start, end)):
        with pytest.raises(OffsetOutOfRangeException, match=text):
            ask()
    patient = stream(world, failOnDataLoss="false")
    later = patient.latestOffset(end, EVERYTHING)
    assert offsets(later) == {TOPIC: {"0": 0, "1": 2}}, "what comes from here on is new"
    assert read(patient, end, later) == []
    assert read(patient, later, patient.latestOffset(later, EVERYTHING)) == [(0, n) for n in range(2 + more)]


def test_a_query_goes_on_from_a_checkpoint_without_epochs(world):
    reader = stream(world)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    assert end.pop("epochs") == {TOPIC: {"0": [0, 0], "1": [0, 0]}}
    fill(world.logs[1], P0, 1)
    world.say(6)
    assert offsets(reader.latestOffset(end, EVERYTHING))[TOPIC]["0"] == 6


def test_without_fail_on_data_loss_a_query_goes_on_with_the_remaining_records(world):
    reader = stream(world, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    deleted(world)
    assert read(reader, start, end) == [(0, 3), (1, 0), (1, 1)]
    assert offsets(reader.latestOffset(start, EVERYTHING)) == offsets(end)
    made_again(world)
    assert read(reader, start, end) == []
    assert offsets(reader.latestOffset(end, EVERYTHING)) == {}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cluster_id": "another"}, "the checkpoint is of cluster another, the option cluster names "),
        ({"version": 9}, "this version of Lakelog did not write; start the query with a new checkpointLocation"),
        ({"version": None}, "this version of Lakelog did not write"),
    ],
)
def test_a_checkpoint_of_another_cluster_or_version_is_refused(world, changes, text):
    reader = stream(world)
    start = {**reader.initialOffset(), **changes}
    with pytest.raises(InvalidConfigurationException, match=text):
        reader.latestOffset(start, EVERYTHING)


def test_ap_04_a_query_commits_its_offsets_to_its_group_and_another_starts_there(world):
    reader = stream(world, **{"kafka.group.id": "g"})
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
    reader.commit(end)
    assert world.consumer("g").committed(TOPIC) == {0: 2, 1: 1}
    other = stream(world, startingOffsets="group", **{"kafka.group.id": "g"})
    assert offsets(other.initialOffset()) == {TOPIC: {"0": 2, "1": 1}}
    stream(world).commit(end)
    unknown = stream(world, startingOffsets="group", **{"kafka.group.id": "nobody"})
    assert offsets(unknown.initialOffset()) == {TOPIC: {"0": 4, "1": 2}}, "what it has not committed starts at the end"
