"""`topics`: the topics of a cluster, their ids and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.controller_claim import check_claim, claim
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import TOPICS


class TopicTable:
    """The topics table of a cluster."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        # Rows, and the topics they are: each led partition asks for its topic at each look of its leader.
        self._decoded: tuple[list[Row], Mapping[str, Topic]] = ([], {})

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
        """Every topic by name, as last read: the same object as long as the rows are the same."""
        rows, topics = self._decoded
        if rows is not self._table.rows:
            rows = self._table.rows
            topics = {row["topic"]: _topic(row) for row in rows}
            self._decoded = rows, topics
        return topics

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._table.refresh()

    def maintain(self) -> None:
        """Keeps opening cheap; for the active controller, now and then."""
        self._table.maintain()

    def claim(self, controller_epoch: int) -> None:
        """Makes a controller the only one that may write here. Raises ControllerMovedException. [CE-05]"""
        claim(self._table, TOPICS.name, controller_epoch)

    def change(
        self, put: Iterable[Topic], drop: Collection[str], cause: Mapping[str, Any], controller_epoch: int | None = None
    ) -> None:
        """Adds or replaces topics and drops others, in one commit; nothing is written if that is how they are.

        Raises ControllerMovedException if a newer controller has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            check_claim(self._table, TOPICS.name, controller_epoch)
            before = {row["topic"]: _topic(row) for row in rows}
            merged = {**before, **{topic.topic: topic for topic in put}}
            after = {name: topic for name, topic in merged.items() if name not in drop}
            return None if after == before else [_row(after[name]) for name in sorted(after)]

        self._table.update(cause, change)


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
