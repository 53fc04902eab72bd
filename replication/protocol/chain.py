"""A partition's log as a chain: each batch header names, by a hash, everything that lies before its batch.

Epochs tell two histories apart only as long as every log keeps all that it has once had. A log that lost its tail, was
restored from a backup or was written to while its broker was away breaks that. Two logs with the same chain at an
offset have the same records in the same order from the beginning up to that offset.

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
    """The chain of a partition's log before its first batch: a topic that is made again begins another one."""
    return _hash(partition.topic_id, partition.partition)


def linked(header: BatchHeader, previous: str) -> BatchHeader:
    """The header of the batch that follows the chain `previous`. Its own chain is over that, all its fields and the
    digest of its records."""
    return replace(header, previous=previous, chain=_chain(header, previous))


def check_link(header: BatchHeader) -> None:
    """Raises CorruptRecordException if the chain of a header is not that of its fields."""
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
    """A line a field: none of them can hold a line break."""
    return str(blake3("\n".join(map(str, fields)).encode()).hexdigest(HASH_BYTES))


def halves(chain: str) -> tuple[int, int]:
    """A chain as two signed numbers of 64 bits, as a table's `txn` can hold them. Raises CorruptRecordException."""
    try:
        whole = int(chain, 16)
    except ValueError:
        raise CorruptRecordException(f"{chain!r} is no chain: it must be {2 * HASH_BYTES} hexadecimal digits") from None
    return _signed(whole // _HALF), _signed(whole % _HALF)


def joined(high: int, low: int) -> str:
    """The chain whose halves these are."""
    return f"{high % _HALF * _HALF + low % _HALF:0{2 * HASH_BYTES}x}"


def _signed(half: int) -> int:
    return half - _HALF if half >= _HALF // 2 else half
