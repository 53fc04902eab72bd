"""The cluster of a script, with servers of any kind: the operations on servers, and the choice of the server."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli import waiting
from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.demo.root_names import owners, root_name
from lakelog.jobs.launch.server_process import ServerProcess
from lakelog.replication.clients import accumulator, topic_view
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config, Owner
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.errors import BrokerNotAvailableException, InconsistentClusterRootException, LakelogException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.server.broker_server import Broker
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.metadata_table import MetadataVersion, metadata_history
from lakelog.verification.faults.cluster_processes import CONTROLLERS, STANDS, ClusterProcesses
from lakelog.verification.memory_root import File, MemoryStore, NoFaults
from lakelog.verification.roots.roots import Roots
from lakelog.verification.simulation.stack.held_time import Passing, Schedule
from lakelog.verification.simulation.stack.one_thread import Changes, Clock, in_one_thread
from lakelog.verification.simulation.stack.servers import BrokerServer, ControllerServer

CONTROLLER = "controller"  # the active controller, in a script

State = Literal["running", "paused", "stopped"]
Server = int | str  # a broker's id, or a controller's name

# Short time-outs keep scripts short: a follower leaves the ISR after 3 to 4.5 s, a broker is dead after 6 s.
SETTINGS = {
    "replica.lag.time.max.ms": 3000,
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 500,
    "controller.session.timeout.ms": 6000,
    "auto.leader.rebalance.enable": "false",
    "log.retention.check.interval.ms": 500,
    "log.cleaner.backoff.ms": 500,
}
_POLL_SECONDS = 0.2
_ELECTION_SECONDS = 20.0


class ScriptCluster(ABC):
    """Brokers, and controllers of which one is active. Each step that acts on a server is a method.

    A method raises BrokerNotAvailableException if the state of its server does not allow the operation.
    """

    def __init__(self, roots: Roots, brokers: Sequence[int], controllers: Sequence[str]) -> None:
        self.roots = roots
        self.uri = roots.uri("cluster")
        self.first_version = 0  # the metadata version at the start of the script
        self._brokers = brokers
        self._controllers = controllers
        self._away: list[str] = []  # controllers that were paused or ended, in that order
        self._config = Config.from_properties(SETTINGS, "event script")

    def __enter__(self) -> ScriptCluster:
        with ExitStack() as ending:
            ending.enter_context(self.roots.running())
            self._start_all()
            ending.callback(self._end_all)
            self._cluster = Cluster.open(self.uri)
            self._watch = LivenessWatch(Cluster.open(self.uri))
            ending.callback(self._repeat(self._watch.poll, _POLL_SECONDS))
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _repeat(self, work: Callable[[], None], seconds: float) -> Callable[[], None]:
        """Repeats `work` in a thread, with pauses of `seconds`. Returns a function that ends it."""
        stopping = threading.Event()

        def run() -> None:
            while not stopping.wait(seconds):
                work()

        def end() -> None:
            stopping.set()
            thread.join()

        thread = threading.Thread(target=run, name="beside-script", daemon=True)
        thread.start()
        return end

    @property
    def config(self) -> Config:
        """The settings of the cluster."""
        return self._config

    def admin(self) -> AdminClient:
        """An admin client for the cluster."""
        return AdminClient(self.uri, self._config)

    def history(self) -> list[MetadataVersion]:
        """Every version of the metadata since the script began."""
        root = storage_root(self.uri, "cluster", self._config)
        return [v for v in metadata_history(root) if v.version >= self.first_version]

    def running(self) -> list[int]:
        """The brokers that run."""
        return [broker for broker in self._brokers if self.state(broker) == "running"]

    def offline(self) -> set[int]:
        """The brokers that the cluster considers dead, or whose storage fails."""
        return self._watch.offline

    def kill(self, target: Server) -> Server:
        """SIGKILL, to a running or paused server."""
        server = self._find(target, "kill", "running", "paused")
        self._kill(server)
        return self._went_away(server)

    def pause(self, target: Server) -> Server:
        """SIGSTOP, to a running server."""
        server = self._find(target, "pause", "running")
        self._pause(server)
        return self._went_away(server)

    def resume(self, target: Server) -> Server:
        """SIGCONT, to a paused server."""
        server = self._find(target, "resume", "paused")
        self._resume(server)
        return server

    def stop(self, target: Server) -> Server:
        """Controlled shutdown of a running broker, or resignation of a running controller."""
        server = self._find(target, "stop", "running")
        self._stop(server)
        return self._went_away(server)

    def start(self, target: Server) -> Server:
        """Starts a stopped server. A broker is registered when this returns."""
        server = self._find(target, "start", "stopped")
        self._start(server)
        return server

    def restart(self, target: Server) -> Server:
        """Kills a server if it has not ended, and starts it. `controller` prefers one that is paused or stopped."""
        server = self._find(target, "restart", "stopped", "paused", "running")
        if self.state(server) != "stopped":
            self._kill(server)
        self._start(server)
        return server

    def _find(self, target: Server, what: str, *states: State) -> Server:
        """The target server. Raises BrokerNotAvailableException if it is in none of these states."""
        server = self._controller(states) if target == CONTROLLER else target
        name = server if isinstance(server, str) else f"broker {server}"
        state = self.state(server)
        if state not in states:
            raise BrokerNotAvailableException(f"{what}: {name} is {state}, it must be {' or '.join(states)}")
        return server

    def _controller(self, states: Sequence[State]) -> str:
        """The active controller if a running one is allowed first, otherwise the last one that was paused or ended."""
        found = [name for name in reversed(self._away) if self.state(name) in states]
        if states[0] != "running":
            return (found or [self.active()])[0]
        return self.active()

    def active(self) -> str:
        """The active controller's name. Waits for an election. Raises TimeoutException, or BrokerNotAvailableException
        at once if no controller runs."""
        if not any(self.state(name) == "running" for name in self._controllers):
            raise BrokerNotAvailableException(f"no controller runs: {', '.join(self._controllers)}")
        wait_until(lambda: self._in_office() is not None, "a controller is active", _ELECTION_SECONDS, 0.05)
        found = self._in_office()
        assert found is not None
        return found

    def _in_office(self) -> str | None:
        lease = self._cluster.lease.read()
        if lease is None or lease.resigned:
            return None
        running = (name for name in self._controllers if self.state(name) == "running")
        return next((name for name in running if self._has_id(name, lease.controller_id)), None)

    def _went_away(self, server: Server) -> Server:
        if isinstance(server, str):
            self._away = [*(name for name in self._away if name != server), server]
        return server

    @abstractmethod
    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""

    @abstractmethod
    def _has_id(self, name: str, controller_id: str) -> bool:
        """Whether the controller of this name has this id."""

    @abstractmethod
    def _start_all(self) -> None: ...

    @abstractmethod
    def _end_all(self) -> None:
        """Kills every server at once, because a frozen one cannot stop in order."""

    @abstractmethod
    def _kill(self, server: Server) -> None: ...

    @abstractmethod
    def _pause(self, server: Server) -> None: ...

    @abstractmethod
    def _resume(self, server: Server) -> None: ...

    @abstractmethod
    def _stop(self, server: Server) -> None: ...

    @abstractmethod
    def _start(self, server: Server) -> None: ...


MakeCluster = Callable[[Path, int], AbstractContextManager[ScriptCluster]]


class LivenessWatch:
    """Reads the heartbeats regularly. With rare reads, a broker that died in between would seem alive."""

    def __init__(self, cluster: Cluster) -> None:
        self.offline: set[int] = set()
        self._cluster = cluster
        self._liveness = Liveness(cluster.config.broker_session_timeout_ms, time.monotonic)

    def poll(self) -> None:
        """Reads the heartbeats once. On an error the next call tries again."""
        with suppress(LakelogException):
            brokers = self._cluster.refresh_brokers()
            live = self._liveness.poll(brokers)
            self.offline = {b for b, found in brokers.items() if b not in live or found.storage_error}


_EMBEDDED_CONTROLLERS = 2  # one is active, the other stands by


class EmbeddedCluster(ScriptCluster):
    """A local cluster with brokers and controllers that can be paused and killed like processes."""

    def __init__(self, spark: SparkSession, roots: Roots, folder: Path, brokers: int) -> None:
        uris = {owner: roots.uri(owner) for owner in owners(brokers)}
        self._local = LocalCluster(spark, str(folder), brokers, SETTINGS, _EMBEDDED_CONTROLLERS, roots=uris)
        super().__init__(roots, self._local.broker_ids, self._local.controller_names)

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        found = self._server(server)
        if found is None or not found.is_running:
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


_SIMULATED_CONTROLLERS = ("controller-1", "controller-2")
_WAITING = (topic_view, accumulator, waiting)  # the modules in which clients and steps of scripts wait


class SimulatedCluster(ScriptCluster):
    """The shipped brokers and controllers, without Spark, over a store in memory.

    They are killed and frozen between two of their steps, never within one.
    """

    def __init__(self, brokers: int) -> None:
        self._clock = Clock()
        self._schedule = Schedule(self._clock)
        self._faults = _RootsAway()
        self._store = MemoryStore("script", True, self._clock.wall, self._faults)
        super().__init__(_MemoryRoots(self._store, self._faults), range(1, brokers + 1), _SIMULATED_CONTROLLERS)
        self._servers: dict[Server, BrokerServer | ControllerServer] = {}

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        found = self._servers[server]
        if not found.runs:
            return "stopped"
        return "paused" if found.is_frozen else "running"

    def _has_id(self, name: str, controller_id: str) -> bool:
        found = self._servers[name]
        return isinstance(found, ControllerServer) and found.has_id(controller_id)

    def _repeat(self, work: Callable[[], None], seconds: float) -> Callable[[], None]:
        return self._schedule.repeat(work, seconds)

    def _start_all(self) -> None:
        with Changes() as changes:
            rng = random.Random(0)
            in_one_thread(changes, self._clock, rng)
            passing = SimpleNamespace(**{**vars(threading), "Event": lambda: Passing(self._schedule)})
            for place in _WAITING:
                changes.change(place, "threading", passing)
            changes.enter_context(self._store.opened())
            self._make_servers()
            for server in self._servers.values():
                self._schedule.repeat(partial(server.run, rng), self._config.lakelog_poll_interval_ms / 1000)
                server.start()
            self._changes = changes.pop_all()

    def _make_servers(self) -> None:
        cluster_id = format_cluster(StorageRoot.of(self.uri), self._config)
        properties = {name: str(value) for name, value in SETTINGS.items()}
        for number in self._brokers:
            root = StorageRoot.of(self.roots.uri(number))
            format_broker(root, cluster_id, number)
            self._servers[number] = BrokerServer(number, self.uri, root, self._schedule, properties)
        for name in self._controllers:
            self._servers[name] = ControllerServer(name, self.uri, self._config)

    def _end_all(self) -> None:
        self._changes.close()

    def _kill(self, server: Server) -> None:
        self._servers[server].kill()

    def _pause(self, server: Server) -> None:
        self._servers[server].freeze()

    def _resume(self, server: Server) -> None:
        self._servers[server].thaw()

    def _stop(self, server: Server) -> None:
        self._servers[server].stop()

    def _start(self, server: Server) -> None:
        self._servers[server].start()


class _RootsAway(NoFaults):
    """A store that fails only for roots that were taken away."""

    def __init__(self) -> None:
        self.roots: set[str] = set()

    def read(self, uri: str) -> None:
        """Raises OSError if the path is in a root that was taken away."""
        if any(uri == root or uri.startswith(f"{root}/") for root in self.roots):
            raise OSError(f"{uri}: its storage has been taken away")

    def write(self, uri: str, put: Callable[[], None]) -> None:
        """Writes, unless the root was taken away."""
        self.read(uri)
        put()

    def commit(self, uri: str, put: Callable[[], bool]) -> bool:
        """Commits, unless the root was taken away."""
        self.read(uri)
        return put()


class _MemoryRoots:
    """The roots in a store in memory."""

    def __init__(self, store: MemoryStore, faults: _RootsAway) -> None:
        self._store = store
        self._faults = faults
        self._aside: dict[str, dict[str, dict[str, File]]] = {}  # the folders of roots that were replaced

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root."""
        return f"{self._store.uri}/{root_name(owner)}"

    def take_away(self, uri: str) -> None:
        """Lets the store fail for a root."""
        self._faults.roots.add(uri)

    def copy(self, uri: str, target: str) -> None:
        """Copies the folders of a root."""
        copied = {target + folder.removeprefix(uri): dict(files) for folder, files in self._folders(uri).items()}
        self._store.delete_folder(target)
        self._store.folders.update(copied)

    def replace(self, uri: str, other: str | None) -> None:
        """Puts the folders of a root aside, and others in their place."""
        self._aside[uri] = self._folders(uri)
        self._store.delete_folder(uri)
        if other is not None:
            self.copy(other, uri)
            self._store.delete_folder(other)

    def bring_back(self, uri: str) -> None:
        """Lets the store work for a root again, with the root's own folders."""
        self._faults.roots.discard(uri)
        if uri in self._aside:
            self._store.delete_folder(uri)
            self._store.folders.update(self._aside.pop(uri))

    def is_away(self, uri: str) -> bool:
        """Whether a root was taken away or replaced."""
        return uri in self._faults.roots or uri in self._aside

    def _folders(self, uri: str) -> dict[str, dict[str, File]]:
        return {folder: files for folder, files in self._store.folders.items() if f"{folder}/".startswith(f"{uri}/")}

    def running(self) -> AbstractContextManager[object]:
        """The cluster itself opens its store."""
        return nullcontext()
