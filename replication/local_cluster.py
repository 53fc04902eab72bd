"""A whole cluster in one Spark session, for notebooks, tests and the quickstart."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from typing import TypeVar
from weakref import WeakValueDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.arguments import flag, mapping, spark_session_of, text, whole_number
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.one_process import OneProcess
from lakelog.replication.clients.views import register_views
from lakelog.replication.config import Config, Owner
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.controller.requested_elections import PREFERRED
from lakelog.replication.errors import InvalidConfigurationException, InvalidRequestException, error_named
from lakelog.replication.server.broker_server import Broker
from lakelog.replication.server.registration import IdWatch, check_cluster_root
from lakelog.replication.server.spark_check import check_spark
from lakelog.replication.storage.cluster import Cluster, check_may_format, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.storage_root import StorageRoot, root_uris
from lakelog.replication.storage.root_identity import CLUSTER_ROOT, is_formatted, read_identity

# The object that has started the cluster at a URI in this process, the last one: a cell that runs twice finds it.
_STARTED: WeakValueDictionary[str, LocalCluster] = WeakValueDictionary()

_MOST = 1000  # brokers or controllers in one process


Key = TypeVar("Key")
Server = TypeVar("Server")


def _taken(running: dict[Key, Server], key: Key, name: str) -> Server:
    """Takes a broker or a controller out of those that run. Raises InvalidRequestException if it is none of them."""
    given: object = key
    if isinstance(given, bool) or not isinstance(given, int | str) or key not in running:
        raise InvalidRequestException(f"{name} is {key!r:.80}: running are {_shown(running)}")
    return running.pop(key)


def _shown(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


class LocalCluster(OneProcess):
    """Brokers and controllers in this process, over tables in `<root>/cluster` and `<root>/broker-N`.

    The first start creates the tables, later ones reopen them. Brokers have the ids 1 to `brokers`. They use the same
    code and tables as brokers in processes of their own, so any client can connect to `cluster_uri`. `configs` has the
    settings of brokers and controllers, by Kafka's keys. `take_over`: start even if other processes run brokers of this
    cluster, and fence those.

        with LocalCluster(spark, "/tmp/lake", configs={"min.insync.replicas": 2}) as cluster:
            cluster.admin().create_topic("orders", partitions=6, replication_factor=3)

    `root` may be in an object store, such as `s3://bucket/lake`. `roots` are those that lie elsewhere, by broker id or
    "cluster": `{2: "s3://another-bucket/lake"}`. The cluster may have three or five roots, separated by commas.
    Credentials and endpoints are settings of each root, as for other brokers: `storage.<cluster or broker id>.<option>`
    in `configs`, or `LAKELOG_STORAGE_…` in the environment.
    """

    def __init__(
        self, spark: SparkSession, root: str, brokers: int = 3, configs: Mapping[str, object] | None = None,
        controllers: int = 1, take_over: bool = False, roots: Mapping[Owner, str] | None = None,
    ) -> None:  # fmt: skip
        self._spark = spark_session_of(spark)
        whole_number(brokers, "brokers", 1, _MOST)
        whole_number(controllers, "controllers", 0, _MOST)
        given = {} if roots is None else mapping(roots, "roots", '{2: "s3://another-bucket/lake"}')
        self._root = StorageRoot.of(root)
        self._roots = {
            owner: ",".join(StorageRoot.of(each).uri for each in (root_uris(uri) if owner == "cluster" else [uri]))
            for owner, uri in given.items()
        }
        self._configs = {} if configs is None else dict(mapping(configs, "configs", '{"min.insync.replicas": 2}'))
        self.broker_ids = tuple(range(1, brokers + 1))
        self.cluster_uri = self._roots.get("cluster", self._root.child("cluster").uri)
        if unknown := sorted(map(str, set(self._roots) - {"cluster", *self.broker_ids})):
            raise InvalidConfigurationException(
                f"roots of {', '.join(unknown)}: allowed are cluster and the brokers 1 to {brokers}"
            )
        self.controller_names = tuple(f"controller-{number}" for number in range(1, controllers + 1))
        self._take_over = flag(take_over, "take_over")
        self._own: set[int] = set()  # brokers that this object has started: their next start waits for nobody
        self.brokers: dict[int, Broker] = {}
        self.controllers: dict[str, Controller] = {}

    def __repr__(self) -> str:
        running = sum(broker.is_running for broker in self.brokers.values())
        return f"<LocalCluster at {self.cluster_uri}: {running} of {len(self.broker_ids)} brokers run>"

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Formats the roots that are not formatted yet, and starts every broker and controller that does not run yet:
        in a notebook a cell may run twice. If another object of this process runs the cluster, both run it from now on.

        Before it changes a broker it raises InvalidConfigurationException (wrong `configs`, or the Spark session cannot
        run a broker) or DuplicateBrokerRegistrationException (another process runs one of the brokers). Raises
        InconsistentClusterIdException if a root belongs to another cluster or holds other files, or if brokers' roots
        tell of a cluster and there is no cluster root, InconsistentClusterRootException if a broker has seen another
        cluster root or a later state of it,
        InvalidConfigurationException if a store puts one file over another, and KafkaStorageException if a root cannot
        be read or written.
        """
        check_spark(self._spark)
        self._join()
        cluster_id = self._format_cluster()
        missing = [b for b in self.broker_ids if b not in self.brokers or not self.brokers[b].is_running]
        watches = [self._watch(broker_id) for broker_id in missing]
        for watch in watches:
            watch.wait()
        cluster = Cluster.open(self.cluster_uri, self._config(CLUSTER_ROOT))
        check_conditional_put(cluster.root)
        for broker_id in missing:
            root = cluster.storage_of(broker_id, self.broker_uri(broker_id))
            format_broker(root, cluster_id, broker_id)
            check_conditional_put(root)
        for broker_id, watch in zip(missing, watches, strict=True):
            self._start_broker(broker_id, watch)
        for name in self.controller_names:
            if name not in self.controllers or not self.controllers[name].is_running:
                self.start_controller(name)
        _STARTED[self.cluster_uri] = self

    def _join(self) -> None:
        """Shares the brokers and controllers of the object that runs this cluster in this process, if there is one."""
        other = _STARTED.get(self.cluster_uri, self)
        if other is self or self._take_over or not any(broker.is_running for broker in other.brokers.values()):
            return
        if (self.broker_ids, self._configs, self._roots) != (other.broker_ids, other._configs, other._roots):
            raise InvalidConfigurationException(
                f"this process runs the cluster at {self.cluster_uri} with other brokers, configs or roots: "
                "stop it first"
            )
        self.brokers, self.controllers, self._own = other.brokers, other.controllers, other._own

    def _format_cluster(self) -> str:
        config = self._config(CLUSTER_ROOT)
        root = storage_root(self.cluster_uri, "cluster", config)
        if not is_formatted(root):
            check_may_format(root, [self._broker_root(broker_id) for broker_id in self.broker_ids])
            return format_cluster(root, config)
        return str(read_identity(root)["cluster_id"])

    def _config(self, broker_id: int) -> Config:
        return Config.from_properties({**self._configs, "broker.id": broker_id}, "local cluster")

    def broker_uri(self, broker_id: int) -> str:
        """The URI of a broker's root, also of a broker that this cluster does not have yet."""
        whole_number(broker_id, "broker_id", 0)
        return self._roots.get(broker_id, self._root.child(f"broker-{broker_id}").uri)

    def _broker_root(self, broker_id: int) -> StorageRoot:
        return storage_root(self.broker_uri(broker_id), broker_id, self._config(broker_id))

    def _watch(self, broker_id: int) -> IdWatch:
        config, take_over = self._config(broker_id), self._take_over or broker_id in self._own
        cluster = Cluster.open(self.cluster_uri, config)
        check_cluster_root(cluster, cluster.storage_of(broker_id, self.broker_uri(broker_id)))
        return IdWatch(cluster, broker_id, self.broker_uri(broker_id), take_over)

    def start_broker(self, broker_id: int) -> None:
        """Starts one broker. Raises as `start`."""
        self._start_broker(broker_id, self._watch(broker_id))

    def _start_broker(self, broker_id: int, watch: IdWatch) -> None:
        broker = Broker(self._spark, self.cluster_uri, self.broker_uri(broker_id), self._config(broker_id), watch)
        broker.start()
        self._own.add(broker_id)
        self.brokers[broker_id] = broker

    def stop_broker(self, broker_id: int) -> None:
        """Stops one broker in order. If a controller runs, it first elects other leaders. [CS-01, CS-05]"""
        _taken(self.brokers, broker_id, "broker_id").stop(controlled=bool(self.controllers))

    def kill_broker(self, broker_id: int) -> None:
        """Ends one broker at once, as SIGKILL does: it writes nothing more, and its partitions keep it as leader until
        its session times out."""
        _taken(self.brokers, broker_id, "broker_id").kill()

    def start_controller(self, name: str) -> None:
        """Starts one controller. It is elected, or stands by if another one is active. [CE-01]"""
        text(name, "name")
        cluster = Cluster.open(self.cluster_uri, self._config(CLUSTER_ROOT))
        self.controllers[name] = Controller(cluster, f"{name}-{uuid.uuid4().hex}")
        self.controllers[name].start()

    def stop_controller(self, name: str) -> None:
        """Stops one controller in order. An active one resigns. [CE-06]"""
        _taken(self.controllers, name, "name").stop()

    def kill_controller(self, name: str) -> None:
        """Ends one controller at once, as SIGKILL does: it stops renewing its lease."""
        _taken(self.controllers, name, "name").kill()

    def elect(self, topic: str, partition: int, election_type: str = PREFERRED) -> None:
        """Elects a leader of one partition, `preferred` or `unclean`. Raises the error that the controller answers."""
        for outcome in self.admin().elect_leaders(election_type, [(topic, partition)]).values():
            if outcome.error is not None:
                raise error_named(outcome.error, outcome.message)

    def admin(self) -> AdminClient:
        """An admin client of this cluster."""
        return AdminClient(self.cluster_uri, self._config(CLUSTER_ROOT))

    def consumer(self, group: str | None = None) -> Consumer:
        """A consumer of this cluster. With a `group` it also stores offsets."""
        return Consumer(self.cluster_uri, group, self._config(CLUSTER_ROOT))

    def register_views(self, as_of: str | dt.datetime | None = None, prefix: str = "") -> dict[str, str]:
        """Makes the views of this cluster in its Spark session; see `clients.views.register_views`."""
        return register_views(self._spark, self.cluster_uri, as_of, prefix, self._config(CLUSTER_ROOT))

    def queries(self) -> list[StreamingQuery]:
        """The fetchers' streaming queries of all brokers, for example to read their `lastProgress`."""
        return [query for broker in self.brokers.values() for query in broker.queries()]

    def stop(self) -> None:
        """Stops all controllers, then all brokers. Leaders are not changed, as no broker is left to lead."""
        for name, controller in list(self.controllers.items()):
            (self.kill_controller if controller.is_paused else self.stop_controller)(name)
        for broker_id, broker in list(self.brokers.items()):
            is_out = broker.pause_point.is_paused or broker.pause_point.is_killed
            (self.kill_broker if is_out else self.stop_broker)(broker_id)
