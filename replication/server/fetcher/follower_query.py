"""A follower's streaming query: its session, its source, and the plan that Spark makes of a micro-batch. [FT-01, FT-05]

The rows of the source are batch headers. A source in Python would be a process beside the JVM for each query. Six of
them that start together on two cores do not start within Spark's limit of 10 s. So the source is in the JVM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.frames.fetch_plan import FetchAction, fetch_plan
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.partition_registration import PartitionRegistration, Registrations
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.server.executors import is_local, while_there_are_executors
from lakelog.replication.server.spark_check import check_spark
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import BATCH_HEADERS, FETCH_STATES, METADATA

R = TypeVar("R")

MOST_ROWS = 5_000  # of a micro-batch; rounds append further batches without a plan
_KEY = ("topic_id", "partition", "base_offset", "segment")
_TAKEN = (FetchAction.APPEND, FetchAction.GAP, FetchAction.DIVERGED)  # rounds handle gaps and divergences

# A micro-batch has few rows or none. Generated code, adaptive planning and several tasks would only add to
# it: they are off, in a session of the broker's own, and the user's session stays as it is. A query looks for the next
# micro-batch only between two.
_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.metadataCache.enabled": "true",  # without it Spark writes no checkpoints in the background
    "spark.sql.streaming.pollingDelay": "10ms",
}

# Spark writes the query's offsets now and then and waits for none. It allows that only for sinks that need no exact
# offsets, which it knows by their names. This one needs none at all: a start begins with a new checkpoint.
CHECKPOINTS_IN_THE_BACKGROUND = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "10000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}

_ASSIGNMENT = ("topic_id", "partition", "replicas", "leader", "leader_epoch")
METADATA_COLUMNS = pa.schema([METADATA.arrow.field(name) for name in _ASSIGNMENT])


def follower_session(spark: SparkSession) -> SparkSession:
    """A new session for small micro-batches; the given session stays as it is.

    Raises InvalidConfigurationException if the given session cannot run a broker.
    """
    check_spark(spark)
    session = spark.newSession()
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session


class BatchKey(NamedTuple):
    """Names a batch in a leader's log."""

    topic_id: str
    partition: int
    base_offset: int
    segment: str


def batch_key(batch: FetchedBatch) -> BatchKey:
    """The key of a batch."""
    return BatchKey(*batch.topic_id_partition, batch.base_offset, batch.segment)


class StreamPlan(NamedTuple):
    """Spark's plan for the rows of a micro-batch. Rounds decide again, because the logs may have moved since.

    `chosen`: the batches that continue the follower's logs, or show a gap or a divergence. `left_out`: the
    partitions that could not be fetched.
    """

    chosen: frozenset[BatchKey]
    left_out: frozenset[TopicIdPartition]


