"""The health of a cluster, from what its tables say: figures, and problems and notes with what to do about each."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_notes import read_notes
from lakelog.jobs.admin.heartbeats import (
    ACTIVE,
    ALIVE,
    DEAD,
    SILENT,
    STORAGE_ERROR,
    UNKNOWN,
    SeenBroker,
    SeenController,
    ago,
    unwritable,
)
from lakelog.jobs.admin.reassignment_throttle import REPLICAS
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.options import Invocation
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import DYNAMIC_KEYS, TOPIC_KEYS
from lakelog.replication.errors import ControllerNotAvailableException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.assignment import CORDONED_LOG_DIRS, cordoned_brokers
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import BROKER_TYPE, DEFAULT_NAME, Entity
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.root_changes import RootStatus
from lakelog.replication.storage.root_identity import describe_brokers_beside

_WAITING = Outcome(None, "no controller has decided it yet")
_NOTHING = Outcome(None, "nothing needed to be done")

SHOWN = 10  # names of one problem
ROOT_COLUMNS = ("uri", "votes", "commits_behind", "error")  # of `root_row`, those of a table


def controller_row(seen: SeenController) -> Row:
    """The row of the active controller, or of the last one."""
    lease = seen.lease
    return {
        "controller": None if lease is None else lease.controller_id,
        "controller_epoch": None if lease is None else lease.controller_epoch,
        "state": seen.state,
        "lease_age_s": None if lease is None else round(seen.age, 1),
    }


def lease_row(seen: SeenController) -> Row:
    """As `controller_row`, with the lease. Raises ControllerNotAvailableException if no controller was ever elected."""
    if seen.lease is None:
        raise ControllerNotAvailableException("no controller was ever elected; run `lakelog controller`")
    return {**controller_row(seen), "lease": seen.lease.lease, "resigned": seen.lease.resigned}


def request_rows(admin: AdminClient) -> list[Row]:
    """A row for each outcome of each request, oldest first."""
    return [
        _row(request, name, outcome)
        for request in admin.list_requests()
        for name, outcome in _outcomes(request).items()
    ]


def _outcomes(request: AdminRequest) -> Mapping[str, Outcome]:
    return {"": _WAITING} if request.outcomes is None else request.outcomes or {"": _NOTHING}


def _row(request: AdminRequest, name: str, outcome: Outcome) -> Row:
    return {
        "request": request.request_id,
        "kind": request.kind,
        "requested_by": request.requested_by,
        "dry_run": request.validate_only,
        "state": request.state,
        "of": name,
        "error": outcome.error,
        "message": " ".join(outcome.message.split()),  # a row a line
        "controller_epoch": None if request.controller_epoch < 0 else request.controller_epoch,
    }


class Partition(NamedTuple):
    """A partition of a topic that is not being deleted, and its topic's min.insync.replicas."""

    registration: PartitionRegistration
    min_insync_replicas: int

    @property
    def replicas(self) -> set[int]:
        """Without those that a reassignment adds: they are not in sync yet."""
        return set(self.registration.replicas) - set(self.registration.adding_replicas)

    @property
    def out_of_sync(self) -> set[int]:
        """The brokers whose replicas are not in the ISR."""
        return self.replicas - set(self.registration.isr)

    @property
    def is_offline(self) -> bool:
        """Whether it has no leader."""
        return self.registration.leader < 0

    @property
    def is_under_min_isr(self) -> bool:
        """Whether its leader refuses acks=all."""
        return not self.is_offline and len(self.registration.isr) < self._least

    @property
    def is_at_min_isr(self) -> bool:
        """Whether its leader refuses acks=all once one more replica leaves the ISR."""
        return not self.is_offline and len(self.registration.isr) == self._least

    @property
    def _least(self) -> int:
        return min(self.min_insync_replicas, len(self.replicas))


