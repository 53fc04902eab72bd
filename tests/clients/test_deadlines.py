"""A caller's time-out ends its commits, too: a writer that always loses gives up at the deadline."""

import pyarrow as pa
import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.record_deletion import delete_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import TimeoutException
from lakelog.replication.storage.delta.delta_log import CommitConflict, DeltaLog
from tests.clients.world import World
from tests.storage.logs import P0, TOPIC, fill

SHORT = Config.from_properties({"request.timeout.ms": 1})


def send(world):
    records = pa.table({"value": [b"a"], "partition": [0]})
    (answer,) = Producer(world.uri, acks=1).send(TOPIC, records, timeout_ms=0).values()
    raise answer.error


def delete(world):
    (outcome,) = delete_records(TopicView(world.cluster), TOPIC, {0: 1}, timeout_ms=0).values()
    raise outcome


CALLS = {
    "send": send,
    "delete records": delete,
    "commit of a group": lambda world: Consumer(world.uri, "g", SHORT).commit({TOPIC: {0: 1}}),
    "producer with a name": lambda world: Producer(world.uri, name="importer", config=SHORT),
    "admin request": lambda world: AdminClient(world.uri, SHORT).delete_topic(TOPIC),
}


@pytest.mark.parametrize("call", CALLS)
def test_ap_06_what_loses_to_others_ends_when_the_time_is_over(root, monkeypatch, call):
    world = World(root)
    fill(world.logs[1], P0, 2)
    world.say(2)

    def loses(*_, **__):
        raise CommitConflict("another has won")

    monkeypatch.setattr(DeltaLog, "commit", loses)
    with pytest.raises(TimeoutException, match=r"timed out after others won \d+ commits in a row"):
        CALLS[call](world)
