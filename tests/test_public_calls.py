"""Each public call with a hundred values for each of its parameters: it works, or raises one error of Lakelog's that
names the parameter. The calls and their parameters are those of the signatures of what `lakelog` exports."""

import asyncio
import inspect
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

import lakelog
from lakelog.jobs.launch import session
from lakelog.replication import local_cluster
from lakelog.replication.clients import aio, consumer, controller_channel, producer, views
from lakelog.replication.clients.arguments import milliseconds, seconds
from lakelog.replication.clients.producer import RecordMetadata
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    IllegalStateException,
    InconsistentClusterIdException,
    KafkaStorageException,
    LakelogException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.storage.tables import admin_table
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.schemas.views import VIEWS
from tests.clients.world import filled_world
from tests.odd_values import VALUES
from tests.storage.logs import TOPIC

QUICK = Config(request_timeout_ms=1, lakelog_poll_interval_ms=1)

# A good value of each parameter that has no default, and the words for it in an error, where those are others.
GOOD = {
    "topic": TOPIC, "topics": [TOPIC], "partition": 0, "partitions": [], "offset": 0, "offsets": {}, "epochs": [0],
    "records": [{"value": "v", "partition": 0}], "before": {}, "answers": {0: RecordMetadata(TOPIC, 0, 1)},
    "progress": None, "kind": "delete_topic", "arguments": {"topic": TOPIC}, "request_id": "x", "total": 3, "put": {},
    "broker": 1, "reassignments": {}, "election_type": "preferred", "properties": {}, "owner": 1, "configs": {},
    "is_local": True, "broker_id": 1, "name": "controller-1", "config": QUICK,
}  # fmt: skip
ROOT, SETTINGS = ["storage root"], ["settings", "key", "topic: "]
WORDS = {
    "cluster_uri": ROOT, "cluster": ROOT, "root": ROOT, "roots": ROOT, "request_id": ["request"],
    "total": ["partitions"], "arguments": ["argument", "topic"], "configs": SETTINGS, "properties": SETTINGS,
    "broker_id": ["broker"], "offsets": ["offset", "topic name", "partition"], "topics": ["topic name"],
}  # fmt: skip
# The value is one of the right kind, and the state of the cluster or of the client refuses it.
OF_THE_STATE = (
    IllegalStateException, InconsistentClusterIdException, KafkaStorageException, TimeoutException,
    UnknownTopicOrPartitionException,
)  # fmt: skip
# Whose errors are Python's own, by their documentation.
WITH_TYPE_ERRORS = {"offsets_behind_latest"}


def public_calls():
    for name in lakelog.__all__:
        found = getattr(lakelog, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and not issubclass(found, Exception):
            yield name, found
            for method, member in inspect.getmembers(
                found, lambda each: inspect.isfunction(each) or inspect.ismethod(each)
            ):
                if not method.startswith("_"):
                    yield f"{name}.{method}", member


def parameters_of(call):
    return {name: each for name, each in inspect.signature(call).parameters.items() if name != "self"}


CALLS = dict(public_calls())
CASES = [(name, parameter) for name, call in CALLS.items() for parameter in parameters_of(call)]


class Server:
    """A broker or a controller that does nothing."""

    def __init__(self, *_):
        pass

    def __getattr__(self, _):
        return lambda **_: True


@pytest.fixture(scope="module")
def world(tmp_path_factory, spark):
    """A cluster whose controller answers at once, and of which no broker runs."""
    made, decided, frame = filled_world(str(tmp_path_factory.mktemp("world"))), {}, spark.range(1)

    def add(_table, request, _deadline):
        admin_table._row(request)
        decided[request.request_id] = replace(request, outcomes={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdminTable, "add", add)
        patch.setattr(AdminTable, "request", lambda _, request_id: decided[request_id])
        patch.setattr(AdminTable, "forget", lambda *_: None)
        patch.setattr(controller_channel, "check_active", lambda *_: None)
        patch.setattr(views, "_frames", lambda *_: dict.fromkeys(VIEWS, frame))
        patch.setattr(session, "_started", lambda *_: spark)
        patch.setattr(session, "SparkContext", SimpleNamespace(_active_spark_context=None))
        for kind in ("Broker", "Controller", "IdWatch"):
            patch.setattr(local_cluster, kind, Server)
        for client in (producer, consumer):  # no call waits
            patch.setattr(client, "seconds", lambda *given: seconds(*given) and 0.0)
            patch.setattr(client, "milliseconds", lambda *given: milliseconds(*given) and 1.0)
        patch.setattr(aio, "seconds", lambda *given: seconds(*given) and 0.0)
        made.spark, made.producer = spark, lakelog.Producer(made.uri, acks=0, config=QUICK)
        yield made


def good(world, call):
    """Arguments with which a call works, and waits for nothing."""
    parameters = parameters_of(call)
    values = {
        **GOOD, "spark": world.spark, "cluster_uri": world.uri, "cluster": world.uri, "root": f"{world.uri}-local",
        "producer": world.producer, "consumer": world.consumer(),
    }  # fmt: skip
    needed = {name: values[name] for name, each in parameters.items() if each.default is each.empty}
    return needed | ({"config": QUICK} if "config" in parameters else {})


def subject(world, kind, method):
    """The object whose method is called."""
    made = {
        "AIOConsumer": lambda: lakelog.AIOConsumer(subject(world, "Consumer", method)),
        "AIOProducer": lambda: lakelog.AIOProducer(subject(world, "Producer", method)),
        "AdminClient": lambda: lakelog.AdminClient(world.uri, QUICK),
        "Config": Config,
        "Consumer": lambda: lakelog.Consumer(world.uri, "group", QUICK),
        "LocalCluster": lambda: lakelog.LocalCluster(world.spark, f"{world.uri}-local"),
        "Producer": lambda: lakelog.Producer(world.uri, acks=0, config=QUICK),
    }[kind]()
    if kind == "Consumer" and method in ("position", "seek", "pause", "resume"):
        made.subscribe([TOPIC])
        made.poll(0)
    return made


def wait_for(answer):
    """Carries out what a call of `asyncio` has begun."""
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


def fault(name, parameter, call, given):
    """What is wrong with the outcome of a call; None if nothing is."""
    words = {parameter, parameter.replace("_", " "), parameter.replace("_", "."), *WORDS.get(parameter, ())}
    try:
        wait_for(call(**given))
    except OF_THE_STATE:
        return None
    except Exception as error:
        if not isinstance(error, LakelogException) and not (type(error) is TypeError and name in WITH_TYPE_ERRORS):
            return repr(error)[:200]
        return None if any(word in str(error) for word in words) else f"does not name it: {error!r:.200}"
    return None


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_each_value_of_each_parameter_works_or_is_an_error_of_ours_that_names_it(world, name, parameter):
    kind, _, method = name.partition(".")
    call, made = CALLS[name], None
    if method and not inspect.ismethod(call):
        made = subject(world, kind, method)
        call = getattr(made, method)
    usual, faults = good(world, CALLS[name]), {}
    for value in VALUES:
        found = fault(name, parameter, call, usual | {parameter: value})
        if found:
            faults.setdefault(found, []).append(f"{value!r:.40}")
    with suppress(TypeError):  # of functions that were given as `on_delivery`, and take no message
        wait_for(getattr(made, "close", lambda: None)())
    assert faults == {}


def test_there_are_a_hundred_values():
    assert len(VALUES) >= 100
