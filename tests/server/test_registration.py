"""How a broker stands in its row: epochs, heartbeats, what it says of its storage, and when it is fenced."""

from types import SimpleNamespace

import pytest

from replication.config import Config
from replication.errors import KafkaStorageException, StaleBrokerEpochException
from replication.server.registration import Registration
from replication.storage.broker_table import BrokerTable
from replication.storage.filesystem import StorageRoot
from replication.storage.liveness import Liveness


def log(table_id="log", version=5):
    return SimpleNamespace(table_id=table_id, current=lambda: SimpleNamespace(version=version))


@pytest.fixture
def process(root):
    """Makes a process of broker 1, registered with a log or not at all."""
    cluster = StorageRoot.of(root).child("cluster")

    def make(given=None):
        table = BrokerTable.open_or_create(cluster, 1)
        made = Registration(table, StorageRoot.of("/1"), Config(broker_id=1))
        if given:
            made.register(given)
        return made

    return make


def row(registration):
    registration.table.refresh()
    found = registration.table.registration
    return found.broker_epoch, found.storage_error, found.log_version, found.log_was_lost


def test_ol_02_each_heartbeat_says_how_the_storage_is(process):
    broker = process(log())
    broker.storage_error = "the disk is gone"
    broker.beat(None)
    assert row(broker) == (1, "the disk is gone", 5, False)
    broker.storage_error = None
    broker.beat(9)
    assert row(broker) == (1, None, 9, False)


@pytest.mark.parametrize(
    ("found", "was_lost"),
    [(log(), False), (log(version=6), False), (log(version=4), True), (log("another"), True)],
    ids=["as it was", "with more", "an older one", "another one"],
)
def test_ol_02_bc_01_storage_that_works_again_is_a_new_broker_epoch(process, found, was_lost):
    broker = process(log())
    broker.storage_error = "the disk is gone"
    broker.register(found)
    assert row(broker) == (2, None, found.current().version, was_lost)


@pytest.mark.parametrize("lost", [False, True])
def test_ol_02_a_process_that_starts_without_its_storage_says_so_under_a_new_epoch(process, lost):
    process(log())
    if lost:
        process(log("another"))
    broker = process()
    broker.register_without_storage("the disk is gone")
    assert row(broker) == (2 + lost, "the disk is gone", 5, lost)
    broker.beat(None)
    assert row(broker)[:2] == (2 + lost, "the disk is gone")


def come_back(broker):
    broker.register(log())


ACTS = [
    pytest.param(lambda broker: broker.beat(None), id="heartbeat"),
    pytest.param(lambda broker: broker.check_not_fenced(), id="look"),
    pytest.param(come_back, id="return"),
    pytest.param(lambda broker: broker.shutting_down(), id="shutdown"),
]


@pytest.mark.parametrize("act", ACTS)
def test_bc_01_ol_02_whoever_waits_for_storage_gives_way_to_a_newer_process(process, act):
    older = process(log())
    newer = process(log())
    with pytest.raises(StaleBrokerEpochException, match="1 is fenced: a newer process has registered under epoch 2"):
        act(older)
    newer.beat(7)
    assert row(newer) == (2, None, 7, False)


@pytest.mark.parametrize("act", ACTS)
def test_bc_01_an_epoch_whose_answer_was_lost_is_this_process_s_own(process, monkeypatch, act):
    """The commit lands, and that is not known: at its next act it finds what it has written."""
    broker = process(log())
    with monkeypatch.context() as patched:
        patched.setattr(BrokerTable, "register", unreachable_after(BrokerTable.register))
        with pytest.raises(KafkaStorageException):
            broker.register(log())
    act(broker)
    assert row(broker)[0] == 2 + (act is come_back)


def unreachable_after(register):
    def patched(*args):
        register(*args)
        raise KafkaStorageException("timed out")

    return patched


def test_li_04_who_has_no_storage_is_not_alive_and_is_again_when_it_has(process):
    broker, liveness, seen = process(log()), Liveness(6000), []
    for error in (None, "the disk is gone", None):
        broker.storage_error = error
        broker.beat(None)
        found = {1: broker.table.registration}
        seen.append((liveness.look(found), liveness.leaving(found)))
    assert seen == [({1}, set()), (set(), set()), ({1}, set())]
