"""A whole cluster in the shared session, used as users do, end to end."""

import dataclasses
import datetime as dt
import itertools

import pyarrow as pa
import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidRecordException,
    InvalidRequiredAcksException,
    OffsetOutOfRangeException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.replica_status import LEADER_ROLE
from lakelog.replication.server import periodic_task
from lakelog.replication.server.fetcher import replica_fetcher
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta import commit_listeners
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.odd_names import NO_PATTERN
from tests.processes import wait_until

_topics = (f"topic-{number}" for number in itertools.count())
ON_EACH = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}


@pytest.fixture(scope="module")
def cluster(spark, tmp_path_factory):
    with LocalCluster(spark, str(tmp_path_factory.mktemp(NO_PATTERN)), brokers=3) as running:
        yield running


@pytest.fixture
def topic(cluster):
    """A topic with a partition led by each broker, replicated to all three. It keeps records of any age."""
    name = next(_topics)
    cluster.admin().create_topic(name, assignment=ON_EACH, configs={"min.insync.replicas": 2, "retention.ms": -1})
    return name


def table(*values, **columns):
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


def committed_values(spark, cluster, topic, **bounds):
    rows = read_committed(spark, cluster.cluster_uri, topic, **bounds).select("value", "partition", "offset").collect()
    return [bytes(row["value"]) for row in sorted(rows, key=lambda row: (row["partition"], row["offset"]))]


def replica_rows(cluster, topic, partition=0):
    """Each broker's row of a partition."""
    topic_id = cluster.admin().describe_topic(topic).topic.topic_id
    tables = (ReplicaTable.open(StorageRoot.of(cluster.broker_uri(broker))) for broker in (1, 2, 3))
    return [row for t in tables for key, row in t.replicas.items() if key == (topic_id, partition)]


def wait_for_leaders(cluster, topic):
    """Until the leaders of a new topic have their roles: an earlier attempt of a send is repeated after a poll."""
    for partition in ON_EACH:
        wait_until(lambda p=partition: LEADER_ROLE in {row.role for row in replica_rows(cluster, topic, p)}, "a leader")


def logs_are_equal(cluster, topic, partition=0):
    key = cluster.admin().describe_topic(topic).partitions[partition].topic_id_partition
    logs = [ReplicaLog.open(StorageRoot.of(cluster.broker_uri(broker)).child("log")) for broker in (1, 2, 3)]
    first, *others = (log.read(key, 0) for log in logs)
    return all(other.equals(first) for other in others)


def test_a_cell_that_runs_twice_finds_the_running_cluster(spark, cluster):
    brokers, controllers = dict(cluster.brokers), dict(cluster.controllers)
    cluster.start()
    assert (cluster.brokers, cluster.controllers) == (brokers, controllers)
    assert repr(cluster) == f"<LocalCluster at {cluster.cluster_uri}: 3 of 3 brokers run>"
    root = StorageRoot.of(cluster.cluster_uri).uri.removesuffix("/cluster")
    again = LocalCluster(spark, root, brokers=3)
    again.start()
    assert again.brokers is cluster.brokers, "so either name stops them"
    assert again.brokers == brokers
    with pytest.raises(InvalidConfigurationException, match="with other brokers, configs or roots"):
        LocalCluster(spark, root, brokers=2).start()


def test_what_is_acknowledged_is_read_and_is_on_every_replica(spark, cluster, topic):
    values = [f"value {number}".encode() for number in range(300)]
    answers = Producer(cluster.cluster_uri, acks="all").send(topic, table(*values, key=pa.array(values, pa.binary())))
    raise_first_error(answers)
    assert sum(answer.records for answer in answers.values()) == 300
    assert sorted(committed_values(spark, cluster, topic)) == sorted(values)
    for partition in ON_EACH:
        wait_until(lambda p=partition: logs_are_equal(cluster, topic, p), f"three equal logs of partition {partition}")


