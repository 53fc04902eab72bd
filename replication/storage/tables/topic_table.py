"""`topics`: the topics of a cluster, their ids and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.tables.state_table import ControlledTable, Row
from lakelog.schemas import TOPICS


class TopicTable(ControlledTable[Mapping[str, Topic]]):
    """The topics table of a cluster."""

    TABLE = TOPICS

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name, as last read: the same object as long as the rows are the same."""
        return self._value

    def _decode(self, rows: list[Row]) -> Mapping[str, Topic]:
        return {row["topic"]: _topic(row) for row in rows}

    def change(
        self, put: Iterable[Topic], drop: Collection[str], cause: Mapping[str, Any], controller_epoch: int | None = None
    ) -> None:
        """Adds or replaces topics and drops others, in one commit; nothing is written if that is how they are.

        Raises ControllerMovedException if a newer controller has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            before = {row["topic"]: _topic(row) for row in rows}
            merged = {**before, **{topic.topic: topic for topic in put}}
            after = {name: topic for name, topic in merged.items() if name not in drop}
            return None if after == before else [_row(after[name]) for name in sorted(after)]

        self.update(cause, change)


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
