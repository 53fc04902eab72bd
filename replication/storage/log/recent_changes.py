"""Which partitions the last commits of a log have touched, so that its readers need not compare all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from lakelog.replication.protocol.record_batch import TopicIdPartition

_COMMITS = 200  # that are remembered: a reader that is further behind looks at all partitions


class RecentChanges:
    """The partitions of the last commits since a log was rebuilt. One thread notes commits, any thread reads."""

    def __init__(self) -> None:
        self._commits: tuple[tuple[int, frozenset[TopicIdPartition]], ...] = ()  # replaced, never changed in place

    def note(self, version: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Notes the partitions of a commit. Call it before any of their logs changes."""
        self._commits = (*self._commits[1 - _COMMITS :], (version, frozenset(partitions)))

    def after(self, version: int) -> Collection[TopicIdPartition] | None:
        """The partitions that commits after this version have touched; None if not all of them are remembered."""
        newer = [commit for commit in self._commits if commit[0] > version]
        if newer and newer[0][0] > version + 1:
            return None
        return {partition for _, partitions in newer for partition in partitions}


class RecordsChanges(Protocol):
    """The state of a log, as far as `LogMark` needs it."""

    version: int
    changes: RecentChanges


class LogMark(NamedTuple):
    """How far a reader has looked at a log."""

    version: int
    changes: RecentChanges

    @classmethod
    def of(cls, state: RecordsChanges) -> LogMark:
        """The mark of a state. Take it before you read logs of the state, because commits may be added to it."""
        return cls(state.version, state.changes)

    def changed(self, now: LogMark) -> Collection[TopicIdPartition] | None:
        """The partitions whose logs may have changed from this mark to `now`, or later; None if any may."""
        return now.changes.after(self.version) if now.changes is self.changes else None
