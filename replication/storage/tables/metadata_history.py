"""What the metadata table has said, version by version: Delta keeps them all, for as long as its log is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deltalake.exceptions import DeltaError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_reader import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import METADATA


class MetadataVersion(NamedTuple):
    """One version of the metadata table: every partition as it was then, and who wrote that and why."""

    version: int
    cause: Mapping[str, Any]
    partitions: Mapping[TopicIdPartition, PartitionRegistration]


def metadata_history(cluster: StorageRoot) -> list[MetadataVersion]:
    """Every version of the metadata table whose commit is still there, oldest first.

    Raises KafkaStorageException when the table cannot be read.
    """
    root = cluster.child(METADATA.name)
    kept = [version for version in range(last_version(root) + 1) if root.exists(commit_name(version))]
    try:
        return [_at(root, version) for version in kept]
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error


def requests_carried_out(cluster: StorageRoot, since: int) -> dict[str, dict[str, Outcome]]:
    """Outcomes of the admin requests that commits after version `since` have carried out, by request id. [FO-04]

    A controller writes them into the commit itself: who comes after one that died in between can tell.
    """
    root = cluster.child(METADATA.name)
    found: dict[str, dict[str, Outcome]] = {}
    for version in range(max(0, since + 1), last_version(root) + 1):
        try:
            requests = read_commit(root, version).info.get("requests", {})
        except FileNotFoundError:  # it has been cleaned up
            continue
        found |= {r: {name: Outcome(*told) for name, told in names.items()} for r, names in requests.items()}
    return found


def _at(root: StorageRoot, version: int) -> MetadataVersion:
    table = MetadataTable(StateTable(DeltaLog(root, root.open_table(version)), METADATA))
    return MetadataVersion(version, read_commit(root, version).info, table.partitions)
