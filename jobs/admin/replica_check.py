"""Checks that all replicas of each partition have the same records below the high watermark, at three depths.

`state`: the rows of brokers, and the headers of all batches with their chains. `files`: the bytes of all files that the
logs name, too. `records`: every record, too, so that the digests of batches are computed anew. Equal chains of batches
whose digests are right mean equal records, so replicas are compared by their chains at each depth.

What moves while it is read is read again: only what is wrong both times is wrong, and what could not be compared the
second time. It writes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from lakelog.jobs.admin.heartbeats import SeenBroker
from lakelog.jobs.admin.log_files import FileCheck, check_file
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.broken_segments import BrokenSegment, find_faults
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

STATE, FILES, RECORDS = "state", "files", "records"
AGAIN_SECONDS = 1.0  # until what is wrong is read again: a broker publishes what it has committed much sooner
DEPTHS = (STATE, FILES, RECORDS)

# The kinds of what is wrong: a root or a file that cannot be read now, a file that is not the one that was committed,
# records of a batch, batches that form no log, records that differ from another replica's, an in-sync replica without
# all committed records, a row that its log does not bear out.
ROOT, UNREAD, FILE, BATCH, LOG_ORDER, DIFFERS, INCOMPLETE, ROW = (
    "root", "unread", "file", "records", "log", "differs", "incomplete", "row",
)  # fmt: skip

_NOT_COMPARED = (ROOT, FILE, LOG_ORDER)  # nothing else would tell of these replicas: they count also if seen once
_READERS = 4  # files have up to 32 MB, and each is in memory

Advance: TypeAlias = Callable[[], object]
ReplicaOf: TypeAlias = tuple[int, TopicIdPartition]  # of a broker


class WrongPart(NamedTuple):
    """A partition of which something is wrong, at offsets from `start` to before `stop`; `stop` is None if nobody knows
    how far."""

    topic_id_partition: TopicIdPartition
    name: str
    start: int = 0
    stop: int | None = None


class Wrong(NamedTuple):
    """Something that is wrong with replicas of one broker. `file`: the path of the file in which it is. `found`: the
    fault in words."""

    kind: str
    broker: int
    parts: tuple[WrongPart, ...]
    found: str
    file: str | None = None

    @property
    def partitions(self) -> set[TopicIdPartition]:
        """The partitions."""
        return {part.topic_id_partition for part in self.parts}

    @property
    def replicas(self) -> set[ReplicaOf]:
        """The broker's replicas of these partitions."""
        return {(self.broker, part.topic_id_partition) for part in self.parts}


class BrokerCopy(NamedTuple):
    """The rows that a broker has published, and its log; without a log, why its root cannot be read."""

    broker: int
    rows: Mapping[TopicIdPartition, ReplicaStatus] = {}
    log: ReplicaLog | None = None
    error: str = ""


class BrokerCount(NamedTuple):
    """The numbers of what was checked in the root of a broker. `files` and `bytes` are 0 at the depth `state`, and
    `records` is 0 unless they were read."""

    broker: int
    state: str
    replicas: int
    files: int = 0
    bytes: int = 0
    records: int = 0


class ReplicaCheck(NamedTuple):
    """The outcome of a check. `partitions`: those that were checked, and are still there. `behind`: the replicas that
    lack committed records, and are not in sync; that is no fault."""

    depth: str
    partitions: Registrations
    brokers: Mapping[int, SeenBroker]
    copies: Mapping[int, BrokerCopy]
    wrong: Sequence[Wrong]
    counts: Sequence[BrokerCount]
    behind: Sequence[tuple[int, str]]
    deleted: Sequence[str]