def test_hw_03_followers_hear_of_the_high_watermark(cluster, topic):
    raise_first_error(Producer(cluster.cluster_uri).send(topic, table(*[b"v"] * 7, partition=[0] * 7)))
    wait_until(lambda: [row.high_watermark for row in replica_rows(cluster, topic)] == [7, 7, 7], "HW 7 everywhere")


def test_records_keep_key_timestamp_headers_and_nulls(spark, cluster, topic):
    noon = dt.datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
    headers = pa.array([[{"key": "a", "value": b"\x00"}, {"key": "a", "value": None}], []],
                       pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))  # fmt: skip
    sent = table(
        None, b"\x00\xff", partition=[1, 1], key=pa.array([b"k", None]), timestamp=[noon, noon], headers=headers
    )
    raise_first_error(Producer(cluster.cluster_uri).send(topic, sent))
    rows = read_committed(spark, cluster.cluster_uri, topic).orderBy("offset").collect()
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [(b"k", None, 0), (None, b"\x00\xff", 1)]
    assert [[tuple(h) for h in row["headers"]] for row in rows] == [[("a", b"\x00"), ("a", None)], []]
    assert {row["timestamp"].microsecond for row in rows} == {1}


@pytest.mark.parametrize("rows", [50, 30_000], ids=["the driver", "tasks of Spark"])
def test_a_data_frame_is_written_by(spark, cluster, topic, rows):
    frame = spark.range(rows).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 50 AS STRING) AS key")
    answers = Producer(cluster.cluster_uri).send(topic, frame, timeout_ms=120_000)
    raise_first_error(answers)
    assert sum(a.last_offset - a.base_offset + 1 for a in answers.values()) == rows
    committed = read_committed(spark, cluster.cluster_uri, topic)
    assert committed.select("value").distinct().count() == rows
    by_key = committed.groupBy("key").agg({"partition": "count"}).count()
    assert committed.select("key", "partition").distinct().count() == by_key, "a key has one partition"


def test_ap_02_acks_1_is_answered_by_the_leader_and_acks_0_by_nobody(cluster, topic):
    (one,) = Producer(cluster.cluster_uri, acks=1).send(topic, table(b"a", partition=[0])).values()
    assert (one.base_offset, one.error) == (0, None)
    (none,) = Producer(cluster.cluster_uri, acks=0).send(topic, table(b"b", partition=[0])).values()
    assert (none.base_offset, none.error) == (-1, None)
    wait_until(lambda: min(r.log_end_offset for r in replica_rows(cluster, topic)) == 2, "both on every replica")


@pytest.mark.parametrize("replicas", [1, 3])
def test_do_02_within_a_process_no_acknowledgement_waits_for_a_poll(cluster, topic, monkeypatch, replicas):
    with Producer(cluster.cluster_uri, config=Config(lakelog_poll_interval_ms=600_000)) as producer:
        wait_for_leaders(cluster, topic)
        raise_first_error(producer.send(topic, table(b"first"), timeout_ms=60_000))
        wait_until(lambda: len(cluster.queries()) == 6, "each follower's query")
        name, assignment = next(_topics), {partition: found[:replicas] for partition, found in ON_EACH.items()}
        for module in (commit_listeners, periodic_task, replica_fetcher):
            monkeypatch.setattr(module, "until_poll", lambda _: 20.0)
        AdminClient(cluster.cluster_uri, Config(request_timeout_ms=10_000)).create_topic(name, assignment=assignment)
        wait_for_leaders(cluster, name)
        for _ in range(5):
            raise_first_error(producer.send(name, table(*[b"value"] * 30), timeout_ms=10_000))


def test_reading_between_offsets(spark, cluster, topic):
    raise_first_error(
        Producer(cluster.cluster_uri).send(topic, table(*(b"%d" % n for n in range(10)), partition=[0] * 10))
    )
    assert committed_values(spark, cluster, topic, starting={0: 3}, ending={0: 6}) == [b"3", b"4", b"5"]
    assert committed_values(spark, cluster, topic, starting="latest") == []
    with pytest.raises(OffsetOutOfRangeException, match=f"{topic}-0: offset 11 .* committed: 0 to 10"):
        read_committed(spark, cluster.cluster_uri, topic, ending={0: 11})
    with pytest.raises(InvalidPartitionsException, match="has no partition 7"):
        read_committed(spark, cluster.cluster_uri, topic, starting={7: 0})


