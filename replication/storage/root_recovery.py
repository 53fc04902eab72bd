"""Makes a lost cluster root again from the roots of its brokers: reads them, and writes the new root.

The order of the writes, and what a crash after each of them leaves:

1. `recovery.json` in the new root. It marks the folder, so that the same command goes on there.
2. One commit on the log of each broker, and one on its `replicas` table: they belong to a new *generation* of the
   cluster root and to a broker epoch above all others. No process of an older generation can write to these logs from
   then on, or read them. Their content is final now, so it is read only then. The old cluster root is of no use to
   these brokers any more, and no other can be used yet.
3. The tables of the new root, and the stages of streaming queries. Nobody takes it for a root, as its table `cluster`
   has no row.
4. The note of each broker says that it has seen these tables.
5. The row in `cluster`. From this commit on the new root is the cluster root.
6. The copies in the brokers' roots name the new root, and stages are copied there. It comes last, as an earlier
   recovery that had fewer roots and did not end must not replace what the lost root's controller has copied.

A recovery that is begun again takes the next generation, so that an older one that is still under way can write
nothing more.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    FencedClusterRootException,
    InconsistentClusterIdException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_recovery import (
    FoundReplica,
    RecoveredPartition,
    assigned_now,
    has_changed_since,
    is_gone,
    least_min_isr,
    next_epoch,
    producer_epoch,
    recover_partition,
    unknown_partition,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch
from lakelog.replication.protocol.quorum_slot import majority
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import identity_row, put_note, storage_root
from lakelog.replication.storage.cluster_backup import Backup
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import identify
from lakelog.replication.storage.log.log_txns import GENERATION
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_identity import (
    CLUSTER_ROOT,
    check_apart,
    check_new,
    is_formatted,
    read_identity,
)
from lakelog.replication.storage.root_probe import recover_root
from lakelog.replication.storage.stage_recovery import RecoveredStage, recovered_stages
from lakelog.replication.storage.staged_batch import stages_of
from lakelog.replication.storage.tables.broker_table import broker_row
from lakelog.replication.storage.tables.cluster_copy import (
    COPIED,
    ClusterCopy,
    CopiedRows,
    CopySource,
    mend_copy,
    read_copy,
)
from lakelog.replication.storage.tables.metadata_table import registration_of, row_of
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import (
    ADMIN,
    BROKERS,
    CLUSTER,
    CONFIGS,
    CONTROLLER,
    FORMAT_VERSION,
    GROUPS,
    LOG,
    METADATA,
    PRODUCERS,
    TOPICS,
    Table,
)

logger = logging.getLogger(__name__)

_MARK = "recovery.json"
_CAUSE = {"who": "recover", "why": "recovery"}


class BrokerRoot:
    """The root of a broker, as it was read."""

    def __init__(self, root: StorageRoot, identity: Mapping[str, Any]) -> None:
        self.root = root
        self.broker_id: int = identity["broker_id"]
        self.cluster_id: str = identity["cluster_id"]
        self.admits_writers = identity["format_version"] < FORMAT_VERSION
        self.table = ReplicaTable.open(root)  # before the log: no row tells of more than it has
        self.log = ReplicaLog.open(root.child(LOG.name))
        self.counts_since: int | None = None  # the broker epoch since which its log counts, if the log is too old
        self.copy: Mapping[str, CopiedRows] = read_copy(root)

    @property
    def log_epoch(self) -> int | None:
        """The broker epoch since which the broker has its log, None if that is not known."""
        return self.log.log_epoch if self.counts_since is None else self.counts_since

    @property
    def copied_metadata(self) -> tuple[int, int, int]:
        """How new the copy of the metadata is in this root."""
        copied = self.copy.get(METADATA.name)
        return copied.order if copied else (0, 0, 0)

    def partitions(self) -> set[TopicIdPartition]:
        """The partitions that the root tells of, but for those that are only in the copy."""
        return {*self.table.replicas, *self.log.current().partitions()}

    def replica(self, partition: TopicIdPartition) -> FoundReplica:
        """A replica, as the log was read last."""
        state = self.log.current()
        row, fault = self.table.replicas.get(partition), state.fault(partition)
        return FoundReplica(self.broker_id, state.known(partition), row, fault, self.log_epoch)

    def close(self, broker_epoch: int, generation: int, known: Iterable[TopicIdPartition], uri: str) -> None:
        """Ends all older generations at this root; see `ReplicaLog.close`. Then reads the root's content, which is
        final."""
        recover_root(self.root, self.cluster_id, self.broker_id)
        cause = {**_CAUSE, "cluster": uri}
        self.log.close(broker_epoch, generation, {*self.partitions(), *known}, cause, self.counts_since)
        self.table.claim(broker_epoch)
        rows = [replace(row, broker_epoch=broker_epoch) for row in self.table.replicas.values()]
        self.table.publish(rows, _CAUSE["why"])  # by the epoch a leader that still uses the old cluster root finds out
        self.copy = read_copy(self.root)

    def topic_name(self, partition: TopicIdPartition) -> str | None:
        """The name of a partition's topic, if the root has it."""
        row = self.table.replicas.get(partition)
        return row.topic if row else self.log.current().topics.get(partition.topic_id)


