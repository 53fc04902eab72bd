"""The benchmark compares rows before times. No test asserts a time."""

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakelog.replication.protocol.elections import new_partition, with_leader
from lakelog.verification.bench import replication
from lakelog.verification.bench.controller_bench import (
    LEAVING,
    LOST,
    controller_figures,
    controller_rows,
    first_wrong,
    measure_controller,
)
from lakelog.verification.bench.measuring import DataSet
from lakelog.verification.bench.replication import SMALL, Measurement, Plan, Results, checksum, figures, rows
from lakelog.verification.bench.workers import CatchUps, workers_figures, workers_rows
from lakelog.verification.verbs.bench import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG = DataSet(1_000_000, 100)
RATIOS = {"throughput_vs_plain_stream", "latency_vs_plain_stream", "time_vs_file_copy"}


def measurement(data_set: DataSet, rows_equal: bool = True, **seconds: list[float]) -> Measurement:
    named = {name.replace("_", " "): values for name, values in seconds.items()}
    return Measurement(data_set, 1_000, 1, named, rows_equal)


def results(rows_equal: bool = True) -> Results:
    throughput = [
        measurement(BIG, lakelog=[0.5, 0.4, 0.3], plain_stream=[2.0, 2.0, 2.0], file_copy=[0.1, 0.1, 0.1]),
        measurement(BIG, rows_equal, lakelog=[0.5], plain_stream=[1.0], file_copy=[0.5]),
    ]
    plan = Plan(3, data_sets=(BIG, BIG))
    return Results(plan, 1e9, throughput, measurement(SMALL, lakelog=[0.1, 0.2], plain_stream=[0.6, 0.6]))


def test_ratios_are_those_of_medians_and_of_the_worse_data_set() -> None:
    found = figures(results())
    assert found["throughput_vs_plain_stream"] == 2.0
    assert found["time_vs_file_copy"] == 4.0
    assert found["latency_vs_plain_stream"] == 0.25
    assert set(found) >= {*RATIOS, "rows_equal", "throughput", "latency", "rounds", "cores", "versions", "load_average"}


def test_rows_that_differ_leave_no_figure() -> None:
    found = figures(results(rows_equal=False))
    assert found["rows_equal"] is False
    assert not RATIOS & set(found)


def test_every_measured_follower_has_a_row() -> None:
    assert [(row["measured"], row["by"]) for row in rows(results())] == [
        *[("throughput", by) for by in ("lakelog", "plain stream", "file copy")] * 2,
        *[("latency", by) for by in ("lakelog", "plain stream")],
    ]


def test_catch_ups_are_compared_with_that_of_the_fewest_workers() -> None:
    found = CatchUps(DataSet(2_000, 60_000, is_random=True), {1: 50.0, 2: 25.0, 4: 12.5}, rows_equal=True)
    figures = workers_figures(found)
    assert figures["seconds_by_workers"] == {"1": 50.0, "2": 25.0, "4": 12.5}
    assert figures["most_workers_vs_fewest"] == 4.0
    assert [(row["workers"], row["segments a second"]) for row in workers_rows(found)] == [
        (1, "40"), (2, "80"), (4, "160"),
    ]  # fmt: skip
    assert "seconds_by_workers" not in workers_figures(replace(found, rows_equal=False))


def test_random_values_have_the_size_said_and_no_codec_makes_them_smaller() -> None:
    data_set = DataSet(500, 1000, is_random=True)
    values = data_set.table(7)["value"]
    assert data_set.name == "500 records of 1 KB, random"
    assert {len(value) for value in values.to_pylist()} == {1000}
    assert len(zlib.compress(b"".join(values.to_pylist()))) >= 500_000
    assert data_set.table(7).equals(data_set.table(7))
    assert not data_set.table(8)["value"].equals(values)


@pytest.mark.parametrize("value_bytes", [100, 1000])
def test_records_have_keys_and_json_values_of_the_size_said(value_bytes: int) -> None:
    table = DataSet(50, value_bytes).table()
    assert table.equals(DataSet(50, value_bytes).table())
    assert {len(value) for value in table["value"].to_pylist()} == {value_bytes}
    assert all("plane" in json.loads(value) for value in table["value"].to_pylist())
    assert table["key"].null_count == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["nothing"],
        ["replication", "--rounds", "0"],
        ["replication", "--rounds", "x"],
        ["replication", "--seconds", "0"],
        ["replication", "--workers", "0"],
        ["replication", "--workers", "1,4,2"],
        ["replication", "--workers", "2,2"],
        [],
        ["controller", "--brokers", "2"],
        ["controller", "--partitions", "0"],
        ["controller", "--rounds", "5"],
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(argv: list[str]) -> None:
    assert main(argv) == 2


