"""`bench maintenance` without Spark: it checks its data, and shows figures only if the data is right."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.verification.bench import maintenance
from lakelog.verification.bench.maintenance import (
    PARTITIONS,
    RECORDS,
    Measured,
    SendsBeside,
    maintenance_figures,
    maintenance_rows,
    measure_compaction,
)
from lakelog.verification.bench.measuring import DataSet
from lakelog.verification.bench.produce import Sends
from lakelog.verification.bench.small_commits import SmallCommits
from tests.storage.logs import new_log

DATA = DataSet(1, 1)
FOUND = Measured(
    files_before=2000, files_after=4, held_most=1, compaction_seconds=3.21, commits=10_000,
    at_start={"commit": [0.010, 0.020, 0.012], "micro-batch": [0.2]},
    at_end={"commit": [0.011, 0.012, 0.015], "micro-batch": [0.25]},
    log_files={"leader": 600}, data_files={"leader": 70},
    sends=SendsBeside(Sends("without", DATA, [0.2, 0.1, 0.3]), Sends("beside", DATA, [0.22]), compactions=7),
)  # fmt: skip


def test_na_04_small_files_become_one_a_partition(tmp_path):
    steps, found = [], Measured()
    measure_compaction(tmp_path, 200, found, lambda _, done: steps.append(done))
    assert (found.files_before, found.files_after, found.held_most) == (200, PARTITIONS, 1)
    assert (found.rows_equal, sum(steps)) == (True, 200)


def test_na_04_a_compaction_that_changes_rows_is_noticed(tmp_path, monkeypatch):
    """Of a log that lacks a batch afterwards nothing is shown but that."""
    original, seen = maintenance.content, []

    def content(log, partitions):
        seen.append(original(log, partitions))
        return seen[-1] if len(seen) == 1 else seen[-1][1:]

    monkeypatch.setattr(maintenance, "content", content)
    found = Measured()
    measure_compaction(tmp_path, 100, found, lambda *_: None)
    assert not found.rows_equal


def test_small_commits_are_appends_in_sequence(root):
    partitions = [TopicIdPartition("bench-id", number) for number in range(2)]
    log = new_log(root)
    log.become(dict.fromkeys(partitions, Role(0, LEADER)), "test")
    commits = SmallCommits(log, partitions, RECORDS)
    for files in (1, 3, 1):
        assert commits.make(files) > 0
    state = ReplicaLog.open(log.root).refresh()
    assert {p: state.partition(p).log_end_offset for p in partitions} == commits.ends() == dict.fromkeys(partitions, 25)
    assert (commits.records, len(state.segments)) == (50, 5)
    assert [entry.next_sequence for entry in state.partition(partitions[0]).producers.values()] == [25]


def test_figures_are_medians_and_the_end_is_compared_with_the_start():
    shown = maintenance_figures(FOUND)
    assert shown["end_vs_start"] == {"commit": 1.0, "micro-batch": 1.25}
    assert shown["median_ms_at_start"] == {"commit": 12.0, "micro-batch": 200.0}
    assert shown["sends"] == {
        "median_ms_without_compaction": 200.0, "median_ms_beside_compaction": 220.0, "beside_vs_without": 1.1,
        "compactions": 7,
    }  # fmt: skip
    assert maintenance_rows(FOUND)[-1] == {
        "figure": "send without compaction, beside 7", "at_start": 200.0, "at_end": 220.0, "ratio": 1.1,
    }  # fmt: skip
    assert (shown["files_after_compaction"], shown["most_files_of_a_partition_and_size_class"]) == (4, 1)
    assert [row["figure"] for row in maintenance_rows(FOUND)][:3] == [
        "small files compacted", "seconds that took", "commit, median ms",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["seconds", "median", "end_vs_start", "sends"])
def test_where_rows_differ_no_time_is_shown(word):
    shown = maintenance_figures(replace(FOUND, rows_equal=False))
    assert shown["rows_equal"] is False
    assert not [key for key in shown if word in key]
