"""All processes of a cluster on this machine: its brokers, and controllers of which one is active."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lakelog.jobs.faults.broker_process import BrokerProcess, ControllerProcess, ServerProcess
from lakelog.replication.protocol.lease import Lease

CONTROLLERS = ("controller-1", "controller-2")  # one to be active and one to stand by

STANDS = "stands for election"


class ClusterProcesses:
    """Brokers by id and controllers by name, each with its root and its log in one folder, except for brokers that
    `roots` says other roots of. None has been started."""

    def __init__(
        self, folder: Path, cluster_uri: str, broker_ids: Iterable[int], config: Path | None = None,
        roots: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        uris = {i: str(folder / f"broker-{i}") for i in broker_ids} | dict(roots or {})
        self.brokers = {
            i: BrokerProcess(cluster_uri, i, uri, folder / f"broker-{i}.log", config) for i, uri in uris.items()
        }
        self.controllers = {
            name: ControllerProcess(cluster_uri, name, folder / f"{name}.log", config) for name in CONTROLLERS
        }

    def all(self) -> list[ServerProcess]:
        """Every process, brokers first."""
        return [*self.brokers.values(), *self.controllers.values()]

    def active(self, lease: Lease | None) -> ControllerProcess | None:
        """The controller that holds the lease, if it is one that runs."""
        if lease is None or lease.resigned:
            return None
        return next((c for c in self.controllers.values() if c.has_id(lease.controller_id)), None)

    def check(self) -> None:
        """Raises BrokerNotAvailableException if one has ended by itself."""
        for process in self.all():
            process.check()

    def stop(self) -> list[int]:
        """Stops the brokers in order, then the controllers: their statuses."""
        return [process.stop() for process in self.all()]

    @contextmanager
    def ended(self) -> Iterator[ClusterProcesses]:
        """However this is left, no process outlives it."""
        try:
            yield self
        finally:
            for process in self.all():
                process.kill()