def check_replicas(
    cluster: Cluster, brokers: Mapping[int, SeenBroker], wanted: Collection[TopicIdPartition], depth: str,
    is_whole: bool = True, begin: Callable[[int], Advance] = lambda _: lambda: None,
) -> ReplicaCheck:  # fmt: skip
    """Checks the replicas of these partitions. `is_whole`: checks also files that have none of them. `begin` is called
    with the number of files that are read, and returns what is called after each. Raises KafkaStorageException if the
    cluster root cannot be read; what is wrong with the root of a broker is a part of the outcome."""
    before = _chosen(cluster, wanted)
    copies, found = _read_state(cluster, brokers, before, is_whole)
    if found:
        let_pass(AGAIN_SECONDS)
        seen = {_key(wrong) for wrong in found}
        cluster.metadata.refresh()
        copies, again = _read_state(cluster, brokers, _chosen(cluster, wanted), is_whole)
        found = [wrong for wrong in again if wrong.kind in _NOT_COMPARED or _key(wrong) in seen]
    work = [] if depth == STATE else _files_of(copies.values(), None if is_whole else wanted)
    found += _read_files(work, depth, begin(len(work)))
    cluster.metadata.refresh()
    partitions = _chosen(cluster, wanted)
    gone = before.keys() - partitions.keys()
    wrong = [each for each in found if not each.parts or not each.partitions <= gone]
    return ReplicaCheck(
        depth, partitions, brokers, copies, sorted(wrong, key=_key), _counts(partitions, brokers, copies, work, depth),
        _behind(partitions, copies), sorted({before[partition].topic for partition in gone}),
    )  # fmt: skip


def _chosen(cluster: Cluster, wanted: Collection[TopicIdPartition]) -> Registrations:
    known = cluster.metadata.partitions
    return {partition: known[partition] for partition in sorted(wanted) if partition in known}


def _key(wrong: Wrong) -> tuple[object, ...]:
    """The key by which two reads find the same fault, although other records may have come meanwhile."""
    return wrong.parts[0].name if wrong.parts else "", wrong.broker, wrong.kind, wrong.file or ""


# What lies in the roots


def _read_state(
    cluster: Cluster, brokers: Mapping[int, SeenBroker], partitions: Registrations, is_whole: bool
) -> tuple[dict[int, BrokerCopy], list[Wrong]]:
    hosts = sorted({broker for registration in partitions.values() for broker in registration.replicas})
    names = {registration.topic_id: registration.topic for registration in cluster.metadata.partitions.values()}
    rows = in_threads(lambda broker: _with_rows(cluster, brokers.get(broker), broker), hosts, _READERS)
    # All rows first: what is below a high watermark that was read is in the logs that are read later.
    read = in_threads(lambda copy: _with_log(cluster, brokers, copy, names), rows, _READERS)
    copies = {copy.broker: copy for copy in read}
    found = [wrong for copy in copies.values() for wrong in _wrong_roots_and_files(copy, partitions, is_whole)]
    for registration in partitions.values():
        found += _wrong_replicas(registration, copies)
    return copies, found


def _with_rows(cluster: Cluster, seen: SeenBroker | None, broker: int) -> BrokerCopy:
    if seen is None:
        return BrokerCopy(broker, error="it has no registration, so nobody knows where its root is")
    try:
        root = cluster.storage_of(broker, seen.registration.root)
        check_identity(root, cluster.cluster_id, broker)
        return BrokerCopy(broker, ReplicaTable.open(root).replicas)
    except LakelogException as error:
        return BrokerCopy(broker, error=f"{error.name}: {error}")


def _with_log(
    cluster: Cluster, brokers: Mapping[int, SeenBroker], copy: BrokerCopy, names: Mapping[str, str]
) -> BrokerCopy:  # fmt: skip
    if copy.error:
        return copy
    try:
        root = cluster.storage_of(copy.broker, brokers[copy.broker].registration.root)
        log = ReplicaLog.open(root.child(LOG.name), cluster.generation)
    except LakelogException as error:
        return copy._replace(error=f"{error.name}: {error}")
    log.current().topics.update(names)
    return copy._replace(log=log)


