"""A cluster of processes on this machine: its brokers, and two controllers, of which one is active."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterRootException
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, ClusterUnderTest, Server, State
from lakelog.verification.roots.roots import LocalRoots
from lakelog.verification.server_process import ServerProcess

STANDS = "stands for election"

# Several brokers fit on a small machine if their JVMs collect garbage with one thread each.
SMALL = ("--driver-memory", "512m", "--master", "local[2]", "--driver-java-options", "-XX:+UseSerialGC")

_START_SECONDS = 300.0


class ProcessCluster(ClusterUnderTest):
    """Every broker and controller is a process, started as from the command line.

    `brokers` and `controllers` are the processes, by id and by name. `folder` has their logs, and their `settings` in a
    file. The constructor starts nothing.
    """

    roots: LocalRoots

    def __init__(
        self, roots: LocalRoots, folder: Path, broker_ids: Iterable[int], settings: Mapping[str, object] | None = None
    ) -> None:
        given = settings or {}
        super().__init__(roots, broker_ids, Config.from_properties(given, "cluster under test"))
        config = folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self.brokers = {
            i: BrokerProcess(self.uri, i, roots.uri(i), folder / f"broker-{i}.log", config) for i in self.broker_ids
        }
        self.controllers = {
            name: ControllerProcess(self.uri, name, folder / f"{name}.log", config) for name in CONTROLLERS
        }

    def all(self) -> list[ServerProcess]:
        """All processes, brokers first."""
        return [*self.brokers.values(), *self.controllers.values()]

    def process(self, server: Server) -> ServerProcess:
        """The process of a server."""
        return self.controllers[server] if isinstance(server, str) else self.brokers[server]

    def start_all(self) -> None:
        """Formats the cluster root and starts all servers. Returns when brokers are registered and controllers stand
        for election. Raises TimeoutException, or BrokerNotAvailableException if a process ends."""
        self.format()
        self.launch()
        wait_until(lambda: not self.missing_servers(), "all servers start", _START_SECONDS)

    def format(self) -> None:
        """Formats the cluster root."""
        format_cluster(storage_root(self.uri, "cluster", self.config), self.config)

    def format_root(self, broker: int) -> None:
        """Formats a broker's empty root. Raises InconsistentClusterIdException if the root is not empty."""
        cluster = Cluster.open(self.uri, self.config)
        format_broker(cluster.storage_of(broker, self.brokers[broker].root), cluster.cluster_id, broker)

    def launch(self) -> None:
        """Starts all processes, and returns at once."""
        self._registry = Cluster.open(self.uri, self.config)
        for process in self.all():
            process.start()

    def missing_servers(self) -> str:
        """The servers that are not there yet, as text: brokers that are not registered, and controllers that do not
        stand for election. Raises BrokerNotAvailableException if a process has ended by itself."""
        self.check()
        registered = self._registry.refresh_brokers()
        absent = [self.brokers[i].name for i in self.broker_ids if i not in registered]
        return ", ".join([*absent, *(name for name, found in self.controllers.items() if not found.has_said(STANDS))])

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a process of a server or of a root has ended by itself."""
        for process in self.all():
            process.check()
        self.roots.stores.check()

    def kill_all(self) -> None:
        """Kills every process, because a frozen one cannot stop in order."""
        for process in self.all():
            process.kill()

    def stop_all(self) -> list[int]:
        """Stops the brokers one by one, then the controllers. Returns their exit statuses."""
        return [process.stop() for process in self.all()]

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        process = self.process(server)
        if not process.is_running():
            return "stopped"
        return "paused" if process.is_paused else "running"

    def has_id(self, name: str, controller_id: str) -> bool:
        """Whether the running controller of this name has this id."""
        return self.controllers[name].has_id(controller_id)

    def start(self, server: Server) -> None:
        """Starts a server. Returns when a broker is registered or a controller stands for election. Raises the error
        with which it refuses to start."""
        process = self.process(server)
        before = 0 if isinstance(server, str) else self._epoch(server)

        def is_there() -> bool:
            if (error := process.error()) is not None:
                raise error
            process.check()
            if isinstance(server, str):
                return process.has_said(STANDS)
            return self._epoch(server) > before

        process.kill()  # cleans up a process that has ended by itself
        process.start()
        wait_until(is_there, f"{process.name} starts", _START_SECONDS, 0.05)

    def _epoch(self, broker: int) -> int:
        """The newest broker epoch of a broker; while a wrong cluster root is there, the last one that was seen."""
        with suppress(InconsistentClusterRootException):
            self._registry.refresh_brokers()
        return self._registry.brokers[broker].broker_epoch

    def kill(self, server: Server) -> None:
        """Ends a server with SIGKILL, also a frozen one."""
        self.process(server).kill()

    def pause(self, server: Server) -> None:
        """Freezes a server with SIGSTOP."""
        self.process(server).pause()

    def resume(self, server: Server) -> None:
        """Resumes a server with SIGCONT."""
        self.process(server).resume()

    def stop(self, server: Server) -> None:
        """Stops a server in order, with SIGTERM."""
        self.process(server).stop()


class BrokerProcess(ServerProcess):
    """A process of `lakelog broker`."""

    def __init__(
        self, cluster_uri: str, broker_id: int, root: str, log: Path, config: Path | None = None,
        options: tuple[str, ...] = SMALL,
    ) -> None:  # fmt: skip
        given = ("--cluster", cluster_uri, "--broker-id", str(broker_id), "--root", root, *_config(config))
        super().__init__(f"broker {broker_id}", ("broker", *options, *given), log)
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
