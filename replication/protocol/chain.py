"""A partition's log as a hash chain: each batch header contains a hash over all batches before it.

Two logs with the same chain at an offset have the same records in the same order up to that offset. Leader epochs prove
this only while no log loses records. They fail for a log that lost its end, was restored from a backup, or was written
to while its broker was away.

Raft: the log matching property, checked end to end. Kafka has no counterpart.
"""

from __future__ import annotations

from dataclasses import replace

from blake3 import blake3

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition

HASH_BYTES = 16
_HALF = 2**64


def genesis(partition: TopicIdPartition) -> str:
    """The chain of a partition before its first batch. A topic that is made again has another id, so another chain."""
    return _hash(partition.topic_id, partition.partition)


def linked(header: BatchHeader, previous: str) -> BatchHeader:
    """The header with its place in the chain: `previous`, and the hash over `previous`, its fields and its digest."""
    return replace(header, previous=previous, chain=_chain(header, previous))


def check_link(header: BatchHeader) -> None:
    """Raises CorruptRecordException if the header's chain is not the hash of its fields."""
    if header.chain != _chain(header, header.previous):
        raise CorruptRecordException(
            f"{header.name}: the batch of offsets {header.base_offset} to {header.last_offset} "
            f"does not have the chain of its header"
        )


def _chain(header: BatchHeader, previous: str) -> str:
    return _hash(
        previous, header.topic, header.topic_id, header.partition, header.leader_epoch, header.base_offset,
        header.last_offset, header.max_timestamp, header.bytes, header.producer_id, header.producer_epoch,
        header.base_sequence, header.digest,
    )  # fmt: skip


def _hash(*fields: object) -> str:
    """One field a line; no field contains a line break, so different fields never give the same text."""
    return str(blake3("\n".join(map(str, fields)).encode()).hexdigest(HASH_BYTES))


def halves(chain: str) -> tuple[int, int]:
    """A chain as two signed 64-bit numbers, which fit a Delta table's `txn`. Raises CorruptRecordException if
    malformed."""
    try:
        whole = int(chain, 16)
    except ValueError:
        raise CorruptRecordException(f"{chain!r} is no chain: it must be {2 * HASH_BYTES} hexadecimal digits") from None
    return _signed(whole // _HALF), _signed(whole % _HALF)


def joined(high: int, low: int) -> str:
    """The chain with these halves; the inverse of `halves`."""
    return f"{high % _HALF * _HALF + low % _HALF:0{2 * HASH_BYTES}x}"


def _signed(half: int) -> int:
    return half - _HALF if half >= _HALF // 2 else half
