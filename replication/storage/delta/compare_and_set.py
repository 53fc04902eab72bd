"""The loop around every compare-and-set: after a lost one it replays and decides again, with jitter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import KafkaStorageException, LakelogException, TimeoutException
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot

MAX_ATTEMPTS = 200
MAX_UNKNOWN = 5
_LONGEST_PAUSE_SECONDS = 0.1

_REMEMBERED_SECONDS = 10.0  # how long after a lost commit others are taken to compete
_LONGEST_SECONDS = 1.0  # a commit that took longer has met a fault of the store, and does not predict the next one
_FIRST_STREAK, _LONGEST_STREAK = 8, 64  # commits in a row after which a writer once lets others go first


def compare_and_set(
    table: StorageRoot,
    attempt: Callable[[float | None], int | None],
    deadline: float | None = None,
    noop_staleness: float | None = None,
    backoff: CommitBackoff | None = None,
) -> int | None:
    """Calls `attempt`, which reads, decides and commits, until it wins, and returns its result.

    `attempt` gets how old the view of the table may be on which it decides, in seconds; None: it must read the table.
    In an object store the first attempt may use a view that this process has read before: its commit loses if the table
    has moved. An old view counts for a commit only. If the first attempt commits nothing or raises an error of the
    protocol, it is repeated on a fresh read. With `noop_staleness`, "nothing to do" counts on a view of that age, too;
    infinity reads nothing. `backoff`, for a table with several writers: before its first attempt this writer may let
    others go first, and then it reads the table.

    After an unknown outcome it calls `attempt` again, so `attempt` must recognise its own commit. Raises
    KafkaStorageException, naming the table, if outcomes stay unknown, as on a disk that cannot be written, and
    TimeoutException if others win until `deadline`, in seconds of the monotonic clock. It always makes at least one
    attempt.
    """
    uri, unknown, pause = table.uri, 0, threading.Event()
    is_distant, backoff = table.version_cache is not None, backoff or CommitBackoff()
    for_others = _until(deadline, backoff.next_pause()) if is_distant else 0.0
    pause.wait(for_others)
    for number in range(MAX_ATTEMPTS):
        staleness = RECENT_SECONDS if number == 0 and is_distant and not for_others else None
        began_at = time.monotonic()
        try:
            won = attempt(staleness if staleness is None or noop_staleness is None else noop_staleness)
            if won is not None:
                backoff.won(time.monotonic() - began_at)
            if won is not None or staleness is None or noop_staleness is not None:
                return won
            continue
        except (CommitConflict, CommitUnknown) as error:
            is_unknown = isinstance(error, CommitUnknown)
            if not is_unknown:
                backoff.lost()
            is_over = deadline is not None and time.monotonic() >= deadline
            unknown += is_unknown
            if unknown == MAX_UNKNOWN or (is_over and is_unknown):
                raise KafkaStorageException(f"{uri}: cannot be written: {error}") from error
            if is_over:
                raise TimeoutException(f"{uri}: timed out after others won {number + 1} commits in a row") from error
        except LakelogException as error:
            if staleness is None or isinstance(error, KafkaStorageException):
                raise
            continue
        pause.wait(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))
    raise KafkaStorageException(f"{uri}: lost {MAX_ATTEMPTS} commits in a row to others")


def _until(deadline: float | None, seconds: float) -> float:
    """`seconds`, but not more than are left until `deadline`."""
    return seconds if deadline is None else min(seconds, max(0.0, deadline - time.monotonic()))


class CommitBackoff:
    """Gives other writers of a table a chance to commit, where commits take long.

    A writer that has won a commit knows the table, and is ready for the next one sooner than the others, who have to
    read its commit first. In a distant store it would win every time. So it waits for the time of a commit before its
    own next one: always while others compete, and once after some commits in a row, because others who only lose leave
    no trace in the table. Threads may share it: a lost update costs a short wait.
    """

    def __init__(self) -> None:
        self._lost_at = self._won_at = float("-inf")
        self._took = 0.0
        self._streak, self._longest_streak = 0, _FIRST_STREAK

    def lost(self) -> None:
        """Notes that another writer has won a commit."""
        self._lost_at, self._streak, self._longest_streak = time.monotonic(), 0, _FIRST_STREAK

    def won(self, seconds: float) -> None:
        """Notes a commit of this writer, and its duration in seconds, reading the table included."""
        self._won_at, self._took = time.monotonic(), min(seconds, _LONGEST_SECONDS)

    def next_pause(self) -> float:
        """Counts one more commit, and returns the seconds to wait before it: until one or two times the duration of the
        last commit have passed since its end; 0.0 without competitors."""
        now = time.monotonic()
        left = self._won_at + random.uniform(1.0, 2.0) * self._took - now
        self._streak = self._streak + 1 if left > 0 else 0
        if now - self._lost_at < _REMEMBERED_SECONDS:
            return max(0.0, left)
        if self._streak < self._longest_streak:
            return 0.0
        self._streak, self._longest_streak = 0, min(2 * self._longest_streak, _LONGEST_STREAK)
        return left