def test_an_unknown_topic_is_named(spark, cluster):
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic nowhere"):
        Producer(cluster.cluster_uri).send("nowhere", table(b"v"))
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic nowhere"):
        read_committed(spark, cluster.cluster_uri, "nowhere")


@pytest.mark.parametrize(
    ("records", "error", "text"),
    [
        (pa.table({"key": [b"k"]}), InvalidRecordException, "there is no column value"),
        (pa.table({"value": [1]}), InvalidRecordException, "column value is int64, it must be binary"),
        (table(b"v", extra=[1]), InvalidRecordException, "column extra is unknown; known are key, value"),
        (table(b"v", timestamp=["noon"]), InvalidRecordException, "column timestamp is string"),
        (table(b"v", headers=[1]), InvalidRecordException, "column headers is int64"),
        (table(b"v", partition=[3]), InvalidPartitionsException, "partition 3 is out of range, the topic has 0 to 2"),
        (table(b"v", partition=[-1]), InvalidPartitionsException, "partition -1 is out of range"),
        (5, InvalidRecordException, "are a builtins.int, they must be a DataFrame of Spark, a pyarrow.Table or a list"),
        ([{"key": "k"}], InvalidRecordException, "record 0 has no value"),
    ],
)
def test_records_that_cannot_be_are_refused_whole(cluster, topic, records, error, text):
    with pytest.raises(error, match=text):
        Producer(cluster.cluster_uri).send(topic, records)
    assert {row.log_end_offset for row in replica_rows(cluster, topic)} <= {0}


def test_acks_are_0_1_or_all(cluster):
    with pytest.raises(InvalidRequiredAcksException, match="2"):
        Producer(cluster.cluster_uri, acks=2)


def test_is_04_replicas_that_have_all_records_join_the_isr(cluster, topic):
    metadata = Cluster.open(cluster.cluster_uri).metadata
    raise_first_error(Producer(cluster.cluster_uri).send(topic, table(b"v", partition=[0])))
    whole = cluster.admin().describe_topic(topic).partitions[0]
    alone = dataclasses.replace(whole, isr=(1,), partition_epoch=whole.partition_epoch + 1)
    metadata.put([alone], {"who": "test"})

    def partition():
        return cluster.admin().describe_topic(topic).partitions[0]

    wait_until(lambda: set(partition().isr) == {1, 2, 3}, "the whole ISR")
    assert (partition().leader_epoch, partition().partition_epoch > alone.partition_epoch) == (0, True)


def test_le_01_another_leads_when_the_leader_is_killed_and_it_follows_when_it_is_back(spark, cluster, topic):
    producer = Producer(cluster.cluster_uri)
    raise_first_error(producer.send(topic, table(b"before", partition=[0])))
    cluster.kill_broker(1)
    try:
        raise_first_error(producer.send(topic, table(b"after", partition=[0])))
        killed = cluster.admin().describe_topic(topic).partitions[0]
        assert (killed.leader, killed.leader_epoch > 0, 1 in killed.isr) == (2, True, False)
    finally:
        cluster.start_broker(1)
    wait_until(lambda: 1 in cluster.admin().describe_topic(topic).partitions[0].isr, "broker 1 in the ISR")
    assert committed_values(spark, cluster, topic) == [b"before", b"after"]
    assert logs_are_equal(cluster, topic)


def test_cs_01_cs_05_a_broker_that_stops_gives_its_leadership_away_first(cluster, topic):
    cluster.stop_broker(1)
    try:
        stopped = cluster.admin().describe_topic(topic).partitions[0]
        assert (stopped.leader, stopped.isr) == (2, (2, 3))
        raise_first_error(Producer(cluster.cluster_uri).send(topic, table(b"v", partition=[0])))
    finally:
        cluster.start_broker(1)
    wait_until(lambda: 1 in cluster.admin().describe_topic(topic).partitions[0].isr, "broker 1 in the ISR")


