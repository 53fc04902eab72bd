"""Reads a topic from some offsets on, for the verbs that consume."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import pyarrow as pa

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.led_partition import led_partition
from lakelog.replication.clients.offset_lookup import offset_for
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InvalidPartitionsException,
    LakelogException,
    OffsetOutOfRangeException,
    RetriableException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.storage.cluster import Cluster


class ConsoleReader:
    """Reads all partitions of a topic, or one of them. `positions`: the next offset of each.

    A group goes on from the offsets that it has committed. Where there are none, or the log no longer has them, it
    begins at `begin`: `offset_lookup.EARLIEST` or `LATEST`. `offset`: where to begin instead.

    Raises UnknownTopicOrPartitionException, InvalidPartitionsException, and what the leaders' tables raise.
    """

    def __init__(
        self, cluster_uri: str, config: Config, topic: str, begin: int, group: str | None = None,
        partition: int | None = None, offset: int | None = None,
    ) -> None:  # fmt: skip
        self._view = TopicView(Cluster.open(cluster_uri, config))
        self._consumer = Consumer(cluster_uri, group, config)
        self._topic, self._begin, self._group = topic, begin, group
        self._said: set[str] = set()
        self._committed: dict[int, int] = {}
        known = self._view.partitions(topic)
        if partition is not None and partition not in known:
            raise InvalidPartitionsException(f"topic {topic} has no partition {partition}, it has 0 to {max(known)}")
        chosen = [partition] if partition is not None else list(known)
        told = self._consumer.committed(topic) if group else {}
        if offset is not None:
            told = dict.fromkeys(chosen, offset)
        first = self._first([number for number in chosen if number not in told])
        self.positions = {number: told[number] if number in told else first[number] for number in chosen}

    def _first(self, partitions: Collection[int]) -> dict[int, int]:
        """Where reading begins. It waits for leaders up to `request.timeout.ms`."""
        config = self._view.cluster.config
        deadline = time.monotonic() + config.request_timeout_ms / 1000
        while True:
            try:
                return self._look(partitions)
            except UnknownTopicOrPartitionException:
                raise
            except RetriableException:
                if time.monotonic() >= deadline:
                    raise
            let_pass(config.lakelog_poll_interval_ms / 1000)

    def _look(self, partitions: Collection[int]) -> dict[int, int]:
        leaders = self._view.leaderships(self._topic, partitions)
        found = {}
        for number in partitions:
            led = led_partition(self._view, leaders.get(number), f"{self._topic}-{number}")
            offset = offset_for(led, self._begin)
            assert offset is not None, "a log has a start and a HW"
            found[number] = offset.offset
        return found

    def read(self, max_wait_ms: int, most: int, max_bytes: int) -> Iterator[pa.Table]:
        """Fetches once, and yields the records of each partition that has any, at most `most` in all. Once the caller
        has dealt with a table, and asks for the next, its records count as read.

        It waits up to `max_wait_ms` for records. Partitions take turns if there are more than `max_bytes`. A leader
        that cannot be read is waited for, and said once. Raises any other error of a partition.
        """
        fetched = self._consumer.fetch(self._topic, self.positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes)
        errors = {number: found.error for number, found in fetched.items() if found.error is not None}
        for number, found in fetched.items():
            records = found.records.slice(0, most)
            if records.num_rows:
                most -= records.num_rows
                yield records
                del self.positions[number]  # to the end
                self.positions[number] = records["offset"][-1].as_py() + 1
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
        elif str(error) not in self._said:
            self._said.add(str(error))
            say(f"lakelog: {error.name}: {error}; it is tried again")

    def commit(self) -> None:
        """Stores the positions for the group, if there is one. Raises what `Consumer.commit` raises."""
        if self._group and self.positions != self._committed:
            self._consumer.commit({self._topic: self.positions})
            self._committed = dict(self.positions)