def test_the_controller_is_measured_step_by_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert main(["controller", "--partitions", "60", "--brokers", "4", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["outcome_is_right"], found["partitions"], found["brokers"]) == (True, 60, 4)
    leaders = {step["step"]: {int(broker) for broker in step["leaders"]} for step in found["steps"]}
    assert leaders == {
        "start-up": {1, 2, 3, 4},
        "loss of a broker": {1, 2, 3, 4} - {LOST},
        "controlled shutdown": {1, 2, 3, 4} - {LOST, LEAVING},
    }
    assert [sum(step["leaders"].values()) for step in found["steps"]] == [60, 60, 60]
    assert [step["changed"] for step in found["steps"]] == [0, 45, 45], "those with a replica on the broker, no other"
    assert found["commits"] < 10
    shown = capsys.readouterr().out
    assert all(step in shown for step in leaders)


def test_the_controller_decides_the_same_with_three_cluster_roots() -> None:
    steps = measure_controller(6, 3, [1, 3])
    assert [step.cluster_roots for step in steps] == [1, 1, 1, 3, 3, 3]
    outcomes = [(step.name, step.commits, step.changed, step.leaders, step.wrong) for step in steps]
    assert outcomes[:3] == outcomes[3:]


def test_a_wrong_outcome_leaves_no_time() -> None:
    steps = measure_controller(6, 3)
    steps[1] = replace(steps[1], wrong="partition 0")
    found = controller_figures(steps, 6, 3)
    assert (found["outcome_is_right"], found["wrong"]) == (False, {"loss of a broker": "partition 0"})
    assert not {"longest_seconds", "steps"} & set(found)
    assert len(controller_rows(steps)) == 3


FIRST = new_partition("bench", "bench-id", 0, (1, 2, 3), (1, 2, 3))
AFTER = {
    "as it must be": (with_leader(FIRST, 2, (2, 3)), True),
    "a dead leader": (FIRST, False),
    "not the first": (with_leader(FIRST, 3, (2, 3)), False),
    "a dead member": (with_leader(FIRST, 2, (1, 2, 3)), False),
    "a live member lost": (with_leader(FIRST, 2, (2,)), False),
    "two epochs on": (with_leader(with_leader(FIRST, 3, (2, 3)), 2, (2, 3)), False),
    "gone": (None, False),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_the_controller_has_decided_is_looked_at(name: str) -> None:
    after, is_right = AFTER[name]
    key = FIRST.topic_id_partition
    assert (first_wrong({key: FIRST}, {key: after} if after else {}, {2, 3}) == "") is is_right


def test_the_checksum_sees_a_changed_value_and_a_doubled_row(spark: "SparkSession") -> None:
    one = spark.createDataFrame([(1, "a"), (2, "b")], "offset long, value string")
    others = [[(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "b")], [(1, "b"), (2, "a")]]
    expected = checksum(one).collect()
    assert checksum(one.orderBy("value", ascending=False)).collect() == expected
    for other in others:
        assert checksum(spark.createDataFrame(other, one.schema)).collect() != expected


@pytest.mark.parametrize(
    ("bytes_per_second", "records"), [(1e9, 500_000), (40e6, 300_000), (10e6, 75_000), (1e6, 20_000), (0, 20_000)]
)
def test_the_largest_commits_fit_the_disk_and_the_report_says_so(bytes_per_second: float, records: int) -> None:
    plan = Plan(3)
    fitted = plan.on_disk(bytes_per_second)
    assert fitted.data_sets == (*plan.data_sets[:2], DataSet(records, 1000, is_random=True))
    seconds = {"lakelog": [0.1] * 2, "plain_stream": [0.2] * 2, "file_copy": [0.1] * 2}
    measured = [measurement(each, **seconds) for each in fitted.data_sets]
    found = Results(plan, bytes_per_second, measured, measurement(SMALL, lakelog=[0.1], plain_stream=[0.2]))
    slow = f"{records:,} records of 1 KB, random instead of 500,000 records of 1 KB, random: the disk writes "
    reductions = figures(found)["reductions"]
    assert reductions == found.reductions
    assert [text.startswith(slow) for text in found.reductions[:-1]] == [True] * (records < 500_000)
    assert found.reductions[-1] == "2 of 3 rounds: more take longer than 150 s"


def test_the_speed_of_a_disk_is_measured_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "_PROBE_BYTES", 2 << 20)
    assert replication.write_speed(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    replication.settle_memory(0)
    replication.settle_memory(3 << 20)
