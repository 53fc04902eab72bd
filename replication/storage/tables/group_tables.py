"""The tables of consumer groups: `groups` has the offsets that they have committed, `members/<group>` their members.
Kafka: `GroupMetadataManager`. [AP-04]

The table of a group's members is deleted once nobody has used the group for a while, and the next member makes another
one: `members/<group>`, then `members/<group>=n1`, and so on. No name comes twice, because a process that slept may
still write a commit under an old one. A `txn` of `groups` has the number of the group's table. A table is closed before
the number rises, and nobody joins a closed one. A member looks at the number again after it has joined: so it finds out
if it was late, and joins the next table.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from lakelog.replication.errors import InconsistentClusterIdException, InvalidGroupIdException, LakelogException
from lakelog.replication.protocol.consumer_group import NO_FENCE, ConsumerGroup, GroupMember, check_may_commit, fence_of
from lakelog.replication.protocol.offset_expiration import SeenGroup, idle_ms_after
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import ClientTable, Row, StateTable
from lakelog.schemas import GROUPS, MEMBERS

_GENERATION, _HEARTBEAT = "generation", "heartbeat"
_CLOSED = "closed"  # 1: no member joins this table any more
# The `txn` of the generation up to which only members of this version have changed the group since it was last empty.
# They raise it together with `generation`, if the two are equal or the group is empty. Members of older versions, which
# know only the group's first table, never raise it.
_MOVABLE = "movable"
_NUMBERED = re.compile(r"(.+)=n(\d+)")  # no name of a group has such a folder: see `folder_of`
_IDLE = "idle_ms"
_LONGEST_NAME = 200  # characters of a folder; file systems allow 255
_PARTITION_LISTS = ("assigned", "owned")
_LISTS = ("topics", "assignors")
Decide = Callable[[ConsumerGroup], ConsumerGroup | None]
OffsetKey: TypeAlias = tuple[str, TopicIdPartition]


class CommittedOffset(NamedTuple):
    """A row: the next offset that a group reads in a partition."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    committed_offset: int

    @property
    def key(self) -> OffsetKey:
        """The key of the row: a group has one row for each partition."""
        return self.group_id, TopicIdPartition(self.topic_id, self.partition)


class Expiry(NamedTuple):
    """The outcome of one check. `left`: the rows that stay. `expired`: the number of offsets that were removed, by
    group."""

    left: Mapping[OffsetKey, Row]
    expired: Mapping[str, int]


