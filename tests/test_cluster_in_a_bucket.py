"""A whole cluster in an object store, in the shared session."""

import os

import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.local_cluster import LocalCluster
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
    cluster = LocalCluster(spark, "s3://bucket/a cluster", brokers=2, configs=configs)
    with cluster:
        cluster.admin().create_topic("t", partitions=1, replication_factor=2, configs={"min.insync.replicas": 2})
        producer = Producer(cluster.cluster_uri, acks="all", config=Config.from_properties(configs))
        (answer,) = producer.send("t", [{"value": "v"}]).values()
        assert (answer.error, answer.base_offset) == (None, 0)
    with cluster:  # found again
        fetched = wait_until(lambda: cluster.consumer().fetch("t", {0: 0})[0].records.to_pylist(), "the record")
        assert [record["value"] for record in fetched] == [b"v"]


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
