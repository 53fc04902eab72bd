"""Changes of a group's offsets by clients outside the group. They are allowed while it has no live members.

Kafka: `GroupCoordinator.doCommitOffsets`, `KafkaAdminClient.alterConsumerGroupOffsets`. [AP-04]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lakelog.replication.clients.group_membership import remove_members
from lakelog.replication.errors import GroupNotEmptyException, KafkaStorageException, UnknownMemberIdException
from lakelog.replication.protocol.consumer_group import (
    ConsumerGroup,
    GroupMember,
    MemberLiveness,
    generation_of,
    has_members,
)
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_tables import CommittedOffset, MemberTable


class GroupAccess:
    """A client's access to a group of which it is no member. It keeps the heartbeats that it has seen.

    A member that died without leaving counts as alive until this client has seen its heartbeat stand still for its
    session time-out. So the first `remove_dead_members` raises an error, and a call after that time removes the member.
    `clock`: monotonic, in seconds.
    """

    def __init__(self, cluster: Cluster, group_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._table: MemberTable | None = None
        self._liveness = MemberLiveness(clock)

    def refresh(self) -> ConsumerGroup:
        """Reads the group as it is now. A group without a table has had no member for a while, or never. Raises
        KafkaStorageException."""
        groups = self._cluster.groups
        while True:
            number, found, error = groups.table_number(self.group_id), None, None
            try:
                self._table = MemberTable.find_newest(self._cluster.root, groups, self.group_id, self._table)
                found = self._table.read() if self._table else None
            except KafkaStorageException as failed:
                error = failed
            if found is not None and not found.is_closed:
                return found
            if groups.newest_table_number(self.group_id) == number:  # otherwise the group has another table by now
                if error is not None:
                    raise error
                return found or ConsumerGroup()

    def live(self) -> list[GroupMember]:
        """The members that are not dead, by the heartbeats that this client has seen."""
        group = self.refresh()
        dead = self._liveness.dead(group)
        return [member for member in group.members if member.member_id not in dead]

    def remove_dead_members(self) -> None:
        """Removes dead members, so that clients outside the group may commit. Raises GroupNotEmptyException if a member
        is alive."""
        live = self.live()
        if self._table:
            live = list(remove_members(self._cluster, self._table, self.group_id, self._liveness.dead).members)
        check_empty(self.group_id, live)
        fence = self._cluster.groups.newest_fence(self.group_id)
        if has_members(fence) and not self._table:
            check_empty(self.group_id, self.live())  # the first member may have joined since
            if self._table is None:  # the table was removed by hand
                self._cluster.groups.release(self.group_id, generation_of(fence) + 1)

    def commit(self, offsets: Iterable[CommittedOffset], deadline: float) -> None:
        """Commits offsets of the group. Raises GroupNotEmptyException, and what `GroupTable.commit` raises."""
        rows = list(offsets)
        try:
            self._cluster.groups.commit(rows, deadline)
        except UnknownMemberIdException:
            self.remove_dead_members()
            self._cluster.groups.commit(rows, deadline)


def check_empty(group_id: str, live: Iterable[GroupMember]) -> None:
    """Raises GroupNotEmptyException if there are live members, and names them."""
    names = [f"{member.member_id} on {member.host}" for member in live]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise GroupNotEmptyException(
            f"group {group_id} has live members ({', '.join(names[:3])}{more}): close them first, then its offsets can "
            "be changed from outside"
        )
