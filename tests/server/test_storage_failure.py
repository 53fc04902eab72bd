"""A broker's root disappears while it works, and returns: others lead, and no acknowledged record is lost."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakelog.jobs import verify
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.server.broker_server import Broker
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogChange
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, write_segment
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.roots.storage_faults import bring_back, take_away
from tests.processes import wait_until

SHORT = {
    "broker.heartbeat.interval.ms": 200, "broker.session.timeout.ms": 20_000, "replica.fetch.backoff.ms": 200,
    "log.cleaner.backoff.ms": 300, "log.cleaner.enable": "false", "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": 500,
}  # fmt: skip
SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(spark, tmp_path_factory):
    with LocalCluster(spark, str(tmp_path_factory.mktemp("cluster")), brokers=3, configs=SHORT) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(cluster):
    """After each test, puts every root back and waits until every broker works."""
    yield
    for broker in cluster.broker_ids:
        bring_back(cluster.broker_uri(broker))
    wait_until(lambda: all(row(cluster, b).storage_error is None for b in cluster.broker_ids), "all at work", SECONDS)


def row(cluster, broker):
    return cluster.admin().describe_brokers()[broker]


def partition(cluster, topic, number=0):
    return cluster.admin().describe_topic(topic).partitions[number]


def send(cluster, topic, *values, acks="all"):
    sent = pa.table({"value": pa.array(values, pa.binary()), "partition": [0] * len(values)})
    raise_first_error(Producer(cluster.cluster_uri, acks=acks).send(topic, sent, timeout_ms=60_000))


def committed(spark, cluster, topic):
    rows = read_committed(spark, cluster.cluster_uri, topic).orderBy("offset").collect()
    return [bytes(found["value"]) for found in rows]


def log_of(cluster, broker, topic):
    key = partition(cluster, topic).topic_id_partition
    return ReplicaLog.open(StorageRoot.of(cluster.broker_uri(broker)).child("log")).read(key, 0)


def failed(cluster, broker):
    """Whether the broker's row reports the failure and the broker has left every ISR."""
    wait_until(lambda: row(cluster, broker).storage_error, f"broker {broker} says what is wrong", SECONDS)


def test_ol_02_li_04_the_root_of_a_leader_goes_away_and_comes_back(spark, cluster):
    cluster.admin().create_topic("led", assignment={0: [1, 2, 3]}, configs={"min.insync.replicas": 2})
    send(cluster, "led", b"before")
    before = row(cluster, 1)
    take_away(cluster.broker_uri(1))
    failed(cluster, 1)
    wait_until(lambda: partition(cluster, "led").isr == (2, 3), "brokers 2 and 3 are in sync", SECONDS)
    assert partition(cluster, "led").leader == 2
    assert cluster.brokers[1].session is None
    with pytest.raises(KafkaStorageException, match=cluster.broker_uri(1)):
        _ = cluster.brokers[1].fetcher_manager
    send(cluster, "led", b"while")
    beat = row(cluster, 1).heartbeat
    wait_until(lambda: row(cluster, 1).heartbeat > beat, "its heart beats")
    assert (row(cluster, 1).broker_epoch, cluster.brokers[1].is_running) == (before.broker_epoch, True)
    bring_back(cluster.broker_uri(1))
    wait_until(lambda: set(partition(cluster, "led").isr) == {1, 2, 3}, "broker 1 is in sync again", SECONDS)
    after = row(cluster, 1)
    assert (after.storage_error, after.broker_epoch) == (None, before.broker_epoch + 1)
    assert (after.log_table_id, after.log_epoch) == (before.log_table_id, before.log_epoch)
    send(cluster, "led", b"after")
    assert committed(spark, cluster, "led") == [b"before", b"while", b"after"]
    wait_until(lambda: log_of(cluster, 1, "led").equals(log_of(cluster, 2, "led")), "two equal logs", SECONDS)


