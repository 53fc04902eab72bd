"""The loop around every compare-and-set: after a lost one it replays and decides again, with jitter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import KafkaStorageException, TimeoutException
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown

MAX_ATTEMPTS = 200
MAX_UNKNOWN = 5
_LONGEST_PAUSE_SECONDS = 0.1


def compare_and_set(table: str, attempt: Callable[[], int | None], deadline: float | None = None) -> int | None:
    """Calls `attempt`, which reads, decides and commits, until it wins, and returns its result.

    After an unknown outcome it calls `attempt` again, so `attempt` must recognise its own commit. Raises
    KafkaStorageException, naming the table, if outcomes stay unknown, as on a disk that cannot be written, and
    TimeoutException if others win until `deadline`, in seconds of the monotonic clock. It always makes at least one
    attempt.
    """
    unknown, pause = 0, threading.Event()
    for number in range(MAX_ATTEMPTS):
        try:
            return attempt()
        except (CommitConflict, CommitUnknown) as error:
            is_unknown, is_over = (
                isinstance(error, CommitUnknown),
                deadline is not None and time.monotonic() >= deadline,
            )
            unknown += is_unknown
            if unknown == MAX_UNKNOWN or (is_over and is_unknown):
                raise KafkaStorageException(f"{table}: cannot be written: {error}") from error
            if is_over:
                raise TimeoutException(f"{table}: timed out after others won {number + 1} commits in a row") from error
        pause.wait(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))
    raise KafkaStorageException(f"{table}: lost {MAX_ATTEMPTS} commits in a row to others")
