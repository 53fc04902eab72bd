"""A topic, as the cluster knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Topic:
    """A topic: its id, the number of partitions it was made with, its settings by Kafka's keys."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
