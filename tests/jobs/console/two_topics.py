"""Two topics on tables without brokers. A thread publishes all that the leader has appended as committed."""

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from tests.clients.world import World
from tests.registrations import joined
from tests.storage.logs import COLUMNS, NOON, P0, P1, TOPIC, follow, lead, request, send

COPIES, COPIES_ID = "copies", "copies-id"
C0, C1, C2 = (TopicIdPartition(COPIES_ID, number) for number in range(3))


class TwoTopics(World):
    """`flights` with two partitions, and `copies` with as many as are asked for."""

    def __init__(self, root: str, copies: int = 2) -> None:
        super().__init__(root)
        self.copies = [TopicIdPartition(COPIES_ID, number) for number in range(copies)]
        self.names = {P0: TOPIC, P1: TOPIC, **dict.fromkeys(self.copies, COPIES)}
        topics = list(self.cluster.topics.topics.values())
        self.cluster.topics.change([*topics, Topic(COPIES, COPIES_ID, copies)], (), {"who": "test"})
        new = {p: joined(new_partition(COPIES, COPIES_ID, p.partition, (1, 2), {1, 2})) for p in self.copies}
        self.cluster.metadata.put(new.values(), {"who": "test"})
        lead(self.logs[1], *self.copies, epoch=0)
        follow(self.logs[2], *self.copies, epoch=0)
        self.publish({})

    def publish(self, published: dict[TopicIdPartition, int]) -> None:
        """Publishes the ends of partitions that have grown as their high watermarks."""
        state = self.logs[1].refresh()
        for partition, topic in self.names.items():
            end = state.partition(partition).log_end_offset
            if published.get(partition) != end:
                published[partition] = end
                self.say(end, partition, topic=topic)

    def kept(self, partition: TopicIdPartition, start: int = 0) -> list[dict[str, Any]]:
        """The records of a partition from an offset on: what a copy must keep of them."""
        found = self.logs[1].read(partition, start).to_pylist()
        return [{name: row[name] for name in ("key", "value", "headers", "timestamp")} for row in found]

    def end(self, partition: TopicIdPartition) -> int:
        return self.logs[1].refresh().partition(partition).log_end_offset


def record(value: str, key: str | None = "k", minutes: int = 0) -> dict[str, Any]:
    """A record whose time is so many minutes after noon."""
    headers = [{"key": "h", "value": value.encode()}, {"key": "none", "value": None}] if value else None
    time = NOON + dt.timedelta(minutes=minutes, microseconds=7)
    content = None if value == "" else value.encode()
    return {"key": None if key is None else key.encode(), "value": content, "timestamp": time, "headers": headers}


def append(world: World, partition: TopicIdPartition, *batches: list[dict[str, Any]]) -> None:
    """Appends record batches to the log of the leader, a commit each."""
    for rows in batches:
        entry = world.logs[1].refresh().partition(partition).producers.get(7)
        sequence = entry.next_sequence if entry else 0
        table = pa.Table.from_pylist(rows, COLUMNS)
        send(world.logs[1], request(partition, len(rows), sequence), tables={partition: table})


@contextmanager
def publishing(world: TwoTopics) -> Iterator[None]:
    """A block in which what is appended counts as committed."""
    is_over, published = threading.Event(), dict[TopicIdPartition, int]()

    def publish() -> None:
        while not is_over.wait(0.02):
            world.publish(published)

    world.publish(published)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def filled(root: Path, copies: int = 2) -> TwoTopics:
    """flights-0 has a, b, c and then d, null; flights-1 has x, y. A minute lies between two records."""
    world = TwoTopics(str(root), copies)
    first = [record(value, minutes=number) for number, value in enumerate("abc")]
    append(world, P0, first, [record("d", "other", 3), record("", None, 4)])
    append(world, P1, [record("x", minutes=1), record("y", "other", 2)])
    return world
