"""`bench produce`: the committed records are compared with those sent; no time is asserted here."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakelog.verification.bench import measuring, produce
from lakelog.verification.bench.measuring import DataSet, _process
from lakelog.verification.bench.processes import Idle, idle_figures, idle_rows
from lakelog.verification.bench.produce import (
    FIRST,
    FRAME,
    IN_A_ROW,
    IN_FLIGHT,
    LARGE,
    QUICK,
    SINK,
    SMALL,
    Produced,
    ProduceRun,
    Sends,
    produce_figures,
    produce_rows,
)

if TYPE_CHECKING:
    pass

KINDS = [
    Sends(FIRST, DataSet(12, 100), [3.0], [0.1], 4.0),
    Sends(SMALL, DataSet(12, 100), [0.1, 0.3, 0.2], [0.1, 0.1, 0.1], 0.6),
    Sends(IN_A_ROW, DataSet(20_000, 1000), [0.5, 0.4], [0.2, 0.2]),
    Sends(IN_FLIGHT, DataSet(20_000, 1000), [0.2, 0.1, 0.3], [0.2, 0.2, 0.2]),
    Sends(LARGE, DataSet(1_000_000, 100), [2.0], [1.0]),
    Sends(LARGE, DataSet(200_000, 1000), [2.0, 1.0, 4.0], [1.0, 1.0, 1.0]),
    Sends(FRAME, DataSet(200_000, 1000), [8.0, 4.0], [1.0, 1.0]),
    Sends(SINK, DataSet(200_000, 1000), [4.0], [1.0]),
]


def test_the_figures_are_medians() -> None:
    found = produce_figures(Produced(KINDS, rows_equal=True))
    assert {name: value for name, value in found.items() if isinstance(value, float | int)} == {
        "rows_equal": True,
        "first_send_ms": 3000.0,
        "small_send_ms": 200.0,
        "small_send_core_seconds": 0.2,
        "in_a_row_mb_per_s": 44.4,
        "in_flight_mb_per_s": 100.0,
        "arrow_mb_per_s_100b": 50.0,
        "arrow_mb_per_s_1kb": 100.0,
        "arrow_records_per_s_100b": 500_000,
        "arrow_records_per_s_1kb": 100_000,
        "frame_mb_per_s_1kb": 33.3,
        "sink_mb_per_s_1kb": 50.0,
        "cores": found["cores"],
    }
    medians = [row["median_ms"] for row in produce_rows(Produced(KINDS, rows_equal=True))]
    assert medians == [3000, 200, 450, 200, 2000, 2000, 6000, 4000]


def test_records_that_differ_leave_no_time() -> None:
    assert not {"small_send_ms", "sends"} & set(produce_figures(Produced(KINDS)))


COUNTS_A_CHILD = """
import subprocess, sys
from lakelog.verification.bench.measuring import cpu_seconds
from tests.processes import wait_until

before = cpu_seconds()
code = "import time\\nwhile time.process_time() < 0.5: pass\\nprint(flush=True)\\ninput()"
with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(cpu_seconds() - before >= 0.4)
    child.communicate(b"\\n")
wait_until(lambda: cpu_seconds() - before >= 0.4, "the time of a child that has ended")
"""


def test_cpu_time_of_a_child_counts_while_it_runs_and_after_its_end() -> None:
    """In a process of its own: descendants of this one, as Spark's Python workers, may end meanwhile."""
    counts = subprocess.run([sys.executable, "-c", COUNTS_A_CHILD], capture_output=True, text=True)
    assert (counts.returncode, counts.stdout) == (0, "True\n"), counts.stderr


def test_a_process_that_ends_while_the_others_are_idle_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = iter([{1: (1.0, 0.0), 2: (5.0, 0.0)}, {1: (1.5, 0.0), 3: (0.25, 0.0)}])
    monkeypatch.setattr(measuring, "_tree", lambda: next(trees))
    times = iter([10.0, 12.0])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(times))
    assert measuring.cores_while_idle(0.001) == 0.375


class _Acknowledges:
    def send(self, *_: object, **__: object) -> dict[int, object]:
        return {}


def test_cpu_time_is_that_of_the_sends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables of a kind are built before."""
    built: list[int] = []

    def seen() -> float:
        built.append(len(list((tmp_path / "sent").iterdir())))
        return float(len(built))

    monkeypatch.setattr(produce, "cpu_seconds", seen)
    run = ProduceRun(tmp_path, _Acknowledges(), lambda: None)  # type: ignore[arg-type]
    sends = [run.first(), run.small(QUICK)]
    assert built == [1, 1, 2, 2, 4, 4]
    assert [each.core_seconds for each in sends] == [1.0, 1.0]


def test_the_name_of_a_process_may_have_any_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    numbers = " ".join(map(str, range(20)))
    (folder / "stat").write_bytes(b"7 (caf\xe9 ) x) S 1 " + numbers.encode())
    assert _process(folder) == (7, (1, 9 + 10, 11 + 12))


def test_an_idle_cluster_costs_what_its_session_does_not() -> None:
    found = Idle(30, 0.0104, 0.2)
    assert {name: value for name, value in idle_figures(found).items() if name.endswith("_cores")} == {
        "session_cores": 0.01,
        "cluster_cores": 0.2,
        "brokers_cores": 0.19,
    }
    assert [row["cores"] for row in idle_rows(found)] == ["0.010", "0.200"]
