"""The active controller removes offsets that have expired, and the members of groups whose members have all died.

A group has no coordinator: as long as one member lives, it removes the dead ones. Nobody does that for the last ones,
so the controller does. Kafka: `GroupMetadataManager.cleanupGroupMetadata`, `GroupCoordinator.onExpireHeartbeat`.
KIP-211. [AP-04]
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
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.tables.group_tables import MemberTable, OffsetKey, groups_with_tables
from lakelog.replication.storage.tables.state_table import Row

logger = logging.getLogger(__name__)

_TABLES_A_POLL = 16  # one read each, at the same time: a check of many groups must not delay other work
_MS_A_MINUTE = 60_000


class GroupExpiration:
    """Checks every `offsets.retention.check.interval.ms` which offsets nobody uses.

    A check begins with the fences of all groups, then reads the members of some groups with each poll, and ends with
    one commit of the offsets. The rows keep the idle time in ms, so that the next controller continues from there.
    """

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "offsets expire", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = self._checked_at = clock()
        self._watched: dict[str, _WatchedGroup] = {}
        self._unread: deque[str] | None = None  # groups whose members the check that is under way has not read yet
        self._fences: Mapping[str, int] = {}
        self._seen_groups: dict[str, SeenGroup] = {}
        self._seen_rows: Mapping[OffsetKey, Row] = {}

    def check_if_due(self) -> None:
        """Begins a check that is due, or goes on with one. It logs an error, and the next check tries again: the time
        until then counts."""
        if self._unread is None and self._clock() < self._due_at:
            return
        try:
            unread = self._begun() if self._unread is None else self._unread
            chosen = [unread.popleft() for _ in range(min(_TABLES_A_POLL, len(unread)))]
            found = zip(chosen, in_threads(self._look_at, chosen, _TABLES_A_POLL), strict=True)
            self._seen_groups.update({name: seen for name, seen in found if seen is not None})
            self._unread = unread or None
            if not unread:
                self._end()
        except LakelogException as error:
            self._unread = None
            logger.warning("offsets of groups without members stay for now: %s", error)

    def _begun(self) -> deque[str]:
        self._due_at = self._clock() + self._cluster.config.offsets_retention_check_interval_ms / 1000
        groups = self._cluster.groups
        rows = groups.read()
        with_tables = groups_with_tables(self._cluster.root)
        self._watched = {name: self._watched.get(name) or _WatchedGroup(name, self._clock) for name in with_tables}
        without_table = {row.group_id for row in rows} - self._watched.keys()
        self._fences = groups.fences({*without_table, *with_tables})
        self._seen_groups = {name: SeenGroup(self._fences[name], ConsumerGroup()) for name in without_table}
        return deque(with_tables)

    def _look_at(self, name: str) -> SeenGroup | None:
        try:
            return self._watched[name].look(self._cluster, self._fences[name])
        except LakelogException as error:
            logger.warning("group %s: its offsets stay for now: %s", name, error)
            return None

    def _end(self) -> None:
        config, passed_ms = self._cluster.config, int((self._clock() - self._checked_at) * 1000)
        retention_ms = config.offsets_retention_minutes * _MS_A_MINUTE
        found = self._cluster.groups.expire(self._seen_rows, self._seen_groups, passed_ms, retention_ms, self._cause)
        self._seen_rows, self._checked_at = found.left, self._clock()
        for name, count in sorted(found.expired.items()):
            logger.info("group %s: its offsets of %d partitions have expired", name, count)


class _WatchedGroup:
    """A group with a table of members, and the heartbeats that this controller has seen there."""

    def __init__(self, group_id: str, clock: Callable[[], float]) -> None:
        self._group_id = group_id
        self._liveness = MemberLiveness(clock)
        self._table: MemberTable | None = None

    def look(self, cluster: Cluster, fence: int) -> SeenGroup:
        """Reads the members, and removes them if all are dead: that moves the fence."""
        self._table = self._table or MemberTable.open_if_there(cluster.root, self._group_id)
        if self._table is None:
            return SeenGroup(fence, ConsumerGroup())
        group = self._table.read()
        if self._without_dead(group) is not None:
            group = self._table.change(self._group_id, "expire", self._without_dead)
        if not group.members and fence < fence_of(group.generation, False):  # also after a crash between the two
            cluster.groups.release(self._group_id, group.generation)
        return SeenGroup(fence, group)

    def _without_dead(self, group: ConsumerGroup) -> ConsumerGroup | None:
        """The group without its members, in the next generation; None if it has none, or if one lives, which then
        removes the others."""
        dead = self._liveness.dead(group)
        return without(group, dead, lambda _: ()) if group.members and len(dead) == len(group.members) else None
