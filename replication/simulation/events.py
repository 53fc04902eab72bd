"""What drives a history: a list of events. The same list makes the same history, and a part of it a smaller one."""

from __future__ import annotations

import traceback
from typing import Final, NamedTuple

from lakelog.replication.errors import KafkaStorageException

# What an event does: a thread takes one step, or something happens to a process or a broker.
STEP: Final = "step"
START, CRASH, PAUSE, RESUME, SHUTDOWN = "start", "crash", "pause", "resume", "shutdown"

# What may happen to the step: an answer that is late, lost or the same once more; a commit whose outcome nobody tells.
NONE: Final = ""
LATE, LOST, AGAIN, LANDED, DROPPED = "late", "lost", "again", "landed, unknown", "dropped, unknown"
FAULTS: Final = (LATE, LOST, AGAIN, LANDED, DROPPED)


# Broken by an error of Python's, such as a TypeError. A sabotage that shows as such an error alone is not caught.
NO_FAULTS: Final = "the_code_has_no_faults"


class Event(NamedTuple):
    """One event. `salt` decides all that is left to chance in it, so that it does the same when it is run again."""

    actor: str
    act: str = STEP
    fault: str = NONE
    salt: int = 0


class Violation(BaseException):
    """An invariant does not hold. No code under test may take it for an error of its own."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text


def as_violation(error: Exception | Violation, invariant: str) -> Violation:
    """What an error that nobody has expected violates; a violation is one already."""
    if isinstance(error, Violation):
        return error
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = place.filename.rpartition("/")[2]
    return Violation(invariant, f"{type(error).__name__}: {error} ({file}, {place.name}, line {place.lineno})")


class AnswerLost(KafkaStorageException):
    """A read or a commit has failed as far as its actor knows."""