def open_broker_roots(
    given: Sequence[tuple[int | None, str]], config: Config, may_mend: bool = False
) -> list[BrokerRoot]:  # fmt: skip
    """Reads the roots of brokers. `given`: their URIs, and their ids where the configuration has credentials for them.
    `may_mend`: whether to put aside what a power cut has torn in a root, as its broker does when it starts. What is
    written to them is synced, whatever `storage.fsync` says: the new cluster root counts on it.

    Raises InconsistentClusterIdException for a root that is no broker's, two roots of one broker, and roots of two
    clusters, and KafkaStorageException or CorruptRecordException for one that cannot be read.
    """
    found: dict[int, BrokerRoot] = {}
    for number, uri in given:
        root = storage_root(uri, -1 if number is None else number, config)
        identity = read_identity(root, number)
        broker_id, cluster_id = identity["broker_id"], identity["cluster_id"]
        if broker_id == CLUSTER_ROOT:
            raise InconsistentClusterIdException(
                f"{root.uri}: is the root of cluster {cluster_id}, no root of a broker"
            )
        if number not in (None, broker_id):
            raise InconsistentClusterIdException(f"{root.uri}: is the root of broker {broker_id}, not of {number}")
        if broker_id in found:
            raise InconsistentClusterIdException(
                f"{root.uri} and {found[broker_id].root.uri} are both roots of broker {broker_id}: give the one "
                "that it has used last"
            )
        other = next(iter(found.values()), None)
        if other is not None and other.cluster_id != cluster_id:
            raise InconsistentClusterIdException(
                f"{root.uri} belongs to cluster {cluster_id}, and {other.root.uri} to cluster {other.cluster_id}"
            )
        found[broker_id] = _open(storage_root(uri, broker_id, config).synced, identity, may_mend)
    return [found[broker_id] for broker_id in sorted(found)]


def _open(root: StorageRoot, identity: Mapping[str, Any], may_mend: bool) -> BrokerRoot:
    try:
        return BrokerRoot(root, identity)
    except (CorruptRecordException, KafkaStorageException) as error:
        if not may_mend:  # an empty root, which such an error may advise, is no help without the others
            what = str(error).partition("; restore the file")[0]
            raise type(error)(f"{root.uri}: cannot be read, after a power cut leave out --dry-run: {what}") from error
    recover_root(root, identity["cluster_id"], identity["broker_id"])
    mend_copy(root)
    return BrokerRoot(root, identity)


class Plan(NamedTuple):
    """The new cluster root. `rows`: those of its tables, but for `cluster`. `partitions`: of all topics, in order.
    `strays`: names of partitions that are in roots and in no metadata. `copied_at`: when each table was copied.
    `stages`: those of streaming queries."""

    rows: Mapping[str, list[Row]]
    partitions: list[RecoveredPartition]
    strays: list[str]
    copied_at: Mapping[str, float]
    configs: Mapping[str, str]
    stages: list[RecoveredStage]


