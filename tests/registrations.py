"""Registrations as real processes and controllers write them: brokers with their logs, ISR members with their broker
epochs."""

from collections.abc import Mapping
from dataclasses import replace

from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import BROKERS, LOG


def joined(
    registration: PartitionRegistration, epoch: int = 1, epochs: Mapping[int, int] | None = None
) -> PartitionRegistration:
    """With all members of the ISR under one broker epoch, but for those that are given."""
    return replace(registration, isr_epochs=dict.fromkeys(registration.isr, epoch) | dict(epochs or {}))


def register(
    cluster: StorageRoot, broker_id: int, root: StorageRoot, epoch: int = 1, metadata_version: int = -1,
    rack: str | None = None,
) -> None:  # fmt: skip
    """A process of a broker, with the log that lies at its root."""
    log = identify(ReplicaLog.open(root.child(LOG.name)))
    row = BrokerRegistration(broker_id, root.uri, rack, epoch, metadata_version, False, None, *log, epoch)
    BrokerTable.open_or_create(cluster, broker_id).register(lambda _: row)


def folder_of(cluster: StorageRoot, broker_id: int) -> StorageRoot:
    """The folder of a broker's registration."""
    return cluster.child(BROKERS.name, str(broker_id))
