"""Merges small segments: the same batches, in files of one partition, in one commit that changes no data.

Followers, readers and streams need not react: offsets, batches and rows stay the same. The files are written before the
commit, so no reader waits for them. If an old file is missing by then, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.compaction import Compaction, LogFile, plan_compaction, size_class
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.log.log_rewrite import NewFiles, readable, report_unreadable
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.pieces import Piece, Target, Targets, pieces_of, write_pieces
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment

# Called with the size in bytes of each file that was read or written; it may wait, and it may raise.
Pace = Callable[[int], None]


def compact(
    log: ReplicaLog, segment_bytes: int, min_files: int, max_bytes: int, who: str, pace: Pace = lambda _: None
) -> int:  # fmt: skip
    """Merges the small files for which it pays off, once. Returns the number of files that it replaced.

    `segment_bytes` and `max_bytes` are sizes in bytes. If `pace` raises, the log stays as it is. Raises
    CorruptRecordException, naming the file, if one cannot be read, and KafkaStorageException.
    """
    segments = readable(log.refresh(LONGEST_SECONDS))
    small = [s for s in segments.values() if s.headers and size_class(s.file.size, segment_bytes) >= 0]
    if len(small) < min_files:
        return 0
    files = [LogFile(s.name, s.file.size, s.headers) for s in small]
    plan = plan_compaction(files, segment_bytes, min_files, max_bytes)
    return _carry_out(log, plan, [segments[file.name] for file in plan.files], who, pace) if plan else 0


def _carry_out(log: ReplicaLog, plan: Compaction, sources: Sequence[Segment], who: str, pace: Pace) -> int:
    has_landed = False
    with NewFiles(log) as new:
        merged = tuple(new.add(segment) for segment in _merge(log, plan, sources, pace))

        def decide(state: LogState) -> LogChange | None:
            nonlocal has_landed
            has_landed = all(segment.name in state.segments for segment in merged)  # our commit, whose reply was lost
            if has_landed or any(segment.name not in state.segments for segment in sources):
                return None
            return new.offered(LogChange(adds=merged, removes=tuple(sources), data_change=False))

        cause = {"who": who, "why": "compact", "from": len(sources), "to": len(merged)}
        return len(sources) if log.transact(cause, decide) is not None or has_landed else 0


def _merge(log: ReplicaLog, plan: Compaction, sources: Sequence[Segment], pace: Pace) -> Iterator[Segment]:
    """Yields the new segments as it writes them; it reads every old one first."""
    targets = _targets(plan)
    packs: list[dict[int, Piece]] = [{} for _ in plan.packs]
    for segment in sources:
        for piece in _pieces(log, segment, targets[segment.name]):
            number, position = targets[segment.name][piece.headers[0]]
            packs[number][position] = piece
        pace(segment.file.size)
    for pieces in packs:
        written = write_pieces(log.root, None, [pieces[position] for position in sorted(pieces)])
        pieces.clear()  # frees their memory
        yield written
        pace(written.file.size)


def _targets(plan: Compaction) -> dict[str, dict[BatchHeader, Target]]:
    """Where the batches of each file go."""
    found: dict[str, dict[BatchHeader, Target]] = {file.name: {} for file in plan.files}
    for number, pack in enumerate(plan.packs):
        for position, (file, header) in enumerate(pack):
            found[file.name][header] = Target(number, position)
    return found


def _pieces(log: ReplicaLog, segment: Segment, targets: Targets) -> list[Piece]:
    try:
        return list(pieces_of(log.root, segment, targets))
    except CorruptRecordException as error:
        report_unreadable(log, segment, error)
        raise
