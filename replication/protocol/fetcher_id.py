"""Decides which of a follower's fetchers gets a partition. Kafka: `AbstractFetcherManager.getFetcherId`."""

from __future__ import annotations

_MIN_INT = -(2**31)


def fetcher_id(topic: str, partition: int, num_replica_fetchers: int) -> int:
    """The fetcher of a partition, from 0 to `num_replica_fetchers` - 1, equal on every broker and in every run.

    All partitions of a segment have one fetcher id, so writers and followers must compute the same one. Python's `hash`
    differs between processes; this is Java's arithmetic, with 32 bits that wrap around.

    Kafka: `AbstractFetcherManager.getFetcherId`; `Utils.abs`, which returns 0 for the least integer, whose absolute
    value does not fit into 32 bits. [FM-03]

    Raises:
        ValueError: `num_replica_fetchers` is below 1.
    """
    if num_replica_fetchers < 1:
        raise ValueError(f"num.replica.fetchers is {num_replica_fetchers}: it must be 1 or more")
    mixed = _to_int(31 * java_hash(topic) + partition)
    return (0 if mixed == _MIN_INT else abs(mixed)) % num_replica_fetchers


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, over UTF-16 code units: a character above U+FFFF counts as two."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return _to_int(value)


def _to_int(value: int) -> int:
    """The signed integer with the low 32 bits of `value`."""
    return (value + 2**31) % 2**32 - 2**31
