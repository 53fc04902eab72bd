"""A follower's fetch states: how far it has come in each partition, whether it may fetch now, and which of its fetchers
does. [FS-01, FS-02, FT-15, FM-03]

Kafka: `PartitionFetchState`, `AbstractFetcherThread`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakelog.replication.protocol.record_batch import TopicIdPartition

NEVER: Final = float("inf")

_MIN_INT = -(2**31)


class FollowerState:
    """The states in the column `state` of the replicas table. [FS-01]

    A fetcher has the first three. A replica with a broken file is Offline and has no fetcher. [OL-01] Nor has a stray
    replica, which no metadata explain. [SR-02]
    """

    TRUNCATING: Final = "Truncating"
    FETCHING: Final = "Fetching"
    DELAYED: Final = "Delayed"
    OFFLINE: Final = "Offline"
    STRAY: Final = "Stray"


_T, _F, _D = FollowerState.TRUNCATING, FollowerState.FETCHING, FollowerState.DELAYED

# Transition -> its allowed moves, from one shown state to another. Only a new leader epoch or a diverged history leads
# back to Truncating. Only time or a new leader epoch ends a delay.
TRANSITIONS: Final = {
    "assigned": frozenset({(_T, _T), (_F, _T), (_D, _T)}),
    "truncated": frozenset({(_T, _F), (_F, _F)}),
    "diverged": frozenset({(_F, _T), (_T, _T)}),
    "advanced": frozenset({(_F, _F)}),
    "fell_behind": frozenset({(_T, _T), (_F, _F), (_D, _D)}),
    "caught_up": frozenset({(_F, _F)}),
    "delayed": frozenset({(_T, _D), (_F, _D), (_D, _D)}),
    "ready": frozenset({(_D, _T), (_D, _F)}),
}


class InitialFetchState(NamedTuple):
    """The facts that a fetcher needs of a new partition: leader, leader epoch, and the offset to fetch from. [BL-10]"""

    topic: str
    leader: int
    leader_epoch: int
    fetch_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFetchState:
    """A fetcher's state of one partition.

    `state` is Truncating or Fetching, and a delay leaves it unchanged; `shown_state` includes the delay.
    `fetch_offset`: the next offset to fetch. `delayed_until`: in seconds of the broker's monotonic clock, None without
    a delay. `lagging`: the fetcher must read the leader's snapshot once before it follows the commits. `lag`: number of
    committed records that the follower lacks, None while unknown. `diverged`: the log has batches that the leader lacks
    although their lineages agree; so the leader's batches, not its epochs, decide where to truncate.
    """

    topic_id: str
    partition: int
    leader_epoch: int
    fetch_offset: int
    state: str = FollowerState.TRUNCATING
    delayed_until: float | None = None
    lagging: bool = True
    error: str | None = None
    lag: int | None = None
    diverged: bool = False

    @property
    def shown_state(self) -> str:
        """The state for the replicas table: Delayed during a delay, else `state`. [FS-01]"""
        return self.state if self.delayed_until is None else FollowerState.DELAYED

    def is_delayed(self, now: float) -> bool:
        """Whether the delay still runs at `now`, in seconds of the same clock."""
        return self.delayed_until is not None and now < self.delayed_until

    @property
    def is_ready_for_fetch(self) -> bool:
        """Whether the partition is Fetching, without a delay. A delay counts until `ready` ends it.

        So the clock cannot move a partition into a round, or out of it, while the round runs.

        Kafka: `PartitionFetchState.isReadyForFetch`. [FS-01]
        """
        return self.shown_state == FollowerState.FETCHING


def assigned(
    current: PartitionFetchState | None, topic_id: str, partition: int, leader_epoch: int, fetch_offset: int
) -> PartitionFetchState:
    """The state after an assignment: unchanged under the same leader epoch, else a fresh one in Truncating.

    The same assignment may arrive twice, and must not send a follower back to truncation. A new epoch also ends a
    delay, because a fetch that failed under the old epoch may now succeed. `fetch_offset` is the replica's own LEO.

    Kafka: `AbstractFetcherThread.addPartitions`. [FS-02]
    """
    fresh = PartitionFetchState(topic_id, partition, leader_epoch, fetch_offset)
    if current is None or (current.topic_id, current.partition) != (topic_id, partition):
        return fresh
    return current if current.leader_epoch == leader_epoch else _moved("assigned", current, fresh)


def truncated(state: PartitionFetchState, offset: int) -> PartitionFetchState:
    """The log agrees with the leader's up to `offset`, its LEO: the partition is Fetching, from the snapshot first.

    Kafka: `AbstractFetcherThread.updateFetchOffsetAndMaybeMarkTruncationComplete`. [FS-01]
    """
    fetching = replace(state, state=FollowerState.FETCHING, lagging=True, diverged=False, error=None)
    return _moved("truncated", state, replace(fetching, fetch_offset=offset))


def diverged(state: PartitionFetchState, error: str) -> PartitionFetchState:
    """The log differs from its leader's: the partition is Truncating again, and its row counts for nothing meanwhile.

    Raft: a follower whose log does not match deletes the conflicting entries. [TR-08]
    """
    truncating = replace(state, state=FollowerState.TRUNCATING, lagging=True, diverged=True, error=error)
    return _moved("diverged", state, truncating)


def advanced(state: PartitionFetchState, offset: int, leader_high_watermark: int | None = None) -> PartitionFetchState:
    """The log has all records below `offset`; the error is cleared. Only a truncation moves the fetch offset back.

    `leader_high_watermark`: the leader's HW, if known; it updates `lag`.

    Kafka: `AbstractFetcherThread.processFetchRequest`, `FetcherLagStats`. [FT-07, FT-08]

    Raises:
        ValueError: `offset` is below the fetch offset, or the partition is not Fetching.
    """
    if offset < state.fetch_offset:
        raise ValueError(f"partition {state.partition}: fetch offset {state.fetch_offset} cannot go back to {offset}")
    lag = state.lag if leader_high_watermark is None else max(0, leader_high_watermark - offset)
    is_new = (offset, lag, None) != (state.fetch_offset, state.lag, state.error)
    return _moved("advanced", state, replace(state, fetch_offset=offset, lag=lag, error=None) if is_new else state)


def fell_behind(state: PartitionFetchState) -> PartitionFetchState:
    """The commits have a gap, or one of their files was deleted. The fetcher must read the leader's snapshot."""
    return _moved("fell_behind", state, state if state.lagging else replace(state, lagging=True))


