"""Shows the replicas in the roots of brokers, and their sizes. The flags are those of kafka-log-dirs.sh.

A file may hold records of many partitions. Each partition's size is its share of the file, by the bytes of its keys
and values. Offsets and lag of a broker that is dead or stopped are those that it published last: its rows are marked as
stale.
"""

import argparse
import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from lakelog.jobs.admin.cluster_notes import accept_cluster_root, read_notes
from lakelog.jobs.admin.heartbeats import SILENT, SeenBroker, ago, observe_brokers
from lakelog.jobs.admin.log_files import shares_of
from lakelog.jobs.cli.console import FAILED, OK, Lines, Report, Row, add_all, run, say
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_parser
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    CorruptRecordException,
    InvalidRequestException,
    LakelogException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.partition_log import STRAY, PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_stray_logs
from lakelog.replication.storage.root_identity import check_identity, describe_brokers_beside
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

_UNKNOWN_LAG = -1
_KEPT = "stray: no metadata explain it; --delete-stray deletes it"
_COLUMNS = ("broker", "topic", "partition", "size", "lag", "note")

SAME, DIFFERS = "same", "differs"


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), log_dirs, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("log-dirs", __doc__)
    actions = {
        "describe": "show the replicas",
        "delete-stray": "delete the stray replicas of --broker-list, with all their records; shows them, and needs "
        "--execute to delete them",
        "accept-cluster-root": "let --broker-list believe a cluster root that is older than what they have applied, or "
        "another one; shows what they have noted, and needs --execute to delete these notes",
    }
    add_actions(parser, actions)
    add_all(parser)
    add_dry_run(parser)
    parser.add_argument("--execute", action="store_true", help="delete what is shown")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="fail if the replicas of a partition have different records",
    )
    parser.add_argument("--broker-list", type=whole_numbers(0), metavar="1,2", help="ids of the brokers; default: all")
    parser.add_argument(
        "--topic-list", type=lambda text: text.split(","), metavar="A,B", help="topics to show; default: all"
    )
    return parser


