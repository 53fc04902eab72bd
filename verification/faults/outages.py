"""Measures how long a cluster acknowledges nothing after a kill."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lakelog.replication.config import Config
from lakelog.verification.faults.number_producer import NumberSender
from lakelog.verification.server_process import ServerProcess

KILLS = ("kill-broker", "kill-controller", "kill-both")

_ALLOWANCE_SECONDS = 2.0
_FIRST, _SPAN, _TIMEOUT_MS = 2 * 10**10, 10**6, 60_000

# Waits until the check returns no fault. The text describes the wait.
Wait = Callable[[Callable[[], str], str], None]


class Outage(NamedTuple):
    """A kill, and its effect on the partitions that the dead broker led; on all partitions if no broker died.

    `acknowledged_s`: seconds until a record sent after the kill was acknowledged, by partition; None if it never was.
    `taken_over_s`: seconds until another controller was active, if one died.
    """

    kind: str
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


class OutageMeter:
    """Kills processes, and measures the time to the next acknowledged record of a topic. It has a sender for each
    partition; `outages` has what it has measured."""

    def __init__(self, cluster_uri: str, topic: str, partitions: int, config: Config) -> None:
        self.topic = topic
        self.outages: list[Outage] = []
        self._senders = {
            p: NumberSender(cluster_uri, topic, partitions, (_FIRST + p * _SPAN) * partitions + p, _TIMEOUT_MS, config)
            for p in range(partitions)
        }

    @property
    def senders(self) -> Collection[NumberSender]:
        """The senders, whose records must be in the logs too."""
        return self._senders.values()

    def kill(
        self, kind: str, killed: Sequence[ServerProcess], partitions: Collection[int],
        lacks_controller: Callable[[], str], wait: Wait,
    ) -> None:  # fmt: skip
        """Kills the processes, sends a record to each partition, and waits for the acknowledgements and for an active
        controller."""
        with ThreadPoolExecutor(max(1, len(partitions))) as pool:
            started = time.monotonic()
            for process in killed:
                process.kill()
            answers = [pool.submit(self._until_acknowledged, partition, started) for partition in sorted(partitions)]
            wait(lacks_controller, f"a controller is active after {kind}")
            taken_over = time.monotonic() - started
            wait(lambda: "" if all(answer.done() for answer in answers) else "no answer", f"records after {kind}")
        times = [answer.result() for answer in answers]
        names = [process.name for process in killed]
        has_taken_over = kind != "kill-broker"
        if times:
            self.outages.append(Outage(kind, names, sorted(partitions), times, taken_over if has_taken_over else None))

    def _until_acknowledged(self, partition: int, started: float) -> float | None:
        return time.monotonic() - started if self._senders[partition].probe() else None


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def too_long(outages: Sequence[Outage], config: Config) -> int:
    """The number of outages beyond the session time-out and two seconds, the time to notice and to act."""
    session = max(config.broker_session_timeout_ms, config.controller_session_timeout_ms) / 1000
    return sum(outage.first_s > session + _ALLOWANCE_SECONDS for outage in outages)


def distribution(outages: Sequence[Outage]) -> list[dict[str, object]]:
    """One row a kind of kill: the number of kills, and the median, 95th percentile and maximum in seconds of three
    times: to the first acknowledged record, to one in every partition, and to another active controller."""
    rows: list[dict[str, object]] = []
    for kind in KILLS:
        own = [outage for outage in outages if outage.kind == kind]
        takeovers = [outage.taken_over_s for outage in own if outage.taken_over_s is not None]
        if own:
            rows.append({
                "kind": kind, "kills": len(own), **_figures("", [outage.first_s for outage in own]),
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
