"""Carries out a soak's faults of roots: power cut, empty root, a wrong cluster root, a store that hangs or answers
errors, bit rot."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lakelog.jobs.admin.log_files import log_files
from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import LOG
from lakelog.verification.faults.soak_cluster import BROKERS, CLUSTER, SoakCluster
from lakelog.verification.faults.soak_plan import Fault
from lakelog.verification.faults.storage_faults import bring_back, empty, forget_since, rot, take_away
from lakelog.verification.roots.wrong_roots import (
    ANOTHER,
    DELETED,
    EMPTIED,
    FORMATTED,
    OLDER,
    copy_cluster_root,
    replace_cluster_root,
)

_ATTEMPTS = 10
_GONE = DELETED, EMPTIED, FORMATTED
_OLDER_S = 5.0  # longer than a controller needs to renew its lease
_UNSYNCED_S = 5.0  # the most that a disk is behind when its power is cut
_EVERYWHERE = 0.6  # below this extent all machines lose their power


class RootFaults:
    """Carries out faults of roots and ends each one. A root gets lost records back from other replicas.

    Bit rot hits only files with records of the topic `kept`, because records of other topics may be deleted before
    anyone reads them. `is_alone` returns whether a broker is the only member of an ISR. Such a broker loses nothing,
    because its partition would wait for an unclean election.
    """

    def __init__(
        self, cluster: SoakCluster, kept: str, is_alone: Callable[[int], bool], let: Callable[[float], None]
    ) -> None:
        self._cluster = cluster
        self._brokers = cluster.processes.brokers
        self._stores = cluster.stores.processes
        self._folders: Mapping[int, Path] = cluster.folders
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
        """The disk of a broker fails and is repaired."""
        root = str(self._folders[fault.broker])
        take_away(root)
        try:
            self._let(fault.lasts_s)
        finally:
            bring_back(root)
        return f"root of broker {fault.broker}"

    def cut_power(self, fault: Fault) -> str:
        """The machine of a broker loses its power, and its disk loses files that were not synced: they are gone, empty
        or torn. On disks that really lose their power all is synced, so that all machines may lose it at once."""
        if self._cluster.disks.are_there:
            return self._lose_power(fault)
        lost, begun = _UNSYNCED_S * fault.extent, time.time()

        def deed() -> str:
            commits = forget_since(self._folders[fault.broker], begun - lost, random.Random(fault.place))
            self._let(fault.lasts_s)
            return f"{commits} commits of the last {lost:.1f} s are gone, empty or torn"

        return self._while_dead(fault, deed)

    def _lose_power(self, fault: Fault) -> str:
        is_everywhere = fault.extent < _EVERYWHERE
        dead = self._cluster.processes.all() if is_everywhere else [self._brokers[fault.broker]]
        for process in dead:
            process.kill()
        self._cluster.disks.lose_power([CLUSTER, *BROKERS] if is_everywhere else [fault.broker])
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
                empty(self._folders[fault.broker])
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
        """The cluster root is deleted, or unmounted, or somebody formats a new cluster in its place."""
        return self._replace_cluster_root(_GONE[int(fault.extent * len(_GONE))], fault)

    def older_cluster_root(self, fault: Fault) -> str:
        """The cluster root is restored from a copy that is some seconds old: every process has seen a later state."""
        copy_cluster_root(self._cluster.roots)
        self._let(_OLDER_S)
        return self._replace_cluster_root(OLDER, fault)

    def other_cluster_root(self, fault: Fault) -> str:
        """The root of another cluster is mounted in its place, with topics of the same names on the same brokers."""
        return self._replace_cluster_root(ANOTHER, fault)

    def _replace_cluster_root(self, by: str, fault: Fault) -> str:
        roots = self._cluster.roots
        replace_cluster_root(roots, by, Config())
        try:
            self._let(fault.lasts_s)
        finally:
            roots.bring_back(self._cluster.uri)
        return f"the cluster root was {by} for {fault.lasts_s:.1f} s"

    def hang_store(self, fault: Fault) -> str:
        """The store accepts requests but does not answer."""
        store = self._stores[fault.broker]
        store.pause()
        try:
            self._let(fault.lasts_s)
        finally:
            store.resume()
        return f"the store of broker {fault.broker}"

    def fail_store(self, fault: Fault) -> str:
        """The store answers errors; it still stores some of the objects that are put."""
        store = self._stores[fault.broker]
        store.begin_errors()
        try:
            self._let(fault.lasts_s)
        finally:
            store.end_errors()
        return f"the store of broker {fault.broker}"

    def rot(self, fault: Fault) -> str:
        """Flips one bit of a data file, silently."""
        log, draw = self._folders[fault.broker] / LOG.name, random.Random(fault.extent)
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