def test_ol_02_a_send_is_acknowledged_after_the_root_of_a_follower_fails(cluster):
    """Broker 3 leads nothing, so only its fetchers and its regular check meet the fault."""
    cluster.admin().create_topic("followed", assignment={0: [1, 3]})
    send(cluster, "followed", b"before")
    take_away(cluster.broker_uri(3))
    failed(cluster, 3)
    wait_until(lambda: partition(cluster, "followed").isr == (1,), "broker 1 alone is in sync", SECONDS)
    send(cluster, "followed", b"while")
    bring_back(cluster.broker_uri(3))
    wait_until(lambda: set(partition(cluster, "followed").isr) == {1, 3}, "broker 3 is in sync again", SECONDS)


def test_ol_02_a_partition_waits_for_its_last_isr_member_which_leads_again(spark, cluster):
    cluster.admin().create_topic("alone", assignment={0: [2]})
    send(cluster, "alone", b"before")
    take_away(cluster.broker_uri(2))
    failed(cluster, 2)
    wait_until(lambda: partition(cluster, "alone").leader == -1, "nobody leads", SECONDS)
    assert partition(cluster, "alone").isr == (2,)
    bring_back(cluster.broker_uri(2))
    wait_until(lambda: partition(cluster, "alone").leader == 2, "it leads again", SECONDS)
    send(cluster, "alone", b"after")
    assert committed(spark, cluster, "alone") == [b"before", b"after"]


def test_ol_02_an_error_outside_its_root_does_not_stop_a_broker(cluster):
    """The root of another broker is gone. Its followers wait and keep their roles."""
    epochs = {broker: row(cluster, broker).broker_epoch for broker in (1, 2)}
    cluster.admin().create_topic("far", assignment={0: [3, 1, 2]})
    send(cluster, "far", b"before")
    take_away(cluster.broker_uri(3))
    failed(cluster, 3)
    wait_until(lambda: set(partition(cluster, "far").isr) == {1, 2}, "the others are in sync", SECONDS)
    send(cluster, "far", b"after")
    found = {broker: (row(cluster, broker).broker_epoch, row(cluster, broker).storage_error) for broker in (1, 2)}
    assert found == {broker: (epoch, None) for broker, epoch in epochs.items()}


def files_of(cluster, broker, topic):
    log = ReplicaLog.open(StorageRoot.of(cluster.broker_uri(broker)).child("log"))
    batches = log.refresh().partition(partition(cluster, topic).topic_id_partition).batches
    return [Path(log.root.path(batch.segment)) for batch in batches]


def test_ol_01_li_04_a_file_of_a_leader_goes_away_and_comes_back(spark, cluster, caplog):
    """Its broker goes on and keeps leading the other topic, under the same broker epoch. It may be in sync again at
    once, because it fetches the file's records."""
    caplog.set_level("INFO", "lakelog")
    topics = {name: cluster.admin().create_topic(name, assignment={0: [1, 2]}) for name in ("broken", "healthy")}
    for topic in topics:
        send(cluster, topic, b"before")
    epoch, key = row(cluster, 1).broker_epoch, partition(cluster, "broken").topic_id_partition
    (file,) = files_of(cluster, 1, "broken")
    content = file.read_bytes()
    file.unlink()
    wait_until(lambda: partition(cluster, "broken").leader == 2, "broker 2 leads", SECONDS)
    assert f"broker 1: {key} is offline: {file}" in caplog.text
    wait_until(lambda: "broker 1 leaves 1 ISR (broken-0)" in caplog.text, "it is logged after the commit", SECONDS)
    for topic in topics:
        send(cluster, topic, b"while")
    file.write_bytes(content)
    wait_until(lambda: set(partition(cluster, "broken").isr) == {1, 2}, "broker 1 is in sync again", SECONDS)
    assert (row(cluster, 1).offline, row(cluster, 1).broker_epoch) == (frozenset(), epoch)
    assert (partition(cluster, "healthy").leader, partition(cluster, "healthy").leader_epoch) == (1, 0)
    assert [committed(spark, cluster, topic) for topic in topics] == [[b"before", b"while"]] * 2


