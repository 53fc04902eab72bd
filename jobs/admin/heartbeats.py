"""Finds out whether brokers, the controller and consumer groups are alive, for a command that has just begun.

Each of them commits to a table of its own as long as it lives. Controllers watch these commits and judge by their own
monotonic clocks. A command has watched nothing yet, so it takes the age of the newest commit. The time of that commit
is by the clock of the store that holds the cluster's root, and the command's own clock may differ. So an old commit
alone makes no broker dead: the command reads the table again half a session time-out later, and a broker that has
committed since is alive. A caller that must not wait, such as a scrape of metrics, judges by one read.

The tables do not have the session time-outs, which are settings of the processes: the command takes those of its own
settings.

If this command may not write to the cluster root and no process has just written to it, perhaps no process can. Then
the state of a process without recent heartbeats is unknown.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import newest_commit
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.group_tables import MemberTable, folder_of
from lakelog.schemas import BROKERS, CONTROLLER

UNKNOWN = "unknown"
ALIVE, DEAD, STOPPING, STOPPED, STORAGE_ERROR = "alive", "dead", "stopping", "stopped", "storage error"
ACTIVE, GONE, RESIGNED, NEVER_ELECTED = "active", "gone", "resigned", "never elected"
SILENT = (DEAD, STOPPED, UNKNOWN)  # states of brokers without a recent heartbeat

_LEAST_FREE = 2**20  # bytes: a table's commit and its checkpoint fit in

_CONTROLLER = "the controller"

Wait: TypeAlias = Callable[[float], None] | None  # waits so many seconds; None: the caller must not wait


class Heartbeats(NamedTuple):
    """A table that its owner commits to as long as it lives, and the seconds after which a silent one is dead."""

    root: StorageRoot
    session_timeout: float


class Pulse(NamedTuple):
    """Whether an owner lives, and the seconds since its newest commit, by the store's clock."""

    is_live: bool
    age: float


class SeenBroker(NamedTuple):
    """A registered broker, its state, and the seconds since its last heartbeat."""

    registration: BrokerRegistration
    state: str
    age: float


class SeenController(NamedTuple):
    """The lease, its state, and the seconds since it was renewed; None and 0 if no controller was ever elected."""

    lease: Lease | None
    state: str
    age: float


def observe(cluster: Cluster, wait: Wait = let_pass) -> tuple[dict[int, SeenBroker], SeenController]:
    """All brokers, and the controller. Waits only if the newest heartbeat of one is old. Raises KafkaStorageException
    if the cluster root cannot be read."""
    found = pulses({**_broker_heartbeats(cluster, wait), **_controller_heartbeats(cluster, wait)}, wait)
    may_beat = can_beat(cluster.root, found)
    return _seen_brokers(cluster, found, may_beat, wait), _seen_controller(cluster, found, may_beat, wait)


def observe_controller(cluster: Cluster, wait: Callable[[float], None] = let_pass) -> SeenController:
    """The controller that was elected last. Waits only if its newest heartbeat is old."""
    found = pulses(_controller_heartbeats(cluster, wait), wait)
    return _seen_controller(cluster, found, can_beat(cluster.root, found), wait)


def observe_brokers(
    cluster: Cluster, wait: Callable[[float], None] = let_pass, *, only: Collection[int] | None = None
) -> dict[int, SeenBroker]:
    """All brokers that have registered, or some of them. Waits only if the newest heartbeat of one is old."""
    tables = _broker_heartbeats(cluster, wait)
    if only is not None:
        tables = {name: tables[name] for name in map(_name, only) if name in tables}
    found = pulses(tables, wait)
    return _seen_brokers(cluster, found, can_beat(cluster.root, found), wait)


def _registrations(cluster: Cluster, wait: Wait) -> Mapping[int, BrokerRegistration]:
    """A caller that must not wait polls again and again: see `Cluster.poll_brokers`."""
    return cluster.poll_brokers() if wait is None else cluster.refresh_brokers()


def _lease(cluster: Cluster, wait: Wait) -> Lease | None:
    return cluster.lease.watched(RECENT_SECONDS) if wait is None else cluster.lease.read()


def _broker_heartbeats(cluster: Cluster, wait: Wait) -> dict[str, Heartbeats]:
    timeout = cluster.config.broker_session_timeout_ms / 1000
    folder = cluster.root.child(BROKERS.name)
    return {_name(broker): Heartbeats(folder.child(str(broker)), timeout) for broker in _registrations(cluster, wait)}


def _controller_heartbeats(cluster: Cluster, wait: Wait) -> dict[str, Heartbeats]:
    """The heartbeats of the controller; empty if none was elected, or the last one has resigned."""
    lease = _lease(cluster, wait)
    if lease is None or lease.resigned:
        return {}
    timeout = cluster.config.controller_session_timeout_ms / 1000
    return {_CONTROLLER: Heartbeats(cluster.root.child(CONTROLLER.name), timeout)}


