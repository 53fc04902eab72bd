"""The events of a history. The same list makes the same history, and a part of it makes a smaller one."""

from __future__ import annotations

import traceback
from typing import Final, NamedTuple

from lakelog.replication.errors import KafkaStorageException

# The act of an event: a thread takes one step, or a process or broker starts, crashes, pauses, resumes or shuts down.
STEP: Final = "step"
START, CRASH, PAUSE, RESUME, SHUTDOWN = "start", "crash", "pause", "resume", "shutdown"

# The fault of a step: a late, lost or repeated answer to a read, or a commit with an unknown outcome.
NONE: Final = ""
LATE, LOST, AGAIN, LANDED, DROPPED = "late", "lost", "again", "landed, unknown", "dropped, unknown"
FAULTS: Final = (LATE, LOST, AGAIN, LANDED, DROPPED)


# Violated by a Python error such as TypeError. A sabotage that shows only as such an error does not count as caught.
NO_FAULTS: Final = "the_code_has_no_faults"


class Event(NamedTuple):
    """One event. `salt` decides everything that is random in it, so it does the same in every run."""

    actor: str
    act: str = STEP
    fault: str = NONE
    salt: int = 0


class Violation(BaseException):
    """An invariant does not hold. It is a BaseException, so the code under test cannot catch it as its own error."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text


def as_violation(error: Exception | Violation, invariant: str) -> Violation:
    """The violation for an unexpected error: of NO_FAULTS if it only says that the code names what is not there, or
    calls it in a wrong way, and of `invariant` otherwise. A Violation stays as it is."""
    if isinstance(error, Violation):
        return error
    if isinstance(error, AttributeError | NameError | TypeError):
        invariant = NO_FAULTS
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = place.filename.rpartition("/")[2]
    return Violation(invariant, f"{type(error).__name__}: {error} ({file}, {place.name}, line {place.lineno})")


class AnswerLost(KafkaStorageException):
    """A read or a commit has failed as far as its actor knows."""
