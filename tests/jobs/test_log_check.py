"""The check that ends the kill test sees what is lost, doubled or different: one that sees nothing proves nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.log_check import Findings, check_logs
from jobs.number_producer import Acknowledged
from replication.clients.topic_view import TopicView
from replication.config import Config
from replication.protocol.leader_election import new_partition
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import LEADER_ROLE, Replica
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_broker, format_cluster
from replication.storage.filesystem import StorageRoot
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from replication.storage.topic_table import Topic
from schemas import LOG
from tests.storage.logs import P0, TOPIC, TOPIC_ID, lead, records, request, send

GOOD = Findings(
    records=3, lost=0, duplicated=0, offsets_missing_or_doubled=0, contradictions=0, replicas_identical=True
)
ALL = [Acknowledged(0, offset, 10 + offset) for offset in range(3)]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """One partition on the brokers 1 and 2, led by 1; nothing has been written."""
    format_cluster(StorageRoot.of(str(tmp_path / "cluster")), Config())
    cluster = Cluster.open(str(tmp_path / "cluster"))
    for broker in (1, 2):
        uri = str(tmp_path / f"broker-{broker}")
        format_broker(StorageRoot.of(uri), cluster.cluster_id, broker)
        row = BrokerRegistration(broker, uri, None, 1, 0, -1, False, None, "id", 0)
        BrokerTable.open_or_create(cluster.root, broker).register(lambda _, row=row: row)
    cluster.topics.change([Topic(TOPIC, TOPIC_ID, 1)], (), {"who": "test"})
    cluster.metadata.put([new_partition(TOPIC, TOPIC_ID, 0, (1, 2), {1, 2})], {"who": "test"})
    return cluster


def write(cluster: Cluster, broker: int, *numbers: int, epoch: int = 0) -> None:
    log = ReplicaLog.open(cluster.broker_root(broker).child(LOG.name))
    lead(log, P0, epoch=epoch)
    values = (str(number).encode() for number in numbers)
    send(log, request(P0, len(numbers), epoch=epoch), tables={P0: records(*values)})


def found(cluster: Cluster, high_watermark: int, acknowledged: Sequence[Acknowledged] = ALL) -> Findings:
    partition = TopicIdPartition(TOPIC_ID, 0)
    end = ReplicaLog.open(cluster.broker_root(1).child(LOG.name)).refresh().partition(partition).log_end_offset
    row = Replica(TOPIC, TOPIC_ID, 0, 1, 1, 0, LEADER_ROLE, "Fetching", 0, end, high_watermark, (), None, 0)
    ReplicaTable.open(cluster.broker_root(1)).publish([row], "test")
    return check_logs(TopicView(cluster), TOPIC, acknowledged)


def test_nothing_is_wrong(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    assert found(cluster, 3) == GOOD
    assert GOOD.is_good


def test_acknowledged_and_not_below_the_high_watermark_is_lost(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    assert found(cluster, 2) == GOOD._replace(lost=1)


def test_acknowledged_and_not_where_it_was_said_to_be_is_lost(cluster: Cluster) -> None:
    write(cluster, 1, 10, 12, 11)
    write(cluster, 2, 10, 12, 11)
    assert found(cluster, 3) == GOOD._replace(lost=2)


def test_not_acknowledged_may_be_there_and_once_only(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 10)
    write(cluster, 2, 10, 11, 10)
    assert found(cluster, 3, ALL[:2]) == GOOD._replace(duplicated=1)


@pytest.mark.parametrize(
    ("numbers", "epoch", "contradictions"),
    [
        pytest.param((10, 11), 0, 0, id="it lacks something"),
        pytest.param((10, 11, 13), 0, 1, id="it holds something else"),
        pytest.param((11, 10, 12), 0, 2, id="the same in another order"),
        pytest.param((10, 11, 12), 1, 0, id="the same of another leader"),
        pytest.param((10, 11, 13), 1, 0, id="something else of another leader"),
    ],
)
def test_a_replica_that_differs_is_seen(
    cluster: Cluster, numbers: tuple[int, ...], epoch: int, contradictions: int
) -> None:
    """Two logs contradict each other only at the same leader epoch: of different ones one is going to be cut."""
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, *numbers, epoch=epoch)
    assert found(cluster, 3) == GOOD._replace(replicas_identical=False, contradictions=contradictions)


@pytest.mark.parametrize("fault", ["lost", "duplicated", "offsets_missing_or_doubled", "contradictions"])
def test_each_fault_counts(fault: str) -> None:
    assert not GOOD._replace(**{fault: 1}).is_good
