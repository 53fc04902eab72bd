"""The one way to start a cluster under test, with servers of any kind."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Literal, Self

from lakelog.replication.config import Config
from lakelog.replication.protocol.fencing import Lease
from lakelog.verification.roots.roots import Roots

CONTROLLERS = ("controller-1", "controller-2")  # one is active, the other stands by

State = Literal["running", "paused", "stopped"]
Server = int | str  # a broker's id, or a controller's name


class ClusterUnderTest(ABC):
    """Brokers and two controllers that a program starts, freezes, stops and kills, over `roots`.

        with ProcessCluster(LocalRoots(folder), folder, (1, 2, 3)) as cluster:
            cluster.start_all()
            cluster.kill(2)

    The roots can be reached during the `with` block. At its end, also after an error, all servers are killed.
    """

    def __init__(self, roots: Roots, broker_ids: Iterable[int], config: Config) -> None:
        self.roots = roots
        self.broker_ids = tuple(broker_ids)
        self.config = config

    def __enter__(self) -> Self:
        with ExitStack() as ending:
            ending.enter_context(self.roots.running())
            ending.callback(self.kill_all)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def active(self, lease: Lease | None) -> str | None:
        """The name of the running controller that holds the lease, None if there is none."""
        if lease is None or lease.resigned:
            return None
        running = (name for name in CONTROLLERS if self.state(name) == "running")
        return next((name for name in running if self.has_id(name, lease.controller_id)), None)

    def repeat(self, work: Callable[[], None], seconds: float) -> Callable[[], None]:
        """Repeats `work` in a thread, with pauses of `seconds`. Returns a function that ends it."""
        stopping = threading.Event()

        def run() -> None:
            while not stopping.wait(seconds):
                work()

        def end() -> None:
            stopping.set()
            thread.join()

        thread = threading.Thread(target=run, name="beside-cluster", daemon=True)
        thread.start()
        return end

    @property
    def uri(self) -> str:
        """The URI of the cluster, which may get more roots."""
        return self.roots.uri("cluster")

    @abstractmethod
    def start_all(self) -> None:
        """Formats the roots and starts all servers. Returns when brokers are registered and controllers stand for
        election."""

    @abstractmethod
    def kill_all(self) -> None:
        """Kills every server, because a frozen one cannot stop in order."""

    @abstractmethod
    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""

    @abstractmethod
    def has_id(self, name: str, controller_id: str) -> bool:
        """Whether the running controller of this name has this id."""

    @abstractmethod
    def start(self, server: Server) -> None:
        """Starts a server. Returns when a broker is registered or a controller stands for election. Raises the error
        with which it refuses to start."""

    @abstractmethod
    def kill(self, server: Server) -> None:
        """Ends a server as SIGKILL does, also a frozen one."""

    @abstractmethod
    def pause(self, server: Server) -> None:
        """Freezes a server as SIGSTOP does."""

    @abstractmethod
    def resume(self, server: Server) -> None:
        """Resumes a server as SIGCONT does."""

    @abstractmethod
    def stop(self, server: Server) -> None:
        """Stops a server in order, as SIGTERM does."""
