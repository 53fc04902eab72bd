"""The cluster of a script, with servers of any kind: the operations on servers, and the choice of the server."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Literal

from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.errors import BrokerNotAvailableException, LakelogException
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.storage.cluster import Cluster, storage_root
from lakelog.replication.storage.tables.metadata_table import MetadataVersion, metadata_history
from lakelog.verification.roots.roots import Roots

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
_LOOK_SECONDS = 0.2
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
            ending.callback(self._repeat(self._watch.look, _LOOK_SECONDS))
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

    def look(self) -> None:
        """Reads the heartbeats once. On an error the next call tries again."""
        with suppress(LakelogException):
            brokers = self._cluster.refresh_brokers()
            live = self._liveness.look(brokers)
            self.offline = {b for b, found in brokers.items() if b not in live or found.storage_error}
