"""`groups`: the offsets that groups of consumers have committed. Kafka: `GroupMetadataManager`. [AP-04]

A `txn` a group is its fence, see `protocol.group_fence`: it tells who may commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from lakelog.replication.protocol.group_fence import NO_FENCE, check_may_commit, fence_of
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

    def commit(
        self, offsets: Iterable[CommittedOffset], deadline: float | None = None, generation: int | None = None
    ) -> None:
        """Replaces the offsets of these partitions, in one compare-and-set; those of others stay.

        `generation`: the one in which a member commits; None for a consumer that is no member. An offset may go back,
        as a consumer that reads again may commit. Of two commits the later one holds, also when the answer of the
        earlier one was lost. Raises IllegalGenerationException and UnknownMemberIdException as `check_may_commit`,
        KafkaStorageException, and TimeoutException at the `deadline`.
        """
        wanted = {row.key: row for row in offsets}
        cause: dict[str, Any] = {"who": "consumer", "why": "commit", "groups": sorted({group for group, _ in wanted})}

        def change(rows: list[Row]) -> list[Row] | None:
            for group in cause["groups"]:
                check_may_commit(self._fence(group), generation, group)
            found = {row.key: row for row in self._decode(rows)}
            merged = {**found, **wanted}
            return None if merged == found else [merged[key]._asdict() for key in sorted(merged)]

        self._table.update(cause, change, deadline=deadline, once=True)

    def claim(self, group_id: str, generation: int, deadline: float | None = None) -> dict[TopicIdPartition, int]:
        """Fences all members that have not seen this generation yet, and returns the group's offsets.

        A member calls it after it has taken partitions: no commit of their earlier owners comes later, not even one
        that is under way. So it always writes a commit. Raises IllegalGenerationException if there is a newer
        generation, KafkaStorageException, TimeoutException.
        """
        txns: dict[str, int] = {}

        def change(rows: list[Row]) -> list[Row]:
            fence = self._fence(group_id)
            check_may_commit(fence, generation, group_id)
            txns[_app_id(group_id)] = max(fence, fence_of(generation, True))
            return rows

        cause = {"who": "consumer", "why": "claim", "groups": [group_id], "generation": generation}
        self._table.update(cause, change, txns, deadline)
        return {row.key[1]: row.committed_offset for row in self._value if row.group_id == group_id}

    def release(self, group_id: str, generation: int, deadline: float | None = None) -> None:
        """Lets others commit offsets: the group has no members in this generation, unless the fence is of a newer one.

        Raises KafkaStorageException, TimeoutException.
        """
        released = fence_of(generation, False)

        def change(rows: list[Row]) -> list[Row] | None:
            return rows if self._fence(group_id) < released else None

        cause = {"who": "consumer", "why": "release", "groups": [group_id], "generation": generation}
        self._table.update(cause, change, {_app_id(group_id): released}, deadline)

    def fence(self, group_id: str) -> int:
        """The fence of a group, as the table has it now."""
        self.refresh()
        return self._fence(group_id)

    def _fence(self, group_id: str) -> int:
        return self._table.transaction_version(_app_id(group_id)) or NO_FENCE

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
        """Removes the offsets of a group: those of these partitions, or all.

        Raises UnknownMemberIdException if it has members, KafkaStorageException, TimeoutException.
        """
        chosen = None if partitions is None else set(partitions)

        def change(rows: list[Row]) -> list[Row] | None:
            check_may_commit(self._fence(group_id), None, group_id)
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


def _app_id(group_id: str) -> str:
    return f"generation/{group_id}"