class GroupTable(ClientTable[list[CommittedOffset]]):
    """The groups table of a cluster."""

    TABLE = GROUPS

    def commit(
        self, offsets: Iterable[CommittedOffset], deadline: float | None = None, generation: int | None = None
    ) -> None:
        """Replaces the offsets of these partitions, in one compare-and-set; those of others stay.

        `generation`: the one in which a member commits; None for a consumer that is no member. An offset may go back,
        because a consumer that reads again may commit it. Of two commits the later one holds, even if the reply of the
        earlier one was lost. A commit of the same offset begins its retention anew. Raises IllegalGenerationException
        and UnknownMemberIdException as `check_may_commit`, KafkaStorageException, and TimeoutException at the
        `deadline`.
        """
        wanted = {row.key: {**row._asdict(), _IDLE: None} for row in offsets}
        cause: dict[str, Any] = {"who": "consumer", "why": "commit", "groups": sorted({group for group, _ in wanted})}

        def change(rows: list[Row]) -> list[Row] | None:
            for group in cause["groups"]:
                check_may_commit(self.fence(group), generation, group)
            found = {_key(row): row for row in rows}
            merged = {**found, **{key: row for key, row in wanted.items() if found.get(key) != row}}
            return None if merged == found else [merged[key] for key in sorted(merged)]

        self.update(cause, change, deadline=deadline, once=True)

    def claim(self, group_id: str, generation: int, deadline: float | None = None) -> dict[TopicIdPartition, int]:
        """Fences all members that have not seen this generation yet, and returns the group's offsets.

        A member calls it after it has taken partitions: no commit of their earlier owners comes later, not even one
        that is under way. So it always writes a commit. Raises IllegalGenerationException if there is a newer
        generation, KafkaStorageException, TimeoutException.
        """
        txns: dict[str, int] = {}

        def change(rows: list[Row]) -> list[Row]:
            fence = self.fence(group_id)
            check_may_commit(fence, generation, group_id)
            txns[_group_app_id(group_id)] = max(fence, fence_of(generation, True))
            return rows

        cause = {"who": "consumer", "why": "claim", "groups": [group_id], "generation": generation}
        self.update(cause, change, txns, deadline)
        return {row.key[1]: row.committed_offset for row in self._value if row.group_id == group_id}

    def release(self, group_id: str, generation: int, deadline: float | None = None) -> None:
        """Lets consumers outside the group commit offsets, because the group has no members in this generation. The
        retention of its offsets begins. Does nothing if the fence is of a newer generation.

        Raises KafkaStorageException, TimeoutException.
        """
        released = fence_of(generation, False)

        def change(rows: list[Row]) -> list[Row] | None:
            if self.fence(group_id) >= released:
                return None
            return [
                {**row, _IDLE: None} if row["group_id"] == group_id and row[_IDLE] is not None else row for row in rows
            ]

        cause = {"who": "consumer", "why": "release", "groups": [group_id], "generation": generation}
        self.update(cause, change, {_group_app_id(group_id): released}, deadline)

    def fence(self, group_id: str) -> int:
        """The fence of a group, as last read."""
        return self.transaction_version(_group_app_id(group_id)) or NO_FENCE

    def newest_fence(self, group_id: str) -> int:
        """As `fence`, as the table has it now. Raises KafkaStorageException."""
        self.refresh()
        return self.fence(group_id)

    def table_number(self, group_id: str) -> int:
        """The number of the table of the group's members, as last read: 0 is the first one."""
        return self.transaction_version(_number_app_id(group_id)) or 0

    def newest_table_number(self, group_id: str) -> int:
        """As `table_number`, as the table has it now. Raises KafkaStorageException."""
        self.refresh()
        return self.table_number(group_id)

    def move_on(self, group_id: str, number: int) -> None:
        """Lets members join the group's next table, because the one with this number is closed. Any process may do it,
        since the number never falls. Raises KafkaStorageException."""

        def change(rows: list[Row]) -> list[Row] | None:
            return None if self.table_number(group_id) > number else rows

        cause = {"who": "consumer", "why": "next members", "groups": [group_id]}
        self.update(cause, change, {_number_app_id(group_id): number + 1})

    def committed(self, group_id: str) -> dict[TopicIdPartition, int]:
        """The offsets of a group, as the table has them now."""
        self.refresh()
        return {row.key[1]: row.committed_offset for row in self._value if row.group_id == group_id}

    def read(self, max_staleness: float | None = None) -> list[CommittedOffset]:
        """The offsets of all groups, as the table has them now. A poll gives a `max_staleness`, as for `refresh`."""
        self.refresh(max_staleness)
        return self._value

    def delete(
        self, group_id: str, partitions: Collection[TopicIdPartition] | None = None, deadline: float | None = None
    ) -> None:
        """Removes the offsets of a group: those of these partitions, or all.

        Raises UnknownMemberIdException if it has members, KafkaStorageException, TimeoutException.
        """
        chosen = None if partitions is None else set(partitions)

        def change(rows: list[Row]) -> list[Row] | None:
            check_may_commit(self.fence(group_id), None, group_id)
            kept = [
                row for row, offset in zip(rows, self._decode(rows), strict=True)
                if offset.group_id != group_id or (chosen is not None and offset.key[1] not in chosen)
            ]  # fmt: skip
            return None if len(kept) == len(rows) else kept

        self.update({"who": "tool", "why": "delete", "groups": [group_id]}, change, deadline=deadline)

    def forget_all_but(self, topic_ids: Callable[[], Collection[str]], cause: Mapping[str, Any]) -> None:
        """Removes the offsets of all topics but those that `topic_ids` returns. It is called after the offsets were
        read."""

        def change(rows: list[Row]) -> list[Row] | None:
            known = topic_ids() if rows else ()
            kept = [row for row in rows if row["topic_id"] in known]
            return None if len(kept) == len(rows) else kept

        self.update(cause, change)

    def expire(
        self, seen: Mapping[OffsetKey, Row], groups: Mapping[str, SeenGroup], passed_ms: int, retention_ms: int,
        cause: Mapping[str, Any],
    ) -> Expiry:  # fmt: skip
        """Adds the time that has passed to the offsets that nobody uses, and removes those that nobody has used for
        `retention_ms`.

        `seen`: the rows that the last check of this caller has left, at least `passed_ms` ago. A row that has changed
        since then gets no time. So the times of several controllers add up, and their clocks are never compared.
        `groups`: the groups as the caller has seen them since then. Offsets of other groups count as in use, and so do
        those of a group whose fence has moved since. Raises KafkaStorageException.
        """
        left, expired = dict[OffsetKey, Row](), Counter[str]()

        def change(rows: list[Row]) -> list[Row] | None:
            left.clear()
            expired.clear()
            for row in rows:
                key, group_id = _key(row), row["group_id"]
                group = groups.get(group_id)
                is_unused = group is not None and group.leaves_unused(row["topic"], self.fence(group_id))
                idle_ms = idle_ms_after(row[_IDLE], passed_ms if seen.get(key) == row else None, is_unused)
                if idle_ms is not None and idle_ms >= retention_ms:
                    expired[group_id] += 1
                else:
                    left[key] = row if idle_ms == row[_IDLE] else {**row, _IDLE: idle_ms}
            kept = list(left.values())
            return None if kept == rows else kept

        self.update(cause, change)
        return Expiry(left, expired)

    def _decode(self, rows: list[Row]) -> list[CommittedOffset]:
        return [CommittedOffset(*(row[name] for name in CommittedOffset._fields)) for row in rows]


