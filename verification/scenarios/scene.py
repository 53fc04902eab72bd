"""The objects that the steps of a script use, and the outcomes that they return."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.scenarios.script_cluster import ScriptCluster

_POLL_MS = 50

Saw = dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """The outcome of a step: the observation, its text, and the fault (None if there is none).

    `figures` are further results, beside `saw` in the JSON.
    """

    saw: Saw
    words: str
    fault: str | None = None
    figures: Mapping[str, object] = field(default_factory=dict)


class Scene:
    """The cluster of a script, its clients, and the counters of the values."""

    def __init__(self, cluster: ScriptCluster) -> None:
        self.cluster = cluster
        self.view = TopicView(Cluster.open(cluster.uri))
        self.consumer = Consumer(cluster.uri)
        self.log_versions: dict[int, int] = {}
        self._numbers: Counter[tuple[str, int]] = Counter()
        self._producers: dict[tuple[int | str, int | None], Producer] = {}

    def next_values(self, topic: str, partition: int, prefix: str, count: int) -> list[str]:
        """Values from the prefix and a counter. The counter covers all values sent to a partition, also refused
        ones."""
        first = self._numbers[topic, partition]
        self._numbers[topic, partition] += count
        return [f"{prefix}{number}" for number in range(first, first + count)]

    def note_logs(self) -> None:
        """Notes the version of each broker's log in `log_versions`, the first time that this is called."""
        if not self.log_versions:
            brokers = self.view.cluster.refresh_brokers()
            self.log_versions = {broker: self.view.log(broker).refresh().version for broker in brokers}

    def producer(self, acks: int | str, retries: int | None) -> Producer:
        """The script's producer for these settings. Sends with the same settings share it.

        A producer that has failed takes a new identity by itself. Without `retries` it retries until the time-out.
        """
        settings = (acks, retries)
        if settings not in self._producers:
            limit: dict[str, Any] = {} if retries is None else {"retries": retries}
            self._producers[settings] = Producer(self.cluster.uri, acks, **limit)
        return self._producers[settings]


def hold(poll: Callable[[], Observed], seconds: float) -> Observed:
    """Repeats `poll` until it returns no fault or `seconds` are over; returns the last result. Errors count as
    faults."""
    deadline = time.monotonic() + seconds
    while True:
        outcome = attempt(poll)
        if outcome.fault is None or time.monotonic() >= deadline:
            return outcome
        pause(_POLL_MS, deadline)


def attempt(work: Callable[[], Observed]) -> Observed:
    """The outcome of `work`. A LakelogException or an OSError becomes the fault."""
    try:
        return work()
    except LakelogException as error:
        return Observed({"error": error.name}, error.name, f"{error.name}: {error}")
    except OSError as error:
        return Observed({"error": type(error).__name__}, type(error).__name__, str(error))
