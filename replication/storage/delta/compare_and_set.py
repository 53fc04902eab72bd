"""The loop around every compare-and-set: after a lost one it replays and decides again, with jitter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import KafkaStorageException, LakelogException, TimeoutException
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown
from lakelog.replication.storage.delta.newest_versions import YOUNG_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.turns import Turns

MAX_ATTEMPTS = 200
MAX_UNKNOWN = 5
_LONGEST_PAUSE_SECONDS = 0.1


def compare_and_set(
    table: StorageRoot,
    attempt: Callable[[float | None], int | None],
    deadline: float | None = None,
    patience: float | None = None,
    turns: Turns | None = None,
) -> int | None:
    """Calls `attempt`, which reads, decides and commits, until it wins, and returns its result.

    In an object store the first attempt gets an age in seconds, and may decide on what this process has seen of the
    table within it: its commit loses if the table has moved. Nothing else is believed of it: if it commits nothing or
    raises an error of the protocol, the next attempt reads the table, as its age is None. With `patience`, in seconds,
    the work may wait so long (infinite: it looks for nothing): that is the age, and "nothing to do" is believed. With
    `turns`, where a table has several writers, the first attempt lets others go first, and then reads the table, too.

    After an unknown outcome it calls `attempt` again, so `attempt` must recognise its own commit. Raises
    KafkaStorageException, naming the table, if outcomes stay unknown, as on a disk that cannot be written, and
    TimeoutException if others win until `deadline`, in seconds of the monotonic clock. It always makes at least one
    attempt.
    """
    uri, unknown, pause = table.uri, 0, threading.Event()
    is_distant, turns = table.newest_versions is not None, turns or Turns()
    for_others = _until(deadline, turns.next_pause()) if is_distant else 0.0
    pause.wait(for_others)
    for number in range(MAX_ATTEMPTS):
        age = YOUNG_SECONDS if number == 0 and is_distant and not for_others else None
        began_at = time.monotonic()
        try:
            won = attempt(age if age is None or patience is None else patience)
            if won is not None:
                turns.won(time.monotonic() - began_at)
            if won is not None or age is None or patience is not None:
                return won
            continue
        except (CommitConflict, CommitUnknown) as error:
            is_unknown = isinstance(error, CommitUnknown)
            if not is_unknown:
                turns.lost()
            is_over = deadline is not None and time.monotonic() >= deadline
            unknown += is_unknown
            if unknown == MAX_UNKNOWN or (is_over and is_unknown):
                raise KafkaStorageException(f"{uri}: cannot be written: {error}") from error
            if is_over:
                raise TimeoutException(f"{uri}: timed out after others won {number + 1} commits in a row") from error
        except LakelogException as error:
            if age is None or isinstance(error, KafkaStorageException):
                raise
            continue
        pause.wait(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))
    raise KafkaStorageException(f"{uri}: lost {MAX_ATTEMPTS} commits in a row to others")


def _until(deadline: float | None, seconds: float) -> float:
    """So many seconds, or fewer: what is left until `deadline`."""
    return seconds if deadline is None else min(seconds, max(0.0, deadline - time.monotonic()))
