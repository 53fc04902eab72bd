"""The loop around every compare-and-set: who loses replays and decides again, with jitter."""

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
    """Calls `attempt`, which reads, decides and commits, until it has not lost to another; answers what it answers.

    An outcome that cannot be told is attempted anew: `attempt` must know its own work when it sees it. Raises
    KafkaStorageException, naming the table, where outcomes stay unknown, as on a disk that cannot be written, and
    TimeoutException where others have won until `deadline`, of the monotonic clock. One attempt is always made.
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
                raise TimeoutException(
                    f"{table}: the time is over, and others have won {number + 1} commits in a row"
                ) from error
        pause.wait(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))
    raise KafkaStorageException(f"{table}: lost {MAX_ATTEMPTS} commits in a row to others")