def _wrong_roots_and_files(copy: BrokerCopy, partitions: Registrations, is_whole: bool) -> Iterator[Wrong]:
    """The root that cannot be read, or the files that could not be opened. A file with no records of a replica that is
    there, such as one with the state of producers, counts if the logs are checked as a whole."""
    held = [registration for registration in partitions.values() if copy.broker in registration.replicas]
    if copy.log is None:
        parts = tuple(WrongPart(r.topic_id_partition, r.name) for r in held)
        yield Wrong(ROOT, copy.broker, parts, copy.error)
        return
    state = copy.log.current()
    for name, broken in state.broken.items():
        parts = tuple(_parts_of_broken(copy.log, broken, held))
        if is_whole or any(part.topic_id_partition in partitions for part in parts):
            path = copy.log.root.path(name)
            yield Wrong(FILE, copy.broker, parts, broken.fault.removeprefix(f"{path}: "), path)


def _parts_of_broken(
    log: ReplicaLog, broken: BrokenSegment, held: Sequence[PartitionRegistration]
) -> Iterator[WrongPart]:  # fmt: skip
    """The partitions that may be in a file whose headers nobody can read. The missing records lie after those up to
    which the log fits together."""
    state, names = log.current(), {r.topic_id_partition: r.name for r in held}
    for partition in sorted(state.holders(broken, names.keys())):
        known = state.known(partition)
        is_without_beginning = known.first_offset > known.log_start_offset
        start = known.log_start_offset if is_without_beginning else known.sound_end
        yield WrongPart(partition, names.get(partition, str(partition)), start)


# Replicas against each other


def _wrong_replicas(registration: PartitionRegistration, copies: Mapping[int, BrokerCopy]) -> Iterator[Wrong]:
    """The faults that headers and rows show in the replicas of one partition."""
    logs = _sound_logs(registration, copies)
    committed = high_watermark(registration, copies)
    for broker in registration.replicas:
        yield from _wrong_log(registration, copies[broker])
        if broker in logs:
            yield from _wrong_row(registration, copies[broker], logs[broker])
        if broker in logs and broker in registration.isr and logs[broker].log_end_offset < committed:
            end = logs[broker].log_end_offset
            found = f"it is in sync, and its log ends at {end}, below the high watermark {committed}"
            yield _wrong(INCOMPLETE, broker, registration, end, committed, found)
    yield from _differing(registration, copies, logs, committed)


def _wrong(
    kind: str, broker: int, registration: PartitionRegistration, start: int, stop: int | None, found: str
) -> Wrong:
    return Wrong(kind, broker, (WrongPart(registration.topic_id_partition, registration.name, start, stop),), found)


def _sound_logs(registration: PartitionRegistration, copies: Mapping[int, BrokerCopy]) -> dict[int, PartitionLog]:
    """The logs of the replicas that can be read, and are whole as far as headers tell."""
    key = registration.topic_id_partition
    opened = {broker: copy.log.current() for broker, copy in copies.items() if copy.log is not None}
    states = {broker: opened[broker] for broker in registration.replicas if broker in opened}
    return {broker: state.known(key) for broker, state in states.items() if state.fault(key) is None}


def high_watermark(registration: PartitionRegistration, copies: Mapping[int, BrokerCopy]) -> int:
    """The greatest high watermark that a replica in sync has published: a leader that has lost records may have a lower
    one."""
    key = registration.topic_id_partition
    known = [copies[broker].rows.get(key) for broker in registration.isr if broker in copies]
    return max((row.high_watermark for row in known if row is not None), default=0)


def _wrong_log(registration: PartitionRegistration, copy: BrokerCopy) -> Iterator[Wrong]:
    """Batches that do not follow each other: a gap of offsets, an epoch that falls, a chain that breaks."""
    key = registration.topic_id_partition
    fault = None if copy.log is None else copy.log.current().unsound.get(key)
    if copy.log is not None and fault is not None:
        log = copy.log.current().known(key)
        start = log.sound_end if log.first_offset <= log.log_start_offset else log.log_start_offset
        found = fault.removeprefix(f"{key}: ")
        yield _wrong(LOG_ORDER, copy.broker, registration, start, log.log_end_offset, found)


