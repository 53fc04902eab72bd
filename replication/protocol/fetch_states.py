"""The fetch states of one fetcher's partitions. The fetcher's rounds move them; the broker adds and removes them.
[FS-01, FS-02, FT-15]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakelog.replication.protocol import fetch_state as rules
from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState


class NoLongerFetched(Exception):
    """A partition was removed from its fetcher during a round."""


class FetchStates:
    """The `PartitionFetchState` of each partition; it changes only by the rules of `protocol.fetch_state`.

    `clock`: monotonic, in seconds. `removals`: how often partitions were removed. `is_held`: a round is writing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.removals = 0
        self.is_held = False
        self._states: dict[TopicIdPartition, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def get(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """The state of a partition; None if this fetcher does not fetch it."""
        return self._states.get(partition)

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
            self._states[partition] = rules.assigned(
                before.get(partition), *partition, initial.leader_epoch, initial.fetch_offset
            )
        return self._states != before

    @contextmanager
    def held(self, removals: int) -> Iterator[None]:
        """A round writes only in such a block. A caller of `remove` first waits until `is_held` is False.

        Raises NoLongerFetched, before the block, if partitions were removed since the round read `removals`. So a round
        that a hung source delayed writes nothing for removed partitions, and nobody waits for that source.
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
        moved = [self._move(p, lambda s: rules.ready(s, now)) for p in self.all()]
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
        self._move(partition, lambda s: rules.truncated(s, offset))

    def diverged(self, partitions: Iterable[TopicIdPartition], error: str) -> None:
        """The logs differ from their leaders'; they are truncated again."""
        for partition in partitions:
            self._move(partition, lambda s: rules.diverged(s, error))

    def advanced(self, partition: TopicIdPartition, offset: int, leader_high_watermark: int | None = None) -> None:
        """The log has all records below `offset`."""
        self._move(partition, lambda s: rules.advanced(s, offset, leader_high_watermark))

    def fell_behind(self, partitions: Iterable[TopicIdPartition]) -> None:
        """The commits have a gap; the fetcher must read the leader's snapshot."""
        for partition in partitions:
            self._move(partition, rules.fell_behind)

    def caught_up(self, partition: TopicIdPartition) -> None:
        """The fetcher has read the snapshot to its end."""
        self._move(partition, rules.caught_up)

    def delay(self, partition: TopicIdPartition, error: str | None, backoff_ms: float) -> None:
        """Delays the partition by `backoff_ms`. The snapshot is read next, because rounds read commits meanwhile.

        `error`: None if a quota causes the delay.
        """
        until = self._clock() + backoff_ms / 1000
        self._move(partition, lambda s: rules.delayed(rules.fell_behind(s), error, until))

    def _move(
        self, partition: TopicIdPartition, transition: Callable[[PartitionFetchState], PartitionFetchState]
    ) -> bool:
        before = self._states.get(partition)
        if before is None:
            return False
        self._states[partition] = transition(before)
        return self._states[partition] != before
