"""The cluster of a script: the choice of the server that a step names, and the operations that its state allows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import pyarrow as pa

from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.errors import BrokerNotAvailableException, LakelogException
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.readings.metadata_history import MetadataHistory
from lakelog.replication.storage.tables.metadata_table import registration_of
from lakelog.schemas import METADATA
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, ClusterUnderTest, Server, State

CONTROLLER = "controller"  # the active controller, in a script

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
_WARM_UP = "warm-up"
_WARM_UP_SECONDS = 60.0


class ScriptCluster:
    """The servers of a script, which runs during the `with` block. Each step that acts on a server is a method.

    A method raises BrokerNotAvailableException if the state of its server does not allow the operation. `is_cold`:
    records are sent to and from every broker before the script begins.
    """

    def __init__(self, servers: ClusterUnderTest, is_cold: bool = False) -> None:
        self.roots = servers.roots
        self.config = servers.config
        self.first_version = 0  # the metadata version at the start of the script
        self._servers = servers
        self._is_cold = is_cold
        self._away: list[str] = []  # controllers that were paused or ended, in that order

    @property
    def uri(self) -> str:
        """The URI of the cluster, which may get more roots."""
        return self._servers.uri

    def __enter__(self) -> ScriptCluster:
        with ExitStack() as ending:
            ending.enter_context(self._servers)
            self._servers.start_all()
            self._cluster = Cluster.open(self.uri)
            if self._is_cold:
                self._warm_up()
            self._watch = LivenessWatch(Cluster.open(self.uri))
            ending.callback(self._servers.repeat(self._watch.poll, _POLL_SECONDS))
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _warm_up(self) -> None:
        """Sends records to and from every broker. The first micro-batches of a new JVM take longer than the scripts'
        short time-outs allow. The topic and its history are deleted before the script begins."""
        ids = list(self._servers.broker_ids)
        admin = self.admin()
        admin.create_topic(_WARM_UP, assignment={i: ids[i:] + ids[:i] for i in range(len(ids))})
        records = pa.table({"value": [b"warm"] * len(ids), "partition": pa.array(range(len(ids)), pa.int32())})
        raise_first_error(Producer(self.uri).send(_WARM_UP, records, round(_WARM_UP_SECONDS * 1000)))
        wait_until(self._are_in_sync, "every replica is in sync", _WARM_UP_SECONDS)
        admin.delete_topic(_WARM_UP)
        wait_until(lambda: _WARM_UP not in admin.list_topics(), "the topic is deleted", _WARM_UP_SECONDS)
        self._cluster.metadata.refresh()
        self.first_version = self._cluster.metadata.version

    def _are_in_sync(self) -> bool:
        partitions = self.admin().describe_topic(_WARM_UP).partitions
        return all(set(registration.isr) == set(registration.replicas) for registration in partitions)

    def admin(self) -> AdminClient:
        """An admin client for the cluster."""
        return AdminClient(self.uri, self.config)

    def history(self) -> list[MetadataVersion]:
        """Every version of the metadata since the script began."""
        root = Cluster.open(self.uri, self.config).root  # one that is up to date, if there are several
        return [v for v in metadata_history(root) if v.version >= self.first_version]

    def running(self) -> list[int]:
        """The brokers that run."""
        return [broker for broker in self._servers.broker_ids if self._servers.state(broker) == "running"]

    def offline(self) -> set[int]:
        """The brokers that the cluster considers dead, or whose storage fails."""
        return self._watch.offline

    def kill(self, target: Server) -> Server:
        """SIGKILL, to a running or paused server."""
        server = self._find(target, "kill", "running", "paused")
        self._servers.kill(server)
        return self._went_away(server)

    def pause(self, target: Server) -> Server:
        """SIGSTOP, to a running server."""
        server = self._find(target, "pause", "running")
        self._servers.pause(server)
        return self._went_away(server)

    def resume(self, target: Server) -> Server:
        """SIGCONT, to a paused server."""
        server = self._find(target, "resume", "paused")
        self._servers.resume(server)
        return server

    def stop(self, target: Server) -> Server:
        """Controlled shutdown of a running broker, or resignation of a running controller."""
        server = self._find(target, "stop", "running")
        self._servers.stop(server)
        return self._went_away(server)

    def start(self, target: Server) -> Server:
        """Starts a stopped server. A broker is registered when this returns."""
        server = self._find(target, "start", "stopped")
        self._servers.start(server)
        return server

    def restart(self, target: Server) -> Server:
        """Kills a server if it has not ended, and starts it. `controller` prefers one that is paused or stopped."""
        server = self._find(target, "restart", "stopped", "paused", "running")
        if self._servers.state(server) != "stopped":
            self._servers.kill(server)
        self._servers.start(server)
        return server

    def _find(self, target: Server, what: str, *states: State) -> Server:
        """The target server. Raises BrokerNotAvailableException if it is in none of these states."""
        server = self._controller(states) if target == CONTROLLER else target
        name = server if isinstance(server, str) else f"broker {server}"
        state = self._servers.state(server)
        if state not in states:
            raise BrokerNotAvailableException(f"{what}: {name} is {state}, it must be {' or '.join(states)}")
        return server

    def _controller(self, states: Sequence[State]) -> str:
        """The active controller if a running one is allowed first, otherwise the last one that was paused or ended."""
        found = [name for name in reversed(self._away) if self._servers.state(name) in states]
        if states[0] != "running":
            return (found or [self.active()])[0]
        return self.active()

    def active(self) -> str:
        """The active controller's name. Waits for an election. Raises TimeoutException, or BrokerNotAvailableException
        at once if no controller runs."""
        if not any(self._servers.state(name) == "running" for name in CONTROLLERS):
            raise BrokerNotAvailableException(f"no controller runs: {', '.join(CONTROLLERS)}")
        wait_until(lambda: self._active() is not None, "a controller is active", _ELECTION_SECONDS, 0.05)
        found = self._active()
        assert found is not None
        return found

    def _active(self) -> str | None:
        return self._servers.active(self._cluster.lease.read())

    def _went_away(self, server: Server) -> Server:
        if isinstance(server, str):
            self._away = [*(name for name in self._away if name != server), server]
        return server


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
            live = self._liveness.observe(brokers)
            self.offline = {b for b, found in brokers.items() if b not in live or found.storage_error}


class MetadataVersion(NamedTuple):
    """One version of the metadata table: every partition as it was then, and who wrote that and why."""

    version: int
    cause: Mapping[str, Any]
    partitions: Mapping[TopicIdPartition, PartitionRegistration]


def metadata_history(cluster: StorageRoot) -> list[MetadataVersion]:
    """Every version of the metadata table whose commit is still there, oldest first. Raises KafkaStorageException."""
    found: list[MetadataVersion] = []
    partitions: dict[TopicIdPartition, PartitionRegistration] = {}
    for version in MetadataHistory(cluster).read_on():
        partitions = dict(partitions)
        for changed in version.changed:
            for row, is_removed in zip(
                changed.select(METADATA.arrow.names).to_pylist(), changed["is_removed"].to_pylist(), strict=True
            ):
                registration = registration_of(row)
                partitions.pop(registration.topic_id_partition, None)
                partitions |= {} if is_removed else {registration.topic_id_partition: registration}
        found.append(MetadataVersion(version.commit.version, version.commit.info, partitions))
    return found
