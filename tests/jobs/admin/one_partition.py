"""One partition on brokers 1 and 2, led by 1, with logs that the tests write."""

from pathlib import Path

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_start import raise_log_starts
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from tests.copied_roots import copied
from tests.registrations import joined, register
from tests.storage.logs import P0, TOPIC, TOPIC_ID, lead, records, request, send


def one_partition(folder: Path) -> Cluster:
    """A cluster in `folder` without records."""
    copied(format_cluster, StorageRoot.of(str(folder / "cluster")), Config())
    cluster = Cluster.open(str(folder / "cluster"))
    for broker in (1, 2):
        uri = str(folder / f"broker-{broker}")
        copied(format_broker, StorageRoot.of(uri), cluster.cluster_id, broker)
        register(cluster.root, broker, StorageRoot.of(uri))
    cluster.topics.change([Topic(TOPIC, TOPIC_ID, 1)], (), {"who": "test"})
    cluster.metadata.put([joined(new_partition(TOPIC, TOPIC_ID, 0, (1, 2), {1, 2}))], {"who": "test"})
    return cluster


def log_of(cluster: Cluster, broker: int) -> ReplicaLog:
    """A broker's log."""
    return ReplicaLog.open(cluster.broker_root(broker).child(LOG.name))


def write(cluster: Cluster, broker: int, *numbers: int, epoch: int = 0) -> None:
    """Appends numbers to a broker's log, one record each."""
    log = log_of(cluster, broker)
    lead(log, P0, epoch=epoch)
    values = (str(number).encode() for number in numbers)
    send(log, request(P0, len(numbers), epoch=epoch), tables={P0: records(*values)})


def start_at(cluster: Cluster, broker: int, offset: int) -> None:
    """Raises the log start of a broker's log, without removing files."""
    raise_log_starts(log_of(cluster, broker), {P0: lambda _: offset}, "test", "test")


def publish(cluster: Cluster, high_watermark: int) -> TopicView:
    """Publishes the leader's row: log start, LEO and HW."""
    log = log_of(cluster, 1).refresh().partition(TopicIdPartition(TOPIC_ID, 0))
    start, end = log.log_start_offset, log.log_end_offset
    row = ReplicaStatus(
        TOPIC, TOPIC_ID, 0, 1, 1, 0, LEADER_ROLE, "Fetching", start, end, high_watermark, (), None, 0,
        chain=log.log_end.chain,
    )  # fmt: skip
    ReplicaTable.open(cluster.broker_root(1)).publish([row], "test")
    return TopicView(cluster)
