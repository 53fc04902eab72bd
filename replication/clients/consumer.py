"""Reads committed records from the logs of their leaders, or of nearer replicas: alone, or as a member of a group.

Kafka: `KafkaConsumer`, `ReplicaManager.fetchMessages`, `GroupMetadataManager`. [FE-01, FE-02, DO-02, AP-04]
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from lakelog.replication.clients.arguments import (
    by_partition,
    by_topic,
    function,
    milliseconds,
    offsets_by_partition,
    seconds,
    text,
    topic_names,
    topic_partitions,
    whole_number,
    whole_numbers,
)
from lakelog.replication.clients.client_config import ConsumerConfig
from lakelog.replication.clients.committed_range import EARLIEST, LATEST, Offsets, check_offsets
from lakelog.replication.clients.committed_records import committed_batches, committed_ranges
from lakelog.replication.clients.consumer_fetch import FetchedRecords as FetchedRecords
from lakelog.replication.clients.consumer_fetch import fetch_records
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.group_consumer import GroupConsumer, Listener, RebalanceListener
from lakelog.replication.clients.offset_lookup import EpochEndOffset, epoch_ends
from lakelog.replication.clients.one_process import Closing
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    ConcurrentModificationException,
    IllegalStateException,
    InvalidGroupIdException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.delayed_operation import check_committed_offset
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicPartition as TopicPartition
from lakelog.replication.protocol.topic import check_is_text, check_topic_id
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_tables import CommittedOffset, folder_of
from lakelog.schemas import LOG

_DEFAULT = ConsumerConfig()

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _by_one_thread(
    method: Callable[Concatenate[Consumer, Given], Result],
) -> Callable[Concatenate[Consumer, Given], Result]:
    """A method that raises ConcurrentModificationException while another thread uses the consumer."""

    @wraps(method)
    def alone(consumer: Consumer, *given: Given.args, **named: Given.kwargs) -> Result:
        with consumer._one_thread():
            return method(consumer, *given, **named)

    return alone


class Consumer(Closing):
    """Kafka's `KafkaConsumer`. It needs no Spark, and returns Arrow tables.

    With `subscribe` and `poll` it is a member of its `group`: the members share the partitions out, and each record
    goes to one of them. With `fetch` it reads from offsets that the caller gives; then a `group` is a name for offsets.
    The settings are those of `ConsumerConfig`. For one thread at a time: while a thread is in a call, those of others
    raise ConcurrentModificationException. While no majority of several cluster roots answers, `fetch` goes on by what
    one of them has, and members of groups get no records.

        with Consumer("/lake/cluster", "billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            while True:
                records = consumer.poll(timeout=1.0)

    Raises InconsistentClusterIdException if there is no cluster at `cluster_uri`, InvalidConfigurationException.
    """

    def __init__(
        self, cluster_uri: str, group: str | None = None, config: Config | None = None, *,
        client_id: str = _DEFAULT.client_id, session_timeout_ms: int = _DEFAULT.session_timeout_ms,
        heartbeat_interval_ms: int = _DEFAULT.heartbeat_interval_ms,
        max_poll_interval_ms: int = _DEFAULT.max_poll_interval_ms,
        enable_auto_commit: bool = _DEFAULT.enable_auto_commit,
        auto_commit_interval_ms: int = _DEFAULT.auto_commit_interval_ms,
        auto_offset_reset: str = _DEFAULT.auto_offset_reset,
        partition_assignment_strategy: str = _DEFAULT.partition_assignment_strategy,
        fetch_max_bytes: int = _DEFAULT.fetch_max_bytes, client_rack: str = _DEFAULT.client_rack,
        group_instance_id: str = _DEFAULT.group_instance_id,
    ) -> None:  # fmt: skip
        settings = ConsumerConfig(
            client_id, session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms, enable_auto_commit,
            auto_commit_interval_ms, auto_offset_reset, partition_assignment_strategy, fetch_max_bytes,
            client_rack, group_instance_id,
        )  # fmt: skip
        self._view = TopicView(Cluster.open(cluster_uri, config, reads_go_on=True))
        self._settings = settings.with_heartbeat(self._view.cluster.root.is_local)
        self._group = group
        self._access: GroupAccess | None = None
        self._member: GroupConsumer | None = None
        self._is_closed = False
        self._in_use = threading.RLock()
        self._fetched_ids: dict[str, str] = {}  # of the topics whose records `fetch` has returned last

    def __repr__(self) -> str:
        group = f", group {self._group!r}" if self._group else ""
        closed = ", closed" if self._is_closed else ""
        return f"<Consumer of {self._view.cluster.root.uri}{group}{closed}>"

    @_by_one_thread
    def subscribe(
        self, topics: Collection[str], on_assign: Listener | None = None, on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:  # fmt: skip
        """Joins the group, to share the partitions of these topics with its other members. `poll` brings the records.

        A topic that does not exist yet is read once it does. A second call replaces the topics. `poll`, and all that
        leaves the group, call the listeners with a list of `TopicPartition`: after partitions were taken, before they
        are given up, which is the last time to commit their offsets, and after they were lost to others. Without
        `on_lost`, `on_revoke` is called then, and its `commit` raises CommitFailedException, as in Kafka.

        A listener may use this consumer, but not poll. After `close`, `unsubscribe` or `subscribe` in a listener the
        `poll` that has called it returns no records. An error of a listener is raised by the call that has called it,
        once its partitions are given up.

        Raises InvalidGroupIdException without a group, InvalidTopicException, InvalidRequestException without topics,
        InconsistentGroupProtocolException, KafkaStorageException, IllegalStateException after `close`.
        """
        group_id = self._known_group()
        names = topic_names(topics)
        listener = RebalanceListener(
            function(on_assign, "on_assign"), function(on_revoke, "on_revoke"), function(on_lost, "on_lost")
        )  # fmt: skip
        if self._member is not None and self._member.is_leaving:
            raise IllegalStateException("a listener must not subscribe while the consumer leaves its group")
        self.unsubscribe()
        self._check_open()  # a listener may have closed it
        self._member = GroupConsumer(self._view, group_id, names, self._settings, listener)

    @_by_one_thread
    def unsubscribe(self) -> None:
        """Leaves the group as `close` does, a static member for its session only. Raises IllegalStateException after
        `close`."""
        self._check_open()
        self._leave(self._settings.enable_auto_commit)

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalStateException("the consumer is closed")

    def _leave(self, commits: bool) -> None:
        """Leaves the group. A listener that this calls may still commit."""
        member = self._member
        try:
            if member is not None:
                member.close(commits)
        finally:
            if member is not None and member.has_left:
                self._member = None

    def poll(self, timeout: float = 1.0) -> pa.Table:
        """The next records of the partitions that this consumer owns, with the columns of `lakelog.schemas.LOG`.

        Records of one partition are in the order of their offsets. It returns as soon as there are any, and after
        `timeout` seconds with none; a negative number is for ever. With `enable.auto.commit` a call may commit the
        offsets after the records of earlier calls, so process those before. It also gives partitions up and takes
        others, so call it more often than every `max.poll.interval.ms`. It logs retriable errors, and tries again.

        Raises IllegalStateException without `subscribe`, NoOffsetForPartitionException and OffsetOutOfRangeException
        with `auto.offset.reset` `none`, CorruptRecordException.
        """
        member, limit = None, seconds(timeout, "timeout")
        try:
            with self._one_thread():
                member = self._subscribed()
                return member.poll(math.inf if limit is None else limit)
        except BaseException:
            if member is not None:  # the caller has not got the records
                member.positions.take_back()
            raise

    @_by_one_thread
    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer owns; none before the first `poll` after `subscribe`."""
        return {TopicPartition(p.topic, p.partition) for p in self._subscribed().positions.partitions}

    @_by_one_thread
    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next record; None if it is still to be found. Raises IllegalStateException."""
        positions = self._subscribed().positions
        return positions.offset(positions.find(topic, partition))

    @_by_one_thread
    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads on from this offset. Raises IllegalStateException if the partition is not assigned to this consumer,
        OffsetOutOfRangeException for an offset below 0 or above 2^63 - 1."""
        positions = self._subscribed().positions
        found = positions.find(topic, partition)
        check_committed_offset(offset, found.name)
        positions.set(found, offset)

    @_by_one_thread
    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """`poll` returns no records of these partitions until `resume`. They stay with this consumer as long as they
        would otherwise. Raises IllegalStateException if one is not assigned to it."""
        self._subscribed().positions.pause(topic_partitions(partitions), True)

    @_by_one_thread
    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Undoes `pause`. Raises IllegalStateException if a partition is not assigned to this consumer."""
        self._subscribed().positions.pause(topic_partitions(partitions), False)

    def close(self) -> None:
        """Commits, if `enable.auto.commit`, and leaves the group, so that others go on at once. A static member stays
        in the group until its session times out, and its partitions wait for it. It logs errors. The end of a `with`
        block does it too, but commits nothing if it ends with an error: the last records may not be processed. `fetch`
        and `committed` still work."""
        self._close(self._settings.enable_auto_commit)

    @_by_one_thread
    def _close(self, commits: bool) -> None:
        self._is_closed = True
        self._leave(commits)

    def __exit__(self, kind: object, *_: object) -> None:
        self._close(self._settings.enable_auto_commit and kind is None)

    @_by_one_thread
    def fetch(
        self, topic: str, offsets: Mapping[int, int], min_bytes: int = 1, max_wait_ms: int = 500,
        max_bytes: int = 52_428_800, topic_id: str | None = None,
    ) -> dict[int, FetchedRecords]:  # fmt: skip
        """Fetches committed records: see `fetch("orders", {0: 42})[0].records` for partition 0 from offset 42.

        Returns at once if there are `min_bytes` or a partition has an error, otherwise after `max_wait_ms` with the
        records that there are. Returns at most `max_bytes` of keys and values, in the order of `offsets`; only the
        first batch may be larger. It waits at an offset above the HW, because a new leader's HW may be behind. Errors
        are in the results; repeat the fetch if `error.retriable`.

        An offset belongs to a topic id, as a topic that is deleted and made again has other records. Pass as `topic_id`
        the one of the results before: then the error is UnknownTopicIdException once it is another topic (KIP-516).
        """
        check_is_text(topic)
        wait_ms = milliseconds(max_wait_ms, "max_wait_ms")
        whole_number(min_bytes, "min_bytes", 0)
        whole_number(max_bytes, "max_bytes", 0)
        wanted = {TopicPartition(topic, n): offset for n, offset in offsets_by_partition(offsets, "offsets").items()}
        rack, ids = self._settings.client_rack or None, {} if topic_id is None else {topic: text(topic_id, "topic_id")}
        found = fetch_records(self._view, wanted, min_bytes, wait_ms, max_bytes, rack, ids)
        self._fetched_ids.update((topic, each.topic_id) for each in found.values() if each.topic_id)
        return {partition: fetched for (_, partition), fetched in found.items()}

    def to_arrow(self, topic: str, starting: Offsets = EARLIEST, ending: Offsets = LATEST) -> pa.Table:
        """A topic's committed records as one table, with the columns of `lakelog.schemas.LOG`: the records of a
        partition in their order, those of several partitions in any order.

        It has the records below the high watermark at the time of the call. `starting` and `ending` (excluded) are
        "earliest", "latest" (the HW) or an offset for each partition: `{0: 100, 1: 250}`. A partition that is not in
        the mapping is read from its log start, or up to its HW. All records are in memory: see `to_batches`.

        Raises InvalidRequestException (an argument of a wrong type), UnknownTopicOrPartitionException,
        InvalidPartitionsException (no such partition), OffsetOutOfRangeException (also if retention deletes records
        before they are read), UnknownTopicIdException (the topic is made again meanwhile), CorruptRecordException, and
        after `request.timeout.ms` without any record the error of a leader, such as LeaderNotAvailableException.
        """
        return pa.Table.from_batches(self._batches(topic, starting, ending, _DEFAULT.fetch_max_bytes), LOG.arrow)

    def to_batches(
        self, topic: str, starting: Offsets = EARLIEST, ending: Offsets = LATEST, max_bytes: int = 52_428_800
    ) -> pa.RecordBatchReader:
        """The records of `to_arrow` as an iterator, for topics larger than memory. DuckDB and Polars scan it too.

        Offsets are found at the call, and records are fetched when they are asked for: at most `max_bytes` of keys and
        values are in memory, or one batch if that is larger. It is read once, while no other thread is in a call of
        this consumer. Raises as `to_arrow`, at the call or from the iterator.
        """
        return pa.RecordBatchReader.from_batches(LOG.arrow, self._batches(topic, starting, ending, max_bytes))

    def _batches(self, topic: str, starting: Offsets, ending: Offsets, max_bytes: int) -> Iterator[pa.RecordBatch]:
        check_offsets(starting, "starting")
        check_offsets(ending, "ending")
        whole_number(max_bytes, "max_bytes", 0)
        with self._one_thread():
            topic_id, ranges = committed_ranges(self._view, topic, starting, ending)
        config = self._view.cluster.config
        return committed_batches(
            lambda offsets: self.fetch(topic, offsets, max_bytes=max_bytes, topic_id=topic_id), ranges,
            config.request_timeout_ms, config.lakelog_poll_interval_ms,
        )  # fmt: skip

    @_by_one_thread
    def epoch_end(
        self, topic: str, partition: int, epochs: Iterable[int], broker_id: int | None = None
    ) -> dict[int, EpochEndOffset]:
        """The end offset of each leader epoch in the leader's log. Pass `broker_id` if that broker must lead.

        Kafka: `ReplicaManager.lastOffsetForLeaderEpoch`. KIP-101, KIP-279. [EP-03]

        Raises UnknownTopicOrPartitionException, LeaderNotAvailableException, and NotLeaderOrFollowerException if the
        broker does not lead: it may still truncate its log.
        """
        topic_partitions([(topic, partition)])
        if broker_id is not None:
            whole_number(broker_id, "broker_id", 0)
        return epoch_ends(self._view, topic, partition, whole_numbers(epochs, "epochs"), broker_id)

    @_by_one_thread
    def commit(self, offsets: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """Stores the group's offsets (topic: partition: next offset), all of them or none; without `offsets` those
        after the records that `poll` has returned.

        It is one compare-and-set on a table of the cluster, so there is no `offsets.commit.required.acks`.

        Kafka: `GroupMetadataManager.storeOffsets`. [AP-04] Raises InvalidGroupIdException without a group,
        UnknownTopicOrPartitionException, UnknownTopicIdException if the topic was made again since its records were
        read, OffsetOutOfRangeException for an offset below 0 or above 2^63 - 1, and, if the commit failed or its
        outcome is unknown after `request.timeout.ms`, TimeoutException or KafkaStorageException. A consumer that has
        subscribed: CommitFailedException if it does not own the partitions, or not any more, and
        FencedInstanceIdException if another has taken its place as a static member. One that has not:
        GroupNotEmptyException while the group has live members, IllegalStateException without `offsets`.
        """
        group = self._known_group()
        if offsets is None:
            member = self._subscribed()
            member.commit(member.positions.uncommitted())
            return
        partitions = self._assigned_partitions(offsets)
        if self._member is not None:
            self._member.commit(partitions)
            return
        rows = [CommittedOffset(group, p.topic, p.topic_id, p.partition, offset) for p, offset in partitions.items()]
        self._access = self._access or GroupAccess(self._view.cluster, group)
        self._access.commit(rows, time.monotonic() + self._view.cluster.config.request_timeout_ms / 1000)

    def _assigned_partitions(self, offsets: Mapping[str, Mapping[int, int]]) -> dict[AssignedPartition, int]:
        found = {}
        for topic, given in by_topic(offsets, "offsets").items():
            registrations = self._view.partitions(topic)
            for partition, offset in by_partition(given, f"offsets of {topic}").items():
                name = f"{topic}-{partition}"
                if partition not in registrations:
                    raise UnknownTopicOrPartitionException(f"{name}: no such partition, {topic} has {[*registrations]}")
                check_committed_offset(offset, name)
                check_topic_id(registrations[partition], self._topic_id_of(registrations[partition]))
                found[AssignedPartition(topic, registrations[partition].topic_id, partition)] = offset
        return found

    def _topic_id_of(self, registration: PartitionRegistration) -> str:
        """The id of the topic whose records this consumer has read; that of the present topic if it has read none."""
        if self._member is not None:
            owned = {(p.topic, p.partition): p.topic_id for p in self._member.positions.partitions}
            return owned.get((registration.topic, registration.partition), registration.topic_id)
        return self._fetched_ids.get(registration.topic, registration.topic_id)

    @_by_one_thread
    def committed(self, topic: str) -> dict[int, int]:
        """The offsets that the group committed last, for the partitions that have one.

        Raises InvalidGroupIdException without a group, UnknownTopicOrPartitionException, KafkaStorageException.
        """
        group = self._known_group()
        registrations = self._view.partitions(topic)
        kept = self._view.cluster.groups.committed(group)
        found = {number: kept.get(r.topic_id_partition) for number, r in registrations.items()}
        return {number: offset for number, offset in found.items() if offset is not None}

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Kafka: `KafkaConsumer.acquire`. A listener uses the consumer in the thread that has called it."""
        if not self._in_use.acquire(blocking=False):
            raise ConcurrentModificationException(
                "the consumer is not safe for multi-threaded access: another thread is in a call of it; use one "
                "consumer for each thread"
            )
        try:
            yield
        finally:
            self._in_use.release()

    def _known_group(self) -> str:
        if not self._group:
            raise InvalidGroupIdException(
                f"group is {self._group!r}: a consumer stores offsets only under the name of a group"
            )
        folder_of(self._group)  # a group that cannot have members can be neither described nor deleted
        return self._group

    def _subscribed(self) -> GroupConsumer:
        if self._member is None:
            why = "it is closed" if self._is_closed else "call subscribe first"
            raise IllegalStateException(f"the consumer has not subscribed to any topic: {why}")
        return self._member
