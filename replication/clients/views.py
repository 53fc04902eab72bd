"""Shows the state of a cluster as temporary views of a Spark session, for SQL."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.replication.clients.arguments import spark_session_of, text
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException, InvalidRequestException, LakelogException
from lakelog.replication.frames.cluster_state import (
    broker_registrations,
    brokers_view,
    consumer_groups_view,
    controller_view,
    isr_history_view,
    lag_view,
    leader_epochs_view,
    log_files_view,
    partitions_view,
    replicas_view,
    topics_view,
)
from lakelog.replication.frames.expressions import described
from lakelog.replication.properties import is_utf8
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.readings.cluster_reading import ClusterReading, table_loader
from lakelog.schemas.views import VIEWS

logger = logging.getLogger(__name__)

_EARLIEST = dt.datetime.min.replace(tzinfo=dt.UTC).timestamp()
_PREFIX = re.compile(r"[A-Za-z0-9_]*")  # with which a name of SQL can begin


class HasClusterUri(Protocol):
    """A cluster that knows where its root is, such as a LocalCluster."""

    cluster_uri: str


def register_views(
    spark: SparkSession,
    cluster: str | HasClusterUri,
    as_of: str | dt.datetime | None = None,
    prefix: str = "",
    config: Config | None = None,
) -> dict[str, str]:
    """Makes the temporary views `partitions`, `replicas`, `brokers`, `events`, `isr_history`, `leader_epochs`,
    `lag`, `consumer_groups`, `topics`, `log_files` and `controller` of a cluster. `docs/views.md` describes them.

    `cluster`: the URI of its root, or a LocalCluster. Each query reads the tables again, so it shows the present state.
    `as_of`: the views show the cluster as it was then. A text is a timestamp in the session's time zone, as for Delta's
    TIMESTAMP AS OF; a datetime without a time zone is in UTC. `prefix`: begins the name of each view, so that views of
    several times stand side by side.

    Returns the views that were left out because a table has no history back to `as_of`, and why; also logged as a
    warning. A view of that name is dropped then. Columns of other tables without such a history are null.

    Raises InvalidRequestException (an argument of a wrong type, or a `prefix` with other signs than letters, digits and
    _), InvalidConfigurationException (an `as_of` that is no time, or is not over yet),
    InconsistentClusterIdException (no cluster is there) and KafkaStorageException (its root cannot be read). A broker
    whose root cannot be read is no error: `brokers.root_error` has the reason.
    """
    spark_session_of(spark)
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidRequestException(f"prefix is {prefix!r:.80}: give ASCII letters, digits and _")
    config, seconds = Config.of(config), _seconds(spark, as_of)
    uri = cluster if isinstance(cluster, str) else text(getattr(cluster, "cluster_uri", cluster), "cluster")
    opened = Cluster.open(uri, config)
    reading = ClusterReading(opened.root.uri, config, seconds)
    left_out = _left_out(reading) if as_of is not None else {}
    frames = _frames(table_loader(spark, reading), opened.config) if len(left_out) < len(VIEWS) else {}
    for name in VIEWS:
        if name in left_out:
            spark.catalog.dropTempView(prefix + name)
            logger.warning("there is no view %s%s: %s", prefix, name, left_out[name])
        else:
            frames[name].createOrReplaceTempView(prefix + name)
    return {prefix + name: why for name, why in left_out.items()}


def _frames(load: Callable[[str], DataFrame], config: Config) -> Mapping[str, DataFrame]:
    least, session = config.min_insync_replicas, config.broker_session_timeout_ms
    metadata, topics, replicas, groups = (load(name) for name in ("metadata", "topics", "replicas", "groups"))
    changes, batches = load("metadata_changes"), load("batches")
    registered = broker_registrations(load("brokers"), session)
    partitions = partitions_view(metadata, topics, replicas, least)
    replica_states = replicas_view(metadata, replicas, registered)
    topic_states = topics_view(topics, partitions, replicas, registered, least)
    return {
        "partitions": partitions,
        "replicas": replica_states,
        "brokers": brokers_view(registered, partitions, replica_states),
        "events": described(load("events"), VIEWS["events"]),
        "isr_history": isr_history_view(changes),
        "leader_epochs": leader_epochs_view(changes, replicas),
        "lag": lag_view(metadata, replicas, groups, batches),
        "consumer_groups": consumer_groups_view(groups, metadata, replicas),
        "topics": topic_states,
        "log_files": log_files_view(batches),
        "controller": controller_view(
            load("controller"),
            load("admin"),
            topic_states,
            partitions,
            registered,
            config.controller_session_timeout_ms,
        ),
    }


def _seconds(spark: SparkSession, as_of: str | dt.datetime | None) -> float | None:
    """A time in seconds since the epoch. Raises InvalidConfigurationException."""
    if as_of is None:
        return None
    if isinstance(as_of, dt.datetime):
        zoned = as_of.replace(tzinfo=dt.UTC) if as_of.tzinfo is None else as_of
        seconds: float | None = zoned.timestamp()
    elif not isinstance(as_of, str) or not is_utf8(as_of):
        seconds = None
    else:
        at = F.unix_micros(F.lit(as_of).try_cast("timestamp_ltz"))
        (row,) = spark.sql("SELECT 0 FROM VALUES (0)").select(at.alias("at")).collect()  # needs no job of Spark
        seconds = None if row["at"] is None else row["at"] / 1e6
    if seconds is None or not seconds >= _EARLIEST:
        raise InvalidConfigurationException(
            f"as_of={as_of!r} is no timestamp; allowed: 2026-11-24 12:03:00, a datetime"
        )
    if seconds > dt.datetime.now().timestamp():
        raise InvalidConfigurationException(f"as_of={as_of!r} is in the future: the views show what was")
    return seconds


def _left_out(reading: ClusterReading) -> dict[str, str]:
    """The views that need a table without history, and why."""
    errors = {}
    for table in {table for view in VIEWS.values() for table in view.needs}:
        try:
            reading.check(table)
        except LakelogException as error:
            errors[table] = str(error)
    return {
        view.name: next(errors[table] for table in view.needs if table in errors)
        for view in VIEWS.values()
        if errors.keys() & set(view.needs)
    }
