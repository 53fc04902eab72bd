"""Consumes as a member of a group, whose members share out the partitions of its topics.

No record is returned twice while the group's members are alive: a member commits before it gives a partition up, and
the next owner reads the committed offset after it has taken the partition. Kafka: `KafkaConsumer.poll`,
`ConsumerCoordinator.poll`. KIP-429. [AP-04]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from lakelog.replication.clients.client_config import ConsumerConfig
from lakelog.replication.clients.consumer_fetch import FetchedRecords, fetch_records
from lakelog.replication.clients.group_membership import GroupMembership, HeartbeatThread
from lakelog.replication.clients.positions import Positions, all_records, starting_offset
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import (
    CommitFailedException,
    FencedInstanceIdException,
    IllegalGenerationException,
    IllegalStateException,
    LakelogException,
    OffsetOutOfRangeException,
    UnknownMemberIdException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.consumer_group import to_give_up, to_take
from lakelog.replication.protocol.delayed_operation import check_committed_offset
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.record_batch import TopicPartition
from lakelog.replication.storage.tables.group_tables import CommittedOffset

logger = logging.getLogger(__name__)

_SLICE_MS = 500  # the longest wait for records before the group is read again

Listener = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True)
class RebalanceListener:
    """The functions that `poll` and `close` call: `on_assign` after partitions were taken, `on_revoke` before they are
    given up, and `on_lost` once they are lost, because others have taken this member for dead. Without `on_lost`,
    `on_revoke` is called for lost partitions. Kafka: `ConsumerRebalanceListener`."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class _ListenerFailed(Exception):
    """Carries an error of a listener to `poll`, which raises that error. It is never retried, as errors of the group
    may be."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _HasLeft(Exception):
    """Ends the poll whose listener has closed or unsubscribed the consumer."""


class GroupConsumer:
    """Polls and commits as one member of a group. For one thread at a time."""

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
        self._is_calling = False  # a listener is running
        self._announced: set[AssignedPartition] = set()  # to `on_assign`
        self._revoking: set[AssignedPartition] = set()  # the partitions for which `on_revoke` or `on_lost` is running
        self.is_leaving, self.has_left = False, False
        self._is_member = False
        self._fenced: FencedInstanceIdException | None = None
        self._join(self._heartbeat.start)

    def _join(self, then: Callable[[], object] = lambda: None) -> None:
        """Joins the group, or leaves it again if that fails or is interrupted: without heartbeats a member blocks its
        partitions for a session."""
        try:
            self.membership.join(self.topics)
            then()
        except BaseException:
            self._leave()
            raise
        self._is_member = True

    def poll(self, timeout: float) -> pa.Table:
        """Polls, see `Consumer.poll`. The caller calls `positions.take_back` if it fails after this has returned."""
        if self._is_calling:
            raise IllegalStateException("a listener must not call poll: the poll that has called it goes on after it")
        self.positions.hand_over()
        try:
            return self._poll(time.monotonic() + timeout)
        except _HasLeft:
            return all_records({})
        except _ListenerFailed as failed:
            error = failed.error
        raise error

    def _poll(self, deadline: float) -> pa.Table:
        self._heartbeat.polled()
        while True:
            records = self._attempt(deadline)
            if records.num_rows or time.monotonic() >= deadline:
                return records
            pause(self._view.cluster.config.lakelog_poll_interval_ms, deadline)

    def _attempt(self, deadline: float) -> pa.Table:
        """Fetches the next records. Returns none if there are none yet, or after an error that may pass. Raises other
        errors."""
        if self._fenced is not None:
            raise self._fenced
        try:
            self._join_again()
            self._reconcile()
            self._auto_commit()
            left_ms = (deadline - time.monotonic()) * 1000
            fetched = self._fetch(max(0.0, min(left_ms, _SLICE_MS)))
            self._check_membership()  # it may have been stopped while it read, for longer than its session
            records = all_records(fetched)
            self.positions.advance(fetched)  # last: records that an interruption keeps from the caller stay uncommitted
            return records
        except UnknownMemberIdException as error:
            self._lose(error)
        except FencedInstanceIdException as error:
            self._fenced = error  # if this joined again, it would fence the process that has its place now
            self._lose(error)
            raise
        except (CommitFailedException, IllegalGenerationException):
            self._read_again()
        except UnknownTopicIdException:
            self._is_outdated = True
        except LakelogException as error:
            if not error.retriable:
                raise
            self._log_once(error)
        return all_records({})

    def _read_again(self) -> None:
        """Reads the group. If its table is deleted, the next heartbeat or poll finds that this is no longer a
        member."""
        with suppress(UnknownMemberIdException):
            self.membership.read()

    def _log_once(self, error: LakelogException) -> None:
        """Logs an error once, and not with each attempt."""
        if str(error) != self._last_error:
            logger.warning("group %s: %s: %s", self.membership.group_id, error.name, error)
        self._last_error = str(error)

    def _check_membership(self) -> None:
        """Sends a heartbeat in two cases: the last one is so old that others may have removed this member, or a topic
        was made again, whose new partitions a heartbeat assigns. Raises UnknownMemberIdException."""
        if self._is_outdated or not self.membership.is_trusted:
            self._is_outdated = False
            self.membership.beat()

    def _lose(self, error: LakelogException) -> None:
        """Calls `on_lost`, and drops all partitions: others have them by now."""
        self._is_member = False
        logger.warning("group %s: %s", self.membership.group_id, error)
        lost = self._revoking = self.positions.partitions
        try:
            self._notify(self._listener.on_lost or self._listener.on_revoke, sorted(lost))
        finally:
            self._revoking = set()
            self._drop(lost)

    def _drop(self, partitions: Collection[AssignedPartition]) -> None:
        self._announced -= set(partitions)
        self.positions.drop(partitions)

    def _join_again(self) -> None:
        if not self._is_member:
            self._join()

    def _reconcile(self) -> None:
        """Gives up what is assigned to others, then takes what is free, then finds where to start."""
        self._check_membership()
        group, me = self.membership.poll(), self.membership.member_id
        self._give_up(to_give_up(group, me))
        if to_take(group, me):
            self.membership.take()
        self._start(set(self.membership.member.owned) - self.positions.partitions)
        self._announce()
        for partition in self.positions.without_offset:
            self.positions.set(partition, starting_offset(self._view, partition, self._config.auto_offset_reset))

    def _give_up(self, partitions: Collection[AssignedPartition]) -> None:
        """Commits, calls `on_revoke` once, and gives the partitions up. It gives them up even if `on_revoke` raises an
        error, because others wait for them."""
        if not partitions:
            return
        if self._config.enable_auto_commit:
            self.commit(self.positions.uncommitted(partitions))
        self._revoking = self.positions.partitions & set(partitions)
        try:
            self._notify(self._listener.on_revoke, sorted(self._revoking))
        finally:
            self._revoking = set()
            if not self.has_left:
                self._drop(partitions)
                self.membership.give_up(partitions)

    def _start(self, partitions: Collection[AssignedPartition]) -> None:
        """Reads the committed offsets of partitions that were taken. No earlier owner can commit after that read."""
        if not partitions:
            return
        groups, group = self._view.cluster.groups, self.membership.group
        committed = groups.claim(self.membership.group_id, group.generation)
        for partition in sorted(partitions):
            self.positions.start(partition, committed.get(partition.topic_id_partition))

    def _announce(self) -> None:
        """Calls `on_assign` once for each partition that was taken, even if an interrupted poll has taken it."""
        new, self._announced = self.positions.partitions - self._announced, self.positions.partitions
        self._notify(self._listener.on_assign, sorted(new))

    def _notify(self, listener: Listener | None, partitions: Collection[AssignedPartition]) -> None:
        """Calls a listener within a poll. Raises _ListenerFailed, and _HasLeft if this is no member any more."""
        self._call(listener, partitions)
        if self.has_left:
            raise _HasLeft

    def _call(self, listener: Listener | None, partitions: Collection[AssignedPartition]) -> None:
        if not listener or not partitions:
            return
        before, self._is_calling = self._is_calling, True
        try:
            listener([TopicPartition(p.topic, p.partition) for p in partitions])
        except Exception as error:
            raise _ListenerFailed(error) from error
        finally:
            self._is_calling = before

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
                self._log_once(found.error)
        return fetched

    def _auto_commit(self) -> None:
        if self._config.enable_auto_commit and time.monotonic() >= self._auto_commit_at:
            self._auto_commit_at = time.monotonic() + self._config.auto_commit_interval_ms / 1000
            self.commit(self.positions.uncommitted())

    def commit(self, offsets: Mapping[AssignedPartition, int]) -> None:
        """Commits offsets of partitions that this member owns; see `Consumer.commit`. Raises CommitFailedException and
        FencedInstanceIdException."""
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
            except IllegalGenerationException as error:  # a newer generation, with this member or without it
                self._read_again()
                if self.membership.group.generation == generation:
                    raise CommitFailedException(f"group {group_id}: nothing was committed: {error}") from error
        self.positions.committed.update(offsets)

    def _generation_of(self, offsets: Collection[AssignedPartition]) -> int:
        """The newest generation in which this member has seen that it owns these partitions. Raises
        CommitFailedException."""
        group = self.membership.group
        try:
            me = group.own_member(self.membership.member_id, self.membership.instance_id)
            foreign = sorted(set(offsets) - set(me.owned))
        except UnknownMemberIdException as error:
            raise CommitFailedException(
                f"group {self.membership.group_id}: nothing was committed: {error}; others read on from the offsets "
                "that were committed before"
            ) from error
        if foreign:
            raise CommitFailedException(f"nothing was committed: {foreign[0].name} is not assigned to this consumer")
        return group.generation

    def close(self, commits: bool) -> None:
        """Commits if `commits`, calls `on_revoke`, which may commit too, and leaves the group, so that others can go on
        at once. Logs errors, but raises those of the listener, after it has left. A call of `close` by the listener
        does nothing."""
        if self.is_leaving:
            return
        self.is_leaving = True
        self._heartbeat.polled()
        error: Exception | None = None
        try:
            self._commit_last(commits)
            self._call(self._listener.on_revoke, sorted(self.positions.partitions - self._revoking))
        except _ListenerFailed as failed:
            error = failed.error
        finally:
            self._heartbeat.stop()
            self._drop(self.positions.partitions)
            self._leave()
            self.has_left = True
        if error is not None:
            raise error

    def _commit_last(self, commits: bool) -> None:
        try:
            self.commit(self.positions.uncommitted() if commits else {})
        except LakelogException as error:
            logger.warning("group %s: not committed: %s", self.membership.group_id, error)

    def _leave(self) -> None:
        try:
            self.membership.leave()
        except LakelogException as error:
            logger.warning("group %s: has not left: %s", self.membership.group_id, error)
