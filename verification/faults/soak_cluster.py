"""The cluster of a soak: its roots are on the local disk, or in object stores that can fail on request, each in one of
its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lakelog.jobs.demo.root_names import root_name
from lakelog.replication.config import Config, Owner
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.verification.faults.cluster_processes import ClusterProcesses
from lakelog.verification.faults.disks import Disks
from lakelog.verification.faults.soak_plan import CLUSTER
from lakelog.verification.roots.object_stores import ObjectStores
from lakelog.verification.roots.roots import DiskRoots, Roots

BROKERS = (1, 2, 3)
# Whose roots are in object stores, by the argument `--store`.
DISKS = "disks"  # each root is on a disk of its own that really loses its power
STORED: Mapping[str, tuple[Owner, ...]] = {"mixed": (3,), "s3": (CLUSTER, *BROKERS), DISKS: ()}


class SoakCluster:
    """The processes, the object stores of the roots in them, the folder of each broker's root, the `disks` of the roots
    if each has one, and `roots`, by which the cluster root can be replaced."""

    def __init__(self, folder: Path, config: Path, stored: Collection[Owner], has_disks: bool = False) -> None:
        self.stores = stores = ObjectStores(folder, stored)
        self.disks = disks = Disks(folder, (CLUSTER, *BROKERS) if has_disks else ())

        def place(owner: Owner) -> Path:
            return disks.root(owner) if has_disks else folder / root_name(owner)

        self.roots: Roots = stores if CLUSTER in stored else DiskRoots(place(CLUSTER).parent)
        self.uri = self.roots.uri(CLUSTER)
        roots = {broker: stores.uri(broker) if broker in stored else str(place(broker)) for broker in BROKERS}
        self.processes = ClusterProcesses(folder, self.uri, BROKERS, config, roots)
        self.folders: Mapping[int, Path] = {
            broker: stores.folder(broker) if broker in stored else place(broker) for broker in BROKERS
        }

    @contextmanager
    def ended(self) -> Iterator[SoakCluster]:
        """Runs the stores and disks during the block. Kills all processes at its end, also after an error."""
        with self.stores.running(), self.disks.running(), self.processes.ended():
            yield self

    def format(self) -> None:
        """Formats the cluster root."""
        format_cluster(storage_root(self.uri, CLUSTER, Config()), Config())

    def format_root(self, broker: int) -> None:
        """Formats a broker's empty root. Raises InconsistentClusterIdException if the root is not empty."""
        cluster = Cluster.open(self.uri)
        format_broker(cluster.storage_of(broker, self.processes.brokers[broker].root), cluster.cluster_id, broker)

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a process has ended by itself."""
        self.processes.check()
        self.stores.check()
