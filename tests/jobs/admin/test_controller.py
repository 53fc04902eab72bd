"""`lakelog controller --describe`, `--requests` and `--cancel-request`: who is active, and what was asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import controller, topics
from lakelog.replication.errors import TimeoutException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.local_root import LocalRoot
from tests.jobs.admin.seen import written

Run = Any  # what a verb has answered: (status, stdout, stderr)


def test_ce_02_describe_shows_the_active_controller(lakelog: Run, controlled: str) -> None:
    (row,) = json.loads(lakelog(controller, "--cluster", controlled, "--describe", "-o", "json")[1])
    assert (row["controller"], row["controller_epoch"], row["state"], row["resigned"]) == ("test", 1, "active", False)
    lines = lakelog(controller, "--cluster", controlled, "--describe")[1].splitlines()
    assert lines[0].split() == ["controller", "controller", "epoch", "state", "lease", "age", "s"]
    assert lines[2].split()[:3] == ["test", "1", "active"]


def test_ce_02_describe_distinguishes_a_dead_controller_from_an_active_one(
    lakelog: Run, cluster: str, waits: list[float]
) -> None:
    Cluster.open(cluster).lease.elect("test", None)
    written(f"{cluster}/controller", 60.0)
    (row,) = json.loads(lakelog(controller, "--cluster", cluster, "--describe", "-o", "json")[1])
    assert (row["state"], row["lease_age_s"], waits) == ("gone", 60.0, [3.0])


def test_ce_02_describe_of_a_new_cluster_is_an_error_without_a_controller(lakelog: Run, cluster: str) -> None:
    status, out, err = lakelog(controller, "--cluster", cluster, "--describe")
    assert (status, out) == (1, "")
    assert err.startswith("lakelog: ControllerNotAvailableException: ")


def test_ce_01_a_controller_refuses_a_store_that_puts_one_file_over_another(
    lakelog: Run, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRoot, "put_if_absent", lambda *_: (0, 0))
    status, _, err = lakelog(controller, "--cluster", cluster)
    assert status == 1
    assert f"InvalidConfigurationException: {cluster}: the store takes a second put of one key" in err


def test_the_outcome_of_a_request_is_stored_and_shown(on_t: Run) -> None:
    on_t(topics, "--alter", "--topic", "t", "--partitions", 1)
    rows = json.loads(on_t(controller, "--requests", "-o", "json")[1])
    assert [(r["kind"], r["of"], r["error"], r["controller_epoch"]) for r in rows] == [
        ("create_topic", "t", None, 1),
        ("create_partitions", "t", "InvalidPartitionsException", 1),
    ]
    assert rows[1]["requested_by"].startswith("lakelog topics on ")


def test_a_request_whose_client_has_given_up_is_shown_as_withdrawn(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    (tmp_path / "client").write_text("request.timeout.ms=1\n")
    words = ("--create", "--topic", "t", "--command-config", tmp_path / "client")
    status, out, err = lakelog(topics, "--cluster", cluster, *words)
    waits, failed = err.splitlines()
    assert waits.startswith("lakelog: no controller is active, and none ever was: start one with `lakelog controller`")
    assert (status, out, failed.split(":")[1].strip()) == (1, "", TimeoutException.__name__)
    (row,) = json.loads(lakelog(controller, "--cluster", cluster, "--requests", "-o", "json")[1])
    assert (row["kind"], row["error"], row["state"]) == ("create_topic", TimeoutException.__name__, "Decided")
    assert row["request"] in err


def test_a_request_that_waits_is_shown_and_cancelled(lakelog: Run, cluster: str) -> None:
    Cluster.open(cluster).admin.add(AdminRequest("r1", "delete_topic", {"topic": "t"}, requested_by="me"))
    words = (controller, "--cluster", cluster)
    (row,) = json.loads(lakelog(*words, "--requests", "-o", "json")[1])
    assert (row["message"], row["state"]) == ("no controller has decided it yet", "Pending")
    assert lakelog(*words, "--cancel-request", "r1") == (0, "", "Cancelled request r1: delete_topic by me.\n")
    (row,) = json.loads(lakelog(*words, "--requests", "-o", "json")[1])
    assert (row["error"], row["message"].startswith("cancelled by lakelog controller on ")) == (
        "RequestCancelledException", True,
    )  # fmt: skip
    for request_id, message in (("r1", "request r1 is decided"), ("r2", "no request r2; undecided are: none")):
        status, _, err = lakelog(*words, "--cancel-request", request_id)
        assert (status, err.startswith(f"lakelog: InvalidRequestException: {message}")) == (1, True)


def test_requests_fit_on_80_characters_and_all_columns_come_on_demand(
    lakelog: Run, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Cluster.open(cluster).admin
    for first in "ab":
        admin.add(AdminRequest(first * 32, "alter_partition_reassignments", {"assignment": {}}, requested_by="me"))
    words = (controller, "--cluster", cluster, "--requests")
    lines = lakelog(*words)[1].splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["aaaaaaaa", "alter_partition_reassignments", "Pending"],
        ["bbbbbbbb", "alter_partition_reassignments", "Pending"],
    ]
    assert max(map(len, lines)) <= 80
    assert "no controller has decided it yet" in lakelog(*words, "--all")[1]
    assert "a" * 32 in lakelog(*words, "--all")[1]
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, lakelog(*words)[1].splitlines())) <= 80


def test_a_request_is_cancelled_by_the_beginning_of_its_id(lakelog: Run, cluster: str) -> None:
    first, second, third = names = ("abcdefgh1", "abcdefgh2", "x")
    for name in names:
        Cluster.open(cluster).admin.add(AdminRequest(name, "delete_topic", {"topic": "t"}, requested_by="me"))
    words, refused = (controller, "--cluster", cluster, "--cancel-request"), "lakelog: InvalidRequestException: "
    error = f"{refused}several requests begin with abcdefgh: {first}, {second}\n"
    assert lakelog(*words, "abcdefgh") == (1, "", error)
    error = f"{refused}'abcdefg' is too short: give 8 or more characters of the request's id\n"
    assert lakelog(*words, "abcdefg") == (1, "", error)
    for words_of, cancelled in ((first, first), ("abcdefgh", second), (third, third)):
        assert lakelog(*words, words_of) == (0, "", f"Cancelled request {cancelled}: delete_topic by me.\n")
    assert lakelog(*words, "abcdefgh2")[2].startswith(f"{refused}request {second} is decided")
