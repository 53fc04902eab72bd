"""The history of a cluster's metadata: the rows that each version changed, and the events that they mean.

Every change of leaders, ISRs and topics is a commit of `metadata`. Its rows tell what has changed, and its cause tells
who has asked for it, and which brokers the controller has lost or found. So events reach back as far as metadata does,
and no process has to write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import CHANGE_ROOTS, Commit
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_history import commit_times
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.tables.metadata_table import BROKER_CHANGES, REQUESTED_BY, UNCLEAN_ELECTIONS
from lakelog.replication.storage.tables.state_table import CONTROLLER_EPOCH, Row, StateTable
from lakelog.schemas import METADATA
from lakelog.schemas.views.readings import EVENTS, METADATA_CHANGES

_READERS_OF_COMMITS = 8
_AT_ONCE = 64  # versions in memory
_UNREADABLE = FileNotFoundError, CorruptRecordException

BROKER_LOST, UNCLEAN = "BrokerLost", "UncleanLeaderElected"
_ALIVE = ("BrokerStarted", "IsrExpanded", "LeaderElected", UNCLEAN)  # after them their brokers may be lost anew


def metadata_changes(cluster: StorageRoot, at: float | None = None) -> Iterator[pa.Table]:
    """The rows of each version that its commit changed, oldest first; columns of `METADATA_CHANGES`. `at`: no version
    that is younger than that, in seconds since the epoch. Raises KafkaStorageException."""
    for version in MetadataHistory(cluster).read_on(at):
        yield from version.changed


class MetadataCommit(NamedTuple):
    """A version of metadata: its commit, the commit's time in seconds since the epoch, and the rows that it changed,
    with columns of `METADATA_CHANGES`."""

    commit: Commit
    committed_at: float
    changed: Sequence[pa.Table]


class MetadataHistory:
    """The versions of metadata in order, each read once.

    Each version has all rows of the table, so the oldest one that can be read is complete. History begins after the
    last version that cannot be read. `since`, in seconds since the epoch: it begins with the last version before that
    which has rows, if there is one.
    """

    def __init__(self, cluster: StorageRoot, since: float | None = None) -> None:
        self._root = cluster.child(METADATA.name)
        self._table: StateTable[Any] = StateTable.open_at(self._root, METADATA)
        self._since = since
        self._versions = _Versions()
        self._last = -1

    def is_behind(self) -> bool:
        """Polls the table; whether it has a version that was not read. Raises KafkaStorageException."""
        self._table.poll()
        return self._last < self._table.version

    def read_on(self, at: float | None = None) -> Iterator[MetadataCommit]:
        """The versions that it has not read yet. `at`: none that is younger than that, in seconds since the epoch.
        Raises KafkaStorageException."""
        times = commit_times(self._root)
        if self._last < 0 and self._since is not None:
            self._last = self._first_before(self._since, times) - 1
        kept = iter([(v, then) for v, then in times.items() if v > self._last and (at is None or then <= at)])
        while chunk := list(islice(kept, _AT_ONCE)):
            read = in_threads(lambda dated: self._read(dated[0]), chunk, _READERS_OF_COMMITS)
            for (version, then), found in zip(chunk, read, strict=True):
                self._last = version
                if found is None or version == 0:
                    self._versions = _Versions(is_whole=found is not None)
                if found is not None:
                    commit, rows = found
                    changed = [] if rows is None else list(self._versions.changed(commit, rows, then))
                    yield MetadataCommit(commit, then, changed)

    def _first_before(self, since: float, times: Mapping[int, float]) -> int:
        before = [version for version, then in times.items() if then < since]
        for version in reversed(before):
            if (found := self._read(version)) is not None and (found[1] is not None or version == 0):
                return version
        return 0

    def _read(self, version: int) -> tuple[Commit, pa.Table | None] | None:
        """A commit and its rows; no rows if it changes none. None if it cannot be read."""
        try:
            commit = read_commit(self._root, version)
        except FileNotFoundError as error:
            if version >= min(commit_times(self._root), default=0):  # the home may be another one, that is behind
                raise KafkaStorageException(f"{self._root.uri}: version {version} cannot be read here") from error
            return None
        except CorruptRecordException:
            return None
        try:
            files = [self._table.read_file(file) for file in commit.adds]
        except _UNREADABLE:
            return None
        changes_rows = bool(commit.adds or commit.removes)
        return commit, pa.concat_tables([METADATA.arrow.empty_table(), *files]) if changes_rows else None


class _Versions:
    """The rows of the version before. `is_whole`: there was no version before those that it is given."""

    def __init__(self, is_whole: bool = False) -> None:
        self._is_first = not is_whole
        self._rows = METADATA.arrow.empty_table()
        self._known: dict[TopicIdPartition, tuple[int, int]] = {}  # partition epoch, and the place of the row

    def changed(self, commit: Commit, rows: pa.Table, then: float) -> Iterator[pa.Table]:
        """The rows that a commit has changed or removed."""
        keys = map(TopicIdPartition, rows["topic_id"].to_pylist(), rows["partition"].to_pylist())
        epochs = rows["partition_epoch"].to_pylist()
        known = {key: (epoch, place) for place, (key, epoch) in enumerate(zip(keys, epochs, strict=True))}
        fresh = [place for key, (epoch, place) in known.items() if self._known.get(key, (None,))[0] != epoch]
        removed = [place for key, (_, place) in self._known.items() if key not in known]
        if fresh:
            yield _dated_change(rows.take(fresh), commit, then, self._is_first, False)
        if removed:
            yield _dated_change(self._rows.take(removed), commit, then, False, True)
        self._rows, self._known, self._is_first = rows, known, False


def _dated_change(rows: pa.Table, commit: Commit, then: float, is_first: bool, is_removed: bool) -> pa.Table:
    """Changed rows with the columns of their commit."""
    change = {
        "version": commit.version, "committed_at": int(then * 1e6), "is_first": is_first, "is_removed": is_removed,
        "who": commit.info.get("who"), "why": commit.info.get("why"),
    }  # fmt: skip
    fields = [METADATA_CHANGES.arrow.field(name) for name in change]
    columns = [
        pa.array([value] * rows.num_rows, field.type) for value, field in zip(change.values(), fields, strict=True)
    ]
    return pa.table([*rows.columns, *columns], METADATA_CHANGES.arrow)


class ClusterEvent(NamedTuple):
    """One event; the fields are the columns of `EVENTS`. Those of a partition are None where none is concerned."""

    at: float
    version: int
    event: str
    topic: str | None
    topic_id: str | None
    partition: int | None
    brokers: Sequence[int]
    leader: int | None
    leader_epoch: int | None
    isr: Sequence[int] | None
    detail: str
    who: str | None
    why: str | None


class ClusterEvents:
    """The events of a cluster in order, each once. `since` and `until` in seconds since the epoch: none before that,
    and none after it. `history`: the versions that it reads. Raises as `Cluster.open`, and KafkaStorageException."""

    def __init__(self, cluster: StorageRoot, since: float | None = None) -> None:
        self.history = MetadataHistory(cluster, since)
        self._since = since
        self._rows: dict[TopicIdPartition, Row] = {}
        self._lost: set[int] = set()  # brokers

    def read_on(self, until: float | None = None) -> Iterator[ClusterEvent]:
        """The events that it has not read yet. Raises KafkaStorageException."""
        return (event for _, events in self.read_versions(until) for event in events)

    def read_versions(self, until: float | None = None) -> Iterator[tuple[MetadataCommit, list[ClusterEvent]]]:
        """The versions that it has not read yet, each with its events. Raises KafkaStorageException."""
        for version in self.history.read_on(until):
            found = [*_of_cluster(version), *self._of_partitions(version)]
            news = [event for event in found if self._is_news(event)]
            yield version, [event for event in news if self._since is None or event.at >= self._since]

    def _is_news(self, event: ClusterEvent) -> bool:
        """Whether it is not the loss of a broker that is lost already: a controller that is elected may have seen that
        one alive, though the controller before it has noticed the loss."""
        if event.event != BROKER_LOST:
            self._lost -= {*event.brokers} if event.event in _ALIVE else set()
            return True
        is_news = not self._lost.issuperset(event.brokers)
        self._lost |= {*event.brokers}
        return is_news

    def _of_partitions(self, version: MetadataCommit) -> Iterator[ClusterEvent]:
        for row in (row for table in version.changed for row in table.to_pylist()):
            partition = TopicIdPartition(row["topic_id"], row["partition"])
            before = self._rows.pop(partition, None)
            if row["is_first"]:  # what has led there is not known
                self._rows[partition] = row
                continue
            if row["is_removed"]:
                yield _of_row(version, row, "PartitionDeleted", row["replicas"], "its topic is deleted")
                continue
            self._rows[partition] = row
            if before is not None:
                yield from _moves(version, before, row)
            else:
                replicas = row["replicas"]
                yield _of_row(version, row, "PartitionCreated", replicas, f"{len(replicas)} replicas")


def _of_cluster(version: MetadataCommit) -> Iterator[ClusterEvent]:
    commit, info = version.commit, version.commit.info
    if (epoch := commit.txns.get(CONTROLLER_EPOCH)) is not None and info.get("why") == "claim":
        yield _of_commit(version, "ControllerElected", (), f"under controller epoch {epoch}")
    if info.get("why") == CHANGE_ROOTS["why"]:
        yield _of_commit(version, "ClusterRootsChanged", (), "`lakelog cluster-roots` shows them")
    changes = info.get(BROKER_CHANGES)
    for broker, change in changes.items() if isinstance(changes, Mapping) else ():
        event, text, *_ = change
        yield _of_commit(version, str(event), [int(broker)], f"broker {broker} {text}")


def _moves(version: MetadataCommit, before: Row, row: Row) -> Iterator[ClusterEvent]:
    """The events that the change of a partition stands for. [IS-05, LE-01, LE-04, RA-01]"""
    if row["leader"] == LEADER_DURING_DELETE:
        if before["leader"] != LEADER_DURING_DELETE:
            yield _of_row(version, row, "DeletionStarted", row["replicas"], "its topic is being deleted")
        return
    yield from _leader_moves(version, before, row)
    left, joined = _without(before["isr"], row["isr"]), _without(row["isr"], before["isr"])
    if left:
        yield _of_row(version, row, "IsrShrunk", left, f"without {_numbers(left)}")
    if joined:
        yield _of_row(version, row, "IsrExpanded", joined, f"with {_numbers(joined)}")
    was_moving, is_moving = _reassigned(before), _reassigned(row)
    if any(is_moving) and is_moving != was_moving:
        detail = f"adds {_numbers(row['adding_replicas'])}, removes {_numbers(row['removing_replicas'])}"
        yield _of_row(version, row, "ReassignmentStarted", [*row["adding_replicas"]], detail)
    elif any(was_moving) and not any(is_moving):
        yield _of_row(version, row, "ReassignmentEnded", row["replicas"], f"replicas {_numbers(row['replicas'])}")


def _leader_moves(version: MetadataCommit, before: Row, row: Row) -> Iterator[ClusterEvent]:
    """The same, of its leader. Of a member of the ISR that has lost its log only the commit's cause tells."""
    was, now = before["leader"], row["leader"]
    is_unclean = f"{row['topic']}-{row['partition']}" in version.commit.info.get(UNCLEAN_ELECTIONS, ())
    if now == NO_LEADER != was:
        yield _of_row(version, row, "PartitionOffline", [was], f"broker {was} led it, and no in-sync replica is alive")
    elif now != was or is_unclean:
        detail = f"leader {_leader(was)} -> {now}"
        if now not in before["isr"]:
            yield _of_row(version, row, UNCLEAN, [now], f"{detail}, which was not in the ISR")
        elif is_unclean:
            yield _of_row(version, row, UNCLEAN, [now], f"{detail}, which has lost its log")
        else:
            yield _of_row(version, row, "LeaderElected", [now], detail)


