"""The benchmark compares rows before times; no time is asserted here."""

import json
from typing import TYPE_CHECKING

import pytest

from jobs.bench import main
from jobs.benchmark.data import DataSet
from jobs.benchmark.replication import QUICK, Bench, Measurement, checksum
from jobs.benchmark.report import Results, figures, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG, SMALL = DataSet(1_000_000, 100), DataSet(1_000, 100)
RATIOS = {"throughput_vs_plain_stream", "latency_vs_plain_stream", "time_vs_file_copy"}


def measurement(data_set: DataSet, rows_equal: bool = True, **seconds: list[float]) -> Measurement:
    named = {name.replace("_", " "): values for name, values in seconds.items()}
    return Measurement(data_set, 1_000, 1, named, rows_equal)


def results(rows_equal: bool = True) -> Results:
    throughput = [
        measurement(BIG, lakelog=[0.5, 0.4, 0.3], plain_stream=[2.0, 2.0, 2.0], file_copy=[0.1, 0.1, 0.1]),
        measurement(BIG, rows_equal, lakelog=[0.5], plain_stream=[1.0], file_copy=[0.5]),
    ]
    return Results(3, throughput, measurement(SMALL, lakelog=[0.1, 0.2], plain_stream=[0.6, 0.6]))


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


@pytest.mark.parametrize("value_bytes", [100, 1000])
def test_records_have_keys_and_json_values_of_the_size_said(value_bytes: int) -> None:
    table = DataSet(50, value_bytes).table()
    assert table.equals(DataSet(50, value_bytes).table())
    assert {len(value) for value in table["value"].to_pylist()} == {value_bytes}
    assert all("plane" in json.loads(value) for value in table["value"].to_pylist())
    assert table["key"].null_count == 0


@pytest.mark.parametrize("argv", [["nothing"], ["replication", "--rounds", "0"], ["replication", "--rounds", "x"]])
def test_what_makes_no_sense_is_refused_before_spark_starts(argv: list[str]) -> None:
    assert main(argv) == 2


def test_the_checksum_sees_a_changed_value_and_a_doubled_row(spark: "SparkSession") -> None:
    one = spark.createDataFrame([(1, "a"), (2, "b")], "offset long, value string")
    others = [[(1, "a"), (2, "c")], [(1, "a"), (2, "b"), (2, "b")], [(1, "b"), (2, "a")]]
    expected = checksum(one).collect()
    assert checksum(one.orderBy("value", ascending=False)).collect() == expected
    for other in others:
        assert checksum(spark.createDataFrame(other, one.schema)).collect() != expected


def test_both_followers_have_the_rows_of_the_leader(spark: "SparkSession") -> None:
    """A round with few records: real brokers, a real plain stream."""
    steps: list[str] = []
    found = Bench(spark, QUICK, steps.append).throughput(DataSet(3_000, 100))
    assert found.rows_equal
    assert {name: len(seconds) for name, seconds in found.seconds.items()} == {
        "lakelog": 1,
        "plain stream": 1,
        "file copy": 1,
    }
    assert len(steps) == QUICK.rounds
