"""A client belongs to the process that made it: a fork and a copy have its identity."""

import copy
import os
import pickle
import warnings

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.topic_view import open_view
from lakelog.replication.config import Config
from lakelog.replication.errors import IllegalStateException
from tests.clients.world import World
from tests.storage.logs import P0, TOPIC, values

CLIENTS = {
    "Producer": lambda world: Producer(world.uri, acks=1),
    "Consumer": lambda world: Consumer(world.uri, "group"),
    "AdminClient": lambda world: AdminClient(world.uri),
}
ENDS = {"close", "stop"}


@pytest.fixture
def world(root):
    return World(root)


def in_fork(call):
    """What a call in a forked process returns or raises, as text."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork of a process with threads
        child = os.fork()
    if not child:
        try:
            found = repr(call())
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(writes, found.encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        found = answer.read().decode()
    os.waitpid(child, 0)
    return found


def calls_of(client):
    return sorted(name for name in dir(type(client)) if not name.startswith("_"))


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_call_of_a_client_in_a_fork_is_refused_and_its_end_does_nothing(world, kind):
    client = CLIENTS[kind](world)

    def outcomes():
        found = {}
        for name in calls_of(client):
            try:
                found[name] = getattr(client, name)()
            except IllegalStateException as error:
                found[name] = str(error)
        getattr(client, "__exit__", lambda *_: None)(None, None, None)
        return found

    found = eval(in_fork(outcomes))
    assert {name for name, outcome in found.items() if outcome is None} == ENDS & found.keys()
    for outcome in found.values():
        assert outcome is None or f"is a fork of it: make a {kind} in each process" in outcome


def test_ap_06_after_a_fork_the_producer_of_the_parent_goes_on(world):
    producer = Producer(world.uri, acks=1)
    assert "IllegalStateException" in in_fork(lambda: producer.send(TOPIC, {"value": "child", "partition": 0}))
    assert "IllegalStateException" in in_fork(lambda: producer.produce(TOPIC, "child"))
    assert in_fork(producer.close) == "None"
    producer.send(TOPIC, {"value": "parent", "partition": 0})
    producer.close()
    assert values(world.logs[1], P0) == [b"parent"]


@pytest.mark.parametrize(
    "wait", [lambda future: future.result(5), lambda future: future.exception(5), lambda f: f.add_done_callback(print)]
)
def test_ap_06_a_fork_does_not_wait_for_a_send_of_its_parent(world, wait):
    with Producer(world.uri, acks=1, linger_ms=600_000) as producer:
        future = producer.send_async(TOPIC, ["a"])
        assert "IllegalStateException: process" in in_fork(lambda: wait(future))
    assert future.result()


def test_ap_04_a_member_of_a_group_stays_one_when_its_fork_ends(world):
    with Consumer(world.uri, "group") as consumer:
        consumer.subscribe([TOPIC])
        assert "IllegalStateException" in in_fork(lambda: consumer.poll(0))
        assert in_fork(consumer.close) == "None"
        consumer.poll(0)
        assert len(consumer.assignment()) == 2


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_new_client_in_a_fork_of_a_process_with_open_tables_is_refused(world, kind):
    """Delta's library would panic there, which is no Exception."""
    assert f"is a fork of process {os.getpid()}, which has opened tables" in in_fork(lambda: CLIENTS[kind](world))


def test_a_sink_does_not_use_the_open_tables_of_its_parent(world):
    open_view(world.uri, Config())
    assert in_fork(lambda: open_view(world.uri, Config())).startswith("IllegalStateException: process")


def test_a_client_says_what_it_is_also_in_a_fork(world):
    said = {
        "Producer": f"<Producer of {world.uri}, acks=1>",
        "Consumer": f"<Consumer of {world.uri}, group 'group'>",
        "AdminClient": f"<AdminClient of {world.uri}>",
    }
    for kind, make in CLIENTS.items():
        client = make(world)
        assert (repr(client), in_fork(lambda client=client: client)) == (said[kind], said[kind])
    closed = Consumer(world.uri)
    closed.close()
    assert repr(closed) == f"<Consumer of {world.uri}, closed>"


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_cannot_be_copied(world, kind, copied):
    with pytest.raises(IllegalStateException, match=f"a {kind} cannot be pickled or copied"):
        copied(CLIENTS[kind](world))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_ap_06_a_future_of_a_send_cannot_be_copied(world, copied):
    with Producer(world.uri, acks=1) as producer:
        future = producer.send_async(TOPIC, ["a"])
        with pytest.raises(IllegalStateException, match="a future of a send cannot be pickled or copied"):
            copied(future)
    assert future.result()
