"""`topics`: the topics of a cluster, their ids and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replication.errors import TopicExistsException
from replication.storage.filesystem import StorageRoot
from replication.storage.state_table import Row, StateTable
from schemas import TOPICS


@dataclass(frozen=True)
class Topic:
    """A topic: its id, the number of partitions it was made with, its settings by Kafka's keys."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False


class TopicTable:
    """The topics table of a cluster."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @classmethod
    def create(cls, cluster: StorageRoot) -> TopicTable:
        """Makes the table without rows."""
        return cls(StateTable.create(cluster.child(TOPICS.name), TOPICS))

    @classmethod
    def open(cls, cluster: StorageRoot) -> TopicTable:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(TOPICS.name), TOPICS))

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name, as last read."""
        return {row["topic"]: _topic(row) for row in self._table.rows}

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._table.refresh()

    def add(self, topic: Topic) -> None:
        """Adds a topic. Raises TopicExistsException, also when another process has made it in between."""

        def change(rows: list[Row]) -> list[Row] | None:
            for found in (_topic(row) for row in rows if row["topic"] == topic.topic):
                if found.topic_id == topic.topic_id:
                    return None  # our own commit, whose answer was lost
                raise TopicExistsException(f"topic {topic.topic} exists already")
            return [*rows, _row(topic)]

        self._table.update({"who": "admin", "why": "create topic", "topic": topic.topic}, change)


def _topic(row: Row) -> Topic:
    return Topic(**{**row, "configs": dict(row["configs"])})


def _row(topic: Topic) -> Row:
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "configs": list(topic.configs.items()),
        "deleting": topic.deleting,
    }
