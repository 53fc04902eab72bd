"""What the steps of one script act on, and what they answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakelog.jobs.scenarios.script_cluster import ScriptCluster
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster

_POLL_MS = 50

Saw = dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """What came of a step: what was seen, the same in words, and what is wrong with it, None if nothing is.

    `figures` stand beside `saw` in what comes out.
    """

    saw: Saw
    words: str
    fault: str | None = None
    figures: Mapping[str, object] = field(default_factory=dict)


class Scene:
    """The cluster of a script, its clients, and the numbers that values have come to."""

    def __init__(self, cluster: ScriptCluster) -> None:
        self.cluster = cluster
        self.view = TopicView(Cluster.open(cluster.uri))
        self.consumer = Consumer(cluster.uri)
        self._numbers: Counter[tuple[str, int]] = Counter()
        self._producers: dict[tuple[int | str, int | None], Producer] = {}

    def next_values(self, topic: str, partition: int, prefix: str, count: int) -> list[str]:
        """The prefix with numbers that run on over all that is sent to a partition, taken or refused."""
        first = self._numbers[topic, partition]
        self._numbers[topic, partition] += count
        return [f"{prefix}{number}" for number in range(first, first + count)]

    def producer(self, acks: int | str, retries: int | None) -> Producer:
        """The script's producer: each produce goes on with the one before, unless it wants other settings.

        One that has failed begins anew by itself. Without `retries` it sends again until the time is over.
        """
        settings = (acks, retries)
        if settings not in self._producers:
            limit: dict[str, Any] = {} if retries is None else {"retries": retries}
            self._producers[settings] = Producer(self.cluster.uri, acks, **limit)
        return self._producers[settings]


def hold(look: Callable[[], Observed], seconds: float) -> Observed:
    """Looks until nothing is wrong or the time is over; answers the last look. An error may pass, so it is a fault."""
    deadline = time.monotonic() + seconds
    while True:
        outcome = attempt(look)
        if outcome.fault is None or time.monotonic() >= deadline:
            return outcome
        pause(_POLL_MS, deadline)


def attempt(work: Callable[[], Observed]) -> Observed:
    """What comes of the work; an error of Lakelog's, or of a store, is what is wrong."""
    try:
        return work()
    except LakelogException as error:
        return Observed({"error": error.name}, error.name, f"{error.name}: {error}")
    except OSError as error:
        return Observed({"error": type(error).__name__}, type(error).__name__, str(error))
