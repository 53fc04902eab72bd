"""What `lakelog log-dirs` reads and prints. Kafka: `LogDirsCommand`, `ReplicaManager.describeLogDirs`. KIP-113."""

import argparse
import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from jobs.admin_options import TEXT
from jobs.console import FAILED, OK, Row, say, show
from jobs.settings import settings
from replication.errors import BrokerNotAvailableException, CorruptRecordException, LakelogException
from replication.protocol.partition_log import PartitionLog
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import LEADER_ROLE, Replica
from replication.storage.broker_table import BrokerRegistration
from replication.storage.cluster import Cluster, check_identity
from replication.storage.filesystem import StorageRoot
from replication.storage.log_state import LogState
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from replication.storage.segment import Segment
from schemas import LOG

_UNKNOWN_LAG = -1


class ReplicaInfo(NamedTuple):
    """One replica in a root. What is None is not known: its broker says nothing of it.

    `error` names a file that is broken, and may hold records of it: then the offsets are those that its broker says.
    """

    topic: str
    partition: int
    topic_id: str
    size: int
    files: int
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    lag: int | None
    role: str
    error: str | None


_NOTHING = dict.fromkeys(ReplicaInfo._fields)


class LogDir(NamedTuple):
    """The root of a broker: what is wrong with it, and what lies in it."""

    broker: int
    root: str
    error: str | None
    replicas: list[ReplicaInfo]


def describe(args: argparse.Namespace) -> int:
    """Every root that is asked for; FAILED if any is in error, and the others are told all the same.

    Raises BrokerNotAvailableException if one of the brokers has never registered.
    """
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    brokers = _chosen(cluster.refresh_brokers(), args.broker_list)
    say("Querying brokers for log directories information")
    found = [_log_dir(cluster, registration, args.topic_list) for registration in brokers.values()]
    say(f"Received log directory information from brokers {','.join(map(str, brokers))}")
    if args.output == TEXT:
        print(json.dumps({"version": 1, "brokers": [_object(log_dir) for log_dir in found]}), flush=True)
    else:
        show([row for log_dir in found for row in _rows(log_dir)], args.output)
    return FAILED if any(row["error"] for log_dir in found for row in _rows(log_dir)) else OK


def _chosen(known: Mapping[int, BrokerRegistration], wanted: list[int] | None) -> Mapping[int, BrokerRegistration]:
    for broker in wanted or ():
        if broker not in known:
            there = ", ".join(map(str, known)) or "none"
            raise BrokerNotAvailableException(f"broker {broker} is not registered; those that are: {there}")
    return {broker: known[broker] for broker in wanted or known}


def _log_dir(cluster: Cluster, registration: BrokerRegistration, topics: Collection[str] | None) -> LogDir:
    """With what its broker says is wrong with it, or what is found to be."""
    broker, uri = registration.broker_id, registration.root
    try:
        root = cluster.storage_of(broker, uri)
        check_identity(root, cluster.cluster_id, broker)
        replicas = _replicas(root)
    except LakelogException as error:
        return LogDir(broker, uri, f"{type(error).__name__}: {error}", [])
    return LogDir(broker, uri, registration.storage_error, [r for r in replicas if not topics or r.topic in topics])


def _replicas(root: StorageRoot) -> list[ReplicaInfo]:
    """The rows first, then the log: a row never claims more than that."""
    rows = ReplicaTable.open(root).replicas
    state = ReplicaLog.open(root.child(LOG.name)).current()
    state.learn({row.topic_id: row.topic for row in rows.values()})
    shares = [(segment, _shares(segment)) for segment in state.segments.values()]
    topics = {h.topic_id_partition: h.topic for segment, _ in shares for h in segment.headers}
    topics.update({partition: row.topic for partition, row in rows.items()})
    sizes = {p: [share[p] for _, share in shares if p in share] for p in topics}
    found = [_replica(state, p, topic, sizes[p], rows.get(p)) for p, topic in topics.items()]
    return sorted(found, key=lambda replica: replica[:3])


def _shares(segment: Segment) -> Mapping[TopicIdPartition, int]:
    """The bytes of a file, shared out by its batches' keys and values; a batch counts even if all of them are empty."""
    weights: dict[TopicIdPartition, int] = {}
    for header in segment.headers:
        weights[header.topic_id_partition] = weights.get(header.topic_id_partition, 0) + max(1, header.bytes)
    whole = sum(weights.values())
    return {partition: segment.file.size * weight // whole for partition, weight in weights.items()}


def _replica(
    state: LogState, partition: TopicIdPartition, topic: str, sizes: list[int], row: Replica | None
) -> ReplicaInfo:
    log, fault = state.known(partition), state.fault(partition)
    whole: PartitionLog | Replica | None = log if fault is None else row
    return ReplicaInfo(
        topic, partition.partition, partition.topic_id, sum(sizes), len(sizes),
        whole.log_start_offset if whole else None, whole.log_end_offset if whole else None,
        row.high_watermark if row else None, _lag(row), log.role.name,
        fault and f"{CorruptRecordException.__name__}: {fault}",
    )  # fmt: skip


def _lag(row: Replica | None) -> int | None:
    """Committed records that are not there; a leader has them all. [FT-08]"""
    if row is None:
        return None
    return 0 if row.role == LEADER_ROLE else row.lag


def _rows(log_dir: LogDir) -> list[Row]:
    """A row a replica, with its own error or that of its root; a root without any is a row as well."""
    replicas = [replica._asdict() for replica in log_dir.replicas] or [_NOTHING]
    return [
        {"broker": log_dir.broker, "root": log_dir.root, **row, "error": row["error"] or log_dir.error}
        for row in replicas
    ]


def _object(log_dir: LogDir) -> dict[str, object]:
    """As kafka-log-dirs.sh has it: a broker has one root."""
    partitions = list(map(_partition_object, log_dir.replicas))
    return {
        "broker": log_dir.broker,
        "logDirs": [{"partitions": partitions, "error": log_dir.error, "logDir": log_dir.root}],
    }


def _partition_object(replica: ReplicaInfo) -> dict[str, object]:
    """Kafka's keys, then our own; a lag that is not known is Kafka's -1."""
    return {
        "partition": f"{replica.topic}-{replica.partition}",
        "size": replica.size,
        "offsetLag": _UNKNOWN_LAG if replica.lag is None else replica.lag,
        "isFuture": False,
        "files": replica.files,
        "logStartOffset": replica.log_start_offset,
        "logEndOffset": replica.log_end_offset,
        "highWatermark": replica.high_watermark,
        "role": replica.role,
        "topicId": replica.topic_id,
        "error": replica.error,
    }
