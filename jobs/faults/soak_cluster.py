"""The cluster of a soak: its roots are on the local disk, or in object stores that can fail on request, each in one of
its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.faults.broker_process import ServerProcess
from lakelog.jobs.faults.cluster_processes import ClusterProcesses
from lakelog.jobs.faults.soak_store_server import errors_file, port_file
from lakelog.replication.config import Config, Owner
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root

BROKERS = (1, 2, 3)
CLUSTER: Owner = "cluster"
# Whose roots are in object stores, by the argument `--store`.
STORED: Mapping[str, tuple[Owner, ...]] = {"mixed": (3,), "s3": (CLUSTER, *BROKERS)}
_PATIENCE = 60.0


class StoreProcess(ServerProcess):
    """The process of the object store. Its objects are the files of a folder."""

    module = "lakelog.jobs.faults.soak_store_server"

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__("store", (), log)
        self._command = [sys.executable, "-m", self.module, str(folder)]
        self._folder = folder

    def await_options(self) -> dict[str, str]:
        """The options for clients, once the store listens. Raises BrokerNotAvailableException, TimeoutException."""

        def listens() -> bool:
            self.check()
            return port_file(self._folder).exists()

        wait_until(listens, "the store listens", _PATIENCE)
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port_file(self._folder).read_text()}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "soak",
            "AWS_SECRET_ACCESS_KEY": "soak",
        }

    def begin_errors(self) -> None:
        """Makes the store answer every request with an error."""
        errors_file(self._folder).touch()

    def end_errors(self) -> None:
        """Makes the store work again."""
        errors_file(self._folder).unlink(missing_ok=True)


class SoakCluster:
    """The processes, the object stores by the owners of the roots in them, and the folder of each broker's root."""

    def __init__(self, folder: Path, config: Path, stored: Collection[Owner]) -> None:
        self.stores = {
            owner: StoreProcess(folder / f"store-{owner}" / f"bucket-{owner}", folder / f"store-{owner}.log")
            for owner in stored
        }
        self.uri = f"s3://bucket-{CLUSTER}/cluster" if CLUSTER in stored else str(folder / "cluster")
        roots = {broker: f"s3://bucket-{broker}/broker-{broker}" for broker in BROKERS if broker in stored}
        self.processes = ClusterProcesses(folder, self.uri, BROKERS, config, roots)
        self.folders: Mapping[int, Path] = {
            broker: (folder / f"store-{broker}" / f"bucket-{broker}" if broker in stored else folder)
            / f"broker-{broker}"
            for broker in BROKERS
        }

    @contextmanager
    def ended(self) -> Iterator[SoakCluster]:
        """Runs the stores, and gives their options to all clients in this process, during the block. Kills all
        processes at its end, also after an error."""
        with self.processes.ended(), ExitStack() as ending:
            for store in self.stores.values():
                ending.callback(store.kill)
                store.start()
            options = {owner: store.await_options() for owner, store in self.stores.items()}
            names = {
                f"LAKELOG_STORAGE_{owner}_{name}".upper(): value
                for owner, given in options.items()
                for name, value in given.items()
            }
            with _environment(names):
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
        for store in self.stores.values():
            store.check()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables for this process and its children during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
