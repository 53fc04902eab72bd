"""The writers of `format("lakelog")`, in batch and streaming. Spark: `KafkaBatchWrite`, `KafkaStreamingWrite`."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.record_limit import RefusedRecord, refused_records
from lakelog.replication.clients.sink.batch_commit import SinkSender, commit_batch, groups_of, staged_records
from lakelog.replication.clients.sink.routed_records import routed_chunks
from lakelog.replication.clients.sink.sink_options import SinkOptions
from lakelog.replication.clients.sink.sink_stage import SinkStage, free_unused_stages
from lakelog.replication.clients.sink.stage_copies import StageCopies
from lakelog.replication.clients.spark_worker import plain_errors
from lakelog.replication.clients.topic_view import TopicView, open_view
from lakelog.replication.errors import IllegalStateException, LakelogException
from lakelog.replication.storage.staged_batch import Part, stages_of

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark sets them for the tasks of a batch
_TIMEOUT_MS = 120_000
_BATCHES = 1000  # from one clean-up after other queries to the next, in batches; the first one is with the first batch

logger = logging.getLogger(__name__)


@dataclass
class TaskRecords(WriterCommitMessage):
    """The records that a task has put on the stage of its query. `refused`: those that the topic does not take, as far
    as the task knew. The driver decides: a batch that is staged was taken before."""

    query_id: str | None
    parts: list[Part]
    refused: list[RefusedRecord] = field(default_factory=list)


def _stage(view: TopicView, name: str, copies: StageCopies | None = None) -> SinkStage:
    return SinkStage(stages_of(view.cluster.root, view.cluster.generation).child(name), copies)


def _write(
    options: SinkOptions, name: str, query_id: str | None, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> TaskRecords:  # fmt: skip
    """Stages the records of a task. If the task fails, deletes them."""
    view, found = open_view(options.cluster, options.config), TaskRecords(query_id, [])
    stage = _stage(view, name)
    try:
        for chunk in routed_chunks(batches, options.topic, lambda topic: len(view.partitions(topic))):
            found.refused += refused_records(chunk, view.record_limit)
            found.parts += stage.put_parts(batch_id, chunk)
    except BaseException:
        stage.delete_parts(found.parts)
        raise
    return found


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [part for message in messages if isinstance(message, TaskRecords) for part in message.parts]


def _check_refused(view: TopicView, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raises RecordTooLargeException or InvalidRecordException for a record that its topic still does not take."""
    for refused in (each for message in messages if isinstance(message, TaskRecords) for each in message.refused):
        view.partitions(refused.topic)
        refused.check(view.record_limit(refused.topic))


class TopicWriter(DataSourceArrowWriter):
    """Appends the records of a batch query: all of them, or some if it fails, as Spark's Kafka sink."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name = f"write-{uuid.uuid4().hex}"

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the records of a task."""
        return _write(self._options, self._name, None, 0, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sends all records. Raises the error of the first partition that has one, and RecordTooLargeException before
        any is sent."""
        view = open_view(self._options.cluster, self._options.config)
        stage = _stage(view, self._name)
        try:
            _check_refused(view, messages)
            with Producer(self._options.cluster, self._options.acks, config=self._options.config) as producer:
                for group in groups_of(_parts(messages)):
                    for topic, ours in staged_records(stage, group):
                        raise_first_error(producer.send(topic, ours, _TIMEOUT_MS))
        finally:
            stage.delete()

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes what the tasks have staged."""
        _stage(open_view(self._options.cluster, self._options.config), self._name).delete()


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query exactly once, however often Spark runs it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the records of a task. Raises IllegalStateException if Spark does not pass the query's id."""
        context = TaskContext.get()
        query_id, batch_id = (context.getLocalProperty(name) if context else None for name in (_QUERY_ID, _BATCH_ID))
        if query_id is None or batch_id is None:
            raise IllegalStateException(
                f"Spark does not tell a task its query and batch ({_QUERY_ID}, {_BATCH_ID}): a batch that "
                "runs again would be written twice"
            )
        return _write(self._options, query_id, query_id, int(batch_id), iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Commits the batch. Raises what `commit_batch` and `SinkSender` raise; Spark then runs it again."""
        query_id = _query_id(messages)
        if query_id is None:  # no task, so no record
            return
        view = open_view(self._options.cluster, self._options.config)
        copies = StageCopies(view.cluster, query_id)
        stage = _stage(view, query_id, copies)
        logs = SinkSender(view, stage, query_id, _TIMEOUT_MS)
        commit_batch(stage, batchId, _parts(messages), logs, lambda: _check_refused(view, messages))
        if batchId % _BATCHES == 0:
            _free_unused(view, query_id, copies)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Leaves the parts until a batch of that id is committed: Spark also calls this after a commit that failed, and
        then the batch may be staged."""


def _free_unused(view: TopicView, query_id: str, copies: StageCopies) -> None:
    """Frees what other queries have left. The batch is committed, so an error is only logged."""
    seconds = view.cluster.config.transactional_id_expiration_ms / 1000
    copies.clean(lambda stages: free_unused_stages(stages, query_id, seconds))
    try:
        free_unused_stages(stages_of(view.cluster.root, view.cluster.generation), query_id, seconds)
    except LakelogException as error:
        logger.warning("the stages of queries that no longer run stay for now: %s", error)


def _query_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((message.query_id for message in messages if isinstance(message, TaskRecords)), None)