def caught_up(state: PartitionFetchState) -> PartitionFetchState:
    """The fetcher has read the leader's snapshot to its end, and may follow the commits."""
    return _moved("caught_up", state, replace(state, lagging=False))


def delayed(state: PartitionFetchState, error: str | None, until: float) -> PartitionFetchState:
    """Not fetched before `until`, in seconds of the broker's monotonic clock. Offset and state are kept.

    `NEVER` waits for a new leader epoch. `error` is None if a quota causes the delay; then an earlier error stays. Of
    two delays the longer one wins, with its error: so a passing fault of the fetcher does not revive a partition that
    has failed for good.

    Kafka: `AbstractFetcherThread.delayPartitions`, `FailedPartitions`. [FT-15, TH-01] [FS-01]
    """
    if state.delayed_until is not None and state.delayed_until > until:
        return state
    shown = state.error if error is None else error
    return _moved("delayed", state, replace(state, delayed_until=until, error=shown))


def ready(state: PartitionFetchState, now: float) -> PartitionFetchState:
    """Ends the delay if it is over at `now`, in seconds; else the state is unchanged.

    The error stays until `advanced` or `truncated` clears it, because nothing has been fetched yet. [FT-15]
    """
    if state.delayed_until is None or state.is_delayed(now):
        return state
    return _moved("ready", state, replace(state, delayed_until=None))


