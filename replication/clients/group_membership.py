"""A consumer's membership in a group: it joins, sends heartbeats, removes dead members, gives partitions up and takes
them. Kafka: `ConsumerCoordinator`, `AbstractCoordinator`, `GroupCoordinator`. [AP-04]
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from lakelog.replication.clients.client_config import ConsumerConfig
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import (
    FencedInstanceIdException,
    GroupIdNotFoundException,
    KafkaStorageException,
    LakelogException,
    UnknownMemberIdException,
)
from lakelog.replication.protocol.consumer_group import (
    ConsumerGroup,
    GroupMember,
    MemberLiveness,
    generation_of,
    give_up,
    is_trusted,
    join,
    needs_rebalance,
    rebalance,
    take,
    without,
)
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_tables import MemberTable

logger = logging.getLogger(__name__)

_NEVER = (float("-inf"), float("-inf"))


class GroupMembership:
    """One member of a group. The consumer's own thread and its heartbeat thread share it.

    `clock`: the monotonic one and the time of day, in seconds. A monotonic clock may stop while a machine sleeps, and
    the time of day may be set back, so the longer of the two times counts.
    """

    def __init__(
        self, cluster: Cluster, group_id: str, config: ConsumerConfig,
        clock: Callable[[], tuple[float, float]] = lambda: (time.monotonic(), time.time()),
    ) -> None:  # fmt: skip
        self.group_id = group_id
        self.member_id = ""
        self.instance_id = config.group_instance_id or None
        self._heartbeat = 0  # the highest number that this process may have written
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self.table = MemberTable.open_newest(cluster.root, cluster.groups, group_id, None)
        self._liveness = MemberLiveness(lambda: clock()[0])
        self._beating = threading.Lock()
        self._beat_at = _NEVER

    @property
    def group(self) -> ConsumerGroup:
        """The group as last read."""
        return self.table.group

    @property
    def member(self) -> GroupMember:
        """This member as last read. Raises UnknownMemberIdException if it is not in the group, and
        FencedInstanceIdException if another has taken its place."""
        return self._own(self.group)

    def _own(self, group: ConsumerGroup) -> GroupMember:
        return group.own_member(self.member_id, self.instance_id)

    @property
    def is_beating(self) -> bool:
        """Whether this member has joined, and has not left since."""
        return self._beat_at != _NEVER

    @property
    def is_trusted(self) -> bool:
        """Whether the last heartbeat is so recent that no other member can have taken this one for dead."""
        session, interval = self._config.session_timeout_ms, self._config.heartbeat_interval_ms
        return all(is_trusted(now, at, session, interval) for now, at in zip(self._clock(), self._beat_at, strict=True))

    def poll(self) -> ConsumerGroup:
        """Reads the group if its table has changed. In an object store an earlier poll counts for half a heartbeat
        interval. Raises as `member`."""
        with self._in_table():
            self.table.refresh(self._config.heartbeat_interval_ms / 2000)
        group = self.group
        self._own(group)
        return group

    def read(self) -> ConsumerGroup:
        """Reads the group as it is now. Raises UnknownMemberIdException if its table is deleted, because then this is
        no longer a member, and KafkaStorageException."""
        with self._in_table():
            return self.table.read()

    @contextmanager
    def _in_table(self) -> Iterator[None]:
        """Turns the error of a deleted table into UnknownMemberIdException: this process has slept for so long that the
        controller has deleted the table."""
        try:
            yield
        except KafkaStorageException as error:
            if self._has_moved():
                raise UnknownMemberIdException(
                    f"member {self.member_id} is not in the group: nobody has used that for a while, and its members "
                    "are gone"
                ) from error
            raise

    def _has_moved(self) -> bool:
        """Whether the group has another table than this one by now, as far as that can be read."""
        with suppress(KafkaStorageException):
            return self._cluster.groups.newest_table_number(self.group_id) != self.table.number
        return False

    def join(self, topics: Collection[str]) -> None:
        """Joins as a new member. A static member takes the place of the last member with its instance id. Raises
        InconsistentGroupProtocolException, KafkaStorageException."""
        config, member_id = self._config, self._new_id()
        new = GroupMember(
            member_id, config.client_id, socket.gethostname(), 0, config.session_timeout_ms, tuple(sorted(topics)),
            config.assignors, instance_id=self.instance_id,
        )  # fmt: skip

        def decide(group: ConsumerGroup) -> ConsumerGroup | None:
            if any(member.member_id == member_id for member in group.members):
                return None  # the answer was lost
            raised = dataclasses.replace(group, generation=max(group.generation, lowest))
            return join(raised, new, self._partitions)

        refresh_partitions(self._cluster)
        cluster, has_moved = self._cluster, True
        with self._beating:
            while has_moved:
                self.table = MemberTable.open_newest(cluster.root, cluster.groups, self.group_id, self.table)
                lowest = generation_of(cluster.groups.fence(self.group_id))
                began_at, self.member_id = self._clock(), member_id  # before: it can leave if this is interrupted
                try:
                    group = self.table.change(self.group_id, "join", decide, member_id)
                except GroupIdNotFoundException:  # it was closed since it was opened
                    continue
                except KafkaStorageException:
                    if not self._has_moved():
                        raise
                    continue
                # If this process has slept, it may have joined a closed table, or made a deleted one again.
                has_moved = cluster.groups.newest_table_number(self.group_id) != self.table.number
            self._heartbeat, self._beat_at = group.member(member_id).heartbeat, began_at

    def _new_id(self) -> str:
        return f"{self.instance_id or self._config.client_id or 'consumer'}-{uuid.uuid4()}"

    def beat(self) -> None:
        """Sends a heartbeat. In the same commit it removes members that are dead by this member's own clock, and
        assigns partitions anew if the topics have other partitions.

        Raises:
            UnknownMemberIdException: others have removed this member. Or another process sends its heartbeats, too,
                because one of the two is a copy of the other, as of a virtual machine. This one must join as a new
                member.
            FencedInstanceIdException: this is a static member, and another process has taken its place, or is its copy
                (KIP-345).
            KafkaStorageException: the table cannot be read or written.
        """
        with self._beating:
            max_staleness = self._config.heartbeat_interval_ms / 1000
            self._cluster.topics.refresh(max_staleness)
            self._cluster.metadata.refresh(max_staleness)
            began_at = self._clock()
            with self._in_table():
                group = self.table.change(self.group_id, "heartbeat", self._checked, self.member_id)
            self._beat_at = began_at
        if self._own(group).slot == min(member.slot for member in group.members):
            self.table.maintain()

    def _checked(self, group: ConsumerGroup) -> ConsumerGroup:
        found = self._own(group).heartbeat
        if found > self._heartbeat:
            logger.warning(
                "group %s: another process sends the heartbeats of member %s, so one is a copy of the other: this one "
                "ends, or joins as a new member", self.group_id, self.member_id,
            )  # fmt: skip
            self.member_id = self._new_id()
            self._own(group)
        self._heartbeat = found + 1
        dead = self._liveness.dead(group) - {self.member_id}
        left = without(group, dead, self._partitions)
        if needs_rebalance(left, self._partitions):
            refresh_partitions(self._cluster)
            if needs_rebalance(left, self._partitions):
                return rebalance(left, self._partitions)
        return left

    def take(self) -> ConsumerGroup:
        """Takes the partitions that are assigned to this member and owned by none. Raises as `beat`."""

        def decide(group: ConsumerGroup) -> ConsumerGroup | None:
            taken = take(group, self._own(group).member_id)
            return None if taken == group else taken

        with self._in_table():
            return self.table.change(self.group_id, "take", decide)

    def give_up(self, partitions: Collection[AssignedPartition]) -> None:
        """Lets others take these partitions. Raises as `beat`."""

        def decide(group: ConsumerGroup) -> ConsumerGroup | None:
            given = give_up(group, self._own(group).member_id, partitions)
            return None if given == group else given

        with self._in_table():
            self.table.change(self.group_id, "give up", decide)

    def leave(self) -> None:
        """Lets others take all of the member's partitions. A static member only stops its heartbeats: others take its
        partitions if it is not back within its session. Raises KafkaStorageException.

        Kafka: `AbstractCoordinator.maybeLeaveGroup`, KIP-345.
        """
        with self._beating:
            self._beat_at = _NEVER
            if self.instance_id is None:
                remove_members(self._cluster, self.table, self.group_id, lambda _: {self.member_id})

    def _partitions(self, topics: Collection[str]) -> list[AssignedPartition]:
        return partitions_of_topics(self._cluster, topics)


class HeartbeatThread(threading.Thread):
    """Sends a heartbeat every `heartbeat.interval.ms`, as long as the consumer calls `poll` often enough. It logs an
    error, and goes on with the next heartbeat."""

    def __init__(self, membership: GroupMembership, config: ConsumerConfig) -> None:
        super().__init__(name=f"lakelog-heartbeat-{membership.group_id}", daemon=True)
        self._membership = membership
        self._config = config
        self._stopping = threading.Event()
        self._polled_at = time.monotonic()

    def polled(self) -> None:
        """Notes that the consumer has called `poll`."""
        self._polled_at = time.monotonic()

    def stop(self) -> None:
        """Ends the thread after the heartbeat that is under way, and waits for it."""
        self._stopping.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """The thread's loop."""
        errors = ErrorLog(logger, f"group {self._membership.group_id}: heartbeat")
        while not self._stopping.wait(self._config.heartbeat_interval_ms / 1000):
            try:
                self.work()
                errors.worked()
            except LakelogException as error:
                errors.failed(error)

    def work(self) -> None:
        """One heartbeat. A consumer that hangs leaves the group instead, so that others get its partitions. KIP-62.

        Raises KafkaStorageException.
        """
        passed = (time.monotonic() - self._polled_at) * 1000
        try:
            if passed <= self._config.max_poll_interval_ms:
                self._membership.beat()
            elif self._membership.is_beating and self._membership.member:
                logger.warning(
                    "group %s: %s: poll was not called for %.0f ms, max.poll.interval.ms is %d",
                    self._membership.group_id, "leaves" if self._membership.instance_id is None else "stops heartbeats",
                    passed, self._config.max_poll_interval_ms,
                )  # fmt: skip
                self._membership.leave()
        except (UnknownMemberIdException, FencedInstanceIdException):
            return  # the next poll meets the same error, and joins again or ends


