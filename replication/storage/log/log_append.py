"""Appends to a log, each in one compare-and-set commit: a leader's records get their offsets from the log end, and a
follower's batches keep the offsets and leader epochs that the leader gave them.

Kafka: `UnifiedLog.appendAsFollower`, `Partition.appendRecordsToLeader`, `UnifiedLog.appendAsLeader`,
`ProducerStateManager`. [AP-06]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import (
    CorruptRecordException,
    KafkaStorageException,
    LakelogException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.append import (
    Appended,
    AppendPosition,
    PartitionAppend,
    check_follower_append,
    place,
    position_of,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment, size_fault

# The position of each partition's append.
Positions = Mapping[TopicIdPartition, AppendPosition]

# Writes the new records, from the given positions on, into uncommitted segments. It is called again if positions move,
# and must then write the records of a partition in the same order.
SegmentWriter = Callable[[Positions], Sequence[Segment]]

# The digests of parts of a partition's records. A part is a range of them, counted from 0.
DigestsOf: TypeAlias = Callable[[TopicIdPartition, Sequence[range]], Sequence[str]]


def append(
    log: ReplicaLog, appends: Sequence[PartitionAppend], write: SegmentWriter, digests_of: DigestsOf, who: str,
    deadline: float | None = None,
) -> dict[TopicIdPartition, Appended | LakelogException]:  # fmt: skip
    """Appends to partitions that this log leads, in one commit. Returns the offsets or the error of each.

    After `deadline` (seconds of the monotonic clock) it does not repeat a commit that lost to another. Raises
    TimeoutException then, and KafkaStorageException if the log cannot be written. After a KafkaStorageException the
    records may or may not be in the log; the caller may send the same append again, which adds no duplicates.
    """
    outcomes: dict[TopicIdPartition, Appended | LakelogException] = {}
    written: tuple[Positions, tuple[Segment, ...]] = ({}, ())

    def decide(state: LogState) -> LogChange | None:
        nonlocal written
        outcomes.update({request.topic_id_partition: _place(state, request, digests_of) for request in appends})
        positions = {
            partition: position
            for partition, outcome in outcomes.items()
            if isinstance(outcome, Appended)
            and (position := position_of(outcome, state.partition(partition).log_end)) is not None
        }
        if not positions:
            return None
        if positions != written[0]:
            written = positions, tuple(write(positions))
        return LogChange(adds=written[1])

    epochs = {request.name: request.leader_epoch for request in appends}
    log.transact({"who": who, "why": "append", "leader_epochs": epochs}, decide, deadline)
    state = log.current()
    for partition, outcome in outcomes.items():
        if isinstance(outcome, Appended):
            chain = state.known(partition).chain_at(outcome.last_offset + 1) or ""
            outcomes[partition] = outcome._replace(chain=chain)
    return outcomes


class Fetched(NamedTuple):
    """The copy that one fetch has made of a leader's batches: segments, and the chain at the log end of each partition
    before them and its leader epoch."""

    segments: Sequence[Segment]
    starts: Mapping[TopicIdPartition, str]
    leader_epochs: Mapping[TopicIdPartition, int]


def append_as_follower(log: ReplicaLog, fetches: Sequence[Fetched], who: str) -> list[LakelogException | None]:
    """Appends the copies of several fetches in one commit: each fetch wholly or not at all. Returns the error of each.

    A fetch is refused by FencedLeaderEpochException or OffsetOutOfRangeException unless each of its partitions still
    follows at its leader epoch, and its log ends with its chain in `starts`, and by CorruptRecordException if a file of
    it is not as it was copied. A fetch that is in the log already is no error. Raises as `ReplicaLog.transact`.

    Kafka: `UnifiedLog.appendAsFollower`. [FT-09, FT-10]
    """
    errors: list[LakelogException | None] = []
    bad: dict[int, LakelogException] = {}

    def decide(state: LogState) -> LogChange | None:
        adds, taken = list[Segment](), set[TopicIdPartition]()
        errors.clear()
        for number, fetch in enumerate(fetches):
            is_there = all(segment.name in state.segments for segment in fetch.segments)  # the reply was lost
            errors.append(None if is_there else bad.get(number) or _refusal(state, fetch, taken))
            if not is_there and errors[-1] is None:
                adds += fetch.segments
                taken.update(fetch.starts)
        return LogChange(adds=tuple(adds)) if adds else None

    partitions = sum(len(fetch.starts) for fetch in fetches)
    while True:
        try:
            log.transact({"who": who, "why": "fetched", "partitions": partitions}, decide)
            return errors
        except CorruptRecordException:  # it names one file, and the other fetches can be committed
            found = {number: fault for number, fetch in enumerate(fetches) if (fault := _bad_copy(log.root, fetch))}
            if not found.keys() - bad.keys():
                raise
            bad.update(found)


def _bad_copy(root: StorageRoot, fetch: Fetched) -> CorruptRecordException | None:
    """The fault of the first file of a fetch that is not as it was copied; None without one."""
    sizes = root.sizes([segment.name for segment in fetch.segments])
    faults = (size_fault(root, segment.file, size) for segment, size in zip(fetch.segments, sizes, strict=True))
    fault = next(filter(None, faults), None)
    return CorruptRecordException(f"refused a commit: {fault}") if fault else None


def _refusal(state: LogState, fetch: Fetched, taken: Collection[TopicIdPartition]) -> LakelogException | None:
    """Why a fetch cannot be appended. `taken`: partitions that another fetch of the same commit moves."""
    try:
        for partition, start in fetch.starts.items():
            check_follower_append(state.partition(partition), fetch.leader_epochs[partition], start, str(partition))
            if partition in taken:
                raise OffsetOutOfRangeException(f"{partition}: another fetch has moved its log end")
    except LakelogException as error:
        return error
    return None


def _place(state: LogState, request: PartitionAppend, digests_of: DigestsOf) -> Appended | LakelogException:
    state.topics.update({request.topic_id: request.topic})
    fault = state.fault(request.topic_id_partition)
    if fault is not None:
        return KafkaStorageException(f"{request.name} is offline: {fault}")
    try:
        partition = request.topic_id_partition
        return place(state.partition(partition), request, partial(digests_of, partition))
    except LakelogException as error:
        return error
