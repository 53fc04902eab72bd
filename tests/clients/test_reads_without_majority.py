"""Two of three cluster roots are lost: nothing is decided, and reads of records go on, also those that begin then."""

import logging
import shutil
import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.replication.clients import topic_view
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.offset_lookup import EARLIEST
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.clients.topic_view import TopicView, open_view
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    KafkaStorageException,
    NotLeaderOrFollowerException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta import cluster_quorum, known_roots
from lakelog.replication.storage.delta.local_root import LocalRoot
from tests.clients.source.reads import batch_reader, places, read_batch, rows, stream_reader
from tests.clients.world import World
from tests.hanging import Hanging
from tests.processes import wait_until
from tests.storage.logs import P0, P1, TOPIC, fill, follow, lead, replicate

SENTENCE = "no majority of the 3 cluster roots has answered, as .*cluster-{}.* and .*cluster-{}.* do not; if they are"
COMMITTED = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
EVERYTHING = ReadAllAvailable()


NO_SPARK = SparkSession.__new__(SparkSession)  # for reads that are refused before they need one


class Lost(World):
    """Partition 0 has 0-2 | 3-4, of which 3 and 4 are not committed, partition 1 has 0-1. Three cluster roots."""

    def __init__(self, root):
        super().__init__(root, cluster_roots=3)
        self._root = root
        fill(self.logs[1], P0, 3, 2)
        fill(self.logs[1], P1, 2)
        self.say(3)
        self.say(2, P1)
        self.cluster.root.quorum.flush()

    def folder(self, number):
        return Path(self._root, f"cluster-{number}")

    def lose(self, *numbers, by="away"):
        for number in numbers:
            if by == "deleted":
                shutil.rmtree(self.folder(number))
            else:
                self.folder(number).rename(f"{self.folder(number)}.away")
                if by == "emptied":
                    self.folder(number).mkdir()

    def find(self, *numbers):
        for number in numbers:
            Path(f"{self.folder(number)}.away").rename(self.folder(number))

    def change_without(self, number, change):
        """Decides something of which one root never hears, and then loses the two that know it."""
        self.lose(number)
        change()
        self.cluster.root.quorum.flush()
        self.find(number)
        self.lose(*({1, 2, 3} - {number}))


@pytest.fixture
def world(root, monkeypatch):
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)  # roots that are back are found at once
    yield Lost(root)
    topic_view._views.clear()


def fetched(consumer, offsets=(0, 0), **given):
    found = consumer.fetch(TOPIC, dict(enumerate(offsets)), max_wait_ms=0, **given)
    for each in found.values():
        if each.error:
            raise each.error
    return [(partition, offset) for partition, each in found.items() for offset in each.records["offset"].to_pylist()]


@pytest.mark.parametrize(("left", "by"), [(1, "away"), (1, "emptied"), (2, "deleted"), (3, "emptied")])
def test_reads_that_begin_without_a_majority_find_all_committed_records(world, left, by):
    world.lose(*({1, 2, 3} - {left}), by=by)
    assert fetched(Consumer(world.uri)) == COMMITTED
    assert fetched(Consumer(str(world.folder(left)))) == COMMITTED
    assert read_batch(world) == COMMITTED
    assert read_batch(world, subscribePattern="fli.*") == COMMITTED
    reader = stream_reader(world, startingOffsets="earliest")
    start = reader.initialOffset()
    assert places(rows(reader, reader.partitions(start, reader.latestOffset(start, EVERYTHING)))) == COMMITTED
    console = ConsoleReader(world.uri, Config(), TOPIC, EARLIEST)
    assert sum(table.num_rows for table in console.read(0, 100, 1 << 20)) == len(COMMITTED)


def test_spark_reads_records_without_a_majority(world, spark, tmp_path):
    world.lose(1, 3)
    assert read_committed(spark, world.uri, TOPIC).count() == len(COMMITTED)
    given = {"cluster": world.uri, "subscribe": TOPIC, "startingOffsets": "earliest"}
    assert spark.read.format("lakelog").options(**given).load().count() == len(COMMITTED)
    writer = spark.readStream.format("lakelog").options(**given).load().writeStream.format("parquet")
    writer = writer.options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(COMMITTED)
    with pytest.raises(PySparkException, match=SENTENCE.format(1, 3)):
        spark.createDataFrame([(b"v",)], "value binary").write.format("lakelog").mode("append").options(
            cluster=world.uri, topic=TOPIC
        ).save()


