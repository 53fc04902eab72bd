"""`lakelog brokers`: the table on 80 columns, and everything as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import brokers
from lakelog.jobs import format as format_verb
from tests.jobs.admin.seen import beat

Run = Any  # what a verb has answered: (status, stdout, stderr)


@pytest.fixture
def show(lakelog: Run, cluster: str, waits: list[float]) -> Run:
    """Broker 1 is alive, 2 is dead, the storage of 3 fails."""
    assert waits == []
    beat(cluster, 1, 1.0)
    beat(cluster, 2, 312.0)
    beat(cluster, 3, 0.0, storage_error="KafkaStorageException: disk full")
    return lambda *words: lakelog(brokers, "--cluster", cluster, *words)


def test_json_of_brokers_has_all_fields_of_a_registration(show: Run) -> None:
    status, out, _ = show("-o", "json")
    assert (status, json.loads(out)[1]) == (
        0,
        {
            "broker": 2, "state": "dead", "cordoned": False, "heartbeat_age_s": 312.0, "root": "/nowhere/2",
            "rack": None, "epoch": 1, "heartbeat": 2, "metadata_version": -1, "shutting_down": False,
            "storage_error": None,
            "offline_partitions": [], "leader_replication_rate": None, "leader_replication_quota": None,
            "follower_replication_rate": None, "follower_replication_quota": None, "divergences": None,
        },
    )  # fmt: skip
    assert [row["state"] for row in json.loads(out)] == ["alive", "dead", "storage error"]


def test_a_table_has_five_columns_on_80_characters_and_all_of_them_on_demand(
    show: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = show()[1].splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["1", "alive", "1.0", "/nowhere/1"],
        ["2", "dead", "312.0", "/nowhere/2"],
        ["3", "storage", "error", "0.0", "/nowhere/3", "KafkaStorageException:", "disk", "full"],
    ]
    monkeypatch.setenv("COLUMNS", "80")
    narrow = show()[1]
    assert max(map(len, narrow.splitlines())) <= 80
    assert "follower" not in narrow
    monkeypatch.delenv("COLUMNS")
    assert "follower replication rate" in show("--all")[1]


def test_brokers_of_a_cluster_without_any_prints_one_sentence(lakelog: Run, tmp_path: Path) -> None:
    uri = str(tmp_path / "new")
    assert lakelog(format_verb, "--cluster", uri)[0] == 0
    assert lakelog(brokers, "--cluster", uri) == (0, "", f"No broker has registered at {uri}.\n")
    assert lakelog(brokers, "--cluster", uri, "-o", "json")[:2] == (0, "[]\n")


def test_bc_01_a_broker_is_unregistered_on_request(lakelog: Run, controlled: str) -> None:
    """All three count as alive here; `tests/test_change_brokers.py` has one that has stopped."""
    status, out, err = lakelog(brokers, "--cluster", controlled, "--unregister", "3", "--dry-run")
    assert (status, out) == (1, "")
    assert err.startswith("lakelog: InvalidRequestException: broker 3 is alive: stop it, and wait until its last")
    status, _, err = lakelog(brokers, "--cluster", controlled, "--unregister", "9")
    assert (status, err) == (
        1, "lakelog: BrokerNotAvailableException: no broker 9 has registered; there are: 1, 2, 3\n"
    )  # fmt: skip
