"""The figures of `bench processes`. `tests/long/test_benches.py` runs it."""

from dataclasses import replace

from lakelog.verification.bench.processes import ProcessTimes, processes_figures, processes_rows

FOUND = ProcessTimes(12.34, [0.3, 0.1, 0.2], 1.5, 30, 0.1234, rows_equal=True)


def test_a_send_is_its_median_and_its_share_of_the_cpu_time() -> None:
    found = processes_figures(FOUND)
    assert (found["small_send_ms"], found["small_send_core_seconds"]) == (200.0, 0.5)
    assert (found["start_seconds"], found["idle_cores"]) == (12.3, 0.123)
    assert [(row["seconds"], row["core-seconds"], row["cores"]) for row in processes_rows(FOUND)] == [
        ("12.3", "", ""), ("0.200", "0.50", ""), ("", "", "0.123"),
    ]  # fmt: skip


def test_times_of_records_that_differ_are_not_told() -> None:
    found = processes_figures(replace(FOUND, rows_equal=False))
    assert found["rows_equal"] is False
    assert "small_send_ms" not in found
