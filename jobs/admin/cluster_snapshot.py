"""The tables of a cluster at one time, now or earlier, as a controller sees them that is elected then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from lakelog.jobs.admin.heartbeats import (
    ACTIVE,
    ALIVE,
    STOPPING,
    SeenBroker,
    Wait,
    broker_state,
    controller_state,
    observe,
)
from lakelog.jobs.admin.published_rows import Rows, rows_of
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.table_history import commit_times
from lakelog.replication.storage.tables.broker_table import BrokerTable, broker_ids
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.topic_table import TopicTable


class ClusterSnapshot(NamedTuple):
    """A cluster at one time. `brokers`: all that had registered. `rows_of`: reads the replica rows of brokers as of
    then. `at`: the time in seconds since the epoch; None: now."""

    context: ControllerContext
    brokers: Mapping[int, SeenBroker]
    has_controller: bool
    metadata_version: int
    rows_of: Callable[[Iterable[BrokerRegistration]], dict[int, Rows]]
    at: float | None = None


def snapshot_now(cluster: Cluster, wait: Wait = let_pass) -> ClusterSnapshot:
    """The tables as they are. Waits only if the newest heartbeat of a broker or of the controller is old; without a
    `wait` never."""
    brokers, controller = observe(cluster, wait)
    context = context_now(cluster, live_brokers(brokers))
    has_controller = controller.state == ACTIVE
    return ClusterSnapshot(context, brokers, has_controller, cluster.metadata.version, partial(rows_of, cluster))


def context_now(cluster: Cluster, live: Mapping[int, BrokerRegistration]) -> ControllerContext:
    """The newest tables. `live`: the brokers that live, with their registrations as last read."""
    for table in (cluster.topics, cluster.metadata, cluster.configs):
        table.refresh()
    return ControllerContext(
        0, cluster.config, _views(live), cluster.topics.topics, cluster.metadata.partitions,
        configs=cluster.configs.configs, registered=frozenset(cluster.brokers),
    )  # fmt: skip


def live_brokers(seen: Mapping[int, SeenBroker]) -> dict[int, BrokerRegistration]:
    """The brokers that live, by their heartbeats."""
    return {b: found.registration for b, found in seen.items() if found.state in (ALIVE, STOPPING)}


def _views(live: Mapping[int, BrokerRegistration]) -> dict[int, BrokerView]:
    return {broker: BrokerView.of(found) for broker, found in sorted(live.items()) if found.storage_error is None}


def snapshot_at(cluster: Cluster, at: float) -> ClusterSnapshot:
    """The tables as they were at a time, in seconds since the epoch. A broker was alive if it had sent a heartbeat
    within the session time-out before.

    Raises KafkaStorageException if the history of a table of the cluster root does not reach back so far, and
    InvalidRequestException if the cluster has several roots: their heartbeats are not commits, so they leave no trace.
    """
    if cluster.root.has_signs:
        raise InvalidRequestException(
            "the heartbeats of a cluster with several roots have no history, so nobody knows which brokers were alive"
        )
    brokers = {broker: seen for broker in broker_ids(cluster.root) if (seen := _broker_at(cluster, broker, at))}
    lease, renewed_at = ControllerLease.as_of(cluster.root, at)
    is_live = at - renewed_at < cluster.config.controller_session_timeout_ms / 1000
    metadata, _ = MetadataTable.as_of(cluster.root, at)
    topics, _ = TopicTable.as_of(cluster.root, at)
    context = ControllerContext(
        0, cluster.config, _views(live_brokers(brokers)), topics.topics, metadata.partitions,
        registered=frozenset(brokers),
    )  # fmt: skip
    has_controller = controller_state(lease.lease, is_live) == ACTIVE
    return ClusterSnapshot(context, brokers, has_controller, metadata.version, partial(rows_of, cluster, at=at), at)


def _broker_at(cluster: Cluster, broker: int, at: float) -> SeenBroker | None:
    """A broker and its state at that time; None if it had not registered yet."""
    times = commit_times(BrokerTable.folder(cluster.root, broker))
    if times.get(0, at) > at:
        return None
    table, beaten_at = BrokerTable.as_of(cluster.root, at, broker)
    registration = table.registration
    if registration is None:
        return None
    is_live = at - beaten_at < cluster.config.broker_session_timeout_ms / 1000
    return SeenBroker(registration, broker_state(registration, is_live), at - beaten_at)
