"""`members/<group>`: the members of consumer groups, a table a group, made when its first member joins. [AP-04]

A heartbeat changes no row, so that it is a commit without a file: it moves a `txn` of its member. The generation is a
`txn`, too: it outlives the last member, so that it never goes back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from lakelog.replication.errors import InconsistentClusterIdException, InvalidGroupIdException
from lakelog.replication.protocol.consumer_group import ConsumerGroup, GroupMember
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.storage.delta.commit_reader import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import Row
from lakelog.replication.storage.tables.typed_table import TypedTable
from lakelog.schemas import MEMBERS

_GENERATION, _HEARTBEAT = "generation", "heartbeat"
_LONGEST_NAME = 200  # characters of a folder; file systems allow 255
_PARTITION_LISTS = ("assigned", "owned")
_LISTS = ("topics", "assignors")

Decide = Callable[[ConsumerGroup], ConsumerGroup | None]


class MemberTable(TypedTable[ConsumerGroup]):
    """The members of one group."""

    TABLE = MEMBERS

    @classmethod
    def open_or_create(cls, cluster: StorageRoot, group_id: str) -> MemberTable:
        """The table of a group, made if there is none. Raises InvalidGroupIdException for a name that is too long."""
        folder = folder_of(group_id)
        if last_version(cls.folder(cluster, folder)) < 0:
            try:
                return cls.create(cluster, folder)
            except InconsistentClusterIdException:  # another member was faster
                pass
        return cls.open(cluster, folder)

    @classmethod
    def open_if_there(cls, cluster: StorageRoot, group_id: str) -> MemberTable | None:
        """The table of a group; None if it never had a member, as one whose name is too long. An older version has
        committed offsets under such names."""
        try:
            folder = folder_of(group_id)
        except InvalidGroupIdException:
            return None
        return cls.open(cluster, folder) if last_version(cls.folder(cluster, folder)) >= 0 else None

    @property
    def group(self) -> ConsumerGroup:
        """The group as last read."""
        return self._table.decoded(self._group)

    def read(self) -> ConsumerGroup:
        """The group as it is now."""
        self.refresh()
        return self.group

    def change(self, group_id: str, why: str, decide: Decide, beats: str | None = None) -> ConsumerGroup:
        """Writes what `decide` makes of the newest group, or nothing if it answers None, and returns the group.

        `beats` is the member whose heartbeat moves with it, if it is still in the group. `decide` is asked again after
        another's commit, or one of unknown outcome: it must know its own work when it sees it. Raises what `decide`
        raises, and KafkaStorageException.
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
            txns.update(_txns(before, found[0]))
            is_new = after.generation != before.generation
            cause["why"] = f"{why}: generation {after.generation}" if is_new else why
            return [_row(group_id, member) for member in found[0].members]

        self._table.update(cause, change, txns)
        return found[0]

    def _group(self, rows: list[Row]) -> ConsumerGroup:
        return ConsumerGroup(
            self._table.transaction_version(_GENERATION) or 0,
            tuple(_member(row, self._table.transaction_version(_heartbeat(row["slot"])) or 0) for row in rows),
        )


def folder_of(group_id: str) -> str:
    """The folder of a group's table: letters, digits, `-` and `_` stand for themselves, other bytes are `=` and two hex
    digits. Raises InvalidGroupIdException."""
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
    return name


def groups_with_tables(cluster: StorageRoot) -> list[str]:
    """The names of all groups that ever had a member."""
    names = cluster.child(MEMBERS.name).list()
    plain = (re.sub(rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), n.encode()) for n in names)
    return sorted(name.decode("utf-8", "replace") for name in plain)


def _beaten(group: ConsumerGroup, member_id: str | None) -> ConsumerGroup:
    for member in group.members:
        if member.member_id == member_id:
            return group.with_member(dataclasses.replace(member, heartbeat=member.heartbeat + 1))
    return group


def _txns(before: ConsumerGroup, after: ConsumerGroup) -> dict[str, int]:
    beats = {member.slot: member.heartbeat for member in before.members}
    moved = {_heartbeat(m.slot): m.heartbeat for m in after.members if beats.get(m.slot) != m.heartbeat}
    return {**moved, **({_GENERATION: after.generation} if after.generation != before.generation else {})}


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