def _moved(transition: str, before: PartitionFetchState, after: PartitionFetchState) -> PartitionFetchState:
    """`after`, if TRANSITIONS allows the move. Any other move is a bug of the caller and raises ValueError."""
    if (before.shown_state, after.shown_state) not in TRANSITIONS[transition]:
        raise ValueError(f"partition {before.partition} is {before.shown_state}: it cannot be {transition} now")
    return after


class NoLongerFetched(Exception):
    """A partition was removed from its fetcher during a round."""


class FetchStates:
    """The `PartitionFetchState` of each partition; it changes only by the functions above.

    `clock`: monotonic, in seconds. `removals`: how often partitions were removed. `is_held`: a round is writing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.removals = 0
        self.is_held = False
        self._states: dict[TopicIdPartition, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def all(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """All partitions and their states."""
        return dict(self._states)

    def assign(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> bool:
        """Takes over partitions; returns whether any is new or has a new leader epoch.

        Remove a partition before you assign it under another epoch, as StopFetching does. Otherwise a running round
        would go on with it.
        """
        before = dict(self._states)
        for partition, initial in partitions.items():
            self._states[partition] = assigned(
                before.get(partition), *partition, initial.leader_epoch, initial.fetch_offset
            )
        return self._states != before

    @contextmanager
    def held(self, removals: int) -> Iterator[None]:
        """A round writes only in such a block. A caller of `remove` first waits until `is_held` is False.

        Raises NoLongerFetched, before the block, if partitions were removed since the round read `removals`. So a round
        that a hung source delayed writes nothing for removed partitions, and no thread waits for that source.
        """
        if self.removals != removals:
            raise NoLongerFetched
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    def remove(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forgets partitions. Not to be called while `is_held`."""
        here = [partition for partition in partitions if partition in self._states]
        if here:
            self.removals += 1
            for partition in here:
                del self._states[partition]

    def end_delays(self) -> bool:
        """Ends the delays that are over; returns whether there were any."""
        now = self._clock()
        moved = [self._move(p, lambda s: ready(s, now)) for p in self.all()]
        return any(moved)

    def has_due(self) -> bool:
        """Whether `end_delays` would end a delay."""
        now = self._clock()
        return any(s.delayed_until is not None and not s.is_delayed(now) for s in self.all().values())

    def fetchable(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """The partitions that may be fetched now."""
        return {p: s for p, s in self.all().items() if s.is_ready_for_fetch}

    def truncating(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """The partitions that must truncate before they fetch."""
        return {p: s for p, s in self.all().items() if s.shown_state == FollowerState.TRUNCATING}

    def truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """The log agrees with the leader's up to `offset`, its LEO."""
        self._move(partition, lambda s: truncated(s, offset))

    def diverged(self, partitions: Iterable[TopicIdPartition], error: str) -> None:
        """The logs differ from their leaders'; they are truncated again."""
        for partition in partitions:
            self._move(partition, lambda s: diverged(s, error))

    def advanced(self, partition: TopicIdPartition, offset: int, leader_high_watermark: int | None = None) -> None:
        """The log has all records below `offset`."""
        self._move(partition, lambda s: advanced(s, offset, leader_high_watermark))

    def fell_behind(self, partitions: Iterable[TopicIdPartition]) -> None:
        """The commits have a gap; the fetcher must read the leader's snapshot."""
        for partition in partitions:
            self._move(partition, fell_behind)

    def caught_up(self, partition: TopicIdPartition) -> None:
        """The fetcher has read the snapshot to its end."""
        self._move(partition, caught_up)

    def delay(self, partition: TopicIdPartition, error: str | None, backoff_ms: float) -> None:
        """Delays the partition by `backoff_ms`. The snapshot is read next, because rounds read commits meanwhile.

        `error`: None if a quota causes the delay.
        """
        until = self._clock() + backoff_ms / 1000
        self._move(partition, lambda s: delayed(fell_behind(s), error, until))

    def _move(
        self, partition: TopicIdPartition, transition: Callable[[PartitionFetchState], PartitionFetchState]
    ) -> bool:
        before = self._states.get(partition)
        if before is None:
            return False
        self._states[partition] = transition(before)
        return self._states[partition] != before


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