def _key(row: Row) -> OffsetKey:
    return row["group_id"], TopicIdPartition(row["topic_id"], row["partition"])


def _group_app_id(group_id: str) -> str:
    return f"generation/{group_id}"


def _number_app_id(group_id: str) -> str:
    return f"members/{group_id}"


class MemberTable(StateTable[ConsumerGroup]):
    """The members of one group, in a table that is made when its first member joins. [AP-04]

    A heartbeat changes no row, so it is a commit without a file, which moves a `txn` of its member. The generation is a
    `txn`, too: it outlives the last member, so it never goes back.
    """

    TABLE = MEMBERS

    @classmethod
    def open_or_create(cls, cluster: StorageRoot, group_id: str, number: int = 0) -> MemberTable:
        """The table of a group with this number, made if there is none. Raises InvalidGroupIdException for a name that
        is too long, KafkaStorageException."""
        folder = folder_of(group_id, number)
        root = cls.folder(cluster, folder)
        if not root.is_alone():
            return cls.open_or_create(cluster.current, group_id, number)
        if not root.has_table():
            with suppress(InconsistentClusterIdException):  # another member was faster
                return cls.create(cluster, folder)
        return cls.open(cluster, folder)

    @classmethod
    def open_if_there(cls, cluster: StorageRoot, group_id: str, number: int = 0) -> MemberTable | None:
        """The table of a group with this number; None if the group never had a member there. None also for a name that
        is too long for a folder: an older version may have committed offsets under such a name."""
        try:
            folder = folder_of(group_id, number)
        except InvalidGroupIdException:
            return None
        return cls.open(cluster, folder) if last_version(cls.folder(cluster, folder)) >= 0 else None

    @classmethod
    def open_newest(
        cls, cluster: StorageRoot, groups: GroupTable, group_id: str, known: MemberTable | None
    ) -> MemberTable:
        """The table that the next member of a group joins, which is not closed. It is the `known` one if that is the
        newest, otherwise one that is opened or made. Raises as `open_or_create`."""
        while True:
            number = groups.newest_table_number(group_id)
            try:
                table = known if known is not None and known.number == number else None
                table = table or cls.open_or_create(cluster, group_id, number)
                if not table.read().is_closed:
                    return table
            except LakelogException:
                if groups.newest_table_number(group_id) == number:
                    raise
                continue  # it was deleted meanwhile
            groups.move_on(group_id, number)  # the controller may have died after it had closed the table

    @classmethod
    def find_newest(
        cls, cluster: StorageRoot, groups: GroupTable, group_id: str, known: MemberTable | None
    ) -> MemberTable | None:  # fmt: skip
        """The newest table of a group by what `groups` has last read, for a caller that does not join: it may be
        closed. None if no member has joined it yet. Raises KafkaStorageException."""
        number = groups.table_number(group_id)
        if known is not None and known.number == number:
            return known
        return cls.open_if_there(cluster, group_id, number)

    @property
    def number(self) -> int:
        """The number of this table among those that the group has had."""
        found = _NUMBERED.fullmatch(self.root.uri.rpartition("/")[2])
        return int(found[2]) if found else 0

    @property
    def group(self) -> ConsumerGroup:
        """The group as last read."""
        return self.decoded(self._group)

    def read(self) -> ConsumerGroup:
        """The group as it is now."""
        self.refresh()
        return self.group

    def change(self, group_id: str, why: str, decide: Decide, beats: str | None = None) -> ConsumerGroup:
        """Calls `decide` with the newest group, writes the group that it returns, and returns that. If `decide` returns
        None, it writes nothing and returns the newest group.

        `beats`: the member whose heartbeat moves in the same commit, if it is still in the group. After a commit of
        another writer, or one of unknown outcome, `decide` is called again, so it must be idempotent. Raises what
        `decide` raises, and KafkaStorageException.
        """
        txns: dict[str, int] = {}
        cause, found = {"who": beats or "consumer", "why": why}, list[ConsumerGroup]()

        def change(rows: list[Row]) -> list[Row] | None:
            txns.clear()
            before = self._group(rows)
            after = decide(before)
            found[:] = [before if after is None else _beaten(after, beats)]
            if after is None:
                return None
            txns.update(_txns(before, found[0], self._movable))
            is_new = after.generation != before.generation
            cause["why"] = f"{why}: generation {after.generation}" if is_new else why
            return [_row(group_id, member) for member in found[0].members]

        self.update(cause, change, txns)
        return found[0]

    def close(self, generation: int) -> bool:
        """Closes the table if the group has no members, has had none since this generation, and is movable. Returns
        whether the table is closed. Raises KafkaStorageException."""
        is_closed = [False]

        def change(rows: list[Row]) -> list[Row] | None:
            group = self._group(rows)
            is_closed[0] = group.is_closed or (self.is_movable and not rows and group.generation == generation)
            return rows if is_closed[0] and not group.is_closed else None

        self.update({"who": "controller", "why": "close"}, change, {_CLOSED: 1})
        return is_closed[0]

    @property
    def is_movable(self) -> bool:
        """Whether the group's next members may have another table: since the group was last empty, only processes of
        this version have changed it. Those of older versions would stay in this table."""
        return self._movable == (self.transaction_version(_GENERATION) or 0)

    @property
    def _movable(self) -> int:
        return self.transaction_version(_MOVABLE) or 0

    def _group(self, rows: list[Row]) -> ConsumerGroup:
        return ConsumerGroup(
            self.transaction_version(_GENERATION) or 0,
            tuple(_member(row, self.transaction_version(_heartbeat(row["slot"])) or 0) for row in rows),
            self.transaction_version(_CLOSED) is not None,
        )