def _wrong_row(registration: PartitionRegistration, copy: BrokerCopy, log: PartitionLog) -> Iterator[Wrong]:
    """A row that claims more than its log has, or an epoch that nobody has given."""
    row = copy.rows.get(registration.topic_id_partition)
    if row is None:
        return
    if row.log_end_offset > log.log_end_offset and row.state == FollowerState.FETCHING:
        found = f"its row claims a log end offset of {row.log_end_offset}, and its log ends at {log.log_end_offset}"
        yield _wrong(ROW, copy.broker, registration, log.log_end_offset, row.log_end_offset, found)
    elif row.leader_epoch > registration.leader_epoch:
        found = f"its row has leader epoch {row.leader_epoch}, and the metadata have {registration.leader_epoch}"
        yield _wrong(ROW, copy.broker, registration, log.log_start_offset, log.log_end_offset, found)
    epochs = [(entry.leader_epoch, entry.start_offset) for entry in row.epochs]
    if any(after[0] <= before[0] or after[1] <= before[1] for before, after in pairwise(epochs)):
        found = f"the leader epochs of its row do not rise: {epochs}"
        yield _wrong(ROW, copy.broker, registration, log.log_start_offset, log.log_end_offset, found)


def _differing(
    registration: PartitionRegistration, copies: Mapping[int, BrokerCopy], logs: Mapping[int, PartitionLog],
    committed: int,
) -> Iterator[Wrong]:  # fmt: skip
    """The replicas that have other committed records than the measure: the leader, or without it the longest log in
    sync. A replica that has not caught up under this leader epoch may have records that it is yet to truncate."""
    measure = _measure(registration, logs)
    for broker, log in logs.items():
        if broker == measure or not (broker in registration.isr or _has_caught_up(registration, copies[broker])):
            continue
        end = min(log.log_end_offset, logs[measure].log_end_offset, committed)
        ours, theirs = log.chain_at(end), logs[measure].chain_at(end)
        if ours is not None and theirs is not None and ours != theirs:
            start = equal_until(log, logs[measure], end)
            found = f"its records differ from those of broker {measure}, though the digest of each batch is as stated"
            yield _wrong(DIFFERS, broker, registration, start, end, found)


def _measure(registration: PartitionRegistration, logs: Mapping[int, PartitionLog]) -> int:
    return max(
        logs, default=-1, key=lambda b: (b == registration.leader, b in registration.isr, logs[b].log_end_offset, -b)
    )


def _has_caught_up(registration: PartitionRegistration, copy: BrokerCopy) -> bool:
    row = copy.rows.get(registration.topic_id_partition)
    return row is not None and (row.state, row.leader_epoch) == (FollowerState.FETCHING, registration.leader_epoch)


def equal_until(log: PartitionLog, measure: PartitionLog, end: int) -> int:
    """The offset up to which two logs have the same records: the greatest batch boundary of `log` below `end` with the
    same chain; 0 if they have none in common. Their chains differ at `end`. Raft: the log matching property."""
    start = max(log.first_offset, measure.first_offset)
    boundaries = [start, *(b.header.next_offset for b in log.batches if start < b.header.next_offset <= end)]
    differ = bisect_left(boundaries, True, key=lambda offset: log.chain_at(offset) != measure.chain_at(offset))
    return boundaries[differ - 1] if differ else 0


def _behind(partitions: Registrations, copies: Mapping[int, BrokerCopy]) -> list[tuple[int, str]]:
    found = []
    for registration in partitions.values():
        committed = high_watermark(registration, copies)
        logs = _sound_logs(registration, copies)
        found += [
            (broker, registration.name)
            for broker, log in logs.items()
            if broker not in registration.isr and log.log_end_offset < committed
        ]
    return found


# Files and records


