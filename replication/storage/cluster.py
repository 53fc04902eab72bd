"""A cluster as its root shows it: identity, topics, metadata, brokers and where each broker keeps its log."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from lakelog.replication.config import Config, Owner
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    FencedClusterRootException,
    InconsistentClusterIdException,
    InvalidConfigurationException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import ROOTS
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.root_guard import ClusterRootGuard
from lakelog.replication.storage.delta.storage_root import StorageRoot, TableState, check_no_fork, root_uris
from lakelog.replication.storage.log.log_txns import GENERATION
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_identity import (
    CLUSTER_ROOT,
    check_apart,
    check_identity,
    check_is_new_cluster,
    check_new,
    describe_wrong_root,
    is_formatted,
    read_identity,
)
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.broker_table import BrokerDirectory
from lakelog.replication.storage.tables.config_table import ConfigTable
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from lakelog.replication.storage.tables.group_tables import GroupTable
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.producer_table import ProducerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.replication.storage.tables.topic_table import TopicTable
from lakelog.schemas import CLUSTER, FORMAT_VERSION, LOG, METADATA, OLDEST_FORMAT, QUORUM_FORMAT, TOPICS

logger = logging.getLogger(__name__)

HEARTBEAT_STALENESS = 0.75  # of a heartbeat interval: so old may a registration be that a poll reads in an object store

_SEEN = "cluster-seen.json"  # a file in the root of a broker


class Cluster:
    """An open cluster root. Its tables show what was last read; each has a `refresh`."""

    def __init__(self, root: StorageRoot, config: Config, reads_go_on: bool = False) -> None:
        self._config_given, self._reads_go_on, self._is_open = config, reads_go_on, False
        self._use(root)
        identity = self._read_identity(root, config)
        if identity["format_version"] == QUORUM_FORMAT and not isinstance(self._plain, QuorumRoot):
            self._use(_all_roots(root, config))
            identity = read_identity(self.root)
        if isinstance(self._plain, QuorumRoot):
            _check_list(self._plain, identity)
        if identity["broker_id"] != CLUSTER_ROOT:
            raise InconsistentClusterIdException(
                f"{root.uri}: is the root of broker {identity['broker_id']}, no cluster"
            )
        self._admits_writers = identity["format_version"] < FORMAT_VERSION  # so do tables that are made later
        self.guard.root = replace(self.root, admits_writers=self._admits_writers)
        self._noted: dict[str, TableState] = {}
        self.identity: Row = identity  # its row in the table `cluster`
        self._is_open = True
        self.uri = self.root.uri  # names all roots; `root.uri` stays the first one, as tables are known by it
        self.cluster_id: str = identity["cluster_id"]
        self.generation: int = identity["generation"] or 0
        self._expected_by: StorageRoot | None = None  # the root of a broker, whose note has the expected state
        self.config = _with_sessions(config.in_cluster(dict(identity["configs"])), root)
        self.metadata = MetadataTable.open(self.root)
        self.topics = TopicTable.open(self.root)
        self.broker_directory = BrokerDirectory(self.root)

    def _read_identity(self, root: StorageRoot, config: Config) -> Row:
        """The identity of the cluster. One of several roots may be behind so far that only the others have it."""
        try:
            return read_identity(self.root)
        except InconsistentClusterIdException:
            if isinstance(root, QuorumRoot):
                raise
            try:
                others = _all_roots(root, config)
            except KafkaStorageException:
                others = root
            if others is root:
                raise
        self._use(others)
        return read_identity(self.root)

    def _use(self, root: StorageRoot) -> None:
        self._plain = self._used(root)
        self.guard = ClusterRootGuard(self._plain, self._describe_root, self._several)

    def _used(self, root: StorageRoot) -> StorageRoot:
        if self._reads_go_on:
            root.let_reads_go_on()
        return root.synced  # clients write there too, whatever their `storage.fsync` is; a torn commit stops everybody

    def _several(self, voting: Sequence[str]) -> StorageRoot | None:
        if not self._is_open:  # the constructor finds them by the format version
            return None
        found = self._used(_all_roots(self._plain, self._config_given, voting))
        self.uri, self.identity = found.uri, {**self.identity, "format_version": QUORUM_FORMAT}
        return found

    @property
    def root(self) -> StorageRoot:
        """The cluster root: all roots, once a process has found that several vote."""
        return self.guard.root

    @classmethod
    def open(cls, uri: str, config: Config | None = None, reads_go_on: bool = False) -> Cluster:
        """Opens the cluster at `uri`, with credentials from the configuration and the environment.

        `reads_go_on`: for who reads records. While no majority of several cluster roots answers, the tables then show
        what one of the roots has, see `ClusterQuorum.newest_to_read`; commits fail as always.

        Raises InconsistentClusterIdException if there is none, or one of a newer format, and
        InvalidConfigurationException for settings that contradict each other, and IllegalStateException in a fork of a
        process that has opened tables.
        """
        check_no_fork()
        config = Config.of(config)
        return cls(storage_root(uri, "cluster", config), config, reads_go_on)

    @cached_property
    def producers(self) -> ProducerTable:
        """The named producers."""
        return ProducerTable.open(self.root)

    @cached_property
    def groups(self) -> GroupTable:
        """The offsets that groups of consumers have committed."""
        return GroupTable.open(self.root)

    @cached_property
    def lease(self) -> ControllerLease:
        """The lease of the active controller."""
        return ControllerLease.open(self.root)

    @cached_property
    def configs(self) -> ConfigTable:
        """The settings of brokers that may change while they run."""
        return ConfigTable.open(self.root)

    @cached_property
    def _identities(self) -> StateTable:
        return StateTable.open_at(self.root.child(CLUSTER.name), CLUSTER)

    @cached_property
    def admin(self) -> AdminTable:
        """The requests to the controller."""
        return AdminTable.open(self.root)

    def seen_by(self, root: StorageRoot) -> dict[str, TableState]:
        """The states of this cluster's tables that a broker has noted on its own root, see `note_what_was_seen`; empty
        if it has noted none since the cluster root was recovered. Raises KafkaStorageException."""
        generation, seen = _read_note(root)
        return seen if generation >= self.generation else {}

    def expect_what_was_seen(self, root: StorageRoot) -> None:
        """Lets this process know what a broker has seen of the cluster root, by the note on the broker's own root.

        Raises InconsistentClusterRootException if the cluster root is another one or older than that,
        FencedClusterRootException if the broker belongs to a newer generation of it, and KafkaStorageException.
        """
        if seen := self.seen_by(root):
            with suppress(InconsistentClusterIdException):  # it has no log: then the note counts
                self.check_log_generation(root)
            self._expected_by = root
            self.guard.expect(seen)

    def check_log_generation(self, root: StorageRoot) -> None:
        """Raises FencedClusterRootException if the log in a broker's root belongs to a newer generation of the cluster
        root, InconsistentClusterIdException if there is none, and KafkaStorageException."""
        self._check_generation(root, DeltaLog.open(root.child(LOG.name)).transaction_version(GENERATION) or 0)

    def _check_generation(self, root: StorageRoot, found: int) -> None:
        """Raises FencedClusterRootException if a broker belongs to a newer generation of the cluster root."""
        if found > self.generation:
            raise FencedClusterRootException(
                f"{self.root.uri}: is the cluster root of generation {self.generation}, and the broker at {root.uri} "
                f"belongs to generation {found}: the cluster root was recovered elsewhere. Use the new one, and delete "
                "this one"
            )

    def _describe_root(self) -> str:
        """Describes what lies at the cluster root now. This process may have opened a wrong root, so the expected
        cluster is that of a broker's own root."""
        expected = self.cluster_id
        if self._expected_by is not None:
            with suppress(LakelogException):  # a root that cannot be read names no cluster
                expected = str(read_identity(self._expected_by, None)["cluster_id"])
        return describe_wrong_root(replace(self.root, guard=None), expected)

    def note_what_was_seen(self, root: StorageRoot) -> None:
        """Notes on a broker's root which states of the cluster's tables it has seen, before it acts on them: the next
        process of the broker refuses an older copy of the cluster root. Raises FencedClusterRootException if the
        broker belongs to a newer generation of the cluster root, and KafkaStorageException."""
        seen = self.guard.states(CLUSTER.name, METADATA.name, TOPICS.name)
        if seen != self._noted:
            for name in seen:  # whose writer has synced the commit, and maybe not its name yet
                self.root.child(name).sync("_delta_log")
            self._check_generation(root, _read_note(root)[0])
            put_note(root, seen, self.generation)
            self._noted = seen

    def forget_what_was_seen(self, root: StorageRoot) -> None:
        """Deletes the note from a broker's root: its next process accepts the cluster root that it finds. Raises
        KafkaStorageException."""
        root.delete(_SEEN)
        root.sync()

    def check_current(self) -> None:
        """Raises KafkaStorageException if the topics or the metadata may be older than those that a majority of the
        cluster roots has decided: see `StorageRoot.behind`."""
        for table in (self.topics, self.metadata):
            if table.root.behind:
                raise KafkaStorageException(table.root.behind)

    def refresh_brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registrations of all brokers, read again where they have moved."""
        self.broker_directory.refresh()
        return self.brokers

    def poll_brokers(self) -> Mapping[int, BrokerRegistration]:
        """Like `refresh_brokers`, but in an object store a registration is read four times in three heartbeat
        intervals. A staler view would make brokers that are late with a heartbeat look dead."""
        self.broker_directory.refresh(self.config.broker_heartbeat_interval_ms / 1000 * HEARTBEAT_STALENESS)
        return self.brokers

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registrations as last read, by broker id."""
        return self.broker_directory.registrations

    def maintain(self) -> None:
        """Keeps the cluster's tables cheap to open; for the active controller, which owns them, now and then."""
        owned = (self.metadata, self.topics, self.configs, self.admin, self.lease, self.producers, self.groups)
        for table in owned:
            table.maintain()
        if len(self.root.parts) > 1:  # each new table is a commit of it
            self._identities.refresh()
            self._identities.maintain()

    @property
    def unregistered_brokers(self) -> frozenset[int]:
        """The brokers whose registration was removed, as last read."""
        return self.broker_directory.unregistered

    def registration(self, broker_id: int) -> BrokerRegistration:
        """The registration of a broker as last read. Raises BrokerNotAvailableException if it has never registered."""
        registration = self.brokers.get(broker_id) or self.refresh_brokers().get(broker_id)
        if registration is None:
            raise BrokerNotAvailableException(
                f"broker {broker_id} is not registered with the cluster at {self.root.uri}"
            )
        return registration

    def broker_root(self, broker_id: int) -> StorageRoot:
        """The root of a broker. Raises BrokerNotAvailableException if it has never registered."""
        return self.storage_of(broker_id, self.registration(broker_id).root)

    def storage_of(self, broker_id: int, uri: str) -> StorageRoot:
        """A broker's root with the credentials that the configuration has for it."""
        return replace(storage_root(uri, broker_id, self.config), admits_writers=self._admits_writers)

    def format_broker(self, broker_id: int, uri: str, dry_run: bool = False) -> StorageRoot:
        """Makes the root of a broker, as `format_broker` does, apart from the roots of the cluster and its brokers.

        A broker that is registered at this very root may stay there: older versions let roots lie in one another.
        """
        root = self.storage_of(broker_id, uri)
        is_registered_here = False
        if not is_formatted(root):
            registered = self.refresh_brokers().get(broker_id)
            is_registered_here = registered is not None and registered.root == root.uri
            if not is_registered_here:
                self._check_apart(root, broker_id)
        format_broker(root, self.cluster_id, broker_id, dry_run, may_be_nested=is_registered_here)
        return root

    def _check_apart(self, root: StorageRoot, broker_id: int) -> None:
        for part in self.root.parts:
            check_apart(root, part.uri, "the cluster")
        for other, registration in self.brokers.items():
            way_out = f", or first shut broker {other} down and delete its root, or start it at another root"
            try:
                if other != broker_id:
                    check_apart(root, registration.root, f"broker {other}", way_out)
            except InconsistentClusterIdException:
                if self._may_be_in_use(registration):
                    raise

    def _may_be_in_use(self, registration: BrokerRegistration) -> bool:
        """A broker that has shut down in order needs its root while there is one. One that cannot be read counts."""
        try:
            root = self.storage_of(registration.broker_id, registration.root)
            return not registration.shutting_down or is_formatted(root)
        except LakelogException:
            return True