def folder_of(group_id: str, number: int = 0) -> str:
    """The folder of a group's table with this number. Letters, digits, `-` and `_` stand for themselves, other bytes
    are `=` and two hex digits. After the name of all but the first table come `=n` and the number. Raises
    InvalidGroupIdException."""
    try:
        given = group_id.encode() if isinstance(group_id, str) else b""
    except UnicodeEncodeError:
        given = b""
    name = "".join(chr(byte) if re.fullmatch(r"[A-Za-z0-9_-]", chr(byte)) else f"={byte:02X}" for byte in given)
    if not 0 < len(name) <= _LONGEST_NAME:
        raise InvalidGroupIdException(
            f"group is {group_id!r}: a group has a name of 1 to {_LONGEST_NAME} characters, of which each "
            "that is no letter, digit, - or _ counts as three or more"
        )
    return f"{name}=n{number}" if number else name


def groups_with_tables(cluster: StorageRoot) -> list[str]:
    """The names of all groups that have a table of members."""
    return sorted(_tables_of(cluster.child(MEMBERS.name).list()))


def tables_at_roots(cluster: StorageRoot) -> dict[str, list[int]]:
    """The groups that have tables of members at any cluster root that answers, and the numbers of these tables."""
    return _tables_of(cluster.child(MEMBERS.name).names_at_roots())


def _tables_of(folders: Iterable[str]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for folder in folders:
        found = _NUMBERED.fullmatch(folder)
        name = (found[1] if found else folder).encode()
        plain = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), name)
        numbers.setdefault(plain.decode("utf-8", "replace"), []).append(int(found[2]) if found else 0)
    return {name: sorted(found) for name, found in sorted(numbers.items())}


def _beaten(group: ConsumerGroup, member_id: str | None) -> ConsumerGroup:
    for member in group.members:
        if member.member_id == member_id:
            return group.with_member(dataclasses.replace(member, heartbeat=member.heartbeat + 1))
    return group


def _txns(before: ConsumerGroup, after: ConsumerGroup, movable: int) -> dict[str, int]:
    beats = {member.slot: member.heartbeat for member in before.members}
    moved = {_heartbeat(m.slot): m.heartbeat for m in after.members if beats.get(m.slot) != m.heartbeat}
    if after.generation == before.generation:
        return moved
    is_movable = not before.members or movable == before.generation
    return {**moved, _GENERATION: after.generation, **({_MOVABLE: after.generation} if is_movable else {})}


def _heartbeat(slot: int) -> str:
    return f"{_HEARTBEAT}/{slot}"


def _member(row: Row, heartbeat: int) -> GroupMember:
    lists: dict[str, Any] = {name: tuple(row[name]) for name in _LISTS}
    for name in _PARTITION_LISTS:
        lists[name] = tuple(AssignedPartition(**partition) for partition in row[name])
    return GroupMember(**{**{k: v for k, v in row.items() if k != "group_id"}, **lists}, heartbeat=heartbeat)


def _row(group_id: str, member: GroupMember) -> Row:
    fields = {name: value for name, value in dataclasses.asdict(member).items() if name != "heartbeat"}
    lists = {name: list(fields[name]) for name in (*_LISTS, *_PARTITION_LISTS)}
    return {"group_id": group_id, **fields, **lists}