def _files_of(
    copies: Iterable[BrokerCopy], wanted: Collection[TopicIdPartition] | None
) -> list[tuple[BrokerCopy, Segment]]:
    """The files to read: those that could be opened, of these partitions if some are given."""
    found = []
    for copy in copies:
        if copy.log is not None:
            state = copy.log.current()
            found += [
                (copy, segment)
                for name, segment in dict(state.segments).items()
                if name not in state.broken
                and (wanted is None or any(header.topic_id_partition in wanted for header in segment.headers))
            ]
    return found


def _read_files(work: Sequence[tuple[BrokerCopy, Segment]], depth: str, advance: Advance) -> list[Wrong]:
    by_broker = {copy.broker: copy for copy, _ in work}
    lacking = {broker: _size_faults(copy, work) for broker, copy in by_broker.items()}

    def read(item: tuple[BrokerCopy, Segment]) -> list[Wrong]:
        copy, segment = item
        assert copy.log is not None
        fault = lacking[copy.broker].get(segment.name)
        try:
            checked = FileCheck(fault) if fault else check_file(copy.log.root, segment, depth == RECORDS)
            is_in_use = checked == FileCheck() or segment.name in copy.log.refresh().segments
        except LakelogException as error:  # of the store, which may work again in a moment
            return [_wrong_file(UNREAD, copy, copy.log, segment, f"{error.name}: {error}")]
        finally:
            advance()
        return list(_wrong_in_file(copy, copy.log, segment, checked)) if is_in_use else []

    return [wrong for found in in_threads(read, work, _READERS) for wrong in found]


def _size_faults(copy: BrokerCopy, work: Sequence[tuple[BrokerCopy, Segment]]) -> dict[str, str]:
    """The files that are missing or have another size, by one listing of the folder."""
    assert copy.log is not None
    root = copy.log.root
    segments = {segment.name: segment for each, segment in work if each is copy}
    try:
        found = find_faults(root, segments)
    except LakelogException:  # each file says why it cannot be read
        return {}
    return {name: fault.removeprefix(f"{root.path(name)}: ") for name, fault in found.items()}


def _wrong_in_file(copy: BrokerCopy, log: ReplicaLog, segment: Segment, checked: FileCheck) -> Iterator[Wrong]:
    if checked.fault is not None:
        yield _wrong_file(FILE, copy, log, segment, checked.fault)
    for header, difference in checked.batches:
        part = WrongPart(header.topic_id_partition, header.name, header.base_offset, header.next_offset)
        yield Wrong(BATCH, copy.broker, (part,), difference, log.root.path(segment.name))


def _wrong_file(kind: str, copy: BrokerCopy, log: ReplicaLog, segment: Segment, found: str) -> Wrong:
    """A file of which no record counts."""
    parts: dict[TopicIdPartition, WrongPart] = {}
    for header in segment.headers:
        key = header.topic_id_partition
        known = parts.get(key, WrongPart(key, header.name, header.base_offset, header.next_offset))
        start, stop = min(known.start, header.base_offset), max(known.stop or 0, header.next_offset)
        parts[key] = known._replace(start=start, stop=stop)
    return Wrong(kind, copy.broker, tuple(parts.values()), found, log.root.path(segment.name))


def _counts(
    partitions: Registrations, brokers: Mapping[int, SeenBroker], copies: Mapping[int, BrokerCopy],
    work: Sequence[tuple[BrokerCopy, Segment]], depth: str,
) -> list[BrokerCount]:  # fmt: skip
    found = []
    for broker, copy in sorted(copies.items()):
        segments = [segment for each, segment in work if each is copy]
        records = sum(header.retained.records for segment in segments for header in segment.headers)
        found.append(
            BrokerCount(
                broker, brokers[broker].state if broker in brokers else "not registered",
                sum(broker in registration.replicas for registration in partitions.values()), len(segments),
                sum(segment.file.size for segment in segments), records if depth == RECORDS else 0,
            )
        )  # fmt: skip
    return found