def refresh_partitions(cluster: Cluster) -> None:
    """Reads the topics, then the metadata: a topic is written before its partitions."""
    cluster.topics.refresh()
    cluster.metadata.refresh()


def partitions_of_topics(cluster: Cluster, topics: Iterable[str]) -> list[AssignedPartition]:
    """The partitions of these topics, by the tables as last read. A topic that does not exist has none."""
    known = cluster.topics.topics
    ids = {known[t].topic_id for t in topics if t in known and not known[t].deleting}
    return [
        AssignedPartition(r.topic, r.topic_id, r.partition)
        for r in cluster.metadata.partitions.values()
        if r.topic_id in ids and r.leader != LEADER_DURING_DELETE
    ]


def remove_members(
    cluster: Cluster, table: MemberTable, group_id: str, whose: Callable[[ConsumerGroup], set[str]]
) -> ConsumerGroup:
    """Removes members that have left or are dead, and returns the group. Once it is empty, clients outside the group
    may commit."""

    def decide(group: ConsumerGroup) -> ConsumerGroup | None:
        left = without(group, whose(group), lambda topics: partitions_of_topics(cluster, topics))
        return None if left is group else left

    refresh_partitions(cluster)
    group = table.change(group_id, "leave", decide)
    if not group.members:
        cluster.groups.release(group_id, group.generation)
    return group