@dataclass(frozen=True)
class _Seen:
    """The roots and the backup, as they were read last."""

    brokers: Sequence[BrokerRoot]
    backup: Backup | None

    @cached_property
    def newest(self) -> dict[str, CopiedRows]:
        """The newest copy of each table, in a root or in the backup."""
        found: dict[str, CopiedRows] = {}
        copies = [broker.copy for broker in self.brokers]
        if self.backup is not None:  # the last one: a copy that is as new counts
            copies.append(self.backup.tables)
        for name, copied in (item for copy in copies for item in copy.items()):
            if name not in found or copied.order > found[name].order:
                found[name] = copied
        return found

    @cached_property
    def known(self) -> dict[TopicIdPartition, PartitionRegistration]:
        """The newest registrations that were copied."""
        copied = self.newest.get(METADATA.name)
        found = [registration_of(row) for row in copied.rows] if copied else []
        return {registration.topic_id_partition: registration for registration in found}

    @cached_property
    def hosts(self) -> set[int]:
        """The brokers that have replicas, by the copies."""
        return {broker for registration in self.known.values() for broker in registration.replicas}

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """The topics as copied, by id."""
        copied = self.newest.get(TOPICS.name)
        rows = [Topic(**{**row, "configs": dict(row["configs"])}) for row in copied.rows] if copied else []
        return {topic.topic_id: topic for topic in rows}

    @cached_property
    def logs(self) -> list[PartitionLog]:
        states = [broker.log.current() for broker in self.brokers]
        return [state.known(partition) for state in states for partition in state.partitions()]


