"""The cluster of a script in one Spark session: its brokers are frozen and ended between any two of their steps."""

from __future__ import annotations

import threading
from typing import Literal

from pyspark.sql import SparkSession

from replication.clients.admin import AdminClient
from replication.errors import BrokerNotAvailableException, LakelogException
from replication.local_cluster import LocalCluster
from replication.server.broker import Broker
from replication.storage.cluster import Cluster
from replication.storage.liveness import Liveness

State = Literal["running", "paused", "stopped"]

# Short, so that a script is over soon: out of the ISR after 3 to 4.5 s, dead after 6 s.
SETTINGS = {
    "replica.lag.time.max.ms": 3000,
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 500,
}
_LOOK_SECONDS = 0.2


class EmbeddedCluster:
    """A local cluster whose brokers can be signalled as processes are."""

    def __init__(self, spark: SparkSession, folder: str, brokers: int) -> None:
        self._local = LocalCluster(spark, folder, brokers, SETTINGS)
        self.uri = self._local.cluster_uri

    def __enter__(self) -> EmbeddedCluster:
        self._local.start()
        self._watch = LivenessWatch(Cluster.open(self.uri))
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the brokers at once: a frozen one could not be stopped in order."""
        self._watch.stop()
        for broker in list(self._local.brokers):
            self._local.kill_broker(broker)
        self._local.stop()

    def admin(self) -> AdminClient:
        """A client for topics."""
        return self._local.admin()

    def state(self, broker: int) -> State:
        """Whether a broker runs. One that has ended by itself, being fenced, is stopped."""
        found = self._local.brokers.get(broker)
        if found is None or not found.is_running():
            return "stopped"
        return "paused" if found.gate.is_paused else "running"

    def running(self) -> list[int]:
        """The brokers that run."""
        return [broker for broker in self._local.broker_ids if self.state(broker) == "running"]

    def offline(self) -> set[int]:
        """The brokers that the cluster takes for dead, or whose storage is."""
        return self._watch.offline

    def kill(self, broker: int) -> None:
        """SIGKILL. Raises BrokerNotAvailableException unless it runs or is paused."""
        self._broker(broker, "kill", "running", "paused")
        self._local.kill_broker(broker)

    def pause(self, broker: int) -> None:
        """SIGSTOP. Raises BrokerNotAvailableException unless it runs."""
        self._broker(broker, "pause", "running").gate.pause()

    def resume(self, broker: int) -> None:
        """SIGCONT. Raises BrokerNotAvailableException unless it is paused."""
        self._broker(broker, "resume", "paused").gate.resume()

    def stop(self, broker: int) -> None:
        """Controlled shutdown. Raises BrokerNotAvailableException unless it runs."""
        self._broker(broker, "stop", "running")
        self._local.stop_broker(broker)

    def start(self, broker: int) -> None:
        """Starts a broker; it is registered when this returns. Raises BrokerNotAvailableException if it runs."""
        self._check(broker, "start", "stopped")
        self._local.start_broker(broker)

    def restart(self, broker: int) -> None:
        """Kills the broker if it has not been ended before, and starts it."""
        if self.state(broker) != "stopped":
            self.kill(broker)
        self.start(broker)

    def elect(self, topic: str, partition: int, election_type: str) -> None:
        """Elects by hand; see `LocalCluster.elect`."""
        self._local.elect(topic, partition, election_type)

    def _broker(self, broker: int, what: str, *states: State) -> Broker:
        self._check(broker, what, *states)
        return self._local.brokers[broker]

    def _check(self, broker: int, what: str, *states: State) -> None:
        state = self.state(broker)
        if state not in states:
            raise BrokerNotAvailableException(
                f"{what}: broker {broker} is {state}, only one that is {' or '.join(states)} can be meant"
            )


class LivenessWatch:
    """Looks at the heartbeats all the time. Who looks now and then would take for alive what has died in between."""

    def __init__(self, cluster: Cluster) -> None:
        self.offline: set[int] = set()
        self._cluster = cluster
        self._liveness = Liveness(cluster.config.broker_session_timeout_ms)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness-watch", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                brokers = self._cluster.refresh_brokers()
            except (LakelogException, OSError):  # the next look finds out more
                continue
            live = self._liveness.look(brokers)
            self.offline = {b for b, found in brokers.items() if b not in live or found.storage_error}
