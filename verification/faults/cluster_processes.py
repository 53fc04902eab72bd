"""All processes of a cluster on this machine: its brokers, and two controllers, of which one is active."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path

from lakelog.jobs.launch.server_process import ServerProcess
from lakelog.replication.protocol.fencing import Lease

CONTROLLERS = ("controller-1", "controller-2")  # one is active, the other stands by

STANDS = "stands for election"


class ClusterProcesses:
    """Brokers by id and controllers by name. Roots and log files are in one folder; `roots` names other roots of
    brokers. The constructor starts no process."""

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
        """All processes, brokers first."""
        return [*self.brokers.values(), *self.controllers.values()]

    def active(self, lease: Lease | None) -> ControllerProcess | None:
        """The running controller that holds the lease, None if there is none."""
        if lease is None or lease.resigned:
            return None
        return next((c for c in self.controllers.values() if c.has_id(lease.controller_id)), None)

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a process has ended by itself."""
        for process in self.all():
            process.check()

    def stop(self) -> list[int]:
        """Stops the brokers one by one, then the controllers. Returns their exit statuses."""
        return [process.stop() for process in self.all()]

    @contextmanager
    def ended(self) -> Iterator[ClusterProcesses]:
        """Kills all processes at the end of the block, also after an error."""
        try:
            yield self
        finally:
            for process in self.all():
                process.kill()


# Several brokers fit on a small machine if their JVMs collect garbage with one thread each.
SMALL = ("--driver-memory", "512m", "--master", "local[2]", "--driver-java-options", "-XX:+UseSerialGC")


class BrokerProcess(ServerProcess):
    """A process of `lakelog broker`."""

    def __init__(
        self, cluster_uri: str, broker_id: int, root: str, log: Path, config: Path | None = None,
        options: tuple[str, ...] = SMALL,
    ) -> None:  # fmt: skip
        told = ("--cluster", cluster_uri, "--broker-id", str(broker_id), "--root", root, *_config(config))
        super().__init__(f"broker {broker_id}", ("broker", *options, *told), log)
        self.broker_id = broker_id
        self.root = root

    def start_copy(self) -> BrokerProcess:
        """Starts another process of the same broker beside this one, which the newer one fences."""
        other = copy(self)
        other.start("--take-over")
        return other


class ControllerProcess(ServerProcess):
    """A process of `lakelog controller`, which needs no JVM."""

    def __init__(self, cluster_uri: str, name: str, log: Path, config: Path | None = None) -> None:
        super().__init__(name, ("controller", "--cluster", cluster_uri, *_config(config)), log)

    def has_id(self, controller_id: str) -> bool:
        """Whether this process has the controller id `<host>-<pid>-<random>`."""
        return self.is_running() and controller_id.split("-")[-2:-1] == [str(self.pid)]


def _config(path: Path | None) -> tuple[str, ...]:
    return () if path is None else ("--command-config", str(path))
