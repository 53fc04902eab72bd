"""Group commit: what several threads bring at about the same time is written in one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.03, 0.1  # the wait for others, at most: see `GroupCommit`
_EXPECTED_SECONDS = 1.0  # who has not come by then is not expected any more


class GroupCommit(Generic[Item]):
    """Writes the items of several threads with one call of `commit`, which returns the error of each item or None.

    The first thread of a group waits for the threads that are expected: at most as long as the last commit took, but
    not less than 30 ms, because micro-batches that begin together do not end together, and not more than 100 ms. Items
    that come while a commit is under way form the next group. Threads may share it.
    """

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Exception | None]]) -> None:
        self._commit = commit
        self._condition = threading.Condition()
        self._expected: dict[object, float] = {}  # until when
        self._group: list[_Member[Item]] = []
        self._is_committing = False
        self._took = 0.0

    def expect(self, who: object) -> None:
        """A thread will soon add an item: the others wait for it until it does, or gives up, or does not come."""
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
                self._condition.wait_for(lambda: not self._is_anybody_expected(), self._patience())
                group, self._group, self._is_committing = self._group, [], True
        if not member.is_done:
            self._commit_group(group)
        if member.error is not None:
            raise member.error

    def _is_anybody_expected(self) -> bool:
        now = time.monotonic()
        self._expected = {who: until for who, until in self._expected.items() if until > now}
        return bool(self._expected)

    def _patience(self) -> float:
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
