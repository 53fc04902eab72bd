"""Which records a topic takes: none that is too large, with `cleanup.policy=compact` none without a key, and with
`value.schema.validation=true` none whose value does not fit. Kafka: `UnifiedLog.analyzeAndValidateRecords`,
`max.message.bytes`; `LogValidator.validateKey`. Confluent: `confluent.value.schema.validation`. [AP-06, LC-01]

Kafka limits a batch, which small records share. Here a batch may be a whole table, so each record is measured: its key,
value and headers, before they are compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.value_decoder import misfit_of
from lakelog.replication.errors import InvalidRecordException, RecordTooLargeException
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.value_schema import SCHEMA, VALIDATION
from lakelog.replication.protocol.value_type import FieldsType
from lakelog.replication.storage.log.segment import record_bytes


class RecordLimit:
    """The largest record that a topic takes, in bytes. `by_broker`: of brokers that have another limit than `limit`;
    it holds for the partitions that they lead. `leaders`: the leader of each partition. `needs_key`: whether the topic
    takes no record without a key. `values`: the schema that values must fit, None if they are not checked."""

    def __init__(
        self, topic: str, limit: int, by_broker: Mapping[int, int] | None = None,
        leaders: Callable[[], Mapping[int, int]] = dict, needs_key: bool = False,
        values: FieldsType | AvroValues | None = None,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._limit = limit
        self._by_broker = by_broker or {}
        self._leaders = leaders
        self.needs_key = needs_key
        self.values = values
        self.least = min(limit, *self._by_broker.values()) if self._by_broker else limit

    @property
    def strictest(self) -> RecordLimit:
        """The limit of the least broker for all partitions, for Spark's tasks: it knows of no leaders."""
        return RecordLimit(self._topic, self.least, needs_key=self.needs_key, values=self.values)

    def check(self, size: int, partition: int | None, record: int | None = None) -> None:
        """Raises RecordTooLargeException if a record of `size` bytes is too large for its partition, or for any
        partition if its own is not known. `record`: its number in the send."""
        if size <= self.least:
            return
        known = self._by_partition
        limit = min(known.values(), default=self._limit) if partition is None else known.get(partition, self._limit)
        if size > limit:
            raise RecordTooLargeException(
                f"{self._which(partition, record)} has {size} bytes in key, value and headers, and "
                f"max.message.bytes is {limit}; to raise it: configs --alter --entity-type topics --entity-name "
                f"{self._topic} --add-config max.message.bytes={size}"
            )

    def check_has_key(self, has_key: bool, partition: int | None, record: int | None = None) -> None:
        """Raises InvalidRecordException if a record has no key and its topic needs one."""
        if self.needs_key and not has_key:
            raise InvalidRecordException(
                f"{self._which(partition, record)} has no key, and a topic with cleanup.policy=compact takes none "
                "without one"
            )

    def check_value(self, value: bytes | None, partition: int | None) -> None:
        """Raises InvalidRecordException if the topic checks values, and this one does not fit."""
        if self.values is not None and value is not None:
            self.check_fits(misfit_of(self.values, value), partition)

    def check_fits(self, misfit: str | None, partition: int | None, record: int | None = None) -> None:
        """Raises InvalidRecordException for a record with a misfit, if the topic checks values."""
        if self.values is not None and misfit is not None:
            raise InvalidRecordException(
                f"{self._which(partition, record)} does not fit {SCHEMA}: {misfit}; {VALIDATION}=false lets it pass"
            )

    def _which(self, partition: int | None, record: int | None) -> str:
        where = self._topic if partition is None else f"{self._topic}-{partition}"
        return f"{where}: {'a record' if record is None else f'record {record}'}"

    @cached_property
    def _by_partition(self) -> dict[int, int]:
        leaders = self._leaders() if self._by_broker else {}
        return {number: self._by_broker.get(leader, self._limit) for number, leader in leaders.items()}

    def check_records(self, records: pa.Table, partitions: pa.ChunkedArray) -> None:
        """Raises RecordTooLargeException or InvalidRecordException for the first record that the topic does not
        take."""
        if self.needs_key and records["key"].null_count:
            number = pc.index(pc.is_null(records["key"]), True).as_py()
            self.check_has_key(False, partitions[number].as_py(), number)
        for number, size in large_records(records, self.least):
            self.check(size, partitions[number].as_py(), number)
        for number, misfit in misfits(records, self.values):
            self.check_fits(misfit, partitions[number].as_py(), number)


