"""A waiting client is told why no controller answers, and the state of its request when it gives up."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakelog.replication.clients import controller_channel
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    ControllerNotAvailableException,
    KafkaStorageException,
    RequestCancelledException,
    TimeoutException,
)
from lakelog.replication.protocol.admin_request import APPLYING, DECIDED, Outcome
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from tests.clock import Clock
from tests.controllers import controller_of
from tests.copied_roots import copied

WITHDRAWN = "is interrupted; it is withdrawn, and nothing of it was done"


@pytest.fixture
def cluster_uri(root):
    home = StorageRoot.of(root).child("cluster")
    copied(format_cluster, home, Config())
    return home.uri


@pytest.fixture
def pauses(monkeypatch):
    """Time passes only in pauses, one second in each."""
    clock = Clock()
    monkeypatch.setattr(controller_channel, "time", SimpleNamespace(monotonic=clock, time=clock))
    monkeypatch.setattr(AdminTable, "add", lambda table, request, _, add=AdminTable.add: add(table, request))

    def pause(*_):
        clock.now += 1

    monkeypatch.setattr(controller_channel, "pause", pause)


def said_by(cluster_uri, error=TimeoutException):
    said = []
    with pytest.raises(error) as raised:
        AdminClient(cluster_uri, report=said.append).delete_topic("t")
    return said, str(raised.value)


@pytest.mark.usefixtures("pauses")
def test_without_any_controller_the_reason_is_reported_at_once_and_the_request_withdrawn(cluster_uri):
    said, error = said_by(cluster_uri)
    assert said == [
        "no controller is active, and none ever was: start one with `lakelog controller`; "
        "waiting up to 30 s, then the request is withdrawn"
    ]
    assert error.endswith("within 30000 ms; it is withdrawn, and nothing of it was done")


def test_the_reason_is_reported_before_the_client_waits(cluster_uri, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(controller_channel, "pause", interrupt)
    said, _ = said_by(cluster_uri, KeyboardInterrupt)
    assert said[0].startswith("no controller is active, and none ever was")
    assert said[1].endswith(WITHDRAWN)


@pytest.mark.usefixtures("pauses")
def test_a_controller_that_has_stopped_is_reported(cluster_uri):
    lease = Cluster.open(cluster_uri).lease
    lease.resign(lease.elect("c1", None))
    (said,), _ = said_by(cluster_uri)
    assert said.startswith("no controller is active, the last one has stopped (c1); waiting up to 30 s")


@pytest.mark.usefixtures("pauses")
def test_a_controller_whose_lease_stands_still_is_reported_as_dead(cluster_uri):
    Cluster.open(cluster_uri).lease.elect("c1", None)
    (dead,), _ = said_by(cluster_uri)
    assert dead == (
        "controller c1 is dead: it has not renewed its lease for its session time-out; "
        "waiting up to 24 s, then the request is withdrawn"
    )


@pytest.mark.usefixtures("pauses")
def test_a_controller_that_renews_its_lease_is_not_reported_as_dead(cluster_uri, monkeypatch):
    held, read = [Cluster.open(cluster_uri).lease.elect("c1", None)], ControllerLease.read

    def renew_and_read(lease):
        held.append(lease.renew(held[-1]))
        return read(lease)

    monkeypatch.setattr(ControllerLease, "read", renew_and_read)
    assert said_by(cluster_uri)[0] == []


@pytest.mark.usefixtures("pauses")
def test_a_waiting_client_reads_the_lease_three_times_per_session(cluster_uri, monkeypatch):
    looks, read = [], ControllerLease.read
    monkeypatch.setattr(ControllerLease, "read", lambda lease: looks.append(1) or read(lease))
    said_by(cluster_uri)
    assert len(looks) == 1 + 30 // 2, "every 2 s in 30 s"


@pytest.mark.usefixtures("pauses")
def test_a_lease_that_cannot_be_read_does_not_end_the_wait(cluster_uri, monkeypatch):
    def refuse(_):
        raise KafkaStorageException("the store refuses")

    monkeypatch.setattr(ControllerLease, "read", refuse)
    said, error = said_by(cluster_uri)
    assert (said, error.endswith("it is withdrawn, and nothing of it was done")) == ([], True)


# --- dry runs ---


def tried(cluster_uri):
    """The refusal of a dry run, and what it has reported. It must not write."""
    said, admin = [], Cluster.open(cluster_uri).admin
    admin.refresh()
    before = admin.version
    with pytest.raises(ControllerNotAvailableException) as raised:
        AdminClient(cluster_uri, report=said.append).delete_topic("t", validate_only=True)
    admin.refresh()
    assert admin.version == before
    return str(raised.value), said


def written_long_ago(cluster_uri, seconds=60.0):
    """Makes the newest commit of the lease this old."""
    newest = max(Path(cluster_uri, "controller", "_delta_log").glob("*.json"))
    os.utime(newest, (newest.stat().st_mtime - seconds,) * 2)


@pytest.fixture
def waits(monkeypatch):
    """Records the waits of a dry run instead of waiting."""
    waited = []
    monkeypatch.setattr(controller_channel, "pause", lambda ms, _: waited.append(ms))
    return waited


@pytest.mark.parametrize("validate", ["an argument", "a method of its own"])
def test_a_dry_run_without_a_controller_raises_an_error_at_once_and_writes_nothing(cluster_uri, waits, validate):
    if validate == "an argument":
        error, said = tried(cluster_uri)
        assert said == []
        assert error == (
            "no controller is active, and none ever was: start one with `lakelog controller`; "
            "a dry run asks the controller, and nothing was written"
        )
    else:
        with pytest.raises(ControllerNotAvailableException, match="none ever was"):
            AdminClient(cluster_uri).validate_topic("t")
    assert waits == []


def test_a_dry_run_after_the_last_controller_has_stopped_is_refused_at_once(cluster_uri, waits):
    lease = Cluster.open(cluster_uri).lease
    lease.resign(lease.elect("c1", None))
    error, said = tried(cluster_uri)
    assert error.startswith("no controller is active, the last one has stopped (c1); a dry run")
    assert (said, waits) == ([], [])


def test_a_dry_run_reads_an_old_lease_again_before_it_is_refused(cluster_uri, waits):
    """The clocks of this machine and of the store may differ."""
    Cluster.open(cluster_uri).lease.elect("c1", None)
    written_long_ago(cluster_uri)
    error, said = tried(cluster_uri)
    assert error.startswith("controller c1 is dead: it does not renew its lease; a dry run")
    assert (said, waits) == (["controller c1 has not renewed its lease lately: looking again in 3 s"], [3000])


@pytest.mark.parametrize("ago", [60.0, -60.0], ids=["old", "from the future"])
def test_a_dry_run_sends_its_request_if_the_lease_was_renewed(cluster_uri, monkeypatch, ago):
    lease = Cluster.open(cluster_uri).lease
    held = lease.elect("c1", None)
    written_long_ago(cluster_uri, ago)

    def renew_then_decide(*_):
        lease.renew(held)
        admin = Cluster.open(cluster_uri).admin
        if admin.requests:
            admin.decide({admin.requests[-1].request_id: {"t": Outcome(None, "would be deleted")}}, 1)

    monkeypatch.setattr(controller_channel, "pause", renew_then_decide)
    assert AdminClient(cluster_uri).delete_topic("t", validate_only=True) == "would be deleted"


def test_a_client_that_is_answered_gets_no_report(cluster_uri):
    said = []
    with controller_of(cluster_uri) as controller:
        done = threading.Event()
        while not controller.is_active:
            done.wait(0.01)
        client = AdminClient(cluster_uri, report=said.append)
        client.alter_broker_configs("<default>", {"leader.replication.throttled.rate": 1})
    assert said == []


def interrupted(cluster_uri, monkeypatch, at):
    """Interrupts a client after `at(request_id)`. Returns the report that it gets, and its request."""

    def interrupt(*_):
        admin = Cluster.open(cluster_uri).admin
        at(admin, admin.requests[-1].request_id)
        raise KeyboardInterrupt

    monkeypatch.setattr(controller_channel, "pause", interrupt)
    said, _ = said_by(cluster_uri, KeyboardInterrupt)
    return said[-1], AdminClient(cluster_uri).list_requests()[-1]


def test_an_interrupted_request_is_reported_as_withdrawn(cluster_uri, monkeypatch):
    said, request = interrupted(cluster_uri, monkeypatch, lambda *_: None)
    assert said == f"delete_topic: request {request.request_id} {WITHDRAWN}"
    assert request.outcomes == {"delete_topic": Outcome("TimeoutException", "its client was interrupted")}
    monkeypatch.undo()
    with controller_of(cluster_uri):
        AdminClient(cluster_uri).alter_broker_configs("<default>", {"leader.replication.throttled.rate": 1})
    assert AdminClient(cluster_uri).list_requests()[0] == request, "no controller carries it out later"


def test_an_interrupted_request_that_is_carried_out_is_reported_as_such(cluster_uri, monkeypatch):
    said, request = interrupted(cluster_uri, monkeypatch, lambda admin, name: admin.move(name, APPLYING, 3))
    assert said.endswith("the controller of epoch 3 is carrying it out: see `lakelog controller --requests`")
    assert (request.state, request.outcomes) == (APPLYING, None)


def test_an_interrupted_request_that_is_decided_is_reported_as_such(cluster_uri, monkeypatch):
    done = {"t": Outcome(None, "is being deleted")}
    said, request = interrupted(cluster_uri, monkeypatch, lambda admin, name: admin.decide({name: done}, 1))
    assert said.endswith("it was decided before: see `lakelog controller --requests`")
    assert request.outcomes == done


def test_a_request_whose_row_is_removed_is_not_reported_as_interrupted(cluster_uri, monkeypatch):
    def remove(*_):
        other = AdminClient(cluster_uri, requested_by="somebody")
        other.cancel_request(other.list_requests()[-1].request_id)

    monkeypatch.setattr(controller_channel, "pause", remove)
    said, error = said_by(cluster_uri, RequestCancelledException)
    assert (len(said), "cancelled by somebody" in error) == (1, True)


def test_an_error_while_it_waits_is_no_interruption_and_withdraws_too(cluster_uri, monkeypatch):
    def refuse(*_):
        raise KafkaStorageException("the store refuses")

    monkeypatch.setattr(controller_channel, "pause", refuse)
    said, _ = said_by(cluster_uri, KafkaStorageException)
    (request,) = AdminClient(cluster_uri).list_requests()
    assert (len(said), request.state) == (1, DECIDED)


@pytest.mark.parametrize("is_sent", [True, False])
def test_an_error_that_leaves_the_request_behind_is_reported_as_such(cluster_uri, monkeypatch, is_sent):
    def refuse(*_):
        raise KafkaStorageException("the store refuses")

    for owner, name in ((controller_channel, "pause"), (AdminTable, "withdraw"), (AdminTable, "add"))[: 3 - is_sent]:
        monkeypatch.setattr(owner, name, refuse)
    said, error = said_by(cluster_uri, KafkaStorageException)
    assert error == "the store refuses"
    assert ["is waited for no longer; it may still be carried out" in line for line in said[1:]] == [True] * is_sent


def test_an_interruption_right_after_the_request_has_landed_withdraws_it(cluster_uri, monkeypatch):
    def add_and_interrupt(table, request, deadline, add=AdminTable.add):
        add(table, request, deadline)
        raise KeyboardInterrupt

    monkeypatch.setattr(AdminTable, "add", add_and_interrupt)
    said, _ = said_by(cluster_uri, KeyboardInterrupt)
    assert said[-1].endswith(WITHDRAWN)
    (request,) = AdminClient(cluster_uri).list_requests()
    assert request.outcomes is not None


def test_a_request_that_cannot_be_withdrawn_is_reported_as_possibly_carried_out(cluster_uri, monkeypatch):
    def refuse(*_):
        raise KafkaStorageException("the store refuses")

    monkeypatch.setattr(AdminTable, "withdraw", refuse)
    config = Config.from_properties({"request.timeout.ms": 1})
    with pytest.raises(TimeoutException) as raised:
        AdminClient(cluster_uri, config).delete_topic("t")
    (request,) = AdminClient(cluster_uri).list_requests()
    assert str(raised.value).endswith(
        "; it may still be carried out, as it could not be withdrawn: the store refuses; "
        f"withdraw it with `lakelog controller --cancel-request {request.request_id}`"
    )