def test_reads_that_run_go_on_and_see_the_next_decision_once_a_majority_is_back(world):
    consumer, view = Consumer(world.uri), open_view(world.uri, Config(), reads_go_on=True)
    reader = stream_reader(world, startingOffsets="earliest")
    start = reader.initialOffset()
    assert fetched(consumer) == COMMITTED
    world.lose(1, 2)
    world.say(5)
    assert fetched(consumer, (3, 2)) == [(0, 3), (0, 4)]
    assert places(rows(reader, reader.partitions(start, reader.latestOffset(start, EVERYTHING)))) == [
        *COMMITTED[:3], (0, 3), (0, 4), *COMMITTED[3:]
    ]  # fmt: skip
    world.find(1, 2)
    world.cluster.topics.change([Topic("new", "new-id", 1)], (), {"who": "test"})
    wait_until(lambda: (view.cluster.topics.refresh(), "new" in view.cluster.topics.topics)[1], "the new topic")


def test_what_decides_stops_with_one_sentence(world):
    group, config = Consumer(world.uri, "g"), Config.from_properties({"request.timeout.ms": 1})
    group.commit({TOPIC: {0: 3}})
    world.lose(2, 3)
    sentence = SENTENCE.format(2, 3)
    for consumer in (group, Consumer(world.uri, "g")):
        assert fetched(consumer) == COMMITTED
        assert consumer.committed(TOPIC) == {0: 3}
        for offset in (3, 1):  # it stays where it is, as this root shows it, or not
            with pytest.raises(KafkaStorageException, match=sentence):
                consumer.commit({TOPIC: {0: offset}})
        with pytest.raises(KafkaStorageException, match=sentence):
            consumer.subscribe([TOPIC])
    console = ConsoleReader(world.uri, Config(), TOPIC, EARLIEST, "g")
    with pytest.raises(KafkaStorageException, match=sentence):
        console.commit()
    reader = stream_reader(world, **{"startingOffsets": "earliest", "kafka.group.id": "g"})
    start = reader.initialOffset()
    with pytest.raises(Exception, match=sentence):
        reader.commit(reader.latestOffset(start, EVERYTHING))
    with pytest.raises(KafkaStorageException, match=sentence):
        Producer(world.uri, name="named", config=config)
    answers = Producer(world.uri, config=config).send(TOPIC, ["v"], 1)
    (error,) = (each.error for each in answers.values())
    with pytest.raises(KafkaStorageException, match=sentence):
        raise error
    for cluster in (Cluster.open(world.uri), world.cluster):
        for table in (cluster.topics, cluster.metadata, cluster.groups):
            with pytest.raises(KafkaStorageException, match=sentence):
                table.refresh()
        with pytest.raises(KafkaStorageException, match=sentence):
            cluster.refresh_brokers()


def test_reads_without_a_majority_warn_once(world, caplog):
    world.lose(1, 2)
    with caplog.at_level(logging.WARNING, cluster_quorum.__name__):
        for consumer in (Consumer(world.uri), Consumer(world.uri)):
            assert fetched(consumer) == fetched(consumer) == COMMITTED
    assert [record.message.split(": ")[0] for record in caplog.records if "is read as it was" in record.message] == [
        f"{world.folder(3)} is read as it was"
    ]


def depose(world, replicated, then=lambda: None):
    """Broker 2 leads epoch 1, has two records of it at 5 and 6, and all is committed there. Broker 1 is frozen if it
    has not `replicated` that. The root that is left does not know it."""
    replicate(world.logs[1], world.logs[2], P0)
    lead(world.logs[2], P0, epoch=1)
    fill(world.logs[2], P0, 2, epoch=1)
    if replicated:
        follow(world.logs[1], P0, epoch=1)

    def elect():
        world.change(leader=2, leader_epoch=1)
        world.say(7, broker=2)
        then()

    world.change_without(1, elect)


def test_of_a_deposed_leader_only_committed_records_are_read(world):
    depose(world, replicated=False)
    assert fetched(Consumer(world.uri)) == COMMITTED
    assert read_batch(world) == COMMITTED


