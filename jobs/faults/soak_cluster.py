"""The cluster of a soak: two brokers with roots on the local disk, and one with a root in an object store that can fail
on request."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.faults.broker_process import ServerProcess
from lakelog.jobs.faults.cluster_processes import ClusterProcesses
from lakelog.jobs.faults.soak_store_server import errors_file, port_file
from lakelog.replication.storage.cluster import Cluster, format_broker

BROKERS = (1, 2, 3)
STORED = 3  # the broker with its root in the store
_BUCKET = "bucket"
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
    """The processes, the store, and the folder of each broker's root."""

    def __init__(self, folder: Path, cluster_uri: str, config: Path) -> None:
        self._uri = cluster_uri
        bucket = folder / "store" / _BUCKET
        self.store = StoreProcess(bucket, folder / "store.log")
        self.processes = ClusterProcesses(
            folder, cluster_uri, BROKERS, config, {STORED: f"s3://{_BUCKET}/broker-{STORED}"}
        )
        self.folders: Mapping[int, Path] = {
            broker: (bucket if broker == STORED else folder) / f"broker-{broker}" for broker in BROKERS
        }

    @contextmanager
    def ended(self) -> Iterator[SoakCluster]:
        """Runs the store, and gives its options to all clients in this process, during the block. Kills all processes
        at its end, also after an error."""
        with self.processes.ended():
            try:
                self.store.start()
                with _environment({f"LAKELOG_STORAGE_{STORED}_{k}": v for k, v in self.store.await_options().items()}):
                    yield self
            finally:
                self.store.kill()

    def format_root(self, broker: int) -> None:
        """Formats a broker's empty root. Raises InconsistentClusterIdException if the root is not empty."""
        cluster = Cluster.open(self._uri)
        format_broker(cluster.storage_of(broker, self.processes.brokers[broker].root), cluster.cluster_id, broker)

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a process has ended by itself."""
        self.processes.check()
        self.store.check()


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
