"""Which problems of a cluster are new, and which are over, for somebody who was told of some of them.

What was told is a state: nothing is queued. So what somebody missed while they could not be told is told as it is then,
and a problem that has come and gone meanwhile is not.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import Problem, line_of

_MOST_NAMES = 1_000  # of partitions in one object

# Ages, counts and versions differ from one look to the next. Numbers that name something stay.
_NUMBERS = re.compile(r"(?<!broker )(?<!brokers )(?<!\d, )(?<!and )(?<![\w./:-])\d+\b")
_UNITS = re.compile(r"# (?:s|min|h|d) ago")


# Errors of one outage differ from one look to the next.
UNREADABLE = "the cluster cannot be read: "


class ProblemChange(NamedTuple):
    """What is to be told. `begun`: problems that are new, or have new partitions. `ended`: those that were told, and
    are over. `left`: the number of all problems there are."""

    begun: tuple[Problem, ...]
    ended: tuple[Problem, ...]
    left: int


class ProblemWatch:
    """Compares what there is with what was told. A problem is told once it has lasted `least` seconds."""

    def __init__(self, least: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._clock = least, clock
        self._now: dict[str, Problem] = {}
        self._since: dict[str, float] = {}
        self._told: dict[str, Problem] = {}

    def look(self, found: Sequence[Problem], is_whole: bool = True) -> None:
        """Takes the problems that there are. `is_whole`: whether these are all; if not, nothing is over."""
        now = {key_of(problem): problem for problem in found}
        self._now = now if is_whole else {**self._told, **now}
        moment = self._clock()
        self._since = {key: self._since.get(key, moment) for key in self._now}

    def change(self) -> ProblemChange | None:
        """What is to be told now; None if there is nothing."""
        moment = self._clock()
        begun = tuple(
            problem for key, problem in self._now.items()
            if self._is_news(key, problem) and moment - self._since[key] >= self._least
        )  # fmt: skip
        ended = tuple(problem for key, problem in self._told.items() if key not in self._now)
        return ProblemChange(begun, ended, len(self._now)) if begun or ended else None

    def was_told(self, change: ProblemChange) -> None:
        """Notes that somebody knows a change."""
        self._told.update((key_of(problem), problem) for problem in change.begun)
        for problem in change.ended:
            self._told.pop(key_of(problem), None)

    def _is_news(self, key: str, problem: Problem) -> bool:
        told = self._told.get(key)
        return told is None or not set(problem.names) <= set(told.names)


def key_of(problem: Problem) -> str:
    """What makes two problems the same, though an age, or how many partitions they are about, differs."""
    if problem.what.startswith(UNREADABLE):
        return UNREADABLE
    text = _UNITS.sub("# ago", _NUMBERS.sub("#", problem.what))
    return text.replace("# partition is", "# partitions are")


def change_lines(change: ProblemChange) -> list[str]:
    """The change for people."""
    lines = [f"- {line_of(problem)}\n  To do: {problem.do}." for problem in change.begun]
    return lines + [f"- Over: {line_of(problem)}" for problem in change.ended]


def change_object(cluster: str, change: ProblemChange, at: float) -> Mapping[str, object]:
    """The change for programs, with a `text` that chats show. `at`: in seconds since the epoch."""
    state = "no problem is left" if not change.left else f"{change.left} problem{'s' if change.left > 1 else ''}"
    return {
        "version": 1,
        "cluster": cluster,
        "at": dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds"),
        "status": "firing" if change.left else "resolved",
        "text": "\n".join([f"Lakelog cluster {cluster}: {state}", *change_lines(change)]),
        "problems": change.left,
        "begun": [_object(problem) for problem in change.begun],
        "ended": [_object(problem) for problem in change.ended],
    }


def _object(problem: Problem) -> Mapping[str, object]:
    return {
        "what": problem.what,
        "partitions": list(problem.names[:_MOST_NAMES]),
        "partition_count": len(problem.names),
        "do": problem.do,
    }
