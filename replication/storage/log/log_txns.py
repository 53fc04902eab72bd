"""Facts of a log table that outlive the commits that wrote them: Delta's `txn`, a name with a 64-bit number."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.chain import genesis, halves, joined
from lakelog.replication.protocol.partition_log import NO_REPAIR, NO_ROLE, PartitionLog, role_of
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.checkpoint import checkpoint_name, last_checkpoint
from lakelog.replication.storage.delta.commit import Commit
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import Segment

BROKER_EPOCH = "broker-epoch"
LOG_EPOCH = "log-epoch"  # the broker epoch since which the broker has this log; its earlier log is lost
GENERATION = "cluster-generation"  # that of the newest cluster root to which the log's broker belongs
_ROLE, _START, _LOG_START, _CHAIN_HIGH, _CHAIN_LOW = "role", "start", "log-start", "chain-high", "chain-low"
_REPAIR = "repair"
_CLEANED = "cleaned"
_OF_A_PARTITION = (_ROLE, _START, _LOG_START, _CHAIN_HIGH, _CHAIN_LOW, _REPAIR, _CLEANED)
_FACT = re.compile(rf"(?:{'|'.join(_OF_A_PARTITION)})/(.+)/([0-9]{{1,9}})")

MANY = 8  # look-ups at one version, after which all `txn`s are read


def _app_id(kind: str, partition: TopicIdPartition) -> str:
    return f"{kind}/{partition.topic_id}/{partition.partition}"


def role_app_id(partition: TopicIdPartition) -> str:
    """The name of the `txn` that records role and epoch of a partition."""
    return _app_id(_ROLE, partition)


def start_app_id(partition: TopicIdPartition) -> str:
    """The name of the `txn` that records the start offset of the current leader's epoch."""
    return _app_id(_START, partition)


def log_start_app_id(partition: TopicIdPartition) -> str:
    """The name of the `txn` that records the log start offset."""
    return _app_id(_LOG_START, partition)


def repair_txn(partition: TopicIdPartition, offset: int = NO_REPAIR) -> dict[str, int]:
    """The `txn` that records from which offset on a log has wrong records, or that it has none any more."""
    return {_app_id(_REPAIR, partition): offset}


def cleaned_txn(partition: TopicIdPartition, offset: int) -> dict[str, int]:
    """The `txn` that records up to which offset the log cleaner has been through a log."""
    return {_app_id(_CLEANED, partition): offset}


def chain_txns(partition: TopicIdPartition, chain: str) -> dict[str, int]:
    """The `txn`s that record the chain of all batches before the first one that is kept."""
    high, low = halves(chain)
    return {_app_id(_CHAIN_HIGH, partition): high, _app_id(_CHAIN_LOW, partition): low}


def start_txns(partition: TopicIdPartition, start: LogEnd) -> dict[str, int]:
    """The `txn`s of a log without batches that begins at an offset, with the chain of the batches before it."""
    return {
        log_start_app_id(partition): start.offset,
        **chain_txns(partition, start.chain),
        **cleaned_txn(partition, 0),
    }


def facts_of(partition: TopicIdPartition, log: PartitionLog) -> dict[str, int]:
    """The `txn`s of all facts of a log that stops or returns, but its role; none for a new log."""
    start, new = LogEnd(log.log_start_offset, log.start_chain), LogEnd(0, genesis(partition))
    if log.role == NO_ROLE and start == new:
        return {}
    # A chain may expire a little later than the offset that it belongs to.
    facts = {start_app_id(partition): log.epoch_start, **start_txns(partition, start if start.offset else new)}
    return {**facts, **repair_txn(partition)}  # the records that are wrong go, or are gone


def app_ids(partition: TopicIdPartition) -> tuple[str, ...]:
    """The names of the `txn`s that record facts of a partition."""
    return tuple(_app_id(kind, partition) for kind in _OF_A_PARTITION)


def partition_of(app_id: str) -> TopicIdPartition | None:
    """The partition of a `txn`, None if the `txn` is not about a partition."""
    found = _FACT.fullmatch(app_id)
    return TopicIdPartition(found[1], int(found[2])) if found else None


def touched_partitions(commit: Commit, segments: Iterable[object]) -> set[TopicIdPartition]:
    """The partitions of a commit: those of its `txn`s, and those of its segments as far as these are known."""
    known = [segment for segment in segments if isinstance(segment, Segment)]
    return {
        *(header.topic_id_partition for segment in known for header in segment.headers),
        *(remembered.topic_id_partition for segment in known for remembered in segment.producers),
        *(partition for partition in map(partition_of, commit.txns) if partition is not None),
    }


def may_go_back(app_id: str) -> bool:
    """Whether a `txn` may fall. An epoch or a whole log may start below an earlier one whose records were truncated,
    and a hash has no order."""
    return not app_id.startswith((f"{_ROLE}/", BROKER_EPOCH, GENERATION))


def record(log: PartitionLog, app_id: str, version: int) -> None:
    """Applies a `txn` to its partition's log. A negative role or offset is invalid and is ignored."""
    kind = app_id.partition("/")[0]
    if version < 0 and kind in (_ROLE, _START, _LOG_START, _CLEANED):
        return
    if kind == _ROLE:
        log.role = role_of(version)
    elif kind == _START:
        log.epoch_start = version
    elif kind == _LOG_START:
        log.start_at(version)
    elif kind == _CLEANED:
        log.cleaned_to = version
    elif kind == _REPAIR:
        log.repair_from = max(version, NO_REPAIR)
    elif kind == _CHAIN_HIGH:
        log.start_chain = joined(version, halves(log.start_chain)[1])
    elif kind == _CHAIN_LOW:
        log.start_chain = joined(halves(log.start_chain)[0], version)


class Transactions:
    """The `txn`s of a table at the version of its handle, one by one from delta-rs, or all at once after `MANY`
    look-ups.

    delta-rs searches the log anew for each `txn`, so the look-ups of thousands of partitions would take minutes. It is
    not thread-safe: its owner locks.
    """

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._version, self._asked = -1, 0
        self._found: dict[str, int] | None = None

    def get(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, None if it never did. Raises as `DeltaLog.transaction_version`."""
        if self._version != self._log.version:
            self._version, self._asked, self._found = self._log.version, 0, None
        self._asked += 1
        if self._asked == MANY:
            self._found = read_transactions(self._log.root, self._version)
        return self._log.transaction_version(app_id) if self._found is None else self._found.get(app_id)


def read_transactions(root: StorageRoot, version: int) -> dict[str, int] | None:
    """All `txn`s of a version of the table at `root`: those of its last checkpoint, and of the commits after it. None
    if a file cannot be read, or the checkpoint is newer: then each is looked up by delta-rs, which has other ways."""
    try:
        checkpoint = last_checkpoint(root)
        if checkpoint > version:
            return None
        found = {} if checkpoint < 0 else _of_checkpoint(root, checkpoint)
        for later in range(checkpoint + 1, version + 1):
            found.update(read_commit(root, later).txns)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, KafkaStorageException, CorruptRecordException):
        return None
    return found


def _of_checkpoint(root: StorageRoot, version: int) -> dict[str, int]:
    content = root.read_buffer(checkpoint_name(version))
    found = pq.read_table(pa.BufferReader(content), columns=["txn"])["txn"].drop_null().to_pylist()
    return {txn["appId"]: txn["version"] for txn in found}