def put_note(root: StorageRoot, seen: Mapping[str, TableState], generation: int) -> None:
    """Notes on a broker's root which states of the cluster's tables it has seen, and of which generation of the cluster
    root: a note of an older one that comes late counts for nothing. Raises KafkaStorageException."""
    tables = {
        name: {"id": s.table_id, "version": s.version, "commit": s.commit, "generation": generation}
        for name, s in seen.items()
    }
    root.put(_SEEN, json.dumps(tables, indent=1).encode())


def _read_note(root: StorageRoot) -> tuple[int, dict[str, TableState]]:
    """The generation and the states of `put_note`; 0 and nothing if there is no note."""
    try:
        found = json.loads(root.read(_SEEN))
        seen = {name: TableState(str(t["id"]), int(t["version"]), str(t["commit"])) for name, t in found.items()}
        return max((int(t.get("generation", 0)) for t in found.values()), default=0), seen
    except FileNotFoundError:
        return 0, {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # after a power cut without `storage.fsync`
        logger.warning("%s makes no sense, and is written anew: %r", root.path(_SEEN), error)
        return 0, {}


def _with_sessions(config: Config, root: StorageRoot) -> Config:
    try:
        return config.with_sessions(root.is_local)
    except InvalidConfigurationException as error:
        raise InvalidConfigurationException(f"{root.uri}: {error}") from error


def storage_root(uri: str, owner: Owner, config: Config) -> StorageRoot:
    """A root with what the configuration has for it, and for all: credentials, deadlines, whether files are synced."""
    if len(uris := root_uris(uri)) > 1:
        if owner != "cluster":
            raise InvalidConfigurationException(f"{uri}: names {len(uris)} roots, and broker {owner} has one")
        return _quorum_root(uris, owner, config)
    bucket = StorageRoot.of(uri).uri.partition("://")[2].partition("/")[0] if owner == "cluster" else ""
    options = config.storage_options(owner, bucket=bucket)
    return StorageRoot.of(uri, options, config.storage_fsync, config.lakelog_storage_timeout_ms)


def _quorum_root(uris: Iterable[str], owner: Owner, config: Config) -> QuorumRoot:
    def member_at(uri: str) -> QuorumMember:
        return QuorumMember(storage_root(uri, owner, config))

    members = [member_at(each) for each in uris]
    return QuorumRoot.over(ClusterQuorum(members, config.lakelog_storage_timeout_ms / 1000, member_at))


def _all_roots(root: StorageRoot, config: Config, voting: Sequence[str] = ()) -> StorageRoot:
    """All roots of a cluster, of which this is one, or was. `voting`: the identities of those that vote, by default as
    this root has them. Raises KafkaStorageException if it does not know them."""
    addresses, folder = QuorumMember(root).addresses(), root.child(CLUSTER.name)
    if not voting:  # more are noted during a change
        if (newest := last_version(folder)) < 0:
            raise KafkaStorageException(f"{folder.uri}: there is no Lakelog table")
        voting = read_commit(folder, newest).info.get(ROOTS, ())
    uris = [addresses[identity] for identity in voting if identity in addresses]
    return _quorum_root(sorted(uris, key=lambda uri: uri != root.uri), "cluster", config)


def _check_list(root: QuorumRoot, identity: Row) -> None:
    """Raises InconsistentClusterIdException if the roots of a list are not all of one cluster with several roots. Those
    that vote are; one that is empty or does not answer may be lost."""
    if identity["format_version"] != QUORUM_FORMAT:
        raise InconsistentClusterIdException(
            f"{root.quorum.home.root.uri}: is the only root of its cluster, so give it without the other ones"
        )

    def cluster_at(member: QuorumMember) -> str | None:
        return str(read_identity(member.root, None)["cluster_id"]) if is_formatted(member.root) else None

    for uri, found in root.quorum.without_vote((CLUSTER.name,), cluster_at).items():
        if found not in (None, identity["cluster_id"]):
            raise InconsistentClusterIdException(
                f"{uri}: is the root of cluster {found}, and the other roots are those of cluster "
                f"{identity['cluster_id']}; give the roots of one cluster"
            )


def check_may_format(root: StorageRoot, brokers: Iterable[StorageRoot] = ()) -> None:
    """Raises InconsistentClusterIdException if a new cluster root cannot be made here: something is there, or it lies
    in another root, or `brokers` or the brokers' roots beside it belong to a cluster already."""
    check_new(root)
    check_is_new_cluster(root, brokers)


def format_cluster(root: StorageRoot, config: Config) -> str:
    """Makes an empty cluster root and returns its new id. Raises InconsistentClusterIdException if anything is there.

    The identity is written last: a root whose formatting was cut short is no root.
    """
    check_new(root)
    root = root.synced
    root.create_folder()
    check_conditional_put(root)
    if isinstance(root, QuorumRoot):
        root.quorum.known.format()
    MetadataTable.create(root)
    TopicTable.create(root)
    ProducerTable.create(root)
    GroupTable.create(root)
    ControllerLease.create(root)
    AdminTable.create(root)
    ConfigTable.create(root)
    cluster_id = uuid.uuid4().hex
    _create_identity(root, identity_row(root, cluster_id, CLUSTER_ROOT, config.cluster_configs()))
    return cluster_id


def format_broker(
    root: StorageRoot, cluster_id: str, broker_id: int, dry_run: bool = False, may_be_nested: bool = False
) -> None:
    """Makes an empty broker root. A root that belongs to this cluster and broker already is left as it is. A `dry_run`
    only checks whether it could be made. Its files are synced, whatever `storage.fsync` says: that of the broker
    counts, and all that it syncs follows these.

    Raises InconsistentClusterIdException if it belongs to another, holds something else or, unless `may_be_nested`,
    lies in another root.
    """
    if is_formatted(root):
        check_identity(root, cluster_id, broker_id)
        return
    check_new(root, may_be_nested)
    if dry_run:
        return
    root = root.synced
    root.create_folder()
    check_conditional_put(root)
    ReplicaLog.create(root.child(LOG.name))
    ReplicaTable.create(root)
    _create_identity(root, identity_row(root, cluster_id, broker_id, {}))


def _create_identity(root: StorageRoot, row: Row) -> None:
    # An older version of Lakelog reads this table first, and must find the format there that it does not know.
    StateTable.create_at(replace(root.child(CLUSTER.name), admits_writers=True), CLUSTER, [row])


def identity_row(
    root: StorageRoot, cluster_id: str, broker_id: int, configs: Mapping[str, str], generation: int | None = None
) -> Row:
    """The row of the table `cluster` that makes a folder the root of a cluster or of a broker."""
    format_version = OLDEST_FORMAT if root.admits_writers else FORMAT_VERSION
    if isinstance(root, QuorumRoot):
        format_version = QUORUM_FORMAT
    return {
        "cluster_id": cluster_id,
        "broker_id": broker_id,
        "format_version": format_version,
        "configs": list(configs.items()),
        "generation": generation,
    }