def test_a_leader_that_knows_it_is_deposed_is_not_read(world):
    depose(world, replicated=True)
    with pytest.raises(NotLeaderOrFollowerException, match="leader epoch 0 is over"):
        fetched(Consumer(world.uri))
    with pytest.raises(NotLeaderOrFollowerException, match="leader epoch 0 is over"):
        read_batch(world)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_no_record_is_taken_for_lost_that_a_later_leader_may_have(world, fails):
    given, ends = {"startingOffsets": "earliest", "failOnDataLoss": fails}, []

    def read():
        reader = stream_reader(world, **given)
        ends.append(reader.latestOffset(reader.initialOffset(), EVERYTHING))

    depose(world, False, read)
    (end,) = ends
    assert end["offsets"][TOPIC] == {"0": 7, "1": 2}
    topic_view._views.clear()
    with pytest.raises(Exception, match=SENTENCE.format(2, 3)):
        stream_reader(world, **given).latestOffset(end, EVERYTHING)
    with pytest.raises(KafkaStorageException, match=SENTENCE.format(2, 3)):
        fetched(Consumer(world.uri), (7, 0))
    with pytest.raises(KafkaStorageException, match=SENTENCE.format(2, 3)):
        Consumer(world.uri).epoch_end(TOPIC, 0, [0])
    with pytest.raises(KafkaStorageException, match=SENTENCE.format(2, 3)):
        read_committed(NO_SPARK, world.uri, TOPIC, {0: 7})
    reader = batch_reader(world, startingOffsets=f'{{"{TOPIC}": {{"0": 7, "1": -2}}}}')
    with pytest.raises(Exception, match=SENTENCE.format(2, 3)):
        reader.partitions()
    world.find(2, 3)
    assert stream_reader(world, **given).latestOffset(end, EVERYTHING) == end
    with pytest.raises(OffsetOutOfRangeException, match="offset 8 is out of range"):
        fetched(Consumer(world.uri), (8, 0))


def test_no_topic_is_taken_for_unknown_that_others_may_know(world):
    new = Topic("new", "new-id", 1)
    world.change_without(1, lambda: world.cluster.topics.change([new], (), {"who": "test"}))
    view = TopicView(Cluster.open(world.uri, reads_go_on=True))
    with pytest.raises(KafkaStorageException, match=SENTENCE.format(2, 3)):
        view.partitions("new")
    with pytest.raises(KafkaStorageException, match=SENTENCE.format(2, 3)):
        view.partitions("new", 0.0)
    world.find(2, 3)

    def answer():
        try:
            return view.partitions("nobody")
        except KafkaStorageException:  # no majority has answered soon enough
            return None
        except UnknownTopicOrPartitionException as error:
            return str(error)

    assert wait_until(answer, "a majority answers again").startswith("no topic nobody")


def test_a_reader_shows_nothing_older_than_it_has_seen(world):
    """Its home is lost, and the root that is left is behind."""
    view = TopicView(Cluster.open(f"{world.folder(2)},{world.folder(1)},{world.folder(3)}", reads_go_on=True))
    assert view.partitions(TOPIC)[0].leader_epoch == 0

    def elect():
        world.change(leader=2, leader_epoch=1)
        assert view.partitions(TOPIC)[0].leader_epoch == 1

    world.change_without(1, elect)
    assert view.partitions(TOPIC)[0].leader_epoch == 1
    assert view.partitions(TOPIC, 0.0)[0].leader_epoch == 1
    assert view.partitions(TOPIC)[0].leader_epoch == 1


class Hangs:
    """Roots that take all requests, and answer none."""

    def __init__(self, world, numbers, monkeypatch):
        self._folders = [str(world.folder(number)) for number in numbers]
        self._hanging = Hanging()
        reads = "read", "read_buffer", "read_stamped", "list", "exists", "stamps", "mark"
        for name in (*reads, "put_if_absent", "write"):
            plain = getattr(LocalRoot, name)
            monkeypatch.setattr(LocalRoot, name, lambda *args, plain=plain, **named: self._call(plain, *args, **named))

    def _call(self, plain, folder, *args, **named):
        if any(folder.uri.startswith(each) for each in self._folders):
            self._hanging()
        return plain(folder, *args, **named)

    def end(self):
        self._folders = []
        self._hanging.let_go()


@pytest.mark.parametrize(("numbers", "is_new"), [((1, 2), True), ((2, 3), False)])
def test_roots_that_hang_hold_a_reader_up_once(world, numbers, is_new, monkeypatch):
    config, waits = Config.from_properties({"lakelog.storage.timeout.ms": 2500}), []
    plain = threading.Condition.wait_for
    consumer = None if is_new else Consumer(world.uri, config=config)
    if consumer:
        assert fetched(consumer) == COMMITTED
    hangs = Hangs(world, numbers, monkeypatch)

    def wait_for(condition, predicate, timeout=None):
        found = plain(condition, predicate, timeout)
        if not found and threading.current_thread() is threading.main_thread():
            waits.append(timeout)
        return found

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    for _ in range(3):
        consumer = consumer or Consumer(world.uri, config=config)
        assert fetched(consumer) == COMMITTED
    hangs.end()
    assert len([seconds for seconds in waits if seconds > 2]) == 1
