"""The cluster of a script in one Spark session. Its servers freeze and end between two of their steps."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lakelog.jobs.demo.root_names import owners
from lakelog.replication.controller.controller import Controller
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.server.broker import Broker
from lakelog.verification.roots.roots import Roots
from lakelog.verification.scenarios.script_cluster import SETTINGS, ScriptCluster, Server, State

_CONTROLLERS = 2  # one is active, the other stands by


class EmbeddedCluster(ScriptCluster):
    """A local cluster with brokers and controllers that can be paused and killed like processes."""

    def __init__(self, spark: SparkSession, roots: Roots, folder: Path, brokers: int) -> None:
        uris = {owner: roots.uri(owner) for owner in owners(brokers)}
        self._local = LocalCluster(spark, str(folder), brokers, SETTINGS, _CONTROLLERS, roots=uris)
        super().__init__(roots, self._local.broker_ids, self._local.controller_names)

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        found = self._server(server)
        if found is None or not found.is_running():
            return "stopped"
        is_paused = found.pause_point.is_paused if isinstance(found, Broker) else found.is_paused
        return "paused" if is_paused else "running"

    def _server(self, server: Server) -> Broker | Controller | None:
        return self._local.controllers.get(server) if isinstance(server, str) else self._local.brokers.get(server)

    def _has_id(self, name: str, controller_id: str) -> bool:
        return self._local.controllers[name].controller_id == controller_id

    def _start_all(self) -> None:
        self._local.start()

    def _end_all(self) -> None:
        for broker in list(self._local.brokers):
            self._local.kill_broker(broker)
        self._local.stop()

    def _kill(self, server: Server) -> None:
        if isinstance(server, str):
            self._local.kill_controller(server)
        else:
            self._local.kill_broker(server)

    def _pause(self, server: Server) -> None:
        found = self._server(server)
        (found.pause_point if isinstance(found, Broker) else self._local.controllers[str(server)]).pause()

    def _resume(self, server: Server) -> None:
        found = self._server(server)
        (found.pause_point if isinstance(found, Broker) else self._local.controllers[str(server)]).resume()

    def _stop(self, server: Server) -> None:
        if isinstance(server, str):
            self._local.stop_controller(server)
        else:
            self._local.stop_broker(server)

    def _start(self, server: Server) -> None:
        if isinstance(server, str):
            self._local.start_controller(server)
        else:
            self._local.start_broker(server)
