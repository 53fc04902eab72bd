"""Carries out the faults of a soak on processes, on roots, and through the controller.

After each fault all processes run again and all roots are in their place, but replicas may be out of sync.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lakelog.jobs.admin.log_files import log_files
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException, LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot, root_uris
from lakelog.schemas import LOG
from lakelog.verification.clusters.process_cluster import BrokerProcess, ControllerProcess, ProcessCluster
from lakelog.verification.faults.cluster_health import ClusterHealth
from lakelog.verification.faults.outages import OutageMeter, Wait
from lakelog.verification.faults.soak_plan import Fault
from lakelog.verification.roots.one_of_several import (
    HANGING,
    lose_root,
    losses_that_end,
    put_new_root,
    root_numbered,
)
from lakelog.verification.roots.storage_faults import empty, forget_since, rot
from lakelog.verification.roots.wrong_roots import (
    ANOTHER,
    DELETED,
    EMPTIED,
    FORMATTED,
    OLDER,
    copy_cluster_root,
    replace_cluster_root,
)
from lakelog.verification.server_process import ServerProcess

_ATTEMPTS = 10
_REMOVED = DELETED, EMPTIED, FORMATTED
_OLDER_S = 5.0  # longer than a controller needs to renew its lease
_UNSYNCED_S = 5.0  # the most that a disk is behind when its power is cut
_EVERYWHERE = 0.6  # below this extent all machines lose their power
_FENCED = "StaleBrokerEpochException"
_HALF = 0.5  # of the killed brokers lose their checkpoints
_ALL_COMMITTED, _FROM = -1, 0.9  # an extent above 0.9 deletes all committed records
_Thing = TypeVar("_Thing")


class RootFaults:
    """Carries out faults of roots and ends each one. A root gets lost records back from other replicas.

    Bit rot hits only files with records of the topic `kept`, because records of other topics may be deleted before
    anyone reads them. `is_alone` returns whether a broker is the only member of an ISR. Such a broker loses nothing,
    because its partition would wait for an unclean election.
    """

    def __init__(
        self, cluster: ProcessCluster, kept: str, is_alone: Callable[[int], bool], let: Callable[[float], None]
    ) -> None:
        self._cluster = cluster
        self._brokers = cluster.brokers
        self._roots = cluster.roots
        self._kept = kept
        self._is_alone = is_alone
        self._let = let
        self._rotten: dict[Path, str] = {}
        self.rotted = 0

    @property
    def repaired(self) -> int:
        """The number of rotten files that are whole again or have left the log."""
        return self.rotted - len(self._rotten)

    def unwritable_root(self, fault: Fault) -> str:
        """The disk of a broker fails and is repaired, or its store answers errors, and still stores some of the objects
        that are put."""
        self._roots.take_away(self._roots.uri(fault.broker))
        return self._until_back(self._roots.uri(fault.broker), f"root of broker {fault.broker}", fault)

    fail_store = unwritable_root

    def hang_store(self, fault: Fault) -> str:
        """The store accepts requests but does not answer."""
        self._roots.hang(self._roots.uri(fault.broker))
        return self._until_back(self._roots.uri(fault.broker), f"root of broker {fault.broker}", fault)

    def _until_back(self, uri: str, what: str, fault: Fault) -> str:
        try:
            self._let(fault.lasts_s)
        finally:
            self._roots.bring_back(uri)
        return what

    def cut_power(self, fault: Fault) -> str:
        """The machine of a broker loses its power, and its disk loses files that were not synced: they are missing,
        empty or torn. On disks that really lose their power all is synced, so that all machines may lose it at once."""
        if self._roots.disks.owners:
            return self._lose_power(fault)
        lost, begun = _UNSYNCED_S * fault.extent, time.time()

        def deed() -> str:
            commits = forget_since(self._roots.path(fault.broker), begun - lost, random.Random(fault.place))
            self._let(fault.lasts_s)
            return f"{commits} commits of the last {lost:.1f} s are missing, empty or torn"

        return self._while_dead(fault, deed)

    def _lose_power(self, fault: Fault) -> str:
        is_everywhere = fault.extent < _EVERYWHERE
        dead = self._cluster.all() if is_everywhere else [self._brokers[fault.broker]]
        for process in dead:
            process.kill()
        self._roots.disks.lose_power(self._roots.disks.owners if is_everywhere else [fault.broker])
        self._let(fault.lasts_s)
        for process in dead:
            process.start()
        return "all disks at once" if is_everywhere else f"broker {fault.broker}"

    def empty_root(self, fault: Fault) -> str:
        """A broker comes back with an empty disk. The disk is formatted at once, because a client may write to it
        before, and a root that is not empty cannot be formatted."""

        def deed() -> str:
            self._let(fault.lasts_s)
            for _ in range(_ATTEMPTS):
                empty(self._roots.path(fault.broker))
                with contextlib.suppress(InconsistentClusterIdException):
                    self._cluster.format_root(fault.broker)
                    break
            return "its root is empty"

        return self._while_dead(fault, deed)

    def _while_dead(self, fault: Fault, deed: Callable[[], str]) -> str:
        """Kills the broker first, and then checks whether it is alone: a dead broker cannot shrink an ISR to itself."""
        process = self._brokers[fault.broker]
        process.kill()
        done = "only killed, because it is alone in an ISR" if self._is_alone(fault.broker) else deed()
        process.start()
        return f"{process.name}: {done}"

    def empty_cluster_root(self, fault: Fault) -> str:
        """The cluster root is deleted, or unmounted, or a new cluster is formatted in its place."""
        return self._replace_cluster_root(_REMOVED[int(fault.extent * len(_REMOVED))], fault)

    def older_cluster_root(self, fault: Fault) -> str:
        """The cluster root is restored from a copy that is some seconds old: every process has seen a later state."""
        copy_cluster_root(self._roots)
        self._let(_OLDER_S)
        return self._replace_cluster_root(OLDER, fault)

    def other_cluster_root(self, fault: Fault) -> str:
        """The root of another cluster is mounted in its place, with topics of the same names on the same brokers."""
        return self._replace_cluster_root(ANOTHER, fault)

    def _replace_cluster_root(self, by: str, fault: Fault) -> str:
        replace_cluster_root(self._roots, by, Config())
        try:
            self._let(fault.lasts_s)
        finally:
            self._roots.bring_back(self._cluster.uri)
        return f"the cluster root was {by} for {fault.lasts_s:.1f} s"

    def lose_cluster_root(self, fault: Fault) -> str:
        """One of several cluster roots fails, is unmounted or is emptied, or its store answers errors; then it is back
        as it was."""
        losses = losses_that_end(root_numbered(self._roots, self._one_of_several(fault)))
        return self._lose_cluster_root(fault, _at(fault.extent, [by for by in losses if by != HANGING]))

    def hang_cluster_root(self, fault: Fault) -> str:
        """The store of one of several cluster roots accepts requests but does not answer."""
        return self._lose_cluster_root(fault, HANGING)

    def _lose_cluster_root(self, fault: Fault, by: str) -> str:
        number = self._one_of_several(fault)
        uri = lose_root(self._roots, number, by)
        return self._until_back(uri, f"cluster root {number} was {by} for {fault.lasts_s:.1f} s", fault)

    def new_cluster_root(self, fault: Fault) -> str:
        """One of several cluster roots is emptied, and later a new one takes its place."""
        number = self._one_of_several(fault)
        uri = lose_root(self._roots, number, EMPTIED)
        try:
            self._let(fault.lasts_s)
            put_new_root(self._roots, number, self._cluster.config)
        except BaseException:
            self._roots.bring_back(uri)
            raise
        return f"cluster root {number} was {EMPTIED} for {fault.lasts_s:.1f} s, and is new"

    def _one_of_several(self, fault: Fault) -> int:
        return 1 + int(fault.place * len(root_uris(self._cluster.uri)))

    def rot(self, fault: Fault) -> str:
        """Flips one bit of a data file, silently."""
        log, draw = self._roots.path(fault.broker) / LOG.name, random.Random(fault.extent)
        held = [f.name for f in log_files(StorageRoot.of(str(log))) if f.segment and self._is_kept(f.segment.headers)]
        if not held:
            return f"broker {fault.broker} has no file yet"
        path = log / held[int(fault.place * len(held))]
        whole = _digest(path)
        rot(path, draw)
        self._rotten[path] = whole
        self.rotted += 1
        return f"{path.name} of broker {fault.broker}"

    def lacks_repairs(self) -> str:
        """The first rotten file that is still in a log, as text; empty if there is none."""
        for path, whole in list(self._rotten.items()):
            if _is_active(path) and _digest(path) != whole:
                return f"{path} has rotted, and is still in the log"
            del self._rotten[path]
        return ""

    def _is_kept(self, headers: tuple[BatchHeader, ...]) -> bool:
        return any(header.topic == self._kept for header in headers)


def _is_active(path: Path) -> bool:
    return path.name in {file.name for file in DeltaLog.open(StorageRoot.of(str(path.parent))).active_files()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class SoakFaults:
    """Carries out one fault at a time, so no two brokers are away at once.

    `wait` waits for a check, `let` waits a number of seconds. `roots` carries out the faults of roots. `meter` kills,
    and measures the outage. `deletable` is the topic whose records may be deleted. `not_in_order` counts the processes
    that did not stop with status 0, `checkpoints_deleted` the killed brokers that began without their checkpoints.
    """

    def __init__(
        self, cluster: ProcessCluster, roots: RootFaults, health: ClusterHealth, meter: OutageMeter,
        admin: AdminClient, deletable: str, wait: Wait, let: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._roots = roots
        self._health = health
        self._meter = meter
        self._admin = admin
        self._deletable = deletable
        self._wait = wait
        self._let = let
        self.not_in_order = 0
        self.checkpoints_deleted = 0

    def prepare(self, fault: Fault) -> None:
        """Waits until the fault may begin. One that takes away a replica begins when all replicas have all records; the
        others may begin at any time. Raises TimeoutException.

        A full ISR is not enough: a broker that has lost records is still a member until its leader notices.
        """
        if fault.takes_replica:
            self._wait(self._health.lacks_members, f"before {fault.kind}: all replicas are in sync")
            self._wait(self._roots.lacks_repairs, f"before {fault.kind}: rotten files are repaired")
            bounds = self._look_at_bounds()
            self._wait(lambda: self._health.lacks_records(bounds), f"before {fault.kind}: all replicas have everything")

    def carry_out(self, fault: Fault) -> str:
        """Carries out the fault and returns a description. Raises the error that prevents it."""
        name = fault.kind.replace("-", "_")
        done: str = (getattr(self, "_" + name, None) or getattr(self._roots, name))(fault)
        return done

    def _kill_broker(self, fault: Fault) -> str:
        return self._kill(fault, broker=self._leader(fault))

    def _kill_controller(self, fault: Fault) -> str:
        return self._kill(fault, controller=self._controller())

    def _kill_both(self, fault: Fault) -> str:
        return self._kill(fault, self._controller(), self._leader(fault))

    def _kill(
        self, fault: Fault, controller: ControllerProcess | None = None, broker: BrokerProcess | None = None
    ) -> str:
        """Starts the processes again only when the outage is measured. A broker may have lost its checkpoints."""
        victims = [process for process in (controller, broker) if process is not None]
        led = {
            found.partition
            for found in self._health.partitions()
            if found.topic == self._meter.topic and (broker is None or found.leader == broker.broker_id)
        }
        self._meter.kill(fault.kind, victims, led, lambda: "" if self._health.active() else "none is", self._wait)
        self._let(fault.lasts_s)
        if broker is not None and fault.extent < _HALF and (checkpoints := Path(broker.root, "checkpoints")).is_dir():
            shutil.rmtree(checkpoints)
            self.checkpoints_deleted += 1
        for process in victims:
            process.start()
        return " and ".join(process.name for process in victims)

    def _freeze_broker(self, fault: Fault) -> str:
        return self._freeze(self._broker(fault), fault)

    def _freeze_controller(self, fault: Fault) -> str:
        return self._freeze(self._controller(), fault)

    # The same, but longer than a session time-out.
    _expire_broker, _expire_controller = _freeze_broker, _freeze_controller

    def _freeze(self, process: ServerProcess, fault: Fault) -> str:
        process.pause()
        try:
            self._let(fault.lasts_s)
        finally:
            process.resume()
        return process.name

    def _stop_broker(self, fault: Fault) -> str:
        return self._stop(self._broker(fault), fault)

    def _stop_controller(self, fault: Fault) -> str:
        return self._stop(self._controller(), fault)

    def _stop(self, process: ServerProcess, fault: Fault) -> str:
        status = process.stop()
        self.not_in_order += status != 0
        self._let(fault.lasts_s)
        process.start()
        killed = ": killed, because it did not stop in time" if status == -signal.SIGKILL else ""
        return f"{process.name}, status {status}{killed}"

    def _copy_broker(self, fault: Fault) -> str:
        """A second process of a broker is started beside it, with its id and its root, as from a copied machine. The
        first one is fenced and ends; the second one goes on as the broker."""
        first = self._broker(fault)
        second = self._cluster.brokers[fault.broker] = first.start_copy()
        try:
            self._wait(lambda: "" if not first.is_running() else "it runs", f"{first.name} is fenced")
            self._wait(lambda: "" if first.has_said(_FENCED) else "it has ended otherwise", f"{first.name} is fenced")
        finally:
            first.kill()
        self._let(fault.lasts_s)
        return f"{second.name} twice: the first one is fenced"

    def _delete_records(self, fault: Fault) -> str:
        """Deletes records up to an offset in the first half of the log, or all committed ones."""
        found = self._partition(fault, self._deletable)
        bounds = self._look_at_bounds()
        start, end = bounds[found.topic_id_partition]
        before = _ALL_COMMITTED if fault.extent > _FROM else start + int((end - start) * fault.extent / 2)
        outcomes = self._admin.delete_records({(found.topic, found.partition): before})
        return f"{_name(found)} before {before}: {_word(outcomes[found.topic, found.partition])}"

    def _look_at_bounds(self) -> dict[TopicIdPartition, tuple[int, int]]:
        found: dict[TopicIdPartition, tuple[int, int]] = {}

        def lacks() -> str:
            try:
                found.update(self._health.bounds())
            except LakelogException as error:
                return f"{error.name}: {error}"
            return ""

        self._wait(lacks, "the leaders' logs can be read")
        return found

    def _reassign(self, fault: Fault) -> str:
        """Moves a partition from all brokers to two, and back to all: the third broker deletes its replica and copies
        it again. It does not wait for the copy, so the next fault may come before that."""
        found = self._partition(fault)
        few, all_of_them = fault.brokers[:2], fault.brokers
        self._wait(lambda: self._move(found, few), f"{_name(found)} may be moved to {few}")
        self._wait(lambda: self._lacks_move(found, few), f"{_name(found)} is moved to {few}")
        self._wait(lambda: self._move(found, all_of_them), f"{_name(found)} may be moved to {all_of_them}")
        return f"{_name(found)} to {few} and to {all_of_them}"

    def _move(self, found: PartitionRegistration, target: Sequence[int]) -> str:
        """Repeats the request if no controller has decided it, because it asks for the same."""
        try:
            outcomes = self._admin.alter_partition_reassignments({(found.topic, found.partition): target})
        except LakelogException as error:
            return f"{error.name}: {error}"
        outcome = outcomes[_name(found)]
        return "" if outcome.error is None else f"{outcome.error}: {outcome.message}"

    def _lacks_move(self, found: PartitionRegistration, target: Sequence[int]) -> str:
        now = next(r for r in self._health.partitions() if r.topic_id_partition == found.topic_id_partition)
        return "" if now.replicas == tuple(target) and not is_reassigning(now) else str(now)

    def _preferred_election(self, fault: Fault) -> str:
        try:
            outcomes = self._admin.elect_leaders("preferred")
        except LakelogException as error:
            return f"{error.name}: {error}"
        words = Counter(outcome.error or "elected" for outcome in outcomes.values())
        return ", ".join(f"{count} {word}" for word, count in sorted(words.items()))

    def _leader(self, fault: Fault) -> BrokerProcess:
        """The first broker of the fault's order that leads a partition of the topic whose outages are measured."""
        leaders = {found.leader for found in self._health.partitions() if found.topic == self._meter.topic}
        leading = (broker for broker in fault.brokers if broker in leaders)
        return self._cluster.brokers[next(leading, fault.broker)]

    def _broker(self, fault: Fault) -> BrokerProcess:
        return self._cluster.brokers[fault.broker]

    def _controller(self) -> ControllerProcess:
        """The active controller."""
        found: list[ControllerProcess] = []

        def lacks() -> str:
            active = self._health.active()
            found.extend([active] if active else [])
            return "" if active else "no controller is active"

        self._wait(lacks, "a controller is active")
        return found[-1]

    def _partition(self, fault: Fault, topic: str | None = None) -> PartitionRegistration:
        return _at(fault.place, [r for r in self._health.partitions() if topic in (None, r.topic)])


def _at(place: float, things: Sequence[_Thing]) -> _Thing:
    return things[int(place * len(things))]


def _name(found: PartitionRegistration) -> str:
    return found.name


def _word(outcome: int | LakelogException) -> str:
    return f"{outcome.name}: {outcome}" if isinstance(outcome, LakelogException) else str(outcome)