def write_other_records(cluster, broker, topic):
    """Replaces the first file of a topic in a broker's log by one with another record, as if it had been written so."""
    key = partition(cluster, topic).topic_id_partition
    log = ReplicaLog.open(StorageRoot.of(cluster.broker_uri(broker)).child("log"))
    segment = log.current().segments[log.current().known(key).batches[0].segment]
    rows = read_records(log.root, segment.name).to_pylist()
    rows[0]["value"] += b"!"
    other = write_segment(log.root, 1, pa.Table.from_pylist(rows, LOG.arrow), segment.headers)
    log.transact({"who": "test", "why": "test"}, lambda _: LogChange((other,), (segment,), data_change=False))


def test_ol_01_verify_lets_a_follower_fetch_wrong_records_again(spark, cluster, capsys):
    """The bytes of its file are those that were committed, so that the broker itself does not find it."""
    cluster.admin().create_topic("compared", assignment={0: [1, 2, 3]}, configs={"min.insync.replicas": 2})
    for value in (b"one", b"two"):
        send(cluster, "compared", value)
    wait_until(lambda: log_of(cluster, 3, "compared").num_rows == 2, "broker 3 has both records", SECONDS)
    write_other_records(cluster, 3, "compared")
    words = ["--cluster", cluster.cluster_uri, "--topic", "compared", "--depth"]
    assert (verify.main([*words, "files"]), verify.main([*words, "records"])) == (0, 1)
    assert "the copy of compared-0 (offsets 0 to 0) on broker 3: " in capsys.readouterr().out
    assert verify.main([*words, "records", "--repair", "--yes"]) == 0
    assert "repaired" in capsys.readouterr().out
    assert set(partition(cluster, "compared").isr) == {1, 2, 3}
    send(cluster, "compared", b"three")
    assert committed(spark, cluster, "compared") == [b"one", b"two", b"three"]
    wait_until(lambda: log_of(cluster, 1, "compared").equals(log_of(cluster, 3, "compared")), "equal logs", SECONDS)


def test_ol_01_bl_11_without_another_replica_the_error_of_clients_names_the_broken_file(cluster):
    cluster.admin().create_topic("single", assignment={0: [1]})
    send(cluster, "single", b"before")
    (file,) = files_of(cluster, 1, "single")
    content = file.read_bytes()
    file.unlink()
    wait_until(lambda: partition(cluster, "single").leader == -1, "nobody leads", SECONDS)
    rows = ReplicaTable.open(StorageRoot.of(cluster.broker_uri(1))).replicas
    found = rows[partition(cluster, "single").topic_id_partition]
    assert (found.state, file.name in found.error) == ("Offline", True)
    file.write_bytes(content)
    wait_until(lambda: partition(cluster, "single").leader == 1, "broker 1 leads again", SECONDS)
    send(cluster, "single", b"after")


@pytest.mark.parametrize("ends_by", ["kill_broker", "stop_broker"])
def test_ol_02_a_process_starts_and_ends_without_its_storage(cluster, ends_by):
    getattr(cluster, ends_by)(3)
    take_away(cluster.broker_uri(3))
    cluster.start_broker(3)
    epoch = row(cluster, 3).broker_epoch
    assert row(cluster, 3).storage_error is not None
    assert not row(cluster, 3).shutting_down
    getattr(cluster, ends_by)(3)
    assert row(cluster, 3).shutting_down == (ends_by == "stop_broker")
    cluster.start_broker(3)
    bring_back(cluster.broker_uri(3))
    wait_until(lambda: row(cluster, 3).storage_error is None, "it is at work", SECONDS)
    assert row(cluster, 3).broker_epoch == epoch + 2


def test_ol_02_br_01_a_broker_that_has_never_registered_does_not_start_without_its_storage(spark, cluster):
    uri = cluster.broker_uri(3).replace("broker-3", "broker-9")
    StorageRoot.of(uri).create_folder()
    take_away(uri)
    with pytest.raises(KafkaStorageException, match=uri):
        Broker(spark, cluster.cluster_uri, uri, Config(broker_id=9)).start()
    assert 9 not in cluster.admin().describe_brokers()
