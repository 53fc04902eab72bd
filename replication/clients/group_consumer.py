"""A consumer that has subscribed: the members of its group share the partitions out.

Nobody gets a record twice while its group's members are alive: a member commits before it gives a partition up, and the
next owner reads the committed offset after it has taken the partition. Kafka: `KafkaConsumer.poll`,
`ConsumerCoordinator.poll`. KIP-429. [AP-04]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakelog.replication.clients.consumer_config import ConsumerConfig
from lakelog.replication.clients.consumer_fetch import FetchedRecords, fetch_records
from lakelog.replication.clients.group_heartbeat import HeartbeatThread
from lakelog.replication.clients.group_membership import GroupMembership
from lakelog.replication.clients.positions import Positions, all_records
from lakelog.replication.clients.starting_offsets import starting_offset
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import (
    CommitFailedException,
    IllegalGenerationException,
    LakelogException,
    OffsetOutOfRangeException,
    UnknownMemberIdException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.consumer_group import to_give_up, to_take
from lakelog.replication.protocol.delayed_operation import check_committed_offset
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.record_batch import TopicPartition
from lakelog.replication.storage.tables.group_table import CommittedOffset

logger = logging.getLogger(__name__)

_SLICE_MS = 500  # the longest wait for records before the group is looked at again

Listener = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True)
class RebalanceListener:
    """Calls of the program, in `poll` and `close`: after partitions were taken, before they are given up, and once they
    are lost, since others have taken this member for dead. Kafka: `ConsumerRebalanceListener`."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class GroupConsumer:
    """One member of a group. For one thread at a time."""

    def __init__(
        self, view: TopicView, group_id: str, topics: Collection[str], config: ConsumerConfig,
        listener: RebalanceListener,
    ) -> None:  # fmt: skip
        self.positions = Positions()
        self.topics = topics
        self.membership = GroupMembership(view.cluster, group_id, config)
        self._view = view
        self._config = config
        self._listener = listener
        self._heartbeat = HeartbeatThread(self.membership, config)
        self._auto_commit_at = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._last_error = ""
        self._is_outdated = False  # a topic was made again, so its partitions are others
        self.membership.join(topics)
        self._is_in = True
        self._heartbeat.start()

    def poll(self, timeout: float) -> pa.Table:
        """See `Consumer.poll`."""
        deadline = time.monotonic() + timeout
        self._heartbeat.polled()
        while True:
            records = self._attempt(deadline)
            if records.num_rows or time.monotonic() >= deadline:
                return records
            pause(self._view.cluster.config.lakelog_poll_interval_ms, deadline)

    def _attempt(self, deadline: float) -> pa.Table:
        """The next records, none if there are none yet or an error may go away. Raises other errors."""
        try:
            self._join_again()
            self._reconcile()
            self._auto_commit()
            left_ms = (deadline - time.monotonic()) * 1000
            fetched = self._fetch(max(0.0, min(left_ms, _SLICE_MS)))
            self._check_membership()  # it may have been stopped while it read, for longer than its session
            self.positions.advance(fetched)
            return all_records(fetched)
        except UnknownMemberIdException as error:
            self._lose(error)
        except (CommitFailedException, IllegalGenerationException):
            self.membership.refresh()
        except UnknownTopicIdException:
            self._is_outdated = True
        except LakelogException as error:
            if not error.retriable:
                raise
            self._say(error)
        return all_records({})

    def _say(self, error: LakelogException) -> None:
        """Logs an error once, and not with each attempt."""
        if str(error) != self._last_error:
            logger.warning("group %s: %s: %s", self.membership.group_id, error.name, error)
        self._last_error = str(error)

    def _check_membership(self) -> None:
        """A member whose heartbeat is late asks the table before it goes on. So does one that has met a topic that was
        made again: its partitions are assigned anew. Raises UnknownMemberIdException."""
        if self._is_outdated or not self.membership.is_trusted:
            self._is_outdated = False
            self.membership.beat()

    def _lose(self, error: UnknownMemberIdException) -> None:
        """Others have its partitions by now."""
        self._is_in = False
        logger.warning("group %s: %s", self.membership.group_id, error)
        lost = sorted(self.positions.partitions)
        self.positions.drop(lost)
        self._tell(self._listener.on_lost, lost)

    def _join_again(self) -> None:
        if not self._is_in:
            self.membership.join(self.topics)
            self._is_in = True

    def _reconcile(self) -> None:
        """Gives up what is assigned to others, then takes what is free, then finds where to start."""
        self._check_membership()
        group, me = self.membership.look(), self.membership.member_id
        self._give_up(to_give_up(group, me))
        if to_take(group, me):
            self.membership.take()
        self._start(set(self.membership.member.owned) - self.positions.partitions)
        for partition in self.positions.without_offset:
            self.positions.set(partition, starting_offset(self._view, partition, self._config.auto_offset_reset))

    def _give_up(self, partitions: Collection[AssignedPartition]) -> None:
        if not partitions:
            return
        if self._config.enable_auto_commit:
            self.commit(self.positions.uncommitted(partitions))
        self._tell(self._listener.on_revoke, sorted(partitions))
        self.positions.drop(partitions)
        self.membership.give_up(partitions)

    def _start(self, partitions: Collection[AssignedPartition]) -> None:
        """Reads the committed offsets of partitions that were taken: from then on no earlier owner can commit."""
        if not partitions:
            return
        groups, group = self._view.cluster.groups, self.membership.group
        committed = groups.claim(self.membership.group_id, group.generation)
        for partition in sorted(partitions):
            self.positions.start(partition, committed.get(partition.topic_id_partition))
        self._tell(self._listener.on_assign, sorted(partitions))

    def _tell(self, listener: Listener | None, partitions: list[AssignedPartition]) -> None:
        if listener and partitions:
            listener([TopicPartition(p.topic, p.partition) for p in partitions])

    def _fetch(self, max_wait_ms: float) -> dict[TopicPartition, FetchedRecords]:
        readable = self.positions.readable
        if not readable:
            return {}
        offsets = {TopicPartition(p.topic, p.partition): offset for p, offset in readable.items()}
        ids = {partition.topic: partition.topic_id for partition in readable}
        most, rack = self._config.fetch_max_bytes, self._config.client_rack or None
        fetched = fetch_records(self._view, offsets, 1, max_wait_ms, most, rack, ids)
        for key, found in fetched.items():
            if isinstance(found.error, OffsetOutOfRangeException) and self._config.auto_offset_reset != "none":
                logger.warning("group %s: %s", self.membership.group_id, found.error)
                self.positions.set(self.positions.find(*key), None)
            elif isinstance(found.error, UnknownTopicIdException):
                self._is_outdated = True
            elif found.error and not found.error.retriable:
                raise found.error
            elif found.error:
                self._say(found.error)
        return fetched

    def _auto_commit(self) -> None:
        if self._config.enable_auto_commit and time.monotonic() >= self._auto_commit_at:
            self._auto_commit_at = time.monotonic() + self._config.auto_commit_interval_ms / 1000
            self.commit(self.positions.uncommitted())

    def commit(self, offsets: Mapping[AssignedPartition, int]) -> None:
        """Commits offsets of partitions that this member owns; see `Consumer.commit`. Raises CommitFailedException."""
        cluster, group_id = self._view.cluster, self.membership.group_id
        deadline = time.monotonic() + cluster.config.request_timeout_ms / 1000
        for partition, offset in offsets.items():
            check_committed_offset(offset, partition.name)
        rows = [CommittedOffset(group_id, p.topic, p.topic_id, p.partition, offset) for p, offset in offsets.items()]
        while rows:
            generation = self._generation_of(offsets)
            try:
                cluster.groups.commit(rows, deadline, generation)
                break
            except IllegalGenerationException as error:  # of a generation that it has not seen yet, or without it
                self.membership.refresh()
                if self.membership.group.generation == generation:
                    raise CommitFailedException(f"group {group_id}: nothing was committed: {error}") from error
        self.positions.committed(offsets)

    def _generation_of(self, offsets: Collection[AssignedPartition]) -> int:
        """The generation in which the member has last seen that it owns these."""
        group = self.membership.group
        try:
            foreign = sorted(set(offsets) - set(group.member(self.membership.member_id).owned))
        except UnknownMemberIdException as error:
            raise CommitFailedException(
                f"group {self.membership.group_id}: nothing was committed: {error}; others read on from the offsets "
                "that were committed before"
            ) from error
        if foreign:
            raise CommitFailedException(f"nothing was committed: {foreign[0].name} is not assigned to this consumer")
        return group.generation

    def close(self, commits: bool) -> None:
        """Commits if it is to, and leaves the group: others may go on at once. Logs errors."""
        self._heartbeat.stop()
        try:
            self.commit(self.positions.uncommitted() if commits else {})
        except LakelogException as error:
            logger.warning("group %s: not committed: %s", self.membership.group_id, error)
        try:
            self._tell(self._listener.on_revoke, sorted(self.positions.partitions))
        finally:
            self.positions.drop(self.positions.partitions)
            self._leave()

    def _leave(self) -> None:
        try:
            self.membership.leave()
        except LakelogException as error:
            logger.warning("group %s: has not left: %s", self.membership.group_id, error)
