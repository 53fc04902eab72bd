"""Writes what the fetchers of a broker append and publish. What several of them bring at about the same time becomes
one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from lakelog.replication.storage.log.log_append import Fetched, append_as_follower
from lakelog.replication.storage.log.replica_log import ReplicaLog

Item = TypeVar("Item")

_SOON_BYTES = 1 << 20  # others do not wait for a larger copy
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.03, 0.1  # the wait for others, at most: see `GroupCommit`
_EXPECTED_SECONDS = 1.0  # a thread that has not come by then is no longer expected


class FollowerWrites:
    """The writes of one broker session. Fetchers that find new segments at about the same time, as after a send to
    several leaders, append in one commit and publish in another.

    `publish` writes the replica rows; its argument is the reason for the commit. `fetcher`: the one that calls. `rows`:
    `add` of a fetcher and a reason publishes the rows with all that the fetcher has done. Raises
    StaleBrokerEpochException and KafkaStorageException.
    """

    def __init__(self, log: ReplicaLog, name: str, publish: Callable[[str], object]) -> None:
        self._log = log
        self._name = name
        self._write_rows = publish
        self._appends = GroupCommit(self._append)
        self.rows = GroupCommit(self._publish)

    def expect(self, fetcher: object, size: int = 0) -> None:
        """Notes that the fetcher will append: it has found new segments, or begins to copy segments of `size` bytes."""
        if size <= _SOON_BYTES:
            self._appends.expect(fetcher)
        else:
            self._appends.give_up(fetcher)

    def append(self, fetcher: object, fetched: Fetched) -> None:
        """Commits what the fetcher has copied. Raises as `append_as_follower` and the error of this fetch."""
        self._appends.add(fetcher, _Append(fetcher, fetched))

    def done(self, fetcher: object) -> None:
        """Ends a round of the fetcher: other fetchers wait for it no more."""
        self._appends.give_up(fetcher)
        self.rows.give_up(fetcher)

    def _append(self, appends: Sequence[_Append]) -> Sequence[Exception | None]:
        errors = append_as_follower(self._log, [append.fetched for append in appends], self._name)
        for append, error in zip(appends, errors, strict=True):
            if error is None:  # before any of them goes on, so that each waits for the others' rows
                self.rows.expect(append.fetcher)
        return errors

    def _publish(self, reasons: Sequence[str]) -> Sequence[Exception | None]:
        self._write_rows(reasons[0])
        return [None] * len(reasons)


class _Append(NamedTuple):
    fetcher: object
    fetched: Fetched


class GroupCommit(Generic[Item]):
    """Writes the items of several threads with one call of `commit`, which returns the error of each item or None.

    The first thread of a group waits for the threads that are expected: as long as the last commit took, but at least
    30 ms, because rounds that begin together do not end together, and at most 100 ms. Items that come while a commit is
    under way form the next group. Threads may share it.
    """

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Exception | None]]) -> None:
        self._commit = commit
        self._condition = threading.Condition()
        self._expected: dict[object, float] = {}  # until when
        self._group: list[_Member[Item]] = []
        self._is_committing = False
        self._took = 0.0

    def expect(self, who: object) -> None:
        """A thread will soon add an item: the others wait for it until it does, gives up, or a second has passed."""
        with self._condition:
            self._expected[who] = time.monotonic() + _EXPECTED_SECONDS

    def give_up(self, who: object) -> None:
        """The thread adds no item now. It need not have been expected."""
        with self._condition:
            self._expected.pop(who, None)
            self._condition.notify_all()

    def add(self, who: object, item: Item) -> None:
        """Returns once the item is committed. Raises its error, or that of `commit` for the whole group."""
        member = _Member(item)
        with self._condition:
            self._expected.pop(who, None)
            self._group.append(member)
            self._condition.notify_all()
            if self._group[0] is not member:
                self._condition.wait_for(lambda: member.is_done)
            else:
                self._condition.wait_for(lambda: not self._is_committing)
                self._condition.wait_for(lambda: not self._is_anybody_expected(), self._timeout())
                group, self._group, self._is_committing = self._group, [], True
        if not member.is_done:
            self._commit_group(group)
        if member.error is not None:
            raise member.error

    def _is_anybody_expected(self) -> bool:
        now = time.monotonic()
        self._expected = {who: until for who, until in self._expected.items() if until > now}
        return bool(self._expected)

    def _timeout(self) -> float:
        return min(max(self._took, _SHORTEST_SECONDS), _LONGEST_SECONDS)

    def _commit_group(self, group: Sequence[_Member[Item]]) -> None:
        began_at = time.monotonic()
        errors: Sequence[Exception | None] = [RuntimeError("the commit was interrupted")] * len(group)
        try:
            errors = self._commit([member.item for member in group])
        except Exception as error:
            errors = [error] * len(group)
        finally:
            with self._condition:
                self._took, self._is_committing = time.monotonic() - began_at, False
                for member, found in zip(group, errors, strict=True):
                    member.error, member.is_done = found, True
                self._condition.notify_all()


@dataclass
class _Member(Generic[Item]):
    item: Item
    error: Exception | None = None
    is_done: bool = False
