"""The replica rows of brokers, as commands read them: each from the broker's own root, which may be away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.replica_table import ReplicaTable

Rows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus] | str

_READS_AT_ONCE = 8


def published_rows(cluster: Cluster, registration: BrokerRegistration, at: float | None = None) -> Rows:
    """The rows that a broker has published of its replicas, or why they cannot be read. `at`: as of a time in seconds
    since the epoch; None: now."""
    try:
        root = cluster.storage_of(registration.broker_id, registration.root)
        check_identity(root, cluster.cluster_id, registration.broker_id)
        return (ReplicaTable.open(root) if at is None else ReplicaTable.as_of(root, at)[0]).replicas
    except LakelogException as error:
        return f"{error.name}: {error}"


def rows_of(cluster: Cluster, brokers: Iterable[BrokerRegistration], at: float | None = None) -> dict[int, Rows]:
    """As `published_rows`, by broker."""
    registrations = list(brokers)
    found = in_threads(lambda registration: published_rows(cluster, registration, at), registrations, _READS_AT_ONCE)
    return {registration.broker_id: rows for registration, rows in zip(registrations, found, strict=True)}


def rows_of_partition(registration: PartitionRegistration, rows: Mapping[int, Rows]) -> dict[int, ReplicaStatus]:
    """The rows of a partition's replicas by broker, as far as they can be read."""
    key = registration.topic_id_partition
    tables = {b: table for b in registration.replicas if not isinstance(table := rows.get(b, ""), str)}
    return {broker: table[key] for broker, table in tables.items() if key in table}
