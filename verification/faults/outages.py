"""Measures the time from each kill to the next acknowledged record, and its distribution."""

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from lakelog.replication.config import Config

CONTROLLER, LEADER, BOTH = VICTIMS = ("controller", "leader", "both")

_ALLOWANCE_SECONDS = 2.0


def victims(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of victims. Raises ArgumentTypeError if one is unknown."""
    kinds = tuple(text.split(","))
    if unknown := set(kinds) - set(VICTIMS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: unknown; allowed: {','.join(VICTIMS)}")
    return kinds


class Outage(NamedTuple):
    """A kill, and its effect on the partitions that the dead broker led; on all partitions if no broker died.

    `acknowledged_s`: seconds until a record sent after the kill was acknowledged, by partition; None if it never was.
    `taken_over_s`: seconds until another controller was active, if one died.
    """

    victim: str
    killed: list[str]
    partitions: list[int]
    acknowledged_s: list[float | None]
    taken_over_s: float | None = None

    @property
    def first_s(self) -> float:
        """Seconds until the first record was acknowledged."""
        return min(map(_or_never, self.acknowledged_s))

    @property
    def all_s(self) -> float:
        """Seconds until every partition had an acknowledged record."""
        return max(map(_or_never, self.acknowledged_s))


class LongestWait:
    """The longest time that one partition went without an acknowledgement, of records that are sent one after another.

    It begins with the first record that is not acknowledged, when that is sent, and ends with the next acknowledgement.
    `began_s` is its begin on the monotonic clock, None before the first record. All times are in seconds.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.began_s: float | None = None
        self._since: float | None = None

    def sent(self, at_s: float) -> None:
        """Notes that a record is sent at `at_s`."""
        self._since = at_s if self._since is None else self._since

    def waited(self, at_s: float) -> None:
        """Notes that the record is not acknowledged by `at_s`."""
        if self._since is not None and at_s - self._since >= self.longest_s:
            self.longest_s, self.began_s = at_s - self._since, self._since

    def acknowledged(self, at_s: float) -> None:
        """Notes that the record is acknowledged at `at_s`."""
        self.waited(at_s)
        self._since = None


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def are_short(outages: Sequence[Outage], config: Config) -> bool:
    """Whether every outage is at most the session time-out plus two seconds: the time to notice and to act."""
    session = max(config.broker_session_timeout_ms, config.controller_session_timeout_ms) / 1000
    return all(outage.first_s <= session + _ALLOWANCE_SECONDS for outage in outages)


def distribution(outages: Sequence[Outage]) -> list[dict[str, object]]:
    """One row a kind of victim: the number of kills, and the median, 95th percentile and maximum in seconds of three
    times: to the first acknowledged record, to one in every partition, and to another active controller."""
    rows: list[dict[str, object]] = []
    for victim in VICTIMS:
        own = [outage for outage in outages if outage.victim == victim]
        takeovers = [outage.taken_over_s for outage in own if outage.taken_over_s is not None]
        if own:
            rows.append({
                "victim": victim, "kills": len(own), **_figures("", [outage.first_s for outage in own]),
                **_figures("all_", [outage.all_s for outage in own]), **_figures("takeover_", takeovers),
            })  # fmt: skip
    return rows


def _figures(prefix: str, times: Sequence[float]) -> dict[str, float | None]:
    """The 95th percentile is a measured time: the smallest one that 95 % do not exceed. A time that is infinite or was
    never measured is None."""
    ordered = sorted(times) or [math.inf]
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    found = {"median_s": statistics.median(ordered), "p95_s": p95, "max_s": ordered[-1]}
    return {f"{prefix}{name}": round(value, 2) if value < math.inf else None for name, value in found.items()}
