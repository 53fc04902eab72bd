"""Reads a topic from some offsets on, for the verbs that consume."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.waiting import let_pass
from lakelog.jobs.console.record_range import RecordRange
from lakelog.replication.clients.committed_range import check_partitions
from lakelog.replication.clients.committed_records import records_before
from lakelog.replication.clients.consumer import Consumer, FetchedRecords
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.offset_lookup import offset_for
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    LakelogException,
    OffsetOutOfRangeException,
    RetriableException,
    UnknownTopicIdException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_tables import CommittedOffset


class ConsoleReader:
    """Reads all partitions of a topic, or one of them. `positions`: the next offset of each.

    A group goes on from the offsets that it has committed. Where there are none, or the log no longer has them, it
    begins at `begin`: `offset_lookup.EARLIEST` or `LATEST`. `offset`: where to begin instead. `within`: a range of the
    topic, of which nothing else is read; then it is an error if the topic is made again.

    Raises UnknownTopicOrPartitionException, InvalidPartitionsException, and what the leaders' tables raise.
    """

    def __init__(
        self, cluster_uri: str, config: Config, topic: str, begin: int, group: str | None = None,
        partition: int | None = None, offset: int | None = None, within: RecordRange | None = None,
    ) -> None:  # fmt: skip
        self._view = TopicView(Cluster.open(cluster_uri, config, reads_go_on=True))
        self._consumer = Consumer(cluster_uri, group, config)
        self._topic, self._begin, self._partition = topic, begin, partition
        self._access = GroupAccess(self._view.cluster, group) if group else None
        self._said: dict[int, str] = {}  # the error of each partition that was said last
        self._topic_id = ""
        self._within = within
        self.positions: dict[int, int] = {}
        if within is None:
            self._start(offset)
        else:
            self._topic_id = within.topic_id
            self.positions = {number: each.offsets.start for number, each in within.partitions.items()}

    def _start(self, offset: int | None = None) -> None:
        """Finds the partitions of the topic that has the name now, and where to begin in each."""
        self._committed: dict[int, int] = {}
        known, chosen = self._view.partitions(self._topic), self._partition
        numbers = [chosen] if chosen is not None else list(known)
        check_partitions(self._topic, known, numbers)
        self._topic_id = known[numbers[0]].topic_id
        known_offsets = self._committed_offsets(known) if offset is None else dict.fromkeys(numbers, offset)
        first = self._first([number for number in numbers if number not in known_offsets])
        self.positions = {n: known_offsets[n] if n in known_offsets else first[n] for n in numbers}

    def _committed_offsets(self, known: Mapping[int, PartitionRegistration]) -> dict[int, int]:
        """The offsets that the group has committed."""
        kept = self._view.cluster.groups.committed(self._access.group_id) if self._access else {}
        found = {number: kept.get(registration.topic_id_partition) for number, registration in known.items()}
        return {number: offset for number, offset in found.items() if offset is not None}

    def _first(self, partitions: Collection[int]) -> dict[int, int]:
        """Where reading begins. It waits for leaders up to `request.timeout.ms`."""
        config = self._view.cluster.config
        deadline = time.monotonic() + config.request_timeout_ms / 1000
        while True:
            try:
                return self._poll(partitions)
            except UnknownTopicOrPartitionException:
                raise
            except RetriableException:
                if time.monotonic() >= deadline:
                    raise
            let_pass(config.lakelog_poll_interval_ms / 1000)

    def _poll(self, partitions: Collection[int]) -> dict[int, int]:
        watch, found = TopicWatch(self._view, self._topic, partitions, self._topic_id), {}
        reader = PartitionReader(self._view)
        for number in partitions:
            offset = offset_for(reader.open(watch.leadership(number)), self._begin)
            assert offset is not None, "a log has a start and a HW"
            found[number] = offset.offset
        return found

    @property
    def is_done(self) -> bool:
        """Whether all records of the range were read; without a range it is never done."""
        return self._within is not None and not self._to_read()

    def _to_read(self) -> dict[int, int]:
        """The offsets to fetch from."""
        stops = {number: self._stop(number) for number in self.positions}
        return {n: offset for n, offset in self.positions.items() if (stop := stops[n]) is None or offset < stop}

    def _stop(self, number: int) -> int | None:
        """The offset of a partition before which reading ends."""
        return None if self._within is None else self._within.partitions[number].offsets.stop

    def read(self, max_wait_ms: int, most: int, max_bytes: int) -> Iterator[pa.Table]:
        """Fetches once, and yields the records of each partition that has any, at most `most` in all. Once the caller
        has dealt with a table, and asks for the next, its records count as read.

        It waits up to `max_wait_ms` for records. Partitions take turns if there are more than `max_bytes`. A leader
        that cannot be read is waited for, and said once. A topic that was made again is read as a new one. Raises any
        other error of a partition.
        """
        fetched = self._consumer.fetch(
            self._topic, self._to_read(), max_wait_ms=max_wait_ms, max_bytes=max_bytes, topic_id=self._topic_id
        )
        errors = {number: found.error for number, found in fetched.items() if found.error is not None}
        for number, found in fetched.items():
            stop = self._stop(number)
            records = found.records.slice(0, most)
            records = records if stop is None else records_before(records, stop)
            if records.num_rows:
                most -= records.num_rows
                yield records
            following = next_offset(found, records, self.positions[number], stop)
            if following > self.positions[number]:
                del self.positions[number]  # to the end
                self.positions[number] = following
        made_again = next((e for e in errors.values() if isinstance(e, UnknownTopicIdException)), None)
        if made_again is not None and self._within is not None:
            raise made_again
        if made_again is not None:
            self._start()
            say(f"lakelog: {made_again}; it is read as a new topic")
            return
        for number, error in errors.items():
            self._deal_with(number, error)
        if errors and len(errors) == len(fetched):
            let_pass(self._view.cluster.config.lakelog_poll_interval_ms / 1000)

    def _deal_with(self, number: int, error: LakelogException) -> None:
        if isinstance(error, OffsetOutOfRangeException):
            self.positions.update(self._first([number]))
            say(f"lakelog: {error}; it goes on at {self.positions[number]}")
        elif not error.retriable:
            raise error
        elif str(error) != self._said.get(number):
            self._said[number] = str(error)
            say(f"lakelog: {error.name}: {error}; it is tried again")

    def commit(self) -> None:
        """Stores the positions for the group, if there is one: those of the topic that was read, also if it was made
        again since. Raises what `GroupAccess.commit` raises."""
        if self._access and self.positions != self._committed:
            group_id, config = self._access.group_id, self._view.cluster.config
            rows = [CommittedOffset(group_id, self._topic, self._topic_id, *each) for each in self.positions.items()]
            self._access.commit(rows, time.monotonic() + config.request_timeout_ms / 1000)
            self._committed = dict(self.positions)


def next_offset(found: FetchedRecords, records: pa.Table, offset: int, stop: int | None = None) -> int:
    """Where to read on once the caller has `records`, the first ones of those that were found from `offset` on.
    `stop`: the offset before which reading ends. Once a record at or after it was found, there is none left before. The
    log cleaner may have removed records, also all that there were."""
    taken = records.num_rows
    if found.error is None and taken == found.records.num_rows:
        return found.next_offset if stop is None else min(found.next_offset, stop)
    if stop is not None and taken < found.records.num_rows and found.records["offset"][taken].as_py() >= stop:
        return stop
    return int(records["offset"][-1].as_py()) + 1 if taken else offset
