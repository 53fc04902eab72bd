"""How far a follower has come with a partition, and whether it may fetch it now.

Kafka: `PartitionFetchState`, `AbstractFetcherThread`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

NEVER: Final = float("inf")


class FollowerState:
    """The three states, as they stand in the column `state` of the replicas table. [FS-01]

    Offline is none of a fetcher's: no fetcher has a replica whose file is broken. [OL-01]
    """

    TRUNCATING: Final = "Truncating"
    FETCHING: Final = "Fetching"
    DELAYED: Final = "Delayed"
    OFFLINE: Final = "Offline"


_T, _F, _D = FollowerState.TRUNCATING, FollowerState.FETCHING, FollowerState.DELAYED

# Transition -> the moves that it may make, from what is shown before to what is shown after. There are no others:
# only a new leader epoch, or a history that is not the leader's, leads back to Truncating, and nothing but time or a
# new epoch ends a delay.
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


@dataclass(frozen=True, slots=True)
class PartitionFetchState:
    """What a fetcher knows of one partition that it follows.

    `state` is Truncating or Fetching and outlives a delay; `shown_state` is what others are told. `fetch_offset` is
    the next offset wanted. `delayed_until` is in seconds of the observer's monotonic clock, None without a delay.
    `lagging`: the leader's snapshot must be read once before the tail of its log may be followed. `lag`: committed
    records that are not here yet, None as long as that is not known. `diverged`: the log has batches that the leader
    does not have although its epochs agree, so that the leader's batches tell where to truncate.
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
        """The state for the replicas table: a delay overrides the other two. [FS-01]"""
        return self.state if self.delayed_until is None else FollowerState.DELAYED

    def is_delayed(self, now: float) -> bool:
        """Whether a delay is still running at `now`."""
        return self.delayed_until is not None and now < self.delayed_until

    @property
    def is_ready_for_fetch(self) -> bool:
        """Only what is Fetching is fetched, and nothing before `ready` has ended its delay.

        So within one round a partition is either in it or out of it, whatever the clock says.

        Kafka: `PartitionFetchState.isReadyForFetch`. [FS-01]
        """
        return self.shown_state == FollowerState.FETCHING


def assigned(
    current: PartitionFetchState | None, topic_id: str, partition: int, leader_epoch: int, fetch_offset: int
) -> PartitionFetchState:
    """A partition that a fetcher is told to follow: kept if it follows it at that epoch, else Truncating from scratch.

    The same assignment may arrive twice; the second must not send a follower back to truncation. A new epoch ends a
    delay as well: what failed under the old one may work under the new. `fetch_offset` is the replica's own LEO.

    Kafka: `AbstractFetcherThread.addPartitions`. [FS-02]
    """
    fresh = PartitionFetchState(topic_id, partition, leader_epoch, fetch_offset)
    if current is None or (current.topic_id, current.partition) != (topic_id, partition):
        return fresh
    return current if current.leader_epoch == leader_epoch else _moved("assigned", current, fresh)


def truncated(state: PartitionFetchState, offset: int) -> PartitionFetchState:
    """The log agrees with the leader's up to `offset`, its LEO after the truncation: Fetching, from a snapshot first.

    Kafka: `AbstractFetcherThread.updateFetchOffsetAndMaybeMarkTruncationComplete`. [FS-01]
    """
    fetching = replace(state, state=FollowerState.FETCHING, lagging=True, diverged=False, error=None)
    return _moved("truncated", state, replace(fetching, fetch_offset=offset))


def diverged(state: PartitionFetchState, error: str) -> PartitionFetchState:
    """The log has another history than its leader's: Truncating once more, and nothing in it counts until then.

    Raft: a follower whose log does not match deletes what conflicts. [TR-08]
    """
    truncating = replace(state, state=FollowerState.TRUNCATING, lagging=True, diverged=True, error=error)
    return _moved("diverged", state, truncating)


def advanced(state: PartitionFetchState, offset: int, leader_high_watermark: int | None = None) -> PartitionFetchState:
    """Records below `offset` have been appended, and what was wrong is over. A fetch moves the offset forward only; a
    truncation alone takes it back.

    With the leader's HW the lag is known: what is committed and not here yet.

    Kafka: `AbstractFetcherThread.processFetchRequest`, `FetcherLagStats`. [FT-07, FT-08]

    Raises:
        ValueError: `offset` is below the fetch offset, or the partition is not Fetching.
    """
    if offset < state.fetch_offset:
        raise ValueError(f"partition {state.partition}: fetch offset {state.fetch_offset} cannot go back to {offset}")
    lag = state.lag if leader_high_watermark is None else max(0, leader_high_watermark - offset)
    return _moved("advanced", state, replace(state, fetch_offset=offset, lag=lag, error=None))


def fell_behind(state: PartitionFetchState) -> PartitionFetchState:
    """The tail no longer joins the log: a gap, or a source file that is gone. The snapshot has to be read."""
    return _moved("fell_behind", state, replace(state, lagging=True))


def caught_up(state: PartitionFetchState) -> PartitionFetchState:
    """The leader's snapshot has been read to its end: the tail may be followed."""
    return _moved("caught_up", state, replace(state, lagging=False))


def delayed(state: PartitionFetchState, error: str | None, until: float) -> PartitionFetchState:
    """Not fetched before `until`; offset and state are kept. `NEVER` waits for a new leader epoch. Without an error it
    is held back by a quota: others see that it waits, and that nothing is wrong with it but what was before.

    Of two delays the longer holds, with its error: a partition that has failed for good is not revived by a
    passing trouble of its fetcher.

    Kafka: `AbstractFetcherThread.delayPartitions`, `FailedPartitions`. [FT-15, TH-01] [FS-01]
    """
    if state.delayed_until is not None and state.delayed_until > until:
        return state
    told = state.error if error is None else error
    return _moved("delayed", state, replace(state, delayed_until=until, error=told))


def ready(state: PartitionFetchState, now: float) -> PartitionFetchState:
    """Without its delay once that is over: what it was before. Unchanged otherwise.

    It keeps the error, as nothing has been fetched since: `advanced` and `truncated` end that. [FT-15]
    """
    if state.delayed_until is None or state.is_delayed(now):
        return state
    return _moved("ready", state, replace(state, delayed_until=None))


def _moved(transition: str, before: PartitionFetchState, after: PartitionFetchState) -> PartitionFetchState:
    """`after`, if the table allows the transition from `before`: another move is a bug of the caller."""
    if (before.shown_state, after.shown_state) not in TRANSITIONS[transition]:
        raise ValueError(f"partition {before.partition} is {before.shown_state}: it cannot be {transition} now")
    return after