def test_a_follower_that_is_away_is_named_and_catches_up_when_it_is_back(spark, cluster, topic):
    """Also with its checkpoints deleted: they are nobody's truth."""
    producer = Producer(cluster.cluster_uri)
    raise_first_error(producer.send(topic, table(b"before", partition=[0])))
    cluster.kill_broker(3)
    try:
        (answer,) = producer.send(topic, table(b"while", partition=[0]), timeout_ms=1500).values()
        assert isinstance(answer.error, TimeoutException)
        assert "broker 3 ends at 1" in str(answer.error)
        assert (answer.base_offset, answer.last_offset) == (1, 1)
    finally:
        StorageRoot.of(cluster.broker_uri(3)).child("checkpoints").delete_folder()
        cluster.start_broker(3)
    raise_first_error(producer.send(topic, table(b"after", partition=[0])))
    assert committed_values(spark, cluster, topic) == [b"before", b"while", b"after"]
    wait_until(lambda: logs_are_equal(cluster, topic), "three equal logs")


@pytest.mark.usefixtures("topic")
def test_fm_06_queries_are_named_as_kafka_names_its_threads(cluster):
    expected = {f"broker-{b}:ReplicaFetcherThread-0-{source}" for b in (1, 2, 3) for source in (1, 2, 3) if b != source}
    wait_until(lambda: expected == {query.name for query in cluster.queries()}, "six queries under these names")


def test_a_named_producer_fences_the_one_before(cluster, topic):
    sent = table(b"v", partition=[0])
    first, second = (Producer(cluster.cluster_uri, name="importer") for _ in range(2))
    raise_first_error(second.send(topic, sent))
    (answer,) = first.send(topic, sent).values()
    assert answer.error is not None
    assert answer.error.name == "ProducerFencedException"


def test_bc_01_a_second_cluster_in_the_folder_of_one_that_runs_is_refused_unless_it_takes_over(spark, root):
    with LocalCluster(spark, root, brokers=1, controllers=0) as first:
        with pytest.raises(InvalidConfigurationException, match="with other brokers, configs or roots"):
            LocalCluster(spark, root, brokers=2, controllers=0).start()
        assert StorageRoot.of(first.broker_uri(2)).list() == [], "nothing was formatted"
        with LocalCluster(spark, root, brokers=1, controllers=0, take_over=True) as second:
            wait_until(lambda: not first.brokers[1].is_running, "the broker before is fenced")
            assert second.brokers[1].is_running


@pytest.mark.parametrize("where", ["cluster", "broker-2"])
def test_br_01_a_store_that_puts_one_file_over_another_is_refused(spark, root, monkeypatch, where):
    with LocalCluster(spark, root, brokers=2):
        pass
    uri, real = f"{root}/{where}", LocalRoot.put_if_absent
    monkeypatch.setattr(
        LocalRoot, "put_if_absent", lambda self, *given: (0, 0) if self.uri == uri else real(self, *given)
    )
    refused = LocalCluster(spark, root, brokers=2)
    with pytest.raises(InvalidConfigurationException, match=f"{uri}: the store takes a second put"):
        refused.start()
    assert (refused.brokers, refused.controllers) == ({}, {})


def test_several_fetchers_for_one_source(spark, root):
    configs = {"num.replica.fetchers": 2}
    with LocalCluster(spark, root, brokers=2, configs=configs) as two:
        two.admin().create_topic("t", assignment={p: [1, 2] for p in range(4)})
        parts = {"partition": [0, 1, 2, 3]}
        raise_first_error(Producer(two.cluster_uri, config=Config()).send("t", table(b"a", b"b", b"c", b"d", **parts)))
        fetchers = two.brokers[2].fetcher_manager.fetchers()
        assert sorted(key.fetcher_id for key in fetchers) == [0, 1]
        assert [len(fetcher.states) for fetcher in fetchers.values()] == [2, 2]
