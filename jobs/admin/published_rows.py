"""The replica rows of brokers, as commands read them: each from the broker's own root, which may be away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.replica_table import ReplicaTable

Rows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus] | str


def published_rows(cluster: Cluster, registration: BrokerRegistration) -> Rows:
    """What a broker has published of its replicas, or why that cannot be read."""
    try:
        root = cluster.storage_of(registration.broker_id, registration.root)
        check_identity(root, cluster.cluster_id, registration.broker_id)
        return ReplicaTable.open(root).replicas
    except LakelogException as error:
        return f"{error.name}: {error}"
