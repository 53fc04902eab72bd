"""The shipped brokers and controllers in memory, without Spark, with a simulated clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import SimpleNamespace

from lakelog.jobs.cli import waiting
from lakelog.jobs.cli.root_names import root_name
from lakelog.replication.clients import sender, topic_view
from lakelog.replication.config import Config, Owner
from lakelog.replication.storage.cluster import format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, ClusterUnderTest, Server, State
from lakelog.verification.memory_root import File, MemoryStore, NoFaults
from lakelog.verification.simulation.stack.held_time import Passing, Schedule
from lakelog.verification.simulation.stack.one_thread import Changes, Clock, in_one_thread
from lakelog.verification.simulation.stack.servers import BrokerServer, ControllerServer

_WAITING = (topic_view, sender, waiting)  # the modules in which clients and steps of scripts wait


class SimulatedCluster(ClusterUnderTest):
    """Brokers and controllers over a store in memory. They are killed and frozen between two of their steps, never
    within one."""

    def __init__(self, broker_ids: Iterable[int], settings: Mapping[str, object]) -> None:
        self._clock = Clock()
        self._schedule = Schedule(self._clock)
        self._faults = _RootsAway()
        self._store = MemoryStore("script", True, self._clock.wall, self._faults)
        self._settings = settings
        self._servers: dict[Server, BrokerServer | ControllerServer] = {}
        self._changes = ExitStack()
        config = Config.from_properties(settings, "cluster under test")
        super().__init__(_MemoryRoots(self._store, self._faults), broker_ids, config)

    def repeat(self, work: Callable[[], None], seconds: float) -> Callable[[], None]:
        """Repeats `work` every `seconds` of the simulated clock. Returns a function that ends it."""
        return self._schedule.repeat(work, seconds)

    def start_all(self) -> None:
        """Formats the roots and starts all servers. From now on time passes only during a wait."""
        with Changes() as changes:
            rng = random.Random(0)
            in_one_thread(changes, self._clock, rng)
            passing = SimpleNamespace(**{**vars(threading), "Event": lambda: Passing(self._schedule)})
            for place in _WAITING:
                changes.change(place, "threading", passing)
            changes.enter_context(self._store.opened())
            self._make_servers()
            for server in self._servers.values():
                self._schedule.repeat(partial(server.run, rng), self.config.lakelog_poll_interval_ms / 1000)
                server.start()
            self._changes = changes.pop_all()

    def _make_servers(self) -> None:
        cluster_id = format_cluster(StorageRoot.of(self.uri), self.config)
        properties = {name: str(value) for name, value in self._settings.items()}
        for number in self.broker_ids:
            root = StorageRoot.of(self.roots.uri(number))
            format_broker(root, cluster_id, number)
            self._servers[number] = BrokerServer(number, self.uri, root, self._schedule, properties)
        for name in CONTROLLERS:
            self._servers[name] = ControllerServer(name, self.uri, self.config)

    def kill_all(self) -> None:
        """Ends all servers, and the simulated clock."""
        self._changes.close()

    def state(self, server: Server) -> State:
        """The state of a server. One that was fenced and ended by itself is stopped."""
        found = self._servers[server]
        if not found.runs:
            return "stopped"
        return "paused" if found.is_frozen else "running"

    def has_id(self, name: str, controller_id: str) -> bool:
        """Whether the running controller of this name has this id."""
        found = self._servers[name]
        return isinstance(found, ControllerServer) and found.has_id(controller_id)

    def start(self, server: Server) -> None:
        """Starts a server. A broker is registered when this returns."""
        self._servers[server].start()

    def kill(self, server: Server) -> None:
        """Ends a server as SIGKILL does."""
        self._servers[server].kill()

    def pause(self, server: Server) -> None:
        """Freezes a server: it takes no step, and time passes."""
        self._servers[server].freeze()

    def resume(self, server: Server) -> None:
        """Lets a frozen server take steps again."""
        self._servers[server].thaw()

    def stop(self, server: Server) -> None:
        """Stops a server in order, as SIGTERM does."""
        self._servers[server].stop()


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
