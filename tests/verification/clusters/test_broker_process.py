"""A broker process registers, stops in order on SIGTERM, and stops with an error when it is fenced."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakelog.jobs.broker import main
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.verification.clusters.process_cluster import SMALL, BrokerProcess
from lakelog.verification.server_process import ServerProcess

SECONDS = 60


@pytest.fixture
def brokers(tmp_path: Path, cluster: Cluster) -> Iterator[list[BrokerProcess]]:
    """Two processes of one broker, at one root; none has started."""
    root, takes_over = str(tmp_path / "broker"), ((), ("--take-over",))
    both = [
        BrokerProcess(cluster.root.uri, 2, root, tmp_path / f"{i}.log", options=(*SMALL, *words))
        for i, words in enumerate(takes_over)
    ]
    yield both
    for broker in both:
        broker.kill()


def registration(cluster: Cluster) -> BrokerRegistration | None:
    return cluster.refresh_brokers().get(2)


def start(broker: BrokerProcess, cluster: Cluster, epoch: int) -> None:
    beats = set()

    def lives() -> bool:
        broker.check()
        found = registration(cluster)
        if found is not None and found.broker_epoch == epoch:
            beats.add(found.heartbeat)
        return len(beats) > 1

    broker.start()
    wait_until(lives, f"a heartbeat under broker epoch {epoch}", SECONDS)


def stopped_as_by_systemd(broker: BrokerProcess) -> int:
    """Its status after SIGTERM to all of its processes at once, as `systemctl stop` and `timeout` send it. All end."""
    assert broker.pid
    os.killpg(broker.pid, signal.SIGTERM)
    wait_until(lambda: not broker.is_running(), "it ends", SECONDS)
    wait_until(lambda: not has_processes(broker.pid), "its JVM ends, too", SECONDS)
    return broker.wait(SECONDS)


def has_processes(group: int | None) -> bool:
    try:
        os.killpg(group or 0, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_stops_the_newer_of_two_and_the_older_is_fenced(cluster: Cluster, brokers: list[BrokerProcess]) -> None:
    older, newer = brokers
    start(older, cluster, epoch=1)
    start(newer, cluster, epoch=2)
    assert older.wait(SECONDS) == 1
    last = older.log.read_text().splitlines()[-1]
    assert last.startswith("lakelog: StaleBrokerEpochException: ")
    assert "a newer process" in last
    assert stopped_as_by_systemd(newer) == 0
    found = registration(cluster)
    assert found is not None
    assert (found.shutting_down, found.broker_epoch) == (True, 2)
    assert "Traceback" not in older.log.read_text() + newer.log.read_text()
    assert newer.log.read_text().splitlines()[-1].endswith("broker 2 has stopped")


def test_a_process_that_has_ended_by_itself_says_why(tmp_path: Path) -> None:
    words = ("controller", "--cluster", str(tmp_path / "none"))
    process = ServerProcess("controller", words, tmp_path / "controller.log")
    assert process.error() is None
    process.start()
    wait_until(lambda: not process.is_running(), "it ends", SECONDS)
    assert isinstance(process.error(), InconsistentClusterIdException)
    process.kill()
    assert process.error() is None


def test_what_can_be_refused_is_refused_before_a_jvm_starts(
    tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("do not lose")
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--cluster", cluster.root.uri, "--broker-id", "2", "--root", str(foreign)]) == 1
    assert "must be empty to be formatted, it holds thesis.tex" in capsys.readouterr().err
    assert main(["--cluster", cluster.root.uri, "--broker-id", "2", "--root", str(foreign / "thesis.tex")]) == 1
    assert "lakelog: KafkaStorageException: " in capsys.readouterr().err
    assert main(["--cluster", cluster.root.uri, "--root", str(tmp_path / "b")]) == 2
    assert "which broker is this?" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_bc_01_a_second_process_of_a_broker_is_refused_and_leaves_no_root_behind(
    tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeat moves while it is watched, here at each poll."""
    table = BrokerTable.open_or_create(cluster.root, 2)
    table.register(lambda _: BrokerRegistration(2, "/elsewhere", None, 1, -1, False, None, "log", 0))
    refresh = BrokerTable.refresh
    monkeypatch.setattr(
        BrokerTable, "refresh", lambda seen, *given: (table.heartbeat(1, "heartbeat"), refresh(seen, *given))[1]
    )
    root = tmp_path / "new"
    assert main(["--cluster", cluster.root.uri, "--broker-id", "2", "--root", str(root)]) == 1
    assert "broker 2 is at work at /elsewhere: its heartbeat moves; stop it first" in capsys.readouterr().err
    assert not root.exists()


def test_a_file_and_the_command_line_may_not_name_two_brokers(
    tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("broker.id=3\n")
    words = ["--cluster", cluster.root.uri, "--root", str(tmp_path / "b"), "--command-config", str(properties)]
    assert main([*words, "--broker-id", "2"]) == 2
    assert f"--broker-id is 2, but {properties} has broker.id=3" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
