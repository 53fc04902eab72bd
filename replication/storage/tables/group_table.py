"""`groups`: the offsets that groups of consumers have committed. Kafka: `GroupMetadataManager`. [AP-04]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.state_table import Row
from lakelog.replication.storage.tables.typed_table import ClientTable
from lakelog.schemas import GROUPS


class CommittedOffset(NamedTuple):
    """A row: the next offset that a group is to read of a partition."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    committed_offset: int

    @property
    def key(self) -> tuple[str, TopicIdPartition]:
        """Of one group and one partition there is one row."""
        return self.group_id, TopicIdPartition(self.topic_id, self.partition)


class GroupTable(ClientTable[list[CommittedOffset]]):
    """The groups table of a cluster."""

    TABLE = GROUPS

    def commit(self, offsets: Iterable[CommittedOffset], deadline: float | None = None) -> None:
        """Replaces the offsets of these partitions, in one compare-and-set; those of others stay.

        An offset may go back, as a consumer that reads again may commit. Of two commits the later one holds, also when
        the answer of the earlier one was lost. Raises KafkaStorageException, and TimeoutException at the `deadline`.
        """
        wanted = {row.key: row for row in offsets}
        cause = {"who": "consumer", "why": "commit", "groups": sorted({group for group, _ in wanted})}

        def change(rows: list[Row]) -> list[Row] | None:
            found = {row.key: row for row in self._decode(rows)}
            merged = {**found, **wanted}
            return None if merged == found else [merged[key]._asdict() for key in sorted(merged)]

        self._table.update(cause, change, deadline=deadline, once=True)

    def committed(self, group_id: str) -> dict[TopicIdPartition, int]:
        """The offsets of a group, as the table has them now."""
        self.refresh()
        return {row.key[1]: row.committed_offset for row in self._value if row.group_id == group_id}

    def read(self) -> list[CommittedOffset]:
        """The offsets of all groups, as the table has them now."""
        self.refresh()
        return self._value

    def delete(
        self, group_id: str, partitions: Collection[TopicIdPartition] | None = None, deadline: float | None = None
    ) -> None:
        """Removes the offsets of a group: those of these partitions, or all. Raises what `commit` raises."""
        chosen = None if partitions is None else set(partitions)

        def change(rows: list[Row]) -> list[Row] | None:
            kept = [
                row for row, offset in zip(rows, self._decode(rows), strict=True)
                if offset.group_id != group_id or (chosen is not None and offset.key[1] not in chosen)
            ]  # fmt: skip
            return None if len(kept) == len(rows) else kept

        self._table.update({"who": "tool", "why": "delete", "groups": [group_id]}, change, deadline=deadline)

    def forget_all_but(self, topic_ids: Callable[[], Collection[str]], cause: Mapping[str, Any]) -> None:
        """Removes the offsets of all topics but these, which are asked for once the offsets are read."""

        def change(rows: list[Row]) -> list[Row] | None:
            known = topic_ids() if rows else ()
            kept = [row for row in rows if row["topic_id"] in known]
            return None if len(kept) == len(rows) else kept

        self._table.update(cause, change)

    def _decode(self, rows: list[Row]) -> list[CommittedOffset]:
        return [CommittedOffset(**row) for row in rows]
