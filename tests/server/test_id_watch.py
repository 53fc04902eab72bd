"""Whether a broker may start: not while the heartbeat of another process with its id moves. Without Spark."""

import threading

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    DuplicateBrokerRegistrationException,
    InvalidConfigurationException,
    KafkaStorageException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.server.registration import IdWatch, prepare_start
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import is_formatted
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clock import Clock
from tests.copied_roots import copied

HERE, ELSEWHERE = "/here", "/elsewhere"
INTERVAL, SESSION = 2.0, 6.0


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    copied(format_cluster, home, Config())
    return Cluster.open(home.uri)


@pytest.fixture
def table(cluster):
    """Broker 1 is registered at /here."""
    made = BrokerTable.open_or_create(cluster.root, 1)
    made.register(lambda _: BrokerRegistration(1, HERE, None, 3, -1, False, None, "log", 0))
    return made


class Pauses(threading.Event):
    """Time passes only in pauses. The given event happens in the first one."""

    def __init__(self, clock, happens=None):
        super().__init__()
        self.clock, self.happens, self.began_at = clock, happens, clock.now

    def wait(self, timeout=None):
        self.clock.now += timeout
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return False

    @property
    def waited(self):
        return round(self.clock.now - self.began_at, 1)


def wait(cluster, uri, happens=None, before=0.0, **options):
    """Watches, lets time pass and waits. Returns how long the wait took."""
    clock = Clock()
    watch = IdWatch(cluster, 1, uri, clock=clock, **options)
    clock.now += before
    pauses = Pauses(clock, happens)
    watch.wait(pauses)
    return pauses.waited


def test_bc_01_a_broker_id_that_never_registered_is_free(cluster):
    assert wait(cluster, HERE) == 0
    assert not BrokerTable.open_if_registered(cluster.root, 1)


@pytest.mark.parametrize(
    ("uri", "before", "waited"),
    [
        pytest.param(HERE, 0, 2 * INTERVAL, id="the same root: two intervals"),
        pytest.param(HERE, 3, 1, id="what has passed since the first poll counts"),
        pytest.param(HERE, 9, 0, id="also if that was long"),
        pytest.param(ELSEWHERE, 0, SESSION, id="another root: the session time-out"),
    ],
)
@pytest.mark.usefixtures("table")
def test_bc_01_a_broker_id_is_free_once_its_heartbeat_has_stopped(cluster, uri, before, waited):
    assert wait(cluster, uri, before=before) == pytest.approx(waited, abs=0.1)


@pytest.mark.parametrize("uri", [HERE, ELSEWHERE])
def test_bc_01_a_broker_id_whose_heartbeat_moves_is_refused_at_once(cluster, table, uri):
    with pytest.raises(DuplicateBrokerRegistrationException, match=r"broker 1 is at work at /here: .* --take-over"):
        wait(cluster, uri, lambda: table.heartbeat(3, "heartbeat"))


def test_bc_01_a_heartbeat_between_the_first_poll_and_a_late_second_one_refuses_the_id(cluster, table):
    clock = Clock()
    watch = IdWatch(cluster, 1, HERE, clock=clock)
    clock.now += 60
    table.heartbeat(3, "heartbeat")
    with pytest.raises(DuplicateBrokerRegistrationException):
        watch.wait()


def test_bc_01_a_second_new_process_of_the_id_is_refused_too(cluster, table):
    """Two processes start at once. The second sees the first one's registration."""

    def other():
        table.register(lambda last: BrokerRegistration(1, HERE, None, last.broker_epoch + 1, -1, False, None, "", 0))

    with pytest.raises(DuplicateBrokerRegistrationException):
        wait(cluster, HERE, other)


@pytest.fixture
def several(root):
    """A cluster with three roots, and a process of broker 1 that is at work."""
    uri = ",".join(f"{root}/{name}" for name in "abc")
    format_cluster(storage_root(uri, "cluster", Config()), Config())
    cluster = Cluster.open(uri)
    made = BrokerTable.open_or_create(cluster.root, 1)
    made.register(lambda _: BrokerRegistration(1, HERE, None, 3, -1, False, None, "log", 0))
    made.heartbeat(3, "heartbeat")
    return cluster, made


