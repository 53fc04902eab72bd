"""A local cluster whose brokers and controllers can be paused and killed like processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from lakelog.jobs.cli.root_names import owners
from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.server.broker_server import Broker
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, ClusterUnderTest, Server, State
from lakelog.verification.roots.roots import Roots


class EmbeddedCluster(ClusterUnderTest):
    """Every broker and controller runs in this process, over one Spark session."""

    def __init__(
        self, spark: SparkSession, roots: Roots, folder: Path, brokers: int, settings: Mapping[str, object]
    ) -> None:
        uris = {owner: roots.uri(owner) for owner in owners(brokers)}
        self._local = LocalCluster(spark, str(folder), brokers, settings, len(CONTROLLERS), roots=uris)
        super().__init__(roots, self._local.broker_ids, Config.from_properties(settings, "cluster under test"))

    def start_all(self) -> None:
        """Formats the roots and starts all servers."""
        self._local.start()

    def kill_all(self) -> None:
        """Kills every broker, because a frozen one cannot stop in order, and ends the controllers."""
        for broker in list(self._local.brokers):
            self._local.kill_broker(broker)
        self._local.stop()

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        found = self._server(server)
        if found is None or not found.is_running:
            return "stopped"
        is_paused = found.pause_point.is_paused if isinstance(found, Broker) else found.is_paused
        return "paused" if is_paused else "running"

    def _server(self, server: Server) -> Broker | Controller | None:
        return self._local.controllers.get(server) if isinstance(server, str) else self._local.brokers.get(server)

    def has_id(self, name: str, controller_id: str) -> bool:
        """Whether the running controller of this name has this id."""
        return self._local.controllers[name].controller_id == controller_id

    def start(self, server: Server) -> None:
        """Starts a server. A broker is registered when this returns. Raises the error with which it refuses to
        start."""
        if isinstance(server, str):
            self._local.start_controller(server)
        else:
            self._local.start_broker(server)

    def kill(self, server: Server) -> None:
        """Ends a server at once, as SIGKILL does."""
        if isinstance(server, str):
            self._local.kill_controller(server)
        else:
            self._local.kill_broker(server)

    def pause(self, server: Server) -> None:
        """Freezes a server as SIGSTOP does."""
        found = self._server(server)
        if isinstance(found, Broker):
            found.pause_point.pause()
        else:
            self._local.controllers[str(server)].awake.clear()

    def resume(self, server: Server) -> None:
        """Resumes a server as SIGCONT does."""
        found = self._server(server)
        if isinstance(found, Broker):
            found.pause_point.resume()
        else:
            self._local.controllers[str(server)].awake.set()

    def stop(self, server: Server) -> None:
        """Stops a server in order, as SIGTERM does."""
        if isinstance(server, str):
            self._local.stop_controller(server)
        else:
            self._local.stop_broker(server)