def misfits(records: pa.Table, values: FieldsType | AvroValues | None) -> Iterator[tuple[int, str]]:
    """The numbers of the records whose values do not fit a schema, and why. Tombstones fit."""
    if values is None:
        return
    for number, value in enumerate(records["value"]):
        misfit = misfit_of(values, value.as_py()) if value.is_valid else None
        if misfit is not None:
            yield number, misfit


def large_records(records: pa.Table, limit: int) -> Iterator[tuple[int, int]]:
    """The numbers and sizes of the records that have more than `limit` bytes. Records that have fewer bytes together
    are not measured one by one."""
    if records.nbytes > limit:
        sizes = record_sizes(records)
        for number in pc.indices_nonzero(pc.greater(sizes, limit)):
            yield number.as_py(), sizes[number.as_py()].as_py()


def record_sizes(records: pa.Table) -> pa.ChunkedArray:
    """The size of each record: its key, value and headers, in bytes."""
    sizes, headers = record_bytes(records), records["headers"]
    if headers.null_count == len(headers):
        return sizes
    of_headers = []  # the bytes of their names and values: differences of running totals over all headers
    for chunk in headers.chunks:
        pairs = chunk.flatten()
        parts = (pc.fill_null(pc.binary_length(pc.struct_field(pairs, name)), 0) for name in ("key", "value"))
        totals = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(pc.add(*parts).cast(pa.int64()))])
        counts = pc.fill_null(pc.list_value_length(chunk), 0).cast(pa.int64())
        ends = pc.cumulative_sum(counts)
        of_headers.append(pc.subtract(totals.take(ends), totals.take(pc.subtract(ends, counts))))
    return pc.add(sizes, pa.chunked_array(of_headers, pa.int64()))


class RefusedRecord(NamedTuple):
    """A record of a task that its topic does not take, by what the task knew: of this size, without a key, or with a
    value that does not fit."""

    topic: str
    partition: int
    size: int
    has_key: bool
    misfit: str | None = None

    def check(self, limit: RecordLimit) -> None:
        """Raises RecordTooLargeException or InvalidRecordException if the topic still does not take the record. Of a
        value the task's finding counts while the topic checks values."""
        limit.check(self.size, self.partition)
        limit.check_has_key(self.has_key, self.partition)
        limit.check_fits(self.misfit, self.partition)


def refused_records(routed: pa.Table, limit_of: Callable[[str], RecordLimit]) -> list[RefusedRecord]:
    """Of each partition the largest record that is too large for its topic; of each topic one that lacks a key, and one
    with a value that does not fit. `routed`: as `ROUTED`."""
    found: dict[tuple[str, int], int] = {}
    others = list[RefusedRecord]()
    topics = pc.unique(routed["topic"]).to_pylist()
    for topic in topics:
        ours = routed if len(topics) == 1 else routed.filter(pc.equal(routed["topic"], topic))
        limit = limit_of(topic)
        for number, size in large_records(ours, limit.least):
            place = topic, ours["partition"][number].as_py()
            found[place] = max(size, found.get(place, 0))
        if limit.needs_key and ours["key"].null_count:
            partition = ours["partition"].filter(pc.is_null(ours["key"]))[0].as_py()
            others.append(RefusedRecord(topic, partition, 0, has_key=False))
        for number, misfit in islice(misfits(ours, limit.values), 1):
            others.append(RefusedRecord(topic, ours["partition"][number].as_py(), 0, has_key=True, misfit=misfit))
    return [*(RefusedRecord(*place, size, has_key=True) for place, size in found.items()), *others]