class ReplicaInfo(NamedTuple):
    """One replica in a root. A field is None if the broker does not publish it.

    `chain` is the hash of all batches up to the log end, `history` is whether the other replicas have the same:
    see `same_history`. `error` names a file that is broken, and may hold records of it: then the offsets are those that
    its broker has published.
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
    chain: str | None
    history: str | None
    error: str | None


_NOTHING = dict.fromkeys(ReplicaInfo._fields)


class LogDir(NamedTuple):
    """The root of a broker: what is wrong with it, and what lies in it. `logs` has the logs that are whole, `topics`
    all topics of which it holds replicas, also those that were not asked for.

    Rows of a broker that is silent are stale: they have what it published last, `heartbeat_age` seconds ago.
    """

    broker: int
    state: str
    heartbeat_age: float
    root: str
    error: str | None
    replicas: list[ReplicaInfo]
    logs: Mapping[TopicIdPartition, PartitionLog]
    topics: frozenset[str] = frozenset()


def log_dirs(args: argparse.Namespace) -> int:
    """Shows replicas, deletes stray ones, or lets brokers accept the cluster root."""
    return {"describe": describe, "delete-stray": delete_stray, "accept-cluster-root": accept}[args.action](args)


def accept(args: argparse.Namespace) -> int:
    """Lets brokers that are named believe a cluster root that is not what they have applied, such as an older copy. A
    broker need not run, and one that runs goes on refusing it until it is started again.

    FAILED if what one has noted cannot be read. Raises InvalidRequestException without a broker,
    BrokerNotAvailableException if one has never registered.
    """
    cluster = _opened_for_a_change(args, "whose notes of the cluster root to delete")
    brokers = {broker: seen.registration for broker, seen in _chosen(cluster, args.broker_list).items()}
    notes = read_notes(cluster, brokers)
    rows = accept_cluster_root(cluster, brokers, notes.refused, args.execute)
    Report(rows).show(args.output)
    for sentence in notes.of_others():
        say(sentence)
    if rows and not args.execute:
        say("Nothing was written. --execute lets them accept the cluster root.")
    return FAILED if notes.unread else OK


def _opened_for_a_change(args: argparse.Namespace, which: str) -> Cluster:
    if not args.broker_list:
        raise InvalidRequestException(f"--{args.action} needs --broker-list: the brokers {which}")
    if args.execute and args.dry_run:
        raise InvalidRequestException("--execute does not go with --dry-run")
    return Cluster.open(args.cluster, settings(args.command_config))


def delete_stray(args: argparse.Namespace) -> int:
    """Deletes the stray replicas of the brokers that are named, and shows them. A broker need not run. [SR-03]

    Raises InvalidRequestException without a broker, BrokerNotAvailableException if one has never registered.
    """
    cluster = _opened_for_a_change(args, "to delete stray replicas of")
    brokers = _chosen(cluster, args.broker_list)
    cluster.metadata.refresh()
    rows = [row for b, seen in brokers.items() for row in _delete_strays(cluster, b, seen.registration.root, args)]
    Report(rows).show(args.output)
    if not args.execute:
        say("Nothing was written. This is what would be deleted for good; --execute does it.")
    return OK


def _delete_strays(cluster: Cluster, broker: int, uri: str, args: argparse.Namespace) -> list[Row]:
    root = cluster.storage_of(broker, uri)
    check_identity(root, cluster.cluster_id, broker)
    log = ReplicaLog.open(root.child(LOG.name))
    replicas, _ = _replicas(root)
    named = {TopicIdPartition(r.topic_id, r.partition): r for r in replicas if r.role == STRAY}
    chosen = {p: r for p, r in named.items() if not args.topic_list or r.topic in args.topic_list}
    known = sorted({chosen[p].topic for p in chosen if p in cluster.metadata.partitions})
    if known:
        raise InvalidRequestException(
            f"the metadata have {', '.join(known)}: broker {broker} takes its replicas back when it runs"
        )
    deleted = delete_stray_logs(log, chosen, "log-dirs --delete-stray") if args.execute else ()
    return [
        {
            "broker": broker, "topic": r.topic, "partition": r.partition, "topic_id": r.topic_id, "size": r.size,
            "log_end_offset": r.log_end_offset, "deleted": p in deleted,
        }
        for p, r in chosen.items()
    ]  # fmt: skip


def describe(args: argparse.Namespace) -> int:
    """Every root that is asked for; FAILED if any is in error; the others are shown.

    Raises BrokerNotAvailableException if one of the brokers has never registered, UnknownTopicOrPartitionException if
    the cluster has no such topic and no root holds a replica of it.
    """
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    brokers = _chosen(cluster, args.broker_list)
    say("Querying brokers for log directories information")
    found = _compared([_log_dir(cluster, broker, args.topic_list) for broker in brokers.values()])
    _check_topics(args.topic_list, {*cluster.topics.topics, *(topic for log_dir in found for topic in log_dir.topics)})
    say(f"Received log directory information from brokers {','.join(map(str, brokers))}")
    rows = [row for log_dir in found for row in _rows(log_dir)]
    text = json.dumps({"version": 1, "brokers": [_object(log_dir) for log_dir in found]})
    Report(rows, () if args.all else _COLUMNS, [Lines([text])]).show(args.output)
    differ = sorted({f"{row['topic']}-{row['partition']}" for row in rows if row["history"] == DIFFERS})
    if args.verify:
        say(f"replicas with another history than their leader's: {', '.join(differ) or 'none'}")
    return FAILED if any(row["error"] for row in rows) or (args.verify and differ) else OK


def _compared(found: list[LogDir]) -> list[LogDir]:
    """With the histories of replicas compared, partition by partition."""
    partitions = {p for log_dir in found for p in log_dir.logs}
    same = {p: same_history({d.broker: d.logs[p] for d in found if p in d.logs}) for p in partitions}

    def compared(broker: int, replica: ReplicaInfo) -> ReplicaInfo:
        of_partition = same.get(TopicIdPartition(replica.topic_id, replica.partition), {})
        return replica._replace(history=of_partition.get(broker))

    return [d._replace(replicas=[compared(d.broker, replica) for replica in d.replicas]) for d in found]


def _chosen(cluster: Cluster, wanted: list[int] | None) -> Mapping[int, SeenBroker]:
    """The brokers that are wanted, or all. Raises BrokerNotAvailableException, which says so if another cluster's root
    may have been expected here."""
    known = observe_brokers(cluster)
    for broker in wanted or ():
        if broker not in known:
            there = ", ".join(map(str, known)) or "none"
            beside = describe_brokers_beside(cluster.root, but_of=cluster.cluster_id)
            other = f". {cluster.root.uri} is the root of cluster {cluster.cluster_id}, and {beside}" if beside else ""
            raise BrokerNotAvailableException(f"broker {broker} is not registered; those that are: {there}{other}")
    return {broker: known[broker] for broker in (sorted(set(wanted)) if wanted else known)}


def _log_dir(cluster: Cluster, seen: SeenBroker, topics: Collection[str] | None) -> LogDir:
    """The root of a broker, with the error that the broker has published, or that this command meets."""
    broker, uri = seen.registration.broker_id, seen.registration.root
    try:
        root = cluster.storage_of(broker, uri)
        check_identity(root, cluster.cluster_id, broker)
        replicas, logs = _replicas(root)
    except LakelogException as error:
        return LogDir(broker, seen.state, seen.age, uri, f"{type(error).__name__}: {error}", [], {})
    chosen = [replica for replica in replicas if not topics or replica.topic in topics]
    return LogDir(
        broker, seen.state, seen.age, uri, seen.registration.storage_error, chosen, logs,
        frozenset(r.topic for r in replicas),
    )  # fmt: skip


def _check_topics(wanted: Collection[str] | None, known: Collection[str]) -> None:
    for topic in wanted or ():
        if topic not in known:
            raise UnknownTopicOrPartitionException(f"no topic {topic}; there are: {', '.join(sorted(known)) or 'none'}")


def _replicas(root: StorageRoot) -> tuple[list[ReplicaInfo], Mapping[TopicIdPartition, PartitionLog]]:
    """The rows first, then the log: a row never claims more than that."""
    rows = ReplicaTable.open(root).replicas
    state = ReplicaLog.open(root.child(LOG.name)).current()
    state.topics.update({row.topic_id: row.topic for row in rows.values()})
    shares = [(segment, shares_of(segment)) for segment in state.segments.values()]
    topics = {h.topic_id_partition: h.topic for segment, _ in shares for h in segment.headers}
    topics.update({partition: row.topic for partition, row in rows.items()})
    sizes = {p: [share[p] for _, share in shares if p in share] for p in topics}
    found = [_replica(state, p, topic, sizes[p], rows.get(p)) for p, topic in topics.items()]
    logs = {p: state.known(p) for p in topics if state.fault(p) is None}
    return sorted(found, key=lambda replica: replica[:3]), logs


def _replica(
    state: LogState, partition: TopicIdPartition, topic: str, sizes: list[int], row: ReplicaStatus | None
) -> ReplicaInfo:
    log, fault = state.known(partition), state.fault(partition)
    whole: PartitionLog | ReplicaStatus | None = log if fault is None else row
    return ReplicaInfo(
        topic, partition.partition, partition.topic_id, sum(sizes), len(sizes),
        whole.log_start_offset if whole else None, whole.log_end_offset if whole else None,
        row.high_watermark if row else None, _lag(row), log.role.name,
        log.log_end.chain if fault is None else row.chain if row else None, None,
        fault and f"{CorruptRecordException.__name__}: {fault}",
    )  # fmt: skip


def _lag(row: ReplicaStatus | None) -> int | None:
    """Committed records that are not there; a leader has them all. [FT-08]"""
    if row is None:
        return None
    return 0 if row.role == LEADER_ROLE else row.lag


def _rows(log_dir: LogDir) -> list[Row]:
    """One row for each replica, with its own error or that of its root; a root without any is a row as well."""
    replicas = [replica._asdict() for replica in log_dir.replicas] or [_NOTHING]
    of_broker = {
        "broker": log_dir.broker, "broker_state": log_dir.state, "heartbeat_age_s": round(log_dir.heartbeat_age, 1),
        "root": log_dir.root,
    }  # fmt: skip
    return [
        {**of_broker, **row, "error": row["error"] or log_dir.error, "note": _note(log_dir, row["error"], row["role"])}
        for row in replicas
    ]


def _note(log_dir: LogDir, error: object, role: object) -> str | None:
    """The error, or that the replica is stray, or that the row is stale."""
    is_stale = log_dir.state in SILENT
    stale = f"stale: broker {log_dir.state}, heartbeat {ago(log_dir.heartbeat_age)} ago" if is_stale else None
    return (
        "; ".join(str(note) for note in (error or log_dir.error, _KEPT if role == STRAY else None, stale) if note)
        or None
    )


def _object(log_dir: LogDir) -> dict[str, object]:
    """As kafka-log-dirs.sh has it, and whether the broker is alive: a broker has one root."""
    partitions = list(map(_partition_object, log_dir.replicas))
    return {
        "broker": log_dir.broker,
        "brokerState": log_dir.state,
        "heartbeatAgeSeconds": round(log_dir.heartbeat_age, 1),
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
        "chain": replica.chain,
        "history": replica.history,
        "error": replica.error,
    }


def same_history(logs: Mapping[int, PartitionLog]) -> dict[int, str | None]:
    """For the log of each broker: whether it has the records of the leader's, as far as both go.

    Without a leader the longest log is the measure. None where the two have no offset in common whose chain both know,
    as when one begins where the other ends. Raft: the log matching property.
    """
    measure = max(logs.values(), key=_rank)
    return {broker: _compare(log, measure) for broker, log in logs.items()}


def _rank(log: PartitionLog) -> tuple[bool, int, int]:
    return log.role.is_leader, log.role.leader_epoch, log.log_end_offset


def _compare(log: PartitionLog, measure: PartitionLog) -> str | None:
    end = min(log.log_end_offset, measure.log_end_offset)
    chains = log.chain_at(end), measure.chain_at(end)
    if None in chains:
        return None
    return SAME if chains[0] == chains[1] else DIFFERS
