"""The stream of `format("lakelog")`: its offsets, its rate limit, and records that it can no longer read. Spark:
`KafkaMicroBatchStream`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.partition_reader import OpenPartition
from lakelog.replication.clients.source.offset_spec import LATEST, OffsetSpec
from lakelog.replication.clients.source.partition_view import PartitionView, Registered, partition_view
from lakelog.replication.clients.source.read_plan import Bounds, PlannedRows, plan_rows
from lakelog.replication.clients.source.source_columns import arrow_schema
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.clients.source.topic_reader import records_of, topic_tasks
from lakelog.replication.clients.spark_worker import plain_errors
from lakelog.replication.errors import (
    InvalidConfigurationException,
    LakelogException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.leader_epoch import end_offset_for, epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import OffsetRange, TopicPartition
from lakelog.replication.storage.tables.group_tables import CommittedOffset

logger = logging.getLogger(__name__)

_VERSION = 1
_STORE_SECONDS = 0.5  # each poll of an object store is paid for
_WAY_OUT = "option failOnDataLoss=false warns and goes on with what is there"

Each = TypeVar("Each")
Key = TypeVar("Key")
Offset = dict[str, Any]  # a `SourceOffset` as Spark keeps it


class LastEpoch(NamedTuple):
    """The leader epoch of the last record before an offset, and the first offset that the log had of it."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True)
