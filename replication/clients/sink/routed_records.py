"""Gives each record of a task its topic and partition, on an executor. Spark: `KafkaRowWriter`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.records import partitions_of, random_partition, split, to_records
from lakelog.replication.clients.sink.sink_options import COLUMNS, ROUTED
from lakelog.replication.errors import InvalidRecordException
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.replication.storage.log.new_batches import ArrowRecords

_CHUNK_BYTES = 32 * 1024 * 1024
LARGE_BYTES = 256 * 1024  # tasks encode a partition with this many; each batch costs a header and row groups of its own


def routed_chunks(
    batches: Iterable[pa.RecordBatch], topic: str | None, partitions: Callable[[str], int]
) -> Iterator[pa.Table]:
    """The records in chunks of about 32 MB, with the columns of `ROUTED`. `topic`: that of all records, or None.
    `partitions`: the number of partitions of a topic.

    Records without a key go to one partition a task and topic. Raises InvalidRecordException for a record without a
    topic, InvalidPartitionsException, InvalidTopicException, and what `partitions` raises.
    """
    route = _Router(topic, partitions)
    waiting: list[pa.Table] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(route(pa.Table.from_batches([batch])))
            size += waiting[-1].nbytes
        if size >= _CHUNK_BYTES:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def by_topic(records: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The records of each topic in their order, without the column topic."""
    for topic in sorted(pc.unique(records["topic"]).to_pylist()):
        yield topic, records.filter(pc.equal(records["topic"], topic)).drop_columns(["topic"])


def large_and_small(records: pa.Table) -> tuple[list[tuple[str, int, pa.Table]], pa.Table]:
    """The records of each partition of a topic that has at least `LARGE_BYTES`, in batches of at most 32 MB, and those
    of all others. Those of a partition keep their order."""
    large, small = list[tuple[str, int, pa.Table]](), [records.slice(0, 0)]
    for topic, ours in by_topic(records):
        for partition, part in split(ours, ours["partition"]).items():
            if part.nbytes >= LARGE_BYTES:
                batches = ArrowRecords(part.drop_columns(["partition"])).batches(0, _CHUNK_BYTES)
                large += ((topic, partition, batch.table) for batch in batches)
            else:
                small.append(part.add_column(0, "topic", pa.repeat(topic, part.num_rows)).select(ROUTED.names))
    return large, pa.concat_tables(small)


class _Router:
    def __init__(self, topic: str | None, partitions: Callable[[str], int]) -> None:
        self._topic = topic
        self._partitions = partitions
        self._sticky: dict[str, int] = {}

    def __call__(self, table: pa.Table) -> pa.Table:
        if self._topic is not None:
            return self._routed(table, self._topic)
        topics = table["topic"]
        if topics.null_count:
            raise InvalidRecordException("a record has no topic: column topic is null, and option topic is not set")
        names = sorted(pc.unique(topics).to_pylist())
        return pa.concat_tables(self._routed(table.filter(pc.equal(topics, name)), name) for name in names)

    def _routed(self, table: pa.Table, topic: str) -> pa.Table:
        check_not_internal(topic, "a sink")
        known = table.select([name for name in COLUMNS if name in table.column_names and name != "topic"])
        records = to_records(known, topic=topic)
        count = self._partitions(topic)
        sticky = self._sticky.setdefault(topic, random_partition(count))
        numbers = partitions_of(known, records, topic, count, sticky)
        columns = {"topic": pa.repeat(topic, table.num_rows), "partition": numbers}
        return pa.table({**columns, **{name: records[name] for name in records.column_names}}).cast(ROUTED)
