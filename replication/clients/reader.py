"""Reads committed records as a DataFrame, like Spark's Kafka source in batch mode. [FE-01]"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.clients.arguments import spark_session_of, text
from lakelog.replication.clients.delayed_operation import until_available
from lakelog.replication.clients.open_views import forget_view, open_view
from lakelog.replication.clients.segment_records import LogRead, committed_segments
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidPartitionsException,
    InvalidRequestException,
    LakelogException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads, check_offset_available
from lakelog.replication.protocol.partition_leader import Leadership, no_leader
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.segment import size_fault

# "earliest", "latest", or an offset for each partition, as in Spark's Kafka source.
Offsets: TypeAlias = str | Mapping[int, int]
EARLIEST, LATEST = "earliest", "latest"


def read_committed(
    spark: SparkSession,
    cluster_uri: str,
    topic: str,
    starting: Offsets = EARLIEST,
    ending: Offsets = LATEST,
    config: Config | None = None,
) -> DataFrame:
    """A DataFrame of a topic's committed records, with the columns of Spark's Kafka source, `leader_epoch` and
    `topic_id`.

    Committed records are those below the high watermark at the time of the call. `starting` and `ending` (excluded) are
    "earliest", "latest" (the HW) or an offset for each partition: `{0: 100, 1: 250}`. A partition that is not in the
    mapping is read from its log start, or up to its HW. Spark reads the data files of local logs, and pyarrow those in
    an object store, so neither needs a jar.

    Raises InvalidRequestException (an argument of a wrong type), UnknownTopicOrPartitionException,
    InvalidPartitionsException (no such partition),
    LeaderNotAvailableException, NotLeaderOrFollowerException (a leader changed meanwhile), OffsetOutOfRangeException,
    CorruptRecordException (a data file is missing or short), KafkaStorageException, InconsistentClusterIdException (an
    emptied root), BrokerNotAvailableException, and OffsetNotAvailableException (a new leader does not know its HW
    within `request.timeout.ms`, KIP-207).
    """
    spark_session_of(spark)
    for name, given in (("starting", starting), ("ending", ending)):
        _check_offsets(given, name)
    view = open_view(text(cluster_uri, "cluster_uri"), Config.of(config))
    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    poll_interval_ms = view.cluster.config.lakelog_poll_interval_ms
    try:
        return until_available(lambda: _read(spark, view, topic, starting, ending), deadline, poll_interval_ms)
    except LakelogException:
        forget_view(view)
        raise


def _read(spark: SparkSession, view: TopicView, topic: str, starting: Offsets, ending: Offsets) -> DataFrame:
    partitions = view.partitions(topic)
    _check_partitions(topic, partitions, starting, ending)
    by_leader: dict[int, list[PartitionRegistration]] = {}
    for registration in partitions.values():
        by_leader.setdefault(registration.leader, []).append(registration)
    reads = [_read_leader(view, leader, led, starting, ending) for leader, led in sorted(by_leader.items())]
    return committed_segments(spark, reads)


def _check_offsets(given: object, name: str) -> None:
    by_number = given if isinstance(given, Mapping) else {}
    is_right = isinstance(given, Mapping) or _is_word(given)
    if not is_right or not all(type(n) is int and (type(o) is int or _is_word(o)) for n, o in by_number.items()):
        raise InvalidRequestException(
            f"{name} is {given!r:.80}: give earliest, latest, or a dict with the offset of each partition, such as "
            "{0: 100}"
        )


def _is_word(offset: object) -> bool:
    return isinstance(offset, str) and offset in (EARLIEST, LATEST)


def _check_partitions(topic: str, partitions: Mapping[int, object], *offsets: Offsets) -> None:
    for given in offsets:
        unknown = [] if isinstance(given, str) else sorted(set(given) - set(partitions))
        if unknown:
            raise InvalidPartitionsException(
                f"topic {topic} has no partition {unknown[0]}, it has 0 to {max(partitions)}"
            )


def _read_leader(
    view: TopicView, leader: int, led: list[PartitionRegistration], starting: Offsets, ending: Offsets
) -> LogRead:
    """Reads the HW first, then the log, so that the log has all records below the HW if the broker still leads."""
    if leader == NO_LEADER:
        raise no_leader(led[0])
    rows = view.replicas(leader)
    log = view.log(leader)
    state = log.refresh()
    bounds: dict[TopicIdPartition, tuple[int, int]] = {}
    for registration in led:
        row = Leadership(registration, rows.get(registration.topic_id_partition)).available_row()
        partition_log = state.partition(registration.topic_id_partition)
        check_log_leads(partition_log, row, registration.name)
        start, stop = _bounds(registration, row, partition_log, starting, ending)
        _check_files(log.root, state, partition_log, start, stop)
        bounds[registration.topic_id_partition] = start, stop
    return LogRead(log.root, state, bounds)


def _bounds(
    registration: PartitionRegistration, row: Replica, log: PartitionLog, starting: Offsets, ending: Offsets
) -> tuple[int, int]:
    name = registration.name
    chosen = [
        _chosen(given, registration.partition, default) for given, default in ((starting, EARLIEST), (ending, LATEST))
    ]
    start, stop = (_offset(choice, log, row.high_watermark, name) for choice in chosen)
    for offset in (start, stop):
        if not log.log_start_offset <= offset <= row.high_watermark:
            raise OffsetOutOfRangeException(
                f"{name}: offset {offset} is out of range, committed: {log.log_start_offset} to {row.high_watermark}"
            )
    return start, stop


def _chosen(given: Offsets, partition: int, default: str) -> int | str:
    return given if isinstance(given, str) else given.get(partition, default)


def _offset(chosen: int | str, log: PartitionLog, high_watermark: int, name: str) -> int:
    if chosen == EARLIEST:
        return log.log_start_offset
    number = chosen if isinstance(chosen, int) else None
    check_offset_available(number, high_watermark, log.epoch_start, name)
    return high_watermark if number is None else number


def _check_files(root: StorageRoot, state: LogState, partition_log: PartitionLog, start: int, stop: int) -> None:
    """Raises CorruptRecordException, naming the file, for a missing or short file. Spark would raise a stack trace."""
    names = list(dict.fromkeys(batch.segment for batch in partition_log.batches_between(start, stop)))
    for name, size in zip(names, root.sizes(names), strict=True):
        fault = size_fault(root, state.segments[name].file, size)
        if fault:
            raise CorruptRecordException(fault)