def _seen_controller(
    cluster: Cluster, found: Mapping[str, Pulse], may_beat: bool, wait: Wait
) -> SeenController:  # fmt: skip
    """The controller. Its lease is read after the heartbeats."""
    lease, pulse = _lease(cluster, wait), found.get(_CONTROLLER, Pulse(False, 0.0))
    return SeenController(lease, controller_state(lease, pulse.is_live, may_beat), pulse.age)


def _seen_brokers(cluster: Cluster, found: Mapping[str, Pulse], may_beat: bool, wait: Wait) -> dict[int, SeenBroker]:
    """The brokers. Their registrations are read after the heartbeats."""
    there = {b: (r, found[_name(b)]) for b, r in _registrations(cluster, wait).items() if _name(b) in found}
    return {b: SeenBroker(r, broker_state(r, pulse.is_live, may_beat), pulse.age) for b, (r, pulse) in there.items()}


def _name(broker: int) -> str:
    return f"broker {broker}"


def pulses(tables: Mapping[str, Heartbeats], wait: Wait) -> dict[str, Pulse]:
    """Whether the owner of each table lives, by its newest commit. If one is old, it waits, and reads all once more.
    Without a `wait`, the owner of a table with an old commit is dead. So is that of a table without a commit: its root
    has gone away meanwhile."""
    first = {name: _newest(table.root) for name, table in tables.items()}
    doubtful = [name for name, (_, age) in first.items() if not _is_recent(age, tables[name].session_timeout)]
    awaited = [name for name in doubtful if first[name][0]]
    if not awaited or wait is None:
        return {name: Pulse(name not in doubtful, max(0.0, age)) for name, (_, age) in first.items()}
    seconds = max(tables[name].session_timeout for name in awaited) / 2
    say(f"No recent heartbeat from {', '.join(awaited)}: looking again in {seconds:g} s")
    wait(seconds)
    second = {name: _newest(table.root) for name, table in tables.items()}
    return {
        name: Pulse(commit != first[name][0] or name not in doubtful, max(0.0, age))
        for name, (commit, age) in second.items()
    }


def live_groups(cluster: Cluster, groups: Mapping[str, ConsumerGroup], wait: Wait) -> dict[str, ConsumerGroup]:
    """These groups; a group whose members are all dead comes without members. Waits only if a group may be dead.

    A live member removes dead ones. So in a group with a live member, the newest heartbeat is that of a live one.
    """
    tables = {
        f"group {name}": Heartbeats(
            MemberTable.folder(cluster.root, folder_of(name, cluster.groups.table_number(name))),
            max(member.session_timeout_ms for member in group.members) / 1000,
        )
        for name, group in groups.items()
        if group.members
    }
    seen = pulses(tables, wait)
    dead = {name for name in groups if f"group {name}" in seen and not seen[f"group {name}"].is_live}
    return {name: ConsumerGroup(group.generation) if name in dead else group for name, group in groups.items()}


def _is_recent(age: float, session_timeout: float) -> bool:
    """A commit that lies far in the future is not recent either: the clocks differ too much to tell."""
    return abs(age) < session_timeout


def _newest(root: StorageRoot) -> tuple[str, float]:
    """The newest commit of a table, and the seconds since it was written."""
    newest, written = newest_commit(root)
    return newest, time.time() - written


def can_beat(root: StorageRoot, found: Mapping[str, Pulse]) -> bool:
    """Whether heartbeats can be written: a process has just written to the cluster root, or this user may."""
    return any(pulse.is_live for pulse in found.values()) or unwritable(root) is None


def unwritable(root: StorageRoot) -> str | None:
    """Why this user can write no heartbeat to a cluster root on a disk; None if it seems to be possible. For a root in
    a store always None."""
    lease = root.path(f"{CONTROLLER.name}/_delta_log")
    if not root.is_local or not os.path.isdir(lease):
        return None
    found = os.statvfs(lease)
    free = found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)
    if found.f_flag & os.ST_RDONLY:
        return f"the cluster root {root.uri} is read-only here"
    if found.f_blocks and free < _LEAST_FREE:
        return f"the cluster root {root.uri} is on a full file system ({free} bytes are free)"
    return None if os.access(lease, os.W_OK) else f"this user may not write to the cluster root {root.uri}"


def broker_state(registration: BrokerRegistration, is_live: bool, may_beat: bool = True) -> str:
    """The state of a broker. One that was shutting down and sends no heartbeats has stopped. `may_beat`: whether
    heartbeats can be written; if not, the state of any other broker without them is unknown."""
    if not is_live:
        return STOPPED if registration.shutting_down else DEAD if may_beat else UNKNOWN
    if registration.storage_error is not None:
        return STORAGE_ERROR
    return STOPPING if registration.shutting_down else ALIVE


def controller_state(lease: Lease | None, is_live: bool, may_beat: bool = True) -> str:
    """The state of the controller that was elected last."""
    if lease is None:
        return NEVER_ELECTED
    if lease.resigned:
        return RESIGNED
    return ACTIVE if is_live else GONE if may_beat else UNKNOWN


def ago(seconds: float) -> str:
    """A time span for people: 4 s, 3 min, 2 h, 5 d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