@dataclass
class Recovery:
    """The recovery of one cluster root from the roots of brokers. `backup`: one more source of its small tables.

    Raises InconsistentClusterIdException if the new root is not empty, or lies in another root, or is another one's,
    and if the backup is of another cluster.
    """

    root: StorageRoot
    brokers: list[BrokerRoot]
    config: Config
    backup: Backup | None = None

    def __post_init__(self) -> None:
        if self.backup is not None and self.backup.cluster_id != self.cluster_id:
            raise InconsistentClusterIdException(
                f"{self.backup.path}: is a backup of cluster {self.backup.cluster_id}, and the roots belong to "
                f"cluster {self.cluster_id}"
            )
        self._seen = _Seen(self.brokers, self.backup)
        admits = any(broker.admits_writers for broker in self.brokers)
        self.root = replace(self.root.synced, admits_writers=admits)
        self._check_root()
        seen = [broker.log.current().generation for broker in self.brokers]
        self.generation = 1 + max([*seen, *(each.source.generation for each in self._seen.newest.values())], default=0)
        controllers = [each.source.controller_epoch for each in self._seen.newest.values()]
        self.controller_epoch = next_epoch([*controllers, *(r.controller_epoch for r in self._seen.known.values())])
        self.broker_epochs = {broker.broker_id: self._broker_epoch(broker) for broker in self.brokers}
        lost = max((each.source.generation for each in self._seen.newest.values()), default=0)
        for broker in self.brokers:
            if broker.log.current().generation < lost:  # it has been away, or it was restored and may have had more
                broker.counts_since = self.broker_epochs[broker.broker_id]

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, which stays."""
        return self.brokers[0].cluster_id

    def _check_root(self) -> None:
        new = [part for part in self.root.parts if not self._is_marked(part)]
        if len(new) == len(self.root.parts):
            check_new(self.root)
        elif is_finished(self.root):
            raise InconsistentClusterIdException(
                f"{self.root.uri}: the recovery has ended, and this is the root of cluster {self.cluster_id}: start "
                "brokers and controllers on it"
            )
        for part in new:
            check_new(part)
        for broker in self.brokers:
            check_apart(self.root, broker.root.uri, f"broker {broker.broker_id}")

    def _is_marked(self, part: StorageRoot) -> bool:
        """Whether an earlier recovery of this cluster has begun at one of the new roots."""
        try:
            return bool(json.loads(part.read(_MARK))["cluster_id"] == self.cluster_id)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return False

    @property
    def goes_by_backup(self) -> bool:
        """Whether the metadata are those of the backup. Nobody has noted what has changed since it was taken."""
        newest = self._seen.newest.get(METADATA.name)
        return self.backup is not None and newest is self.backup.tables[METADATA.name]

    def _broker_epoch(self, broker: BrokerRoot) -> int:
        rows = [row.broker_epoch for row in broker.table.replicas.values()]
        joined = [registration.isr_epoch(broker.broker_id) for registration in self._seen.known.values()]
        return next_epoch([broker.log.current().broker_epoch, *rows, *joined])

    def check_old_root(self) -> None:
        """Raises InconsistentClusterIdException unless nobody can write to the old cluster root any more, as far as can
        be told from here."""
        uris = sorted({copied.source.uri for copied in self._seen.newest.values()} - {""})
        if not uris:
            raise InconsistentClusterIdException(
                f"no root of a broker says where the root of cluster {self.cluster_id} was. Make sure that nobody can "
                "write to it, then add --force"
            )
        for uri in uris:
            if (problem := self._old_root_problem(storage_root(uri, "cluster", self.config))) is not None:
                raise InconsistentClusterIdException(problem)

    def _old_root_problem(self, root: StorageRoot) -> str | None:
        way_out = "With --force its generation ends for these brokers, and whoever still uses it is refused"
        if isinstance(root, QuorumRoot) and (has_no_majority := self._lacks_majority(root)) is not None:
            return f"{has_no_majority}. {way_out}" if has_no_majority else None
        try:
            identity = read_identity(root) if is_formatted(root) else None
        except InconsistentClusterIdException:
            return None  # another root lies there, or one that is not finished
        except LakelogException as error:
            return (
                f"{root.uri}: the old cluster root cannot be read here, and others may still use it: {error}. {way_out}"
            )
        if identity is None or identity["cluster_id"] != self.cluster_id:
            return None
        return (
            f"{root.uri}: the cluster root is there, so it need not be recovered: start brokers and controllers on it. "
            f"{way_out}"
        )

    def _lacks_majority(self, root: QuorumRoot) -> str | None:
        """Why nobody knows whether a majority of the old cluster roots is lost; empty if it is, None if one is there. A
        root is lost that has no identity, or another one: it does not vote."""
        answers, silent = dict[str, str | None](), dict[str, str]()
        known: Mapping[str, str] = {}
        for member in root.quorum.roots:
            with suppress(LakelogException):
                known = known or member.addresses()
        for uri in known.values() or [member.root.uri for member in root.quorum.roots]:
            try:
                answers[uri] = QuorumMember(storage_root(uri, "cluster", self.config)).identity()
            except LakelogException as error:
                silent[uri] = str(error)
        voting = sum(identity is not None and identity in (known or {identity}) for identity in answers.values())
        needed = majority(len(answers) + len(silent))
        if voting >= needed:
            return None
        if voting + len(silent) < needed:
            return ""
        why = "; ".join(silent.values())
        return f"others may still use the old cluster roots, of which no majority can be read here: {why}"

    def plan(self) -> Plan:
        """The content of the new root, by the present content of the roots. It writes nothing."""
        gone = self._gone()
        copied = {p: registration for p, registration in self._seen.known.items() if p.topic_id not in gone}
        known = {**copied, **self._unknown(copied)}
        partitions, strays = {*known, *self._seen.known}, list[str]()
        for broker in self.brokers:
            strays += [f"{broker.topic_name(p) or p.topic_id}-{p.partition}" for p in broker.partitions() - partitions
                       if broker.replica(p).is_there]  # fmt: skip
        topics = {topic_id: topic for topic_id, topic in self._topics(known).items() if topic_id not in gone}
        config = self.config.in_cluster(self._configs())
        min_isr = {topic_id: self._min_isr(topic, config) for topic_id, topic in topics.items()}
        recovered = [
            self._recovered(registration, topics[registration.topic_id], min_isr[registration.topic_id])
            for registration in sorted(known.values(), key=lambda each: (each.topic, each.partition))
        ]
        copied_at = {name: copied.copied_at for name, copied in self._seen.newest.items()}
        rows, stages = self._rows(topics, recovered), self._stages(recovered)
        return Plan(rows, recovered, sorted(set(strays)), copied_at, self._configs(), stages)

    def _stages(self, partitions: Iterable[RecoveredPartition]) -> list[RecoveredStage]:
        """The stages of streaming queries, by the logs that lead."""
        states = {broker.broker_id: broker.log.current() for broker in self.brokers}
        logs = {
            (each.registration.topic, each.registration.partition):
            states[each.choice.leader].known(each.registration.topic_id_partition)
            for each in partitions if each.choice is not None
        }  # fmt: skip
        return recovered_stages([broker.root for broker in self.brokers], logs)

    def _recovered(self, registration: PartitionRegistration, topic: Topic, min_isr: int) -> RecoveredPartition:
        partition = registration.topic_id_partition
        found = self._found(partition)
        now = assigned_now(registration, found)
        is_copied = partition in self._seen.known and not has_changed_since(registration, found)
        is_certain = not self.goes_by_backup  # else there may be brokers that it does not know
        has_all_replicas = is_certain and (
            is_copied or (bool(self._seen.hosts) and self._seen.hosts <= self.broker_epochs.keys())
        )
        return recover_partition(
            now, found, least_min_isr(registration, found, min_isr), self.broker_epochs,
            self.controller_epoch, topic.deleting, has_all_replicas,
        )  # fmt: skip

    def _gone(self) -> set[str]:
        """The ids of the topics that were deleted after the last copy: all their partitions are gone."""
        topics = {partition.topic_id for partition in self._seen.known}
        told = ((broker, p) for broker in self._live() for p in broker.partitions() if p.topic_id not in topics)
        taken = {broker.topic_name(p) for broker, p in told if _is_explained(broker.replica(p))}
        by_topic: dict[str, list[bool]] = {}
        for partition, known in self._seen.known.items():
            found = is_gone(known, self._found(partition), known.topic in taken)
            by_topic.setdefault(partition.topic_id, []).append(found)
        return {topic_id for topic_id, found in by_topic.items() if all(found)}

    def _found(self, partition: TopicIdPartition) -> dict[int, FoundReplica]:
        return {broker.broker_id: broker.replica(partition) for broker in self.brokers}

    def _live(self) -> list[BrokerRoot]:
        """The roots with the newest copy of the metadata. One with an older copy may have missed a deletion."""
        newest = max(broker.copied_metadata for broker in self.brokers)
        return [broker for broker in self.brokers if broker.copied_metadata == newest]

    def _unknown(
        self, copied: Mapping[TopicIdPartition, PartitionRegistration]
    ) -> dict[TopicIdPartition, PartitionRegistration]:  # fmt: skip
        """Partitions that were made after the last copy, by the roots with the newest one."""
        live = self._live()
        told = {p for broker in live for p in broker.partitions() if broker.replica(p).is_there}
        names = {registration.topic for registration in copied.values()}
        topics = {partition.topic_id for partition in copied}
        found = dict[TopicIdPartition, PartitionRegistration]()
        for partition in told - self._seen.known.keys():
            replicas = {b: each for b, each in self._found(partition).items() if not each.log.role.is_stray}
            name = next((n for broker in live if (n := broker.topic_name(partition))), None)
            is_new = any(each.is_there for each in replicas.values())
            if name is not None and is_new and (partition.topic_id in topics or name not in names):
                found[partition] = unknown_partition(name, partition, replicas)
        return found

    def _topics(self, known: Mapping[TopicIdPartition, PartitionRegistration]) -> dict[str, Topic]:
        """The topics by id: as copied, and those of other partitions with the settings of the cluster."""
        named = {registration.topic: registration.topic_id for registration in known.values()}
        found = {i: topic for i, topic in self._seen.topics.items() if named.get(topic.topic, i) == i}
        counts = Counter(partition.topic_id for partition in known)
        for registration in known.values():
            topic_id = registration.topic_id
            if topic_id not in found:
                found[topic_id] = Topic(registration.topic, topic_id, counts[topic_id])
        return found

    def _configs(self) -> dict[str, str]:
        """The settings of the whole cluster."""
        copied = self._seen.newest.get(CLUSTER.name)
        return dict(copied.rows[0]["configs"]) if copied and copied.rows else self.config.cluster_configs()

    def _min_isr(self, topic: Topic, config: Config) -> int:
        """`min.insync.replicas` of a topic; 1 if no copy has its settings, or one of them is not understood."""
        found, wrong = config.topic_as_far_as_known(topic.configs)
        return found.min_insync_replicas if topic.topic_id in self._seen.topics and wrong is None else 1

    def _rows(self, topics: Mapping[str, Topic], partitions: Sequence[RecoveredPartition]) -> dict[str, list[Row]]:
        copied = {name: list(each.rows) for name, each in self._seen.newest.items()}
        topic_rows = [
            {**vars(topic), "configs": list(topic.configs.items())}
            for topic in sorted(topics.values(), key=lambda topic: topic.topic)
        ]
        ends = {each.registration.topic_id_partition: each.choice.log_end_offset
                for each in partitions if each.choice is not None and each.loss is not None}  # fmt: skip
        controller = {"controller_id": "recover", "controller_epoch": self.controller_epoch, "resigned": True}
        return {
            TOPICS.name: topic_rows,
            CONFIGS.name: copied.get(CONFIGS.name, []),
            PRODUCERS.name: [self._producer(row) for row in copied.get(PRODUCERS.name, [])],
            GROUPS.name: [_within(row, ends) for row in copied.get(GROUPS.name, []) if row["topic_id"] in topics],
            ADMIN.name: [],
            CONTROLLER.name: [controller],
            METADATA.name: [row_of(each.registration) for each in partitions],
        }

    def _producer(self, row: Row) -> Row:
        copied = ProducerIdAndEpoch(row["producer_id"], row["producer_epoch"])
        return {**row, "producer_epoch": producer_epoch(copied, self._seen.logs)}

    def execute(self, check: Callable[[Plan], None] = lambda _: None) -> Plan:
        """Makes the new cluster root, and returns what it holds. `check`: it raises an error if the plan that the
        final logs give must not be carried out.

        Raises FencedClusterRootException if another recovery is under way, KafkaStorageException and
        InvalidConfigurationException as `check_conditional_put`: the same command goes on."""
        mark = {"cluster_id": self.cluster_id, "generation": self.generation}
        for part in self.root.parts:
            part.create_folder()
            part.put(_MARK, json.dumps(mark).encode())
        if isinstance(self.root, QuorumRoot):
            self.root.quorum.known.format()
        check_conditional_put(self.root)
        for broker in self.brokers:
            broker.close(self.broker_epochs[broker.broker_id], self.generation, self._seen.known, self.root.uri)
        self._seen = _Seen(self.brokers, self.backup)  # it is final now
        plan = self.plan()
        check(plan)
        states = self._write_tables(plan)
        self._put_stages(self.root, plan)
        for broker in self.brokers:
            self._take_note(broker, states)
        self._set(CLUSTER, [self._identity(plan)])
        for broker in self.brokers:
            try:
                self._copy(broker, plan)
            except LakelogException as error:  # the controller and the queries copy what is missing
                logger.warning("%s: has no copies of the new cluster root yet: %s", broker.root.uri, error)
        return plan

    def _write_tables(self, plan: Plan) -> dict[str, StateTable]:
        tables = {CLUSTER.name: self._set(CLUSTER, [])}  # a recovery that this one has overtaken cannot end any more
        for table in (TOPICS, CONFIGS, PRODUCERS, GROUPS, ADMIN, CONTROLLER):
            tables[table.name] = self._set(table, plan.rows[table.name])
        for broker in self.brokers:
            self._set(BROKERS, [broker_row(self._registration(broker))], str(broker.broker_id))
        tables[METADATA.name] = self._set(METADATA, plan.rows[METADATA.name])
        return tables

    def _put_stages(self, root: StorageRoot, plan: Plan) -> None:
        """Writes the stages of queries to a folder that no other recovery writes to."""
        for stage in plan.stages:
            for name, content in stage.objects.items():
                stages_of(root, self.generation).child(stage.query_id).write(name, content)

    def _registration(self, broker: BrokerRoot) -> BrokerRegistration:
        """The registration of a broker that has stopped, with its log as it is now."""
        epoch = self.broker_epochs[broker.broker_id]
        log_epoch = broker.log_epoch
        return BrokerRegistration(
            broker.broker_id, broker.root.uri, None, epoch, -1, True, None, *identify(broker.log),
            log_epoch=epoch if log_epoch is None else log_epoch, incarnation_id="recover",
        )  # fmt: skip

    def _take_note(self, broker: BrokerRoot, tables: Mapping[str, StateTable]) -> None:
        """Lets a broker's root know the new cluster root."""
        found = broker.log.refresh().generation
        if found != self.generation:
            raise FencedClusterRootException(
                f"{broker.root.uri}: belongs to generation {found} of the cluster root: another recovery is under way"
            )
        seen = {name: tables[name].state for name in (CLUSTER.name, METADATA.name, TOPICS.name)}
        put_note(broker.root, seen, self.generation)

    def _copy(self, broker: BrokerRoot, plan: Plan) -> None:
        """Lets the copies in a broker's root be of the new cluster root."""
        copy, now = ClusterCopy(broker.root), time.time()
        source = CopySource(self.root.uri, self.generation, self.controller_epoch)
        rows = {**plan.rows, CLUSTER.name: [self._identity(plan)]}
        for table in COPIED:
            copy.write(table, rows[table.name], 0, source, plan.copied_at.get(table.name, now), _CAUSE["who"])
        self._put_stages(broker.root, plan)

    def _identity(self, plan: Plan) -> Row:
        return identity_row(self.root, self.cluster_id, CLUSTER_ROOT, plan.configs, self.generation)

    def _table(self, table: Table, *owner: str) -> StateTable:
        folder = self.root.child(table.name, *owner)
        folder = replace(folder, admits_writers=folder.admits_writers or table is CLUSTER)
        return StateTable.open_at(folder, table) if last_version(folder) >= 0 else StateTable.create_at(folder, table)

    def _set(self, table: Table, rows: list[Row], *owner: str) -> StateTable:
        """Writes all rows of a table of the new root. Raises FencedClusterRootException if a later recovery has."""
        found = self._table(table, *owner)

        def change(_: list[Row]) -> list[Row]:
            written = found.transaction_version(GENERATION) or 0
            if written > self.generation:
                raise FencedClusterRootException(
                    f"{found.uri}: was written by a recovery of generation {written}, and this one has generation "
                    f"{self.generation}"
                )
            return rows

        found.update(_CAUSE, change, {GENERATION: self.generation})
        return found


def _within(row: Row, ends: Mapping[TopicIdPartition, int]) -> Row:
    """A group's offset, at most at the end of a log that may have lost records: others will be at their offsets. Its
    retention begins anew: the group may have come back after the copy was made."""
    end = ends.get(TopicIdPartition(row["topic_id"], row["partition"]), row["committed_offset"])
    return {**row, "committed_offset": min(row["committed_offset"], end), "idle_ms": None}


def _is_explained(replica: FoundReplica) -> bool:
    """Whether a replica is there that the metadata of its broker explain."""
    return replica.is_there and not replica.log.role.is_stray


def is_finished(root: StorageRoot) -> bool:
    """Whether a folder is a root: formatted, or recovered to the end. Raises KafkaStorageException."""
    try:
        read_identity(root)
    except InconsistentClusterIdException:
        return False
    return True
