"""The active controller removes offsets that have expired, the members of groups whose members have all died, and the
tables of members that nobody uses.

A group has no coordinator: as long as one member lives, it removes the dead ones. Nobody does that for the last ones,
so the controller does. It also deletes the table of a group that has had neither members nor offsets for a day, in four
steps: it lets others commit offsets, closes the table, names the next one, and deletes the files. If it dies between
two steps, the next controller takes the remaining ones. Each check deletes the tables that it finds besides the newest
one of a group: a cluster root that was away, or a process that slept, may bring such a table back.

Kafka: `GroupMetadataManager.cleanupGroupMetadata`, `GroupCoordinator.onExpireHeartbeat`. KIP-211. [AP-04]
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.consumer_group import ConsumerGroup, MemberLiveness, fence_of, without
from lakelog.replication.protocol.offset_expiration import SeenGroup
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.log_recovery import find_end
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.tables.group_tables import MemberTable, OffsetKey, folder_of, tables_at_roots
from lakelog.replication.storage.tables.state_table import Row

logger = logging.getLogger(__name__)

_TABLES_A_POLL = 16  # one read each, at the same time: a check of many groups must not delay other work
_MS_A_MINUTE = 60_000
_UNUSED_SECONDS = 86400.0  # as long as a file without a commit stays; a group that comes back sooner keeps its table


class GroupExpiration:
    """Checks every `offsets.retention.check.interval.ms` which offsets nobody uses.

    A check begins with the fences of all groups, reads the members of some groups with each poll, and ends with one
    commit of the offsets. The rows have the idle time in ms, so that the next controller continues from there. After a
    check, each poll closes or deletes one table of members. No row has the time for which a table was unused: the next
    controller counts it anew.
    """

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "offsets expire", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = self._checked_at = clock()
        self._watched: dict[str, _WatchedGroup] = {}
        self._unread: deque[str] | None = None  # groups that the check under way has not read yet; None between checks
        self._fences: Mapping[str, int] = {}
        self._seen_groups: dict[str, SeenGroup] = {}
        self._seen_rows: Mapping[OffsetKey, Row] = {}
        self._unused: deque[_WatchedGroup] = deque()  # groups whose tables are to be closed
        self._former: deque[tuple[str, int]] = deque()  # tables that are to be deleted, by group and number
        self._late: dict[tuple[str, int], MemberLiveness] = {}  # of members that have joined such a table

    def check_if_due(self) -> None:
        """Begins a check that is due, or continues one. It logs an error, and the next check tries again; the idle time
        until then is not lost."""
        if self._unread is None and self._clock() < self._due_at:
            self._delete_one()
            return
        try:
            unread = self._begin_check() if self._unread is None else self._unread
            chosen = [unread.popleft() for _ in range(min(_TABLES_A_POLL, len(unread)))]
            found = zip(chosen, in_threads(self._look_at, chosen, _TABLES_A_POLL), strict=True)
            self._seen_groups.update({name: seen for name, seen in found if seen is not None})
            self._unread = unread or None
            if not unread:
                self._end_check()
        except LakelogException as error:
            self._unread = None
            logger.warning("offsets of groups without members stay for now: %s", error)

    def _begin_check(self) -> deque[str]:
        self._due_at = self._clock() + self._cluster.config.offsets_retention_check_interval_ms / 1000
        groups = self._cluster.groups
        rows = groups.read()
        tables = tables_at_roots(self._cluster.root)
        newest = {name: groups.table_number(name) for name in tables}
        self._unused.clear()
        self._former = deque((name, each) for name, found in tables.items() for each in found if each < newest[name])
        self._late = {key: self._late[key] for key in self._former if key in self._late}
        with_tables = [name for name, found in tables.items() if newest[name] in found]
        self._watched = {name: self._watched.get(name) or _WatchedGroup(name, self._clock) for name in with_tables}
        without_table = {row.group_id for row in rows} - self._watched.keys()
        self._fences = {name: groups.fence(name) for name in (*without_table, *with_tables)}
        self._seen_groups = {name: SeenGroup(self._fences[name], ConsumerGroup()) for name in without_table}
        return deque(with_tables)

    def _look_at(self, name: str) -> SeenGroup | None:
        try:
            return self._watched[name].look(self._cluster, self._fences[name])
        except LakelogException as error:
            logger.warning("group %s: its offsets stay for now: %s", name, error)
            return None

    def _end_check(self) -> None:
        config, passed_ms = self._cluster.config, int((self._clock() - self._checked_at) * 1000)
        retention_ms = config.offsets_retention_minutes * _MS_A_MINUTE
        found = self._cluster.groups.expire(self._seen_rows, self._seen_groups, passed_ms, retention_ms, self._cause)
        self._seen_rows, self._checked_at = found.left, self._clock()
        for name, count in sorted(found.expired.items()):
            logger.info("group %s: its offsets of %d partitions have expired", name, count)
        with_offsets = {group_id for group_id, _ in found.left}
        self._unused.extend(
            watched for name, watched in self._watched.items() if watched.note_use(name in with_offsets)
        )

    def _delete_one(self) -> None:
        """Deletes a table, or closes that of a group. It logs an error, and the next check tries again."""
        name = ""
        try:
            if self._former:
                name, number = self._former.popleft()
                self._delete(name, number)
            elif self._unused:
                watched = self._unused.popleft()
                name = watched.group_id
                if (closed := watched.close(self._cluster)) is not None:
                    self._former.append((name, closed))
        except LakelogException as error:
            logger.warning("group %s: its former table of members stays for now: %s", name, error)

    def _delete(self, name: str, number: int) -> None:
        """Deletes a table that is not the newest one of its group, unless members of an older version of Lakelog use it
        and send heartbeats there. A late member of this version has gone on to the newest table."""
        root = self._cluster.root
        folder = MemberTable.folder(root, folder_of(name, number))
        has_begin = find_end(folder).last >= 0  # otherwise a deletion was interrupted
        group = MemberTable.open(root, folder_of(name, number)).group if has_begin else ConsumerGroup()
        is_known = (name, number) in self._late
        dead = self._late.setdefault((name, number), MemberLiveness(self._clock)).dead(group)
        live = [member for member in group.members if member.member_id not in dead]
        if live and is_known:
            logger.warning(
                "group %s: member %s on %s is of an older version of Lakelog, and reads the same partitions as members "
                "of newer ones: upgrade it. Its table is %s", name, live[0].member_id, live[0].host, folder.uri,
            )  # fmt: skip
        if live:
            return
        folder.delete_table()
        logger.info("group %s: its table %s is deleted", name, folder.uri)


class _WatchedGroup:
    """A group with a table of members, and the heartbeats that this controller has seen there."""

    def __init__(self, group_id: str, clock: Callable[[], float]) -> None:
        self.group_id = group_id
        self._clock = clock
        self._group = ConsumerGroup()  # as last seen
        self._unused_since: tuple[int, float] | None = None  # the generation, and since when nobody has used it
        self._liveness = MemberLiveness(clock)
        self._table: MemberTable | None = None

    def look(self, cluster: Cluster, fence: int) -> SeenGroup:
        """Reads the members. If all are dead, it removes them, and moves the fence."""
        self._table = MemberTable.find_newest(cluster.root, cluster.groups, self.group_id, self._table)
        if self._table is None:
            return SeenGroup(fence, ConsumerGroup())
        group = self._table.read()
        if self._without_dead(group) is not None:
            group = self._table.change(self.group_id, "expire", self._without_dead)
        if not group.members and fence < fence_of(group.generation, False):  # also after a crash between the two
            cluster.groups.release(self.group_id, group.generation)
        self._group = group
        return SeenGroup(fence, group)

    def note_use(self, has_offsets: bool) -> bool:
        """Notes whether the group is used. Returns whether its table is to be closed and deleted: it has had neither
        members nor offsets for a day, or its table is closed already."""
        if self._table is None or self._group.members or has_offsets or not self._table.is_movable:
            self._unused_since = None
            return False
        now, generation = self._clock(), self._group.generation
        if self._unused_since is None or self._unused_since[0] != generation:
            self._unused_since = generation, now
        return self._group.is_closed or now - self._unused_since[1] >= _UNUSED_SECONDS

    def close(self, cluster: Cluster) -> int | None:
        """Closes the table, names the next one, and returns the number of this one; None if somebody has joined."""
        assert self._table is not None, "a group without a table is never unused"
        cluster.groups.release(self.group_id, self._group.generation)  # the next table goes on with its generation
        if not self._table.close(self._group.generation):
            return None
        cluster.groups.move_on(self.group_id, self._table.number)
        return self._table.number

    def _without_dead(self, group: ConsumerGroup) -> ConsumerGroup | None:
        """The group without its members, in the next generation; None if it has none. None also if a member lives,
        because that one removes the others."""
        dead = self._liveness.dead(group)
        return without(group, dead, lambda _: ()) if group.members and len(dead) == len(group.members) else None
