"""Consecutive batches, as in the log of one partition."""

from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd

GENESIS = "the beginning"


def header(base: int, last: int, epoch: int = 0, digest: str = "records") -> BatchHeader:
    """The header of a batch that is not chained yet."""
    return BatchHeader("t", "id", 0, epoch, base, last, 0, 0, digest=digest)


def chained(*headers: BatchHeader, previous: str = GENESIS) -> list[BatchHeader]:
    """The headers, each linked to the one before it."""
    found: list[BatchHeader] = []
    for batch in headers:
        found.append(linked(batch, found[-1].chain if found else previous))
    return found


def chained_log(*headers: BatchHeader, **fields: object) -> PartitionLog:
    """A log of these batches, a segment each, that begins with the chain `GENESIS`."""
    log = PartitionLog(**{"start_chain": GENESIS, **fields})
    for batch in chained(*headers, previous=log.start_chain):
        log.add(batch, f"segment-{batch.base_offset}")
    return log


def one_by_one(end: int, start: int = 0, epoch: int = 0, digest: str = "records") -> list[BatchHeader]:
    """Headers of one record each."""
    return [header(offset, offset, epoch, digest) for offset in range(start, end)]


def ends_of(log: PartitionLog) -> list[LogEnd]:
    """The end offset and chain of each of a log's batches."""
    return [LogEnd(batch.header.next_offset, batch.header.chain) for batch in log.batches]
