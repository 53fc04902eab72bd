"""`bench requests` counts what an object store answers. Rows are compared before counts are shown."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path

import pytest

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.bench.counting_store import Counted, counted, counting_store
from lakelog.verification.bench.requests import (
    Requests,
    RequestsPlan,
    dollars_a_month,
    requests_figures,
    requests_rows,
)
from lakelog.verification.verbs.bench import main

COMMIT = "00000000000000000007.json"
HEADS, PUTS = Counted("HEAD", "log", "commits"), Counted("PUT", "brokers", "files")


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("HEAD", f"/bucket/lake/broker-1/log/_delta_log/{COMMIT}", ("HEAD", "log", "commits")),
        ("GET", "/bucket/lake/broker-1/log/leader-1-a%20b.parquet", ("GET", "log", "files")),
        ("GET", "/bucket/lake/cluster/metadata/_delta_log/_last_checkpoint", ("GET", "metadata", "checkpoints")),
        ("PUT", f"/bucket/lake/cluster/brokers/2/_delta_log/{COMMIT}", ("PUT", "brokers", "commits")),
        ("PUT", "/bucket/lake/cluster/brokers/2/x.parquet", ("PUT", "brokers", "files")),
        ("PUT", "/bucket/lake/broker-1/storage-probe", ("PUT", "storage-probe", "files")),
        ("GET", "/bucket?list-type=2&prefix=lake%2Fcluster%2Fbrokers%2F&delimiter=%2F", ("LIST", "brokers", "files")),
        ("GET", "/bucket/?list-type=2&prefix=lake/cluster/topics/_delta_log/", ("LIST", "topics", "commits")),
        ("GET", "/bucket?list-type=2&prefix=lake/broker-1/", ("LIST", "root", "files")),
        ("GET", "/bucket?list-type=2", ("LIST", "root", "files")),
        ("POST", "/bucket?delete", ("POST", "root", "files")),
        ("PUT", "/bucket/lake/cluster1/_quorum/brokers/2/7-0.json", ("PUT", "brokers", "votes")),
        ("PUT", "/bucket/lake/cluster/_quorum/signs/brokers-2.json", ("PUT", "signs", "votes")),
        ("HEAD", "/bucket/lake/cluster/_quorum/_root.json", ("HEAD", "root", "votes")),
    ],
)
def test_a_request_has_a_kind_a_table_and_a_part(method: str, url: str, expected: tuple[str, str, str]) -> None:
    assert counted(method, url) == Counted(*expected)


def test_a_store_in_a_process_of_its_own_counts_its_requests(tmp_path: Path) -> None:
    with counting_store(tmp_path, {}) as (store, options):
        assert store.counts(options) == {}
        root = StorageRoot.of("s3://bucket/lake/broker-1", options)
        root.child("log").write("a", b"1")
        assert root.child("log").sizes(["a", "none"]) == [1, None]
        assert root.list() == ["log"]
        once, files = Counter(store.counts(options)), "files"
        assert once == {
            Counted("PUT", "log", files): 1, Counted("HEAD", "log", files): 2, Counted("LIST", "root", files): 1,
        }  # fmt: skip
        assert store.counts(options) == once
    assert not store.is_running()


def test_a_store_answers_after_the_latency_of_the_kind_of_request(tmp_path: Path) -> None:
    with counting_store(tmp_path, {"GET": 200}) as (_, options):
        root = StorageRoot.of("s3://bucket/lake", options)
        root.write("a", b"1")
        started = time.monotonic()
        assert root.read("a") == b"1"
        assert time.monotonic() - started >= 0.2


def requests(rows_equal: bool = True) -> Requests:
    idle, sent = Counter({HEADS: 600, PUTS: 60}), Counter({HEADS: 1000, PUTS: 20})
    return Requests(3, 2, 6, 60.0, idle, 10, 20.0, sent, rows_equal)


def test_figures_are_those_of_a_second_a_send_and_a_month() -> None:
    (found,) = requests_figures([requests()])["clusters"]  # type: ignore[misc]
    assert found["idle_per_second"] == 11.0
    assert found["idle_dollars_a_month"] == round((10 * 0.4 + 1 * 5) * 86_400 * 30 / 1e6, 2)
    assert (found["per_send"], found["per_send_beside_polls"], found["send_ms"]) == (102.0, 80.0, 2000)
    assert found["dollars_a_million_sends"] == 100 * 0.4 + 2 * 5
    assert [(row["table"], row["part"], row["all"]) for row in found["idle_by_table"]] == [
        ("log", "commits", 10.0), ("brokers", "files", 1.0),
    ]  # fmt: skip


def test_the_summary_has_the_most_expensive_cluster() -> None:
    dear = dataclasses.replace(requests(), partitions=12, idle=Counter({PUTS: 6000}), sent=Counter({PUTS: 50}))
    found = requests_figures([requests(), dear])
    assert (found["most_idle_per_second"], found["most_per_send"]) == (100.0, 102.0)
    assert found["most_idle_dollars_a_month"] == 1296.0


def test_deletes_cost_nothing() -> None:
    assert dollars_a_month({Counted("DELETE", "log", "files"): 1000.0}) == 0


def test_a_table_has_a_row_for_each_kind_of_load_and_a_sum() -> None:
    shown = requests_rows([requests()])
    assert [(row["requests"], row["table"], row["all"]) for row in shown] == [
        ("a second, idle", "brokers", "1.0"), ("a second, idle", "log", "10.0"), ("a second, idle", "all", "11.0"),
        ("a send", "brokers", "2.0"), ("a send", "log", "100.0"), ("a send", "all", "102.0"),
        ("send", "all", "0.0"),
    ]  # fmt: skip
    costs = ["$23 a month", "$50 a million sends", "2000 ms"]
    assert [row["cost"] for row in shown if row["table"] == "all"] == costs


def test_rows_that_differ_leave_no_count() -> None:
    found = requests_figures([requests(), requests(rows_equal=False)])
    assert found["rows_equal"] is False
    assert "clusters" not in found


@pytest.mark.parametrize(
    "argv",
    [
        ["--brokers", "0"],
        ["--partitions", "x"],
        ["--seconds", "0"],
        ["--sends", "0"],
        ["--latencies", "PUT"],
        ["--latencies", "PATCH=1"],
    ],
)
def test_what_makes_no_sense_is_refused(argv: list[str]) -> None:
    assert main(["requests", *argv]) == 2


def test_a_cluster_is_measured_for_each_number_of_brokers_and_partitions() -> None:
    assert RequestsPlan([1, 3], [2, 4]).sizes == [(1, 2, 1), (1, 4, 1), (3, 2, 1), (3, 4, 1)]
    assert RequestsPlan(cluster_roots=[1, 3]).sizes == [(3, 3, 1), (3, 3, 3)]


def test_the_times_of_commits_are_figures_and_rows() -> None:
    found = [dataclasses.replace(requests(), cluster_roots=3, commit_seconds=(0.055, 0.149))]
    (cluster,) = requests_figures(found)["clusters"]  # type: ignore[misc, attr-defined]
    assert (cluster["cluster_roots"], cluster["commit_ms"], cluster["commit_of_another_writer_ms"]) == (3, 55, 149)
    assert [row["cost"] for row in requests_rows(found)][-2:] == ["55 ms", "149 ms"]
