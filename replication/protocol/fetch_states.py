"""The fetch states of one fetcher's partitions: its rounds move them, its broker adds and removes them. [FS-01, FS-02,
FT-15]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakelog.replication.protocol import fetch_state as rules
from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState


class NoLongerFetched(Exception):
    """A partition was taken from its fetcher while a round was under way."""


class FetchStates:
    """A dictionary of `PartitionFetchState` whose entries only move by the rules of `protocol.fetch_state`.

    `clock` is monotonic, and in seconds. `removals`: how often partitions were removed. `is_held`: a round writes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.removals = 0
        self.is_held = False
        self._states: dict[TopicIdPartition, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def get(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """The state of a partition, None if it is not fetched here."""
        return self._states.get(partition)

    def all(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """Every partition and its state."""
        return dict(self._states)

    def assign(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> bool:
        """Takes partitions over; tells whether any is new or has a new epoch. Who has another epoch for a partition
        removes it first, as StopFetching does: a round that goes on would take it for the one that it knows."""
        before = dict(self._states)
        for partition, initial in partitions.items():
            self._states[partition] = rules.assigned(
                before.get(partition), *partition, initial.leader_epoch, initial.fetch_offset
            )
        return self._states != before

    @contextmanager
    def held(self, removals: int) -> Iterator[None]:
        """A round writes in such a block alone. Who removes partitions waits while `is_held`.

        Raises NoLongerFetched, before the block, if partitions were removed since the round has read `removals`. So a
        round that a hung source has held up writes nothing of what was removed, and nobody waits for its source.
        """
        if self.removals != removals:
            raise NoLongerFetched
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    def remove(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forgets partitions; what is being written of them has to be waited for."""
        here = [partition for partition in partitions if partition in self._states]
        if here:
            self.removals += 1
            for partition in here:
                del self._states[partition]

    def end_delays(self) -> bool:
        """Makes partitions ready whose delay is over; tells whether there were any."""
        now = self._clock()
        moved = [self._move(p, lambda s: rules.ready(s, now)) for p in self.all()]
        return any(moved)

    def has_due(self) -> bool:
        """Whether a delay is over that has not been ended yet."""
        now = self._clock()
        return any(s.delayed_until is not None and not s.is_delayed(now) for s in self.all().values())

    def fetchable(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """The partitions that may be fetched now."""
        return {p: s for p, s in self.all().items() if s.is_ready_for_fetch}

    def truncating(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """The partitions that have to find out first where their log parts from the leader's."""
        return {p: s for p, s in self.all().items() if s.shown_state == FollowerState.TRUNCATING}

    def truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """The log agrees with the leader's up to its end, `offset`."""
        self._move(partition, lambda s: rules.truncated(s, offset))

    def diverged(self, partitions: Iterable[TopicIdPartition], error: str) -> None:
        """The logs have another history than the leader's: they are truncated anew."""
        for partition in partitions:
            self._move(partition, lambda s: rules.diverged(s, error))

    def advanced(self, partition: TopicIdPartition, offset: int, leader_high_watermark: int | None = None) -> None:
        """Records below `offset` have been appended."""
        self._move(partition, lambda s: rules.advanced(s, offset, leader_high_watermark))

    def fell_behind(self, partitions: Iterable[TopicIdPartition]) -> None:
        """The tail does not join the log: the leader's snapshot has to be read."""
        for partition in partitions:
            self._move(partition, rules.fell_behind)

    def caught_up(self, partition: TopicIdPartition) -> None:
        """The snapshot has been read to its end."""
        self._move(partition, rules.caught_up)

    def delay(self, partition: TopicIdPartition, error: str | None, backoff_ms: float) -> None:
        """Not fetched for `backoff_ms`; what the stream delivers meanwhile passes by, so the snapshot is due then.
        `error`: None for what a quota holds back."""
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