def known_partitions(cluster: Cluster) -> list[Partition]:
    """The partitions of a cluster as last read, by name; without topics that are being deleted."""
    topics = {topic.topic_id: topic for topic in cluster.topics.topics.values() if not topic.deleting}
    least = {topic_id: cluster.config.topic(topic.configs).min_insync_replicas for topic_id, topic in topics.items()}
    known = [r for r in cluster.metadata.partitions.values() if r.topic_id in topics]
    return [Partition(r, least[r.topic_id]) for r in sorted(known, key=lambda r: (r.topic, r.partition))]


def cordons(cluster: Cluster) -> dict[str, set[int]]:
    """The registered brokers that are cordoned, as last read, by the name of the entity whose setting does that."""
    configs, found = cluster.configs.configs, dict[str, set[int]]()
    for broker in sorted(cordoned_brokers(configs, cluster.brokers)):
        own = CORDONED_LOG_DIRS in configs.get(Entity(BROKER_TYPE, str(broker)), {})
        found.setdefault(str(broker) if own else DEFAULT_NAME, set()).add(broker)
    return found


def unknown_settings(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """The settings in the tables, as last read, that this version does not know, by the type of their entities."""
    of_topics = {key for topic in cluster.topics.topics.values() for key in topic.configs}
    entities = cluster.configs.configs
    of_brokers = {key for (kind, _), configs in entities.items() if kind == BROKER_TYPE for key in configs}
    found = {"topics": of_topics - TOPIC_KEYS.keys(), BROKER_TYPE: of_brokers - DYNAMIC_KEYS.keys()}
    return {kind: tuple(sorted(keys)) for kind, keys in found.items() if keys}


class ClusterState(NamedTuple):
    """The state of a cluster, as it was read. `rows`: the replicas of each broker that is alive, or why they cannot be
    read. `throttled`: the topics with throttled replicas. `unwritable`: why the cluster root cannot be written, None if
    it can. `refused`: why brokers refuse the cluster root, see `Notes`. `unregistered`: whose the brokers' roots beside
    it are if no broker has registered. `roots`: those of the cluster if it has several. `cordoned`: see `cordons`.
    `unknown`: see `unknown_settings`."""

    controller: SeenController
    brokers: Mapping[int, SeenBroker]
    partitions: Sequence[Partition]
    rows: Mapping[int, Mapping[TopicIdPartition, ReplicaStatus] | str]
    throttled: Sequence[str] = ()
    unwritable: str | None = None
    refused: Mapping[int, str] = {}
    unregistered: str = ""
    roots: Sequence[RootStatus] = ()
    cordoned: Mapping[str, set[int]] = {}
    unknown: Mapping[str, tuple[str, ...]] = {}


def with_warnings(cluster: Cluster, state: ClusterState) -> ClusterState:
    """The state with what `problems` and `notes` need besides: throttled topics, unknown settings, and signs of a wrong
    cluster root. Reads the notes of brokers from their roots. Raises KafkaStorageException."""
    topics = [topic for topic in cluster.topics.topics.values() if not topic.deleting]
    brokers = {broker: seen.registration for broker, seen in state.brokers.items()}
    return state._replace(
        throttled=sorted(topic.topic for topic in topics if any(topic.configs.get(name) for name in REPLICAS)),
        unwritable=unwritable(cluster.root),
        refused=read_notes(cluster, brokers).refused,
        unregistered="" if brokers else describe_brokers_beside(cluster.root),
        unknown=unknown_settings(cluster),
    )


class Problem(NamedTuple):
    """Something that an operator has to see to, and the first thing to do. `names`: the partitions, all of them."""

    what: str
    names: tuple[str, ...]
    do: str


class BrokerFigures(NamedTuple):
    """A broker at work. `lag`: committed records that its followers lack, None where that is not known. `failing`: its
    replicas that report an error."""

    broker: int
    state: str
    heartbeat_age_s: float
    leads: int
    follows: int
    lag: int | None
    failing: int


def broker_figures(state: ClusterState) -> list[BrokerFigures]:
    """A row for each broker."""
    leads = Counter(partition.registration.leader for partition in state.partitions)
    held = Counter(broker for partition in state.partitions for broker in partition.registration.replicas)
    return [
        BrokerFigures(
            broker, seen.state, round(seen.age, 1), leads[broker], held[broker] - leads[broker],
            _lag(assigned_rows(state, broker)),
            sum(row.error is not None for row in assigned_rows(state, broker) or ()),
        )
        for broker, seen in state.brokers.items()
    ]  # fmt: skip


def assigned_rows(state: ClusterState, broker: int) -> list[ReplicaStatus] | None:
    """The rows of partitions that are assigned to the broker; None if its rows are not known."""
    rows = state.rows.get(broker, "")
    if isinstance(rows, str):
        return None
    assigned = [p.registration for p in state.partitions if broker in p.registration.replicas]
    return [rows[r.topic_id_partition] for r in assigned if r.topic_id_partition in rows]


def _lag(rows: Sequence[ReplicaStatus] | None) -> int | None:
    lags = [row.lag for row in rows or () if row.role == FOLLOWER_ROLE]
    known = [lag for lag in lags if lag is not None]
    return None if rows is None or len(known) < len(lags) else sum(known)


def problems(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """All that is wrong, the causes first. The advice names commands of this `invocation`."""
    return [
        *(problem for root in state.roots for problem in _of_one_root(root, invocation)),
        *_of_the_root(state, invocation),
        *_of_processes(state, invocation),
        *_of_partitions(state, invocation),
        *(problem for broker in state.rows for problem in _of_replicas(state, broker, invocation)),
    ]


def notes(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """Facts that are not problems, but that an operator needs before they stop a broker or leaves the cluster alone."""
    at_min = [p for p in state.partitions if p.is_at_min_isr]
    moving = [p for p in state.partitions if is_reassigning(p.registration)]
    found = []
    if at_min:
        needed = name_brokers({broker for p in at_min for broker in p.registration.isr}, "or")
        do = f"while {needed} restarts, sends with acks=all to them wait or fail: before, add replicas to them"
        found.append(Problem(f"{_count(at_min)} at min ISR", _names(at_min), do))
    if moving:
        shown = invocation.command("reassign-partitions", "--list")
        found.append(Problem(f"{_count(moving)} under reassignment", _names(moving), f"{shown} shows which way"))
    return [
        *found, *_of_cordons(state, invocation), *_of_throttles(state, invocation), *_of_unknown(state, invocation),
    ]  # fmt: skip


def _of_cordons(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """The brokers that get no new replica. [TM-02]"""
    found = []
    for name, brokers in state.cordoned.items():
        of = ("--entity-default",) if name == DEFAULT_NAME else ("--entity-name", name)
        lift = invocation.command(
            "configs", "--entity-type", "brokers", *of, "--alter", "--delete-config", CORDONED_LOG_DIRS
        )
        is_are = "is" if len(brokers) == 1 else "are"
        found.append(
            Problem(f"{name_brokers(brokers)} {is_are} cordoned: new replicas go to others", (), f"{lift} ends that")
        )
    return found


def _of_throttles(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """The throttles that are set. As in Kafka, they stay until --verify runs after the last partition has moved.
    [TH-02]"""
    slowed = {b for b, seen in state.brokers.items() if _has_quota(seen.registration)}
    if not slowed and not state.throttled:
        return []
    whose = [f"of {name_brokers(slowed)}"] if slowed else []
    whose += [f"of topics {first_names(tuple(state.throttled), SHOWN)}"] if state.throttled else []
    verify = invocation.command("reassign-partitions", "--verify", "--reassignment-json-file", "FILE")
    do = f"once no partition moves any more, {verify} removes the throttles that a reassignment has set"
    return [Problem(f"replication is throttled by settings {' and '.join(whose)}", (), do)]


def _of_unknown(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """The settings that processes of this version ignore."""
    found = []
    for kind, keys in state.unknown.items():
        shown = invocation.command("configs", "--entity-type", kind, "--describe")
        do = f"a newer version has set them: upgrade, or remove them with --alter --delete-config; {shown} shows whose"
        found.append(Problem(f"{kind} have settings that this version of Lakelog does not know, and ignores", keys, do))
    return found


def _has_quota(registration: BrokerRegistration) -> bool:
    return (registration.leader_replication_quota, registration.follower_replication_quota) != (None, None)


def root_row(root: RootStatus) -> Row:
    """One of the roots of a cluster."""
    return {
        "uri": root.uri,
        "votes": root.has_vote,
        "commits_behind": root.behind,
        "error": " ".join(root.error.split()) or None,
        "identity": root.identity or None,
    }


def _of_one_root(root: RootStatus, invocation: Invocation) -> list[Problem]:
    """Why one of several roots is no help. The cluster goes on while a majority of them answers."""
    if not root.error:
        return []
    what = f"cluster root {root.uri}: {root_row(root)['error']}"
    replace = invocation.command("cluster-roots", "--replace", root.uri, root.uri)
    if not root.has_vote:
        return [Problem(what, (), f"make it anew: {replace}")]
    return [Problem(what, (), f"make it answer again, then it catches up by itself; if it is lost: {replace}")]


def _of_the_root(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """The signs that this is not the right cluster root."""
    if state.unregistered:
        do = "check that the cluster root is mounted there, and whether somebody has moved it or formatted it again"
        return [Problem(f"no broker has registered, and {state.unregistered}", (), do)]
    if not state.brokers:
        first = f"start one: {invocation.command('broker', '--broker-id', 1, '--root', 'URI')}"
        return [Problem("no broker has registered", (), first)]
    return [
        Problem(
            what, (),
            "put the right root back: then they go on by themselves, so start nothing before. If only this root is "
            f"left, {_accept(those, invocation)} shows what it takes to go on with it, and what is lost",
        )
        for what, those in refusals(state.refused).items()
    ]  # fmt: skip


def refusals(refused: Mapping[int, str]) -> dict[str, set[int]]:
    """Says which brokers refuse the cluster root: a sentence for each reason, with its brokers. `refused`: see
    `Notes`."""
    by_reason: dict[str, set[int]] = {}
    for broker, why in refused.items():
        by_reason.setdefault(why, set()).add(broker)
    return {
        f"{name_brokers(those)} refuse{'s' if len(those) == 1 else ''} the cluster root: it {why}": those
        for why, those in by_reason.items()
    }


def _accept(brokers: set[int], invocation: Invocation) -> str:
    named = ",".join(map(str, sorted(brokers)))
    return invocation.command("log-dirs", "--accept-cluster-root", "--broker-list", named)


def _of_processes(state: ClusterState, invocation: Invocation) -> list[Problem]:
    """The dead brokers and controller. Where no heartbeat can be written, or brokers refuse the root, a process without
    heartbeats may still run."""
    seen = {state.controller.state, *(broker.state for broker in state.brokers.values())}
    if state.unwritable is not None and UNKNOWN in seen:
        what = f"{state.unwritable}: nobody renews a heartbeat there, so who is silent may run"
        do = "make it writable, with free space, and look again: what runs goes on by itself, so start nothing before"
        return [Problem(what, (), do)]
    if state.refused and all(seen.state in SILENT for seen in state.brokers.values()):
        return []
    others = [seen for broker, seen in state.brokers.items() if seen.state != DEAD or broker not in state.refused]
    held = {broker for p in state.partitions for broker in p.registration.replicas}
    of_brokers = [problem for seen in others for problem in _of_broker(seen, held, invocation)]
    return [*_of_controller(state.controller, invocation), *of_brokers]


def _of_controller(seen: SeenController, invocation: Invocation) -> list[Problem]:
    if seen.state == ACTIVE:
        return []
    said = "no controller was ever elected"
    if seen.lease is not None:
        ended = "has resigned" if seen.lease.resigned else f"renewed its lease {ago(seen.age)} ago"
        said = f"no controller is active: {seen.lease.controller_id} {ended}"
    start = invocation.command("controller")
    return [Problem(said, (), f"start one: {start}. Until then nobody elects leaders, and no request is carried out")]


def _of_broker(seen: SeenBroker, held: Collection[int], invocation: Invocation) -> list[Problem]:
    """`held`: the brokers that have replicas."""
    registration = seen.registration
    broker, root = registration.broker_id, registration.root
    if seen.state == DEAD:
        said = f"broker {broker} is dead: its last heartbeat was {ago(seen.age)} ago"
        rack = () if registration.rack is None else ("--rack", registration.rack)
        start = invocation.command("broker", "--broker-id", broker, "--root", root, *rack)
        remove = invocation.command("brokers", "--unregister", broker)
        or_remove = "" if broker in held else f"; if it is gone for good, remove it: {remove}"
        return [Problem(said, (), f"start it again: {start}{or_remove}")]
    if seen.state == STORAGE_ERROR:
        do = f"make {root} work again; then the broker goes on by itself"
        return [Problem(f"broker {broker}: its storage fails: {registration.storage_error}", (), do)]
    return []


def _of_partitions(state: ClusterState, invocation: Invocation) -> list[Problem]:
    partitions = state.partitions
    offline = [p for p in partitions if p.is_offline]
    under_min = [p for p in partitions if p.is_under_min_isr]
    under_replicated = [p for p in partitions if not p.is_offline and p.out_of_sync]
    waiting = [p for p in partitions if _waits_for_its_leader(state, p)]
    behind = {broker for p in under_replicated for broker in p.out_of_sync}
    dead = "those that are" if len(behind) > 1 else "it if it is"
    found = [
        (offline, "offline", _advice_if_offline(state, offline, invocation)),
        (waiting, "not served by the new leader yet", "this ends in seconds; if not, see the log of the leader"),
        (under_min, "under min ISR", f"they refuse acks=all until {_absent(under_min)} in sync again"),
        (under_replicated, "under-replicated", f"{_absent(under_replicated)} not in sync: start {dead} dead"),
    ]
    return [Problem(f"{_count(those)} {word}", _names(those), do) for those, word, do in found if those]


def _waits_for_its_leader(state: ClusterState, partition: Partition) -> bool:
    """Whether the elected leader has not published that it leads under this leader epoch."""
    registration = partition.registration
    rows = state.rows.get(registration.leader)
    if rows is None or isinstance(rows, str):
        return False
    row = rows.get(registration.topic_id_partition)
    return row is None or (row.role, row.leader_epoch) != (LEADER_ROLE, registration.leader_epoch)


def _advice_if_offline(state: ClusterState, offline: Sequence[Partition], invocation: Invocation) -> str:
    """Only a replica that was in sync last has all records."""
    last = {broker for p in offline for broker in p.registration.isr}
    silent = {broker for broker in last if broker not in state.rows}
    chosen: tuple[object, ...] = ("--all-topic-partitions",)
    if len(offline) == 1:
        chosen = ("--topic", offline[0].registration.topic, "--partition", offline[0].registration.partition)
    elect = invocation.command("leader-election", "--election-type", "unclean", *chosen)
    unclean = f"{elect} elects another replica, and loses records"
    if silent:
        return f"start {name_brokers(silent)}: the last in sync. If that is lost for good, {unclean}"
    was, has_lost, waits = "was in sync last", "has lost its log", "waits"
    if len(last) > 1:
        was, has_lost, waits = "were in sync last", "have lost their logs", "wait"
    return f"{name_brokers(last)} {was}, and {has_lost} or {waits} for a controller. Without that log, {unclean}"


def _of_replicas(state: ClusterState, broker: int, invocation: Invocation) -> list[Problem]:
    """The replicas of a broker that fail, by their errors."""
    rows = state.rows[broker]
    if isinstance(rows, str):
        do = f"check that this machine may read it, with the settings LAKELOG_STORAGE_{broker}_…"
        return [Problem(f"the root of broker {broker} cannot be read here: {rows}", (), do)]
    strays = tuple(sorted(row.name for row in rows.values() if row.state == FollowerState.STRAY))
    failing: dict[tuple[str, str], list[str]] = {}
    for row in assigned_rows(state, broker) or ():
        if row.error is not None:
            failing.setdefault((row.state, row.error), []).append(row.name)
    show = invocation.command("log-dirs", "--delete-stray", "--broker-list", broker)
    kept = f"check that this is the cluster root of before. {show} shows them, and deletes them with --execute"
    return [
        *([Problem(f"broker {broker} has stray replicas, which no metadata explain", strays, kept)] if strays else []),
        *_failing(state, broker, failing, invocation),
    ]


def _failing(
    state: ClusterState, broker: int, failing: Mapping[tuple[str, str], list[str]], invocation: Invocation
) -> list[Problem]:
    return [
        Problem(
            f"replicas of broker {broker} are {shown}: {error}", tuple(names), _advice(state, broker, shown, invocation)
        )
        for (shown, error), names in failing.items()
    ]


def _advice(state: ClusterState, broker: int, shown: str, invocation: Invocation) -> str:
    if shown == FollowerState.OFFLINE:
        root = state.brokers[broker].registration.root
        verify = invocation.command("dump-log", "--root", root, "--verify", on_cluster=False)
        return f"broker {broker} fetches a broken file from another replica; {verify} names it"
    return f"broker {broker} tries again by itself; see in its log whether it can read the root of its leader"


def _count(partitions: Sequence[Partition]) -> str:
    return f"{len(partitions)} partition{'s are' if len(partitions) > 1 else ' is'}"


def name_brokers(brokers: Collection[int], word: str = "and") -> str:
    """Brokers in a sentence, such as "brokers 1, 2 and 4". `word`: before the last one."""
    plural = len(brokers) > 1 and word == "and"
    names = [str(broker) for broker in sorted(brokers)]
    parts = [", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names
    return f"broker{'s' if plural else ''} {f' {word} '.join(parts)}"


def _absent(partitions: Sequence[Partition]) -> str:
    brokers = {broker for p in partitions for broker in p.out_of_sync}
    return f"{name_brokers(brokers)} {'are' if len(brokers) > 1 else 'is'}"


def _names(partitions: Sequence[Partition]) -> tuple[str, ...]:
    return tuple(p.registration.name for p in partitions)


def summary(state: ClusterState) -> dict[str, str]:
    """The figures of the first lines of the screen."""
    lease, partitions = state.controller.lease, state.partitions
    controller = state.controller.state
    if lease is not None:
        renewed = f", lease renewed {ago(state.controller.age)} ago" if controller == ACTIVE else ""
        controller += f": {lease.controller_id}, controller epoch {lease.controller_epoch}{renewed}"
    others = [f"{b} is {seen.state}" for b, seen in state.brokers.items() if seen.state != ALIVE]
    alive = len(state.brokers) - len(others)
    counts = {
        "offline": sum(p.is_offline for p in partitions),
        "under-replicated": sum(not p.is_offline and bool(p.out_of_sync) for p in partitions),
        "under min ISR": sum(p.is_under_min_isr for p in partitions),
    }
    return {
        "controller": controller,
        "brokers": f"{alive} of {len(state.brokers)} alive" + "".join(f", {other}" for other in others),
        "partitions": f"{len(partitions)}, " + ", ".join(f"{count} {word}" for word, count in counts.items()),
    }


def line_of(problem: Problem) -> str:
    """A problem with the names of its first partitions."""
    return f"{problem.what}: {first_names(problem.names, SHOWN)}" if problem.names else problem.what
