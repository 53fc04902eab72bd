"""A broker's start: checks of its id and its root."""

import logging
import threading

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import DuplicateBrokerRegistrationException, InconsistentClusterIdException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.server.broker_server import Broker, BrokerSession
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.copied_roots import copied
from tests.hanging import Hanging
from tests.processes import wait_until

SHORT = {"broker.id": 1, "broker.heartbeat.interval.ms": 50, "broker.session.timeout.ms": 400}


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    cluster_id = copied(format_cluster, home, Config())
    copied(format_broker, StorageRoot.of(root).child("broker-1"), cluster_id, 1)
    return Cluster.open(home.uri)


@pytest.fixture
def elsewhere(cluster):
    """The registration of broker 1 at a root that no longer exists."""
    table = BrokerTable.open_or_create(cluster.root, 1)
    table.register(lambda _: BrokerRegistration(1, "/elsewhere", None, 7, -1, False, None, "log", 0))
    return table


def broker(spark, cluster, root):
    return Broker(spark, cluster.root.uri, f"{root}/broker-1", Config.from_properties(SHORT))


def test_bc_01_an_id_whose_heartbeat_stands_still_may_move_to_another_root(spark, cluster, elsewhere, root, caplog):
    caplog.set_level(logging.INFO, "lakelog.replication.server.broker_server")
    started = broker(spark, cluster, root)
    started.start()
    try:
        elsewhere.refresh()
        registration = elsewhere.registration
        assert (registration.root, registration.broker_epoch) == (f"{root}/broker-1", 8)
    finally:
        started.stop()
    elsewhere.refresh()
    assert elsewhere.registration.shutting_down
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == ["broker 1 is registered under epoch 8", "broker 1 is stopping", "broker 1 has stopped"]


def test_a_broker_whose_spark_ends_while_it_stops_writes_nothing_more(spark, cluster, root, monkeypatch):
    stopped = broker(spark, cluster, root)
    stopped.start()

    def ends(_):
        stopped.pause_point.kill()
        stopped.pause_point.pass_through()

    monkeypatch.setattr(BrokerSession, "stop", ends)
    stopped.stop(controlled=False)
    assert not stopped.is_running
    assert not cluster.refresh_brokers()[1].shutting_down


def test_bc_01_a_broker_id_with_a_live_process_elsewhere_is_refused(spark, cluster, elsewhere, root, monkeypatch):
    refused = broker(spark, cluster, root)
    refresh = BrokerTable.refresh

    def beat_and_refresh(table, *given):
        elsewhere.heartbeat(7, "heartbeat")
        return refresh(table, *given)

    monkeypatch.setattr(BrokerTable, "refresh", beat_and_refresh)
    with pytest.raises(DuplicateBrokerRegistrationException, match="broker 1 is at work at /elsewhere"):
        refused.start()
    refresh(elsewhere)
    assert elsewhere.registration.broker_epoch == 7


def test_br_01_a_root_of_another_broker_is_refused(spark, cluster, root):
    config = Config.from_properties({**SHORT, "broker.id": 2})
    with pytest.raises(InconsistentClusterIdException, match=r"belongs to broker 1 of cluster .*, not to broker 2"):
        Broker(spark, cluster.root.uri, f"{root}/broker-1", config).start()


def test_bc_01_a_broker_whose_own_thread_hangs_sends_no_heartbeat_until_it_continues(
    spark, cluster, root, monkeypatch, caplog
):
    """A store may hang without failing. Then others must lead instead of waiting."""
    tick = Hanging(BrokerSession.tick)
    monkeypatch.setattr(BrokerSession, "tick", lambda session: tick(session))
    started = broker(spark, cluster, root)
    started.start()
    try:
        assert tick.is_entered.wait(30)
        wait_until(lambda: "broker-1: its own thread has not moved" in caplog.text, "it is noticed")
        seen = BrokerTable.open(cluster.root, 1)
        last = seen.registration.heartbeat
        assert not threading.Event().wait(0.3)
        seen.refresh()
        assert seen.registration.heartbeat == last
        tick.let_go()
        wait_until(lambda: seen.refresh() and seen.registration.heartbeat > last + 2, "its heartbeat")
    finally:
        tick.let_go()
        started.stop(controlled=False)
