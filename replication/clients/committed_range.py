"""The committed offsets that a read takes: `starting` to `ending`. Spark: `KafkaOffsetRangeLimit`. [FE-01]"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from lakelog.replication.clients.partition_reader import OpenPartition
from lakelog.replication.errors import (
    InvalidPartitionsException,
    InvalidRequestException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.delayed_operation import check_offset_available
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import OffsetRange

# "earliest", "latest", or an offset for each partition, as in Spark's Kafka source.
Offsets: TypeAlias = str | Mapping[int, int]
EARLIEST, LATEST = "earliest", "latest"


def check_offsets(given: object, name: str) -> None:
    """Raises InvalidRequestException for what is neither a word nor a mapping of offsets."""
    by_number = given if isinstance(given, Mapping) else {}
    is_right = isinstance(given, Mapping) or _is_word(given)
    if not is_right or not all(type(n) is int and (type(o) is int or _is_word(o)) for n, o in by_number.items()):
        raise InvalidRequestException(
            f"{name} is {given!r:.80}: give earliest, latest, or a dict with the offset of each partition, such as "
            "{0: 100}"
        )


def _is_word(offset: object) -> bool:
    return isinstance(offset, str) and offset in (EARLIEST, LATEST)


def check_partitions(topic: str, partitions: Mapping[int, object], *chosen: str | Collection[int]) -> None:
    """Raises InvalidPartitionsException for a partition that the topic does not have. `chosen`: numbers of partitions,
    also as the keys of their offsets; a text chooses all."""
    for given in chosen:
        unknown = [] if isinstance(given, str) else sorted(set(given) - set(partitions))
        if unknown:
            raise InvalidPartitionsException(
                f"topic {topic} has no partition {unknown[0]}, it has 0 to {max(partitions)}"
            )


def committed_range(opened: OpenPartition, starting: Offsets, ending: Offsets) -> OffsetRange:
    """The offsets of a partition that a read takes. A partition that is not in a mapping is read from its log start, or
    up to its HW.

    Raises OffsetOutOfRangeException for an offset that is not committed, and OffsetNotAvailableException if a new
    leader does not know its HW yet (KIP-207).
    """
    name, number = opened.registration.name, opened.registration.partition
    chosen = [_chosen(given, number, default) for given, default in ((starting, EARLIEST), (ending, LATEST))]
    start, stop = (_offset(choice, opened.log, opened.high_watermark, name) for choice in chosen)
    lowest, highest = opened.log.log_start_offset, opened.high_watermark
    for offset in (start, stop):
        if not lowest <= offset <= highest:
            raise OffsetOutOfRangeException(
                f"{name}: offset {offset} is out of range, committed: {lowest} to {highest}"
            )
    return OffsetRange(start, stop)


def _chosen(given: Offsets, partition: int, default: str) -> int | str:
    return given if isinstance(given, str) else given.get(partition, default)


def _offset(chosen: int | str, log: PartitionLog, high_watermark: int, name: str) -> int:
    if chosen == EARLIEST:
        return log.log_start_offset
    number = chosen if isinstance(chosen, int) else None
    check_offset_available(number, high_watermark, log.epoch_start, name)
    return high_watermark if number is None else number