class HeaderStream:
    """A streaming source with the columns of `BATCH_HEADERS`: Spark's `MemoryStream`, which each call of `add` makes
    into a micro-batch, after the one that is under way. The query's progress has sums of its rows as `appended` and
    `behind`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._jvm = spark, cast(Any, spark.sparkContext._jvm)
        source = self._jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._source = source.apply(spark._jsparkSession, self._jvm.org.apache.spark.sql.Encoders.STRING())

    def frame(self) -> DataFrame:
        """The stream."""
        lines = DataFrame(self._source.toDF(), self._spark)
        rows = lines.select(F.from_json("value", BATCH_HEADERS.types).alias("header")).select("header.*")
        for name, condition in (("behind", F.col("is_behind")), ("appended", ~F.col("is_behind"))):
            sums = {"batches": F.lit(1), "records": F.expr("last_offset + 1 - base_offset"), "bytes": F.col("bytes")}
            observed = [F.coalesce(F.sum(F.when(condition, v)), F.lit(0)).alias(n) for n, v in sums.items()]
            rows = rows.observe(name, *observed)
        return rows

    def add(self, appended: Collection[FetchedBatch] = (), behind: Collection[FetchedBatch] = ()) -> None:
        """Adds the rows of the next micro-batch: batches that the follower has appended since the last one, and those
        that it lacks. Without a batch it has no rows."""
        lines = [_line(batch, False) for batch in appended] + [_line(batch, True) for batch in behind]
        # One call for all lines: a call for each would take longer than to fetch them.
        text = self._jvm.org.apache.commons.lang3.StringUtils.split("\n".join(lines), "\n")
        self._source.addData(self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(text))


def _line(batch: FetchedBatch, is_behind: bool) -> str:
    values = (
        *batch.topic_id_partition, batch.base_offset, batch.last_offset, batch.leader_epoch, batch.segment,
        batch.segment_bytes, batch.bytes, batch.previous, batch.chain, is_behind,
    )  # fmt: skip
    return json.dumps(dict(zip(BATCH_HEADERS.names, values, strict=True)))


def planned(
    spark: SparkSession, headers: DataFrame, metadata: Registrations,
    states: Mapping[TopicIdPartition, PartitionFetchState], log_ends: Mapping[TopicIdPartition, LogEnd],
    broker_id: int, leader: int,
) -> StreamPlan:  # fmt: skip
    """The plan that Spark makes of the rows of a micro-batch, see `fetch_plan`.

    `metadata` are the rows of that table which the broker has read last. A newer version, of which its roles do not
    know yet, would fence what it still fetches. Raises ExecutorsFailed.
    """
    assigned = _frame(spark, METADATA_COLUMNS, [_assignment(registration) for registration in metadata.values()])
    fetched = _frame(spark, FETCH_STATES.arrow, [_state(p, state, log_ends[p]) for p, state in states.items()])
    actions = fetch_plan(headers.where("is_behind"), assigned, fetched, broker_id, leader)
    by_action: dict[str, set[BatchKey]] = {}
    wanted = actions.where(F.col("action") != FetchAction.SKIP).select(*_KEY, "action")
    for row in _of_job(spark, wanted.toArrow).to_pylist():
        by_action.setdefault(row.pop("action"), set()).add(BatchKey(**row))
    chosen = frozenset(key for action in _TAKEN for key in by_action.pop(action, ()))
    left_out = {TopicIdPartition(key.topic_id, key.partition) for keys in by_action.values() for key in keys}
    return StreamPlan(chosen, frozenset(left_out))


def read_rows(spark: SparkSession, headers: DataFrame) -> None:
    """Reads the rows of a micro-batch of which none is behind, so that its progress has them. Raises
    ExecutorsFailed."""
    _of_job(spark, headers.write.format("noop").mode("overwrite").save)  # cheaper than to count them


def _of_job(spark: SparkSession, run: Callable[[], R]) -> R:
    return run() if is_local(spark) else while_there_are_executors(spark, run)


def _assignment(registration: PartitionRegistration) -> dict[str, Any]:
    return {name: getattr(registration, name) for name in _ASSIGNMENT}


def _state(partition: TopicIdPartition, state: PartitionFetchState, end: LogEnd) -> dict[str, Any]:
    values = (*partition, state.leader_epoch, state.shown_state, end.offset, end.chain)
    return dict(zip(FETCH_STATES.names, values, strict=True))


def _frame(spark: SparkSession, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema))


class FollowerQuery:
    """The query called `name`, one start after another. Each micro-batch calls `process`.
    `folder` is for its files, on this machine's disk, also if the cluster has another file system by
    default, such as HDFS.
    """

    def __init__(
        self, spark: SparkSession, name: str, folder: StorageRoot, process: Callable[[DataFrame, int], None]
    ) -> None:  # fmt: skip
        self._spark, self._name, self._folder = spark, name, folder
        self._process = process
        self._stream: HeaderStream | None = None
        self.appended: Sequence[FetchedBatch] = ()  # of the micro-batch that was added last
        self.behind: Sequence[FetchedBatch] = ()

    def start(self) -> StreamingQuery:
        """Starts the query with a new source and checkpoint, and deletes the older ones. Its first micro-batch begins
        at once, without rows.

        An older fetcher's query of that name may still run, while its micro-batch hangs in a store. Then Spark refuses
        this one, and the older one keeps its checkpoint.
        """
        name = uuid.uuid4().hex
        folder = self._folder.child(name)
        folder.create_folder()
        self._stream = HeaderStream(self._spark)
        self.go_on()
        writer = self._stream.frame().writeStream.queryName(self._name).foreachBatch(self._process)
        writer = writer.option("checkpointLocation", f"file://{folder.path('checkpoint')}")
        try:
            query = writer.options(**CHECKPOINTS_IN_THE_BACKGROUND).start()
        except Exception:  # Spark's
            folder.delete_folder()
            raise
        for older in self._folder.list():
            if older != name:
                with suppress(KafkaStorageException):  # the next start tries again
                    self._folder.child(older).delete_folder()
        return query

    def go_on(self, appended: Sequence[FetchedBatch] = (), behind: Sequence[FetchedBatch] = ()) -> None:
        """Another micro-batch follows the one that is under way, with these rows; `MOST_ROWS` of them at most."""
        self.behind = behind[:MOST_ROWS]
        self.appended = appended[: MOST_ROWS - len(self.behind)]
        if self._stream is not None:
            self._stream.add(self.appended, self.behind)
