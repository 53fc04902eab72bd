"""For tests of verbs: a cluster of three brokers that do not run, a controller, and verbs in this process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs.admin import loss_warnings, planned_moves
from lakelog.jobs.admin.heartbeats import ALIVE, SeenBroker
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.controllers import controller_of
from tests.copied_roots import copied
from tests.processes import wait_until

Run = Callable[..., tuple[int, str, str]]  # status, stdout, stderr


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A formatted cluster with the brokers 1, 2 and 3."""
    root = StorageRoot.of(str(tmp_path / "cluster"))
    copied(_three_brokers, root)
    return root.uri


def _three_brokers(root: StorageRoot) -> None:
    format_cluster(root, Config())
    for broker_id in (1, 2, 3):
        row = BrokerRegistration(broker_id, f"/nowhere/{broker_id}", None, 1, -1, False, None, "id", 0)
        BrokerTable.open_or_create(root, broker_id).register(lambda _, row=row: row)


@pytest.fixture
def controlled(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The cluster with an active controller, which takes the brokers for alive although their heartbeats stand. So do
    verbs that say what a request will do."""

    def observed(found: Cluster) -> dict[int, SeenBroker]:
        return {broker: SeenBroker(row, ALIVE, 1.0) for broker, row in found.refresh_brokers().items()}

    for module in (loss_warnings, planned_moves):
        monkeypatch.setattr(module, "observe_brokers", observed)
    with controller_of(cluster, config=Config(broker_session_timeout_ms=3_600_000)) as controller:
        wait_until(lambda: controller.is_active, "the controller is active")
        yield cluster


@pytest.fixture
def lakelog(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb in this process."""

    def call(verb: Any, *words: object) -> tuple[int, str, str]:
        status = verb.main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def admin(controlled: str) -> AdminClient:
    """With the topic t: partition 0 on brokers 1 and 2, partition 1 on brokers 2 and 3."""
    client = AdminClient(controlled)
    client.create_topic("t", assignment={0: [1, 2], 1: [2, 3]})
    return client


@pytest.fixture
def on_t(lakelog: Run, controlled: str, admin: AdminClient) -> Run:
    """Runs a verb on the cluster with t."""
    assert admin.list_topics() == ["t"]
    return lambda verb, *words: lakelog(verb, "--cluster", controlled, *words)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a JSON file and tells where it is."""

    def call(content: object) -> Path:
        (tmp_path / "file.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "file.json"

    return call