class SourceOffset:
    """The next offset to read of each partition, and the id of each topic: a topic made again has another id.

    `epochs`: the leader epoch of the record before the offset, where it is known, and where that epoch starts. In a log
    that an unclean election has put in the place of another, that record has another epoch (KIP-320).

    Spark does not log where a query starts. So the end of the first batch has it too, as `begun`: if that batch runs
    again, it reads the same records.
    """

    cluster_id: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False
    begun: SourceOffset | None = None
    epochs: Mapping[TopicPartition, LastEpoch] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark, which compares it as text: equal offsets give equal texts."""
        ids = dict(sorted(self.topic_ids.items()))
        more = {"initial": True} if self.is_initial else {}
        begun = {"begun": self.begun.to_json()} if self.begun else {}
        return {
            "version": _VERSION,
            "cluster_id": self.cluster_id,
            "topic_ids": ids,
            "offsets": _by_topic(self.offsets),
            **({"epochs": _by_topic({p: list(epoch) for p, epoch in self.epochs.items()})} if self.epochs else {}),
            **more,
            **begun,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], cluster_id: str) -> SourceOffset:
        """The offset in a checkpoint. Raises InvalidConfigurationException if another source or version wrote it, or it
        is of another cluster."""
        if found.get("version") != _VERSION:
            raise InvalidConfigurationException(
                f"the checkpoint has the offset {dict(found)!r}, which this version of Lakelog did not write; "
                "start the query with a new checkpointLocation"
            )
        if found["cluster_id"] != cluster_id:
            raise InvalidConfigurationException(
                f"the checkpoint is of cluster {found['cluster_id']}, the option cluster names {cluster_id}; start the "
                "query with a new checkpointLocation"
            )
        offsets = _by_partition(found["offsets"])
        epochs = {partition: LastEpoch(*each) for partition, each in _by_partition(found.get("epochs", {})).items()}
        begun = cls.from_json(found["begun"], cluster_id) if "begun" in found else None
        return cls(cluster_id, dict(found["topic_ids"]), offsets, found.get("initial", False), begun, epochs)


def _by_topic(values: Mapping[TopicPartition, Each]) -> dict[str, dict[str, Each]]:
    topics: dict[str, dict[str, Each]] = {}
    for partition in sorted(values):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return topics


def _by_partition(topics: Mapping[str, Mapping[str, Each]]) -> dict[TopicPartition, Each]:
    return {TopicPartition(topic, int(n)): value for topic, each in topics.items() for n, value in each.items()}


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is committed, each record once.

    An offset never goes back: a new leader's high watermark may be below what was read, and then nothing is new. A
    partition that is found later starts at its earliest record, which is in the next offset before any record is read.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        arrow_schema(schema, options.typed_values)
        self._options = options
        self._schema = schema
        self._view: PartitionView | None = None  # opened by Spark's process of the query, as tables cannot be pickled
        self._latest: SourceOffset | None = None
        self._target: Mapping[TopicPartition, int] | None = None  # where Trigger.AvailableNow ends
        self._access: GroupAccess | None = None
        self._last_start = float("-inf")

    def _open(self) -> PartitionView:
        self._view = self._view or partition_view(self._options)
        return self._view

    @plain_errors
    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Where a new query starts, by `startingOffsets` and the like."""
        view = self._open()
        return view.retried(lambda: self._initial(view)).to_json()

    def _initial(self, view: PartitionView) -> SourceOffset:
        registered = view.registrations(must_exist=False)
        starting = self._options.stream_starting
        led = view.led(registered)
        starts = view.offsets(starting, led) if registered else {}
        return replace(self._offset(registered, starts, led), is_initial=True)

    @plain_errors
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """How far the next micro-batch reads: as far as committed records go, within the limit."""
        view = self._open()
        begun = SourceOffset.from_json(start, view.cluster_id)
        registered, readable = view.retried(lambda: self._open_partitions(view, begun))
        lost = LostRecords(self._options.fail_on_data_loss, view, begun)
        starts = lost.starts(registered, readable)
        ends = {p: _end(starts[p], begun.offsets[p], r) for p, r in readable.items() if p in starts}
        new = {p: r.log.log_start_offset for p, r in readable.items() if p not in starts}
        self._latest = self._offset(registered, {**starts, **new, **ends}, readable, begun)
        if self._target is not None:
            self._target = lost.target(self._target, {p: r for p, r in readable.items() if p in starts})
            ends = {p: max(starts[p], min(end, self._target.get(p, 0))) for p, end in ends.items()}
        reached = {**starts, **new, **self._within_limit(starts, ends, limit)}
        ended = self._offset(registered, reached, readable, begun)
        if (ended.topic_ids, ended.offsets) == (begun.topic_ids, begun.offsets):
            self._rest(view)
            return start
        return replace(ended, begun=replace(begun, is_initial=False) if begun.is_initial else None).to_json()

    def _rest(self, view: PartitionView) -> None:
        """Waits, because Spark asks an idle query a hundred times a second."""
        cluster = view.view.cluster
        seconds = cluster.config.lakelog_poll_interval_ms / 1000
        threading.Event().wait(seconds if cluster.root.is_local else max(seconds, _STORE_SECONDS))

    def _open_partitions(
        self, view: PartitionView, begun: SourceOffset
    ) -> tuple[Registered, dict[TopicPartition, OpenPartition]]:
        """The partitions, and those of them that can be read now. The others have nothing new until they can; a query
        with Trigger.AvailableNow waits for them, since it ends when nothing is new."""
        registered = view.registrations(must_exist=False)
        if self._target is not None:
            led = view.led({partition: each for partition, each in registered.items() if partition in self._target})
            for partition, each in led.items():
                if each.high_watermark < min(self._target[partition], each.log.log_end_offset):
                    raise OffsetNotAvailableException(f"{partition}: the leader does not know yet what is committed")
            return registered, led
        found = view.nearest(registered, begun.offsets)
        if any(not isinstance(each, OpenPartition) for each in found.values()):
            view.view.cluster.refresh_brokers()
        return registered, {p: each for p, each in found.items() if isinstance(each, OpenPartition)}

    def _within_limit(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: ReadLimit
    ) -> Mapping[TopicPartition, int]:
        if isinstance(limit, ReadAllAvailable):
            return ends
        available = sum(end - starts[partition] for partition, end in ends.items())
        least = None if self._target is not None else self._options.min_offsets
        waited_ms = (time.monotonic() - self._last_start) * 1000
        if not may_start(available, least, waited_ms, self._options.max_trigger_delay_ms):
            return {}
        if available:
            self._last_start = time.monotonic()
        return limited(starts, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def _offset(
        self, registered: Registered, offsets: Mapping[TopicPartition, int],
        readable: Mapping[TopicPartition, OpenPartition], begun: SourceOffset | None = None,
    ) -> SourceOffset:  # fmt: skip
        ids = {partition.topic: registered[partition].topic_id for partition in offsets}
        found = SourceOffset(self._open().cluster_id, ids, offsets)
        return replace(found, epochs=epochs_before(found, readable, begun))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """`maxOffsetsPerTrigger`. Without it there is a limit that limits nothing if `minOffsetsPerTrigger` is set:
        Spark's own for that makes a query with Trigger.AvailableNow wait for ever."""
        most, least = self._options.max_offsets, self._options.min_offsets
        return ReadMaxRows(most or 2**63 - 1) if most or least else ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Notes what is committed now, where the query will end."""
        view, latest = self._open(), OffsetSpec(LATEST)
        self._target = view.retried(lambda: view.offsets(latest, view.led(view.registrations(must_exist=False))))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 (Spark's name)
        """The committed offsets of the last poll, for the progress of the query."""
        return self._latest.to_json() if self._latest else None

    @plain_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        view = self._open()
        begun, ended = (SourceOffset.from_json(each, view.cluster_id) for each in (start, end))
        planned = view.retried(lambda: self._planned(view, begun, ended))
        return topic_tasks(self._options, self._schema, view, planned)

    def _planned(self, view: PartitionView, begun: SourceOffset, ended: SourceOffset) -> list[PlannedRows]:
        begun = ended.begun if begun.is_initial and ended.begun else begun
        bounds = {p: OffsetRange(begun.offsets[p], stop) for p, stop in ended.offsets.items() if p in begun.offsets}
        moved = {partition: each for partition, each in bounds.items() if each.start < each.stop}
        if not moved:
            return []
        registered = view.registrations(must_exist=False)
        kept = LostRecords(self._options.fail_on_data_loss, view, begun, ended).bounds(registered, moved)
        return plan_rows(view, registered, kept)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return records_of(partition, self._options, self._schema)

    @plain_errors
    def commit(self, end: Offset) -> None:
        """Commits the offsets of a micro-batch to the consumer group, if the query has one."""
        if self._options.group is None:
            return
        view = self._open()
        done = SourceOffset.from_json(end, view.cluster_id)
        cluster = view.view.cluster
        self._access = self._access or GroupAccess(cluster, self._options.group)
        rows = [
            CommittedOffset(self._options.group, p.topic, done.topic_ids[p.topic], p.partition, offset)
            for p, offset in done.offsets.items()
        ]
        self._access.commit(rows, time.monotonic() + cluster.config.request_timeout_ms / 1000)


def _end(start: int, begun: int, readable: OpenPartition) -> int:
    """The end offset of a micro-batch. After an offset reset the batch is empty: Spark continues from the new start."""
    return start if start < begun else max(start, readable.high_watermark)


def limited(start: Mapping[Key, int], end: Mapping[Key, int], most: int) -> dict[Key, int]:
    """The end offsets of a micro-batch of at most `most` records, which partitions share in proportion to what they
    have. Each start and end is of the same partition."""
    sizes = {key: max(0, end[key] - start[key]) for key in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = {key: divmod(size * most, total) for key, size in sizes.items()}
    left = most - sum(share for share, _ in shares.values())
    # Partitions without a whole record come first, and then the largest remainders: a large one starves no other.
    first = sorted(shares, key=lambda key: (shares[key][0] == 0 and sizes[key] > 0, shares[key][1]), reverse=True)
    rounded_up = set(first[:left])
    return {key: start[key] + share + (key in rounded_up) for key, (share, _) in shares.items()}


def may_start(available: int, least: int | None, waited_ms: float, max_delay_ms: int) -> bool:
    """Whether a micro-batch starts: there are `least` records, or any and it has waited long enough."""
    return least is None or available >= least or waited_ms >= max_delay_ms


class LostRecords:
    """Finds what is lost since an offset: it fails the query, or warns and goes on with what is there. A later leader
    may have what the one that is read lacks, so nothing is lost as long as the metadata may be older than they are. All
    methods raise KafkaStorageException then."""

    def __init__(
        self, fails: bool, view: PartitionView, begun: SourceOffset, ended: SourceOffset | None = None
    ) -> None:  # fmt: skip
        self._fails = fails
        self._view = view
        self._begun = begun
        self._ended = ended

    def starts(
        self, registered: Registered, readable: Mapping[TopicPartition, OpenPartition]
    ) -> dict[TopicPartition, int]:
        """Where the next micro-batch starts, for each partition that goes on. Raises OffsetOutOfRangeException for a
        topic that is deleted or made again, and for records that are deleted, unless the query goes on without them."""
        return {
            partition: self._kept(self._begun, partition, readable[partition]) if partition in readable else offset
            for partition, offset in self._begun.offsets.items()
            if self._is_same_topic(partition, registered)
        }

    def target(
        self, target: Mapping[TopicPartition, int], readable: Mapping[TopicPartition, OpenPartition]
    ) -> dict[TopicPartition, int]:
        """Where a query ends that reads what was committed up to the `target`. Raises as `starts`."""
        left = dict(target)
        for partition, offset in target.items():
            end = readable[partition].log.log_end_offset if partition in readable else offset
            if end < offset:
                self._report(f"{partition}: an unclean election has removed records {end} to {offset - 1}")
                left[partition] = end
        return left

    def bounds(self, registered: Registered, wanted: Bounds) -> Bounds:
        """The bounds of a micro-batch, without records that are lost. Raises as `starts`."""
        kept = {partition: each for partition, each in wanted.items() if self._is_same_topic(partition, registered)}
        for partition, readable in self._view.led({p: registered[p] for p in kept}).items():
            start = self._kept(self._begun, partition, readable)
            stop = max(start, self._kept(self._ended or self._begun, partition, readable))
            kept[partition] = OffsetRange(start, stop)
        return kept

    def _kept(self, known: SourceOffset, partition: TopicPartition, readable: OpenPartition) -> int:
        """The offset of a partition, or the nearest one at which its log goes on."""
        offset, log = known.offsets[partition], readable.log
        first, end = log.log_start_offset, log.log_end_offset
        if first > offset:
            self._report(f"{partition}: records {offset} to {first - 1} are deleted, the log starts at {first}", True)
            return first
        common = _common_end(log, offset, known.epochs.get(partition))
        if common < offset:  # after a clean election the new leader has all that was committed
            lost = "removed" if end < offset else "replaced"
            self._report(f"{partition}: an unclean election has {lost} records {common} to {offset - 1}")
        return max(first, common)

    def _is_same_topic(self, partition: TopicPartition, registered: Registered) -> bool:
        known, found = self._begun.topic_ids[partition.topic], registered.get(partition)
        if found is None:
            self._report(f"{partition}: the topic with id {known} is deleted")
        elif found.topic_id != known:
            self._report(f"{partition}: the topic was made again: it had id {known} and has {found.topic_id}")
        return found is not None and found.topic_id == known

    def _report(self, lost: str, is_committed: bool = False) -> None:
        """`is_committed`: that it is lost is committed, so no later leader has it."""
        if not is_committed:
            self._view.view.cluster.check_current()
        if self._fails:
            raise OffsetOutOfRangeException(f"{lost}; {_WAY_OUT}")
        logger.warning("%s", lost)


def epochs_before(
    known: SourceOffset, readable: Mapping[TopicPartition, OpenPartition], begun: SourceOffset | None
) -> dict[TopicPartition, LastEpoch]:
    """The leader epoch of the record before each offset that is `known`. It stays that of the offset `begun` where that
    is the same: a partition may be unreadable for a while, or have no record left."""
    found = {}
    for partition, offset in known.offsets.items():
        kept = begun.epochs.get(partition) if begun and _is_same(known, begun, partition) else None
        if kept is None and partition in readable:
            kept = _last_epoch(readable[partition].log, offset)
        if kept is not None:
            found[partition] = kept
    return found


def _is_same(one: SourceOffset, other: SourceOffset, partition: TopicPartition) -> bool:
    topic, offset = one.topic_ids[partition.topic], one.offsets[partition]
    return (topic, offset) == (other.topic_ids.get(partition.topic), other.offsets.get(partition))


def _last_epoch(log: PartitionLog, offset: int) -> LastEpoch | None:
    """The epoch of the record before the offset; None if the log does not have that record any more."""
    entries = [entry for entry in log.lineage if log.log_start_offset <= entry.start_offset < offset]
    return LastEpoch(*entries[-1][:2]) if entries else None


def _common_end(log: PartitionLog, offset: int, last: LastEpoch | None) -> int:
    """Up to where the log has the records before the offset, if the last of them are of this epoch.

    A log without that epoch may have records of older ones there: those that only an earlier leader had.

    Kafka: `SubscriptionState.maybeCompleteValidation`. KIP-320; KIP-279 for a log without the epoch.
    """
    common = min(offset, log.log_end_offset)
    if last is None or offset <= log.log_start_offset or epoch_at(log.lineage, common - 1) == last.leader_epoch:
        return common
    known, end = end_offset_for(log.lineage, log.log_end_offset, last.leader_epoch)
    common = min(common, end) if end >= 0 else common
    return common if known == last.leader_epoch else min(common, last.start_offset)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Refuses a stream whose options or columns are wrong: raises the error that names the option or the column,
    whatever Spark asks first."""

    def __init__(self, error: LakelogException) -> None:
        self._error = error

    @plain_errors
    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = _refuse  # noqa: N815 (Spark's names)
    prepareForTriggerAvailableNow = partitions = read = _refuse  # noqa: N815 (Spark's names)