def _of_commit(version: MetadataCommit, event: str, brokers: Sequence[int], detail: str) -> ClusterEvent:
    return ClusterEvent(
        _time(version), version.commit.version, event, None, None, None, brokers, None, None, None, detail,
        *_cause(version.commit.info),
    )  # fmt: skip


def _of_row(version: MetadataCommit, row: Row, event: str, brokers: Sequence[int], detail: str) -> ClusterEvent:
    leader = None if row["leader"] in (NO_LEADER, LEADER_DURING_DELETE) else row["leader"]
    return ClusterEvent(
        _time(version), version.commit.version, event, row["topic"], row["topic_id"], row["partition"], brokers,
        leader, row["leader_epoch"], row["isr"], detail, *_cause(version.commit.info),
    )  # fmt: skip


def _time(version: MetadataCommit) -> float:
    """When a commit was made: its file is younger where a root was replaced or copied."""
    written = version.commit.info.get("timestamp")
    return min(version.committed_at, written / 1000) if isinstance(written, int) else version.committed_at


def _cause(info: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The process that has made a change, or has asked the controller for it, and why."""
    return info.get(REQUESTED_BY) or info.get("controller") or info.get("who"), info.get("why")


def _reassigned(row: Row) -> tuple[Sequence[int], Sequence[int]]:
    return row["adding_replicas"], row["removing_replicas"]


def _without(members: Iterable[int], others: Iterable[int]) -> list[int]:
    known = set(others)
    return [member for member in members if member not in known]


def _leader(broker: int) -> str:
    return "none" if broker == NO_LEADER else str(broker)


def _numbers(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def event_rows(events: Iterable[ClusterEvent]) -> pa.Table:
    """Events as rows of `EVENTS`."""
    rows = [{**event._asdict(), "at": int(event.at * 1e6)} for event in events]
    return pa.Table.from_pylist(rows, EVENTS.arrow)