def test_bc_01_the_last_heartbeat_of_a_killed_process_may_be_found_late_at_one_of_several_roots(several):
    cluster, table = several
    waited = wait(cluster, HERE, lambda: table.heartbeat(3, "heartbeat"))
    assert waited == pytest.approx(2 * INTERVAL + 0.1, abs=0.11), "it waits anew"


def test_bc_01_with_several_roots_a_heartbeat_that_moves_twice_refuses_the_id(several):
    cluster, table = several

    def beat():
        table.heartbeat(3, "heartbeat")
        pauses.happens = beat

    clock = Clock()
    watch, pauses = IdWatch(cluster, 1, HERE, clock=clock), Pauses(clock, beat)
    with pytest.raises(DuplicateBrokerRegistrationException, match="broker 1 is at work"):
        watch.wait(pauses)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_bc_01_a_broker_id_whose_process_has_shut_down_is_free_at_once(cluster, table, when):
    def leave():
        table.heartbeat(3, "shutdown", shutting_down=True)

    if when == "before":
        leave()
    assert wait(cluster, HERE, leave if when == "meanwhile" else None) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("uri", [HERE, ELSEWHERE])
def test_bc_01_a_take_over_does_not_wait_for_the_heartbeat_to_stop(cluster, table, uri):
    assert wait(cluster, uri, lambda: table.heartbeat(3, "heartbeat"), take_over=True) == 0


@pytest.fixture
def beating(cluster, root, monkeypatch):
    """The root of broker 2, which is registered there; its heartbeat moves at each poll."""
    storage = StorageRoot.of(root).child("broker-2")
    made = BrokerTable.open_or_create(cluster.root, 2)
    made.register(lambda _: BrokerRegistration(2, storage.uri, None, 1, -1, False, None, "log", 0))
    refresh = BrokerTable.refresh
    monkeypatch.setattr(
        BrokerTable, "refresh", lambda seen, *given: (made.heartbeat(1, "heartbeat"), refresh(seen, *given))[1]
    )
    return storage


@pytest.mark.parametrize("name", ["broker-2", "another"])
@pytest.mark.usefixtures("beating")
def test_bc_01_nothing_is_formatted_for_a_broker_that_is_refused(cluster, root, name):
    storage = StorageRoot.of(root).child(name)
    with pytest.raises(DuplicateBrokerRegistrationException, match="broker 2 is at work at"):
        prepare_start(cluster, 2, storage.uri)
    assert (storage.list(), is_formatted(storage)) == ([], False)


@pytest.mark.parametrize("where", ["cluster", "broker-2"])
def test_br_01_a_broker_whose_store_puts_one_file_over_another_is_refused(cluster, root, monkeypatch, where):
    storage = StorageRoot.of(root).child("broker-2")
    format_broker(storage, cluster.cluster_id, 2)
    uri, real = StorageRoot.of(root).child(where).uri, LocalRoot.put_if_absent
    monkeypatch.setattr(
        LocalRoot, "put_if_absent", lambda self, *given: (0, 0) if self.uri == uri else real(self, *given)
    )
    with pytest.raises(InvalidConfigurationException, match=f"{uri}: the store takes a second put"):
        prepare_start(cluster, 2, storage.uri)


def test_br_01_a_broker_may_start_with_a_root_that_cannot_be_written_now(cluster, root, monkeypatch):
    storage = StorageRoot.of(root).child("broker-2")
    format_broker(storage, cluster.cluster_id, 2)

    def refuse(*_):
        raise KafkaStorageException("cannot be written")

    monkeypatch.setattr(LocalRoot, "put_if_absent", refuse)
    prepare_start(cluster, 2, storage.uri).wait()


def test_bc_01_a_broker_that_returns_to_its_root_is_watched_while_it_prepares(cluster, beating):
    format_broker(beating, cluster.cluster_id, 2)
    watch = prepare_start(cluster, 2, beating.uri)
    with pytest.raises(DuplicateBrokerRegistrationException):
        watch.wait()


def test_bc_01_a_broker_that_takes_over_has_its_root_formatted(cluster, beating):
    prepare_start(cluster, 2, beating.uri, take_over=True).wait()
    assert is_formatted(beating)
