"""The cluster of a script as separate processes, which receive signals."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.launch.server_process import ServerProcess
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.errors import InconsistentClusterRootException
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.verification.faults.cluster_processes import CONTROLLERS, STANDS, ClusterProcesses
from lakelog.verification.roots.roots import Roots
from lakelog.verification.scenarios.script_cluster import SETTINGS, ScriptCluster, Server, State

_START_SECONDS = 120.0
_WARM_UP = "warm-up"
_WARM_UP_SECONDS = 60.0


class ProcessCluster(ScriptCluster):
    """Every broker and controller is a process, started as from the command line."""

    def __init__(self, roots: Roots, folder: Path, brokers: int) -> None:
        super().__init__(roots, range(1, brokers + 1), CONTROLLERS)
        config = folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
        self._processes = ClusterProcesses(
            folder, self.uri, self._brokers, config, {i: roots.uri(i) for i in self._brokers}
        )

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        process = self._process(server)
        if not process.is_running():
            return "stopped"
        return "paused" if process.is_paused else "running"

    def _process(self, server: Server) -> ServerProcess:
        return self._processes.controllers[server] if isinstance(server, str) else self._processes.brokers[server]

    def _has_id(self, name: str, controller_id: str) -> bool:
        return self._processes.controllers[name].has_id(controller_id)

    def _start_all(self) -> None:
        format_cluster(storage_root(self.uri, "cluster", self._config), self._config)
        self._registry = Cluster.open(self.uri, self._config)
        try:
            for process in self._processes.all():
                process.start()
            wait_until(self._are_there, "brokers register and controllers stand for election", _START_SECONDS)
            self._warm_up()
        except BaseException:
            self._end_all()
            raise

    def _are_there(self) -> bool:
        self._processes.check()
        stand = all(controller.has_said(STANDS) for controller in self._processes.controllers.values())
        return stand and set(self._registry.refresh_brokers()) == set(self._brokers)

    def _warm_up(self) -> None:
        """Sends records to and from every broker. The first micro-batches of a new JVM take longer than the scripts'
        short time-outs allow. The topic and its history are gone before the script begins."""
        ids = list(self._brokers)
        admin = self.admin()
        admin.create_topic(_WARM_UP, assignment={i: ids[i:] + ids[:i] for i in range(len(ids))})
        records = pa.table({"value": [b"warm"] * len(ids), "partition": pa.array(range(len(ids)), pa.int32())})
        raise_first_error(Producer(self.uri).send(_WARM_UP, records, round(_WARM_UP_SECONDS * 1000)))
        wait_until(lambda: self._are_in_sync(_WARM_UP), "every replica is in sync", _WARM_UP_SECONDS)
        admin.delete_topic(_WARM_UP)
        wait_until(lambda: _WARM_UP not in admin.list_topics(), "the topic is deleted", _WARM_UP_SECONDS)
        self._registry.metadata.refresh()
        self.first_version = self._registry.metadata.version

    def _are_in_sync(self, topic: str) -> bool:
        partitions = self.admin().describe_topic(topic).partitions
        return all(set(registration.isr) == set(registration.replicas) for registration in partitions)

    def _end_all(self) -> None:
        for process in self._processes.all():
            process.kill()

    def _kill(self, server: Server) -> None:
        self._process(server).kill()

    def _pause(self, server: Server) -> None:
        self._process(server).pause()

    def _resume(self, server: Server) -> None:
        self._process(server).resume()

    def _stop(self, server: Server) -> None:
        self._process(server).stop()

    def _start(self, server: Server) -> None:
        process = self._process(server)
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
