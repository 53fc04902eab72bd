"""The changes of one commit on a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import chain_txns, may_go_back
from lakelog.replication.storage.log.segment import Segment, size_fault


@dataclass(frozen=True)
class LogChange:
    """The changes of one commit: added and removed segments, and facts that must last (`txn`).

    If `data_change` is false, the same batches move to other segments, and followers need not know. If it is true,
    records go with the segments in `removes`; if there are any removes, `adds` bring no new records.
    """

    adds: tuple[Segment, ...] = ()
    removes: tuple[Segment, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    data_change: bool = True


Decision = Callable[[LogState], LogChange | None]


def start_chains(state: LogState, change: LogChange) -> dict[str, int]:
    """The `txn`s that keep the chain of a log's start when its first batch goes."""
    kept = {header for segment in change.adds for header in segment.headers}
    going = {header for segment in change.removes for header in segment.headers} - kept
    txns: dict[str, int] = {}
    for partition in {header.topic_id_partition for header in going}:
        log = state.known(partition)
        chain = log.chain_at(log.log_start_offset)
        if chain is not None and log.batches and log.batches[0].header in going:
            txns.update(chain_txns(partition, chain))
    return txns


def check_change(root: StorageRoot, state: LogState, change: LogChange) -> None:
    """Checks what a commit would write as it is given.

    Raises CorruptRecordException if a file is added twice, unknown, missing or of a wrong size, if a fact goes back, or
    if a compaction does not keep every batch.
    """
    names = [segment.name for segment in change.adds]
    doubled = [name for name in names if name in state.segments or names.count(name) > 1]
    unknown = [segment.name for segment in change.removes if segment.name not in state.segments]
    rising = [(a, v) for a, v in change.txns.items() if not may_go_back(a)]
    lowered = [a for a, v in rising if v < state.recorded(a)]
    if doubled or unknown or lowered:
        raise CorruptRecordException(
            f"{root.uri}: refused a commit: added twice {doubled}, unknown {unknown}, going back {lowered}"
        )
    if not change.data_change and _headers(change.adds) != _headers(change.removes):
        raise CorruptRecordException(f"{root.uri}: refused a compaction that does not keep every batch")
    # A store has just answered the put of a file whose content is in hand, and what it has answered is there.
    looked_up = [segment for segment in change.adds if root.is_local or segment.file.content is None]
    for segment, size in zip(looked_up, root.sizes([segment.name for segment in looked_up]), strict=True):
        fault = size_fault(root, segment.file, size)
        if fault:
            raise CorruptRecordException(f"refused a commit: {fault}")


def _headers(segments: Iterable[Segment]) -> Counter[BatchHeader]:
    return Counter(header for segment in segments for header in segment.headers)
