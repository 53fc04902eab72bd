"""A whole cluster in an object store, in the shared session."""

import os
from pathlib import Path

import pytest

from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException, KafkaStorageException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import LOG
from lakelog.verification.bench.counting_store import counting_store
from tests.odd_names import NO_PATTERN_IN_A_BUCKET
from tests.processes import wait_until

OWNERS = ("cluster", 1, 2)


@pytest.fixture
def no_credentials(monkeypatch):
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


def settings(options, *owners):
    return {f"storage.{owner}.{name}": value for owner in owners for name, value in options.items()}


@pytest.mark.usefixtures("no_credentials")
def test_a_cluster_lives_in_a_bucket_with_settings_and_with_those_of_the_environment(spark, s3_options, monkeypatch):
    """The options of the cluster's root are in the environment, those of the brokers' roots are settings."""
    for name, value in s3_options.items():
        monkeypatch.setenv(f"LAKELOG_STORAGE_CLUSTER_{name}", value)
    configs = settings(s3_options, 1, 2)
    cluster = LocalCluster(spark, f"s3://bucket/{NO_PATTERN_IN_A_BUCKET}", brokers=2, configs=configs)
    with cluster:
        cluster.admin().create_topic("t", partitions=1, replication_factor=2, configs={"min.insync.replicas": 2})
        producer = Producer(cluster.cluster_uri, acks="all", config=Config.from_properties(configs))
        (answer,) = producer.send("t", [{"value": "v"}]).values()
        assert (answer.error, answer.base_offset) == (None, 0)
    with cluster:  # found again
        fetched = wait_until(lambda: cluster.consumer().fetch("t", {0: 0})[0].records.to_pylist(), "the record")
        assert [record["value"] for record in fetched] == [b"v"]


def _reads_by_spark(spark, cluster, configs):
    """Spark has no file system for these stores. Broker 1 leads partition 0, broker 2 partition 1."""
    sent = [{"partition": n % 2, "key": f"k{n}", "value": None if n == 3 else f"v{n}"} for n in range(2, 8)]
    for some in (sent[:2], sent[2:]):
        raise_first_error(Producer(cluster.cluster_uri, config=Config.from_properties(configs)).send("t", some))

    def read(**offsets):
        found = read_committed(spark, cluster.cluster_uri, "t", config=Config.from_properties(configs), **offsets)
        assert found.schema.simpleString() == spark.createDataFrame([], LOG.types).schema.simpleString()
        return {(row.partition, row.offset, row.key and bytes(row.key), row.value and bytes(row.value)) for row in
                found.collect()}  # fmt: skip

    whole = {
        (0, 0, None, b"0"), (0, 1, b"k2", b"v2"), (0, 2, b"k4", b"v4"), (0, 3, b"k6", b"v6"),
        (1, 0, None, b"1"), (1, 1, b"k3", None), (1, 2, b"k5", b"v5"), (1, 3, b"k7", b"v7"),
    }  # fmt: skip
    assert read() == whole
    assert read(starting={0: 1, 1: 2}, ending={0: 2, 1: 3}) == {(0, 1, b"k2", b"v2"), (1, 2, b"k5", b"v5")}
    assert read(starting="latest") == set()


@pytest.mark.usefixtures("no_credentials")
def test_each_root_may_be_in_a_bucket_of_its_own_with_its_own_endpoint_and_credentials(spark, s3_options, root):
    """Broker 1 is in one store, broker 2 in another one, and the cluster on the disk."""
    with counting_store(Path(root), {}) as (_, others):
        configs = {**settings(s3_options, 1), **settings(others, 2)}
        roots = {1: "s3://bucket/of-1", 2: "s3://bucket/of-2"}
        with LocalCluster(spark, f"{root}/lake", brokers=2, configs=configs, roots=roots) as cluster:
            cluster.admin().create_topic("t", partitions=2, replication_factor=2, configs={"min.insync.replicas": 2})
            producer = Producer(cluster.cluster_uri, acks="all", config=Config.from_properties(configs))
            answers = producer.send("t", [{"partition": p, "value": f"{p}"} for p in (0, 1)])
            assert [(answer.error, answer.base_offset) for answer in answers.values()] == [(None, 0), (None, 0)]
            fetched = wait_until(lambda: cluster.consumer().fetch("t", {0: 0})[0].records.to_pylist(), "the record")
            assert [record["value"] for record in fetched] == [b"0"]
            _reads_by_spark(spark, cluster, configs)
        for broker, options in ((1, s3_options), (2, others)):
            found = StorageRoot.of(roots[broker], options).list()
            own = [name for name in found if name != "cluster-copy"]  # which the controller makes some seconds later
            assert own == ["cluster", "cluster-seen.json", "log", "replicas", "storage-probe"]
            assert StorageRoot.of(roots[3 - broker], options).list() == []


@pytest.mark.parametrize("owner", [3, "nobody"])
def test_a_root_of_nobody_is_refused(spark, root, owner):
    with pytest.raises(InvalidConfigurationException, match=f"roots of {owner}: allowed are cluster and the brokers 1"):
        LocalCluster(spark, root, brokers=2, roots={owner: root})


@pytest.mark.usefixtures("no_credentials")
def test_a_cluster_in_a_bucket_without_credentials_says_which_settings_to_make(spark, s3_options):
    options = {"AWS_ENDPOINT_URL": s3_options["AWS_ENDPOINT_URL"], "AWS_ALLOW_HTTP": "true"}
    configs = {**settings(options, *OWNERS), "lakelog.storage.timeout.ms": 1000}
    with pytest.raises(KafkaStorageException) as raised:
        LocalCluster(spark, "s3://bucket/nobody's", brokers=2, configs=configs).start()
    message = str(raised.value)
    assert message.startswith(
        "s3://bucket/nobody's/cluster/cluster/_delta_log: cannot be read: there are no credentials for it: "
        "set LAKELOG_STORAGE_<OWNER>_AWS_ACCESS_KEY_ID and LAKELOG_STORAGE_<OWNER>_AWS_SECRET_ACCESS_KEY"
    )
    assert "\n" not in message
