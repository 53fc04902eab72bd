"""`bench all`: a suite that fails takes no figures of the others with it."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakelog.verification.bench import commands
from lakelog.verification.bench.commands import COMMANDS, SUITES, Suite, suites_figures, suites_rows
from lakelog.verification.verbs.bench import main, make_parser

FOUND = [
    Suite("idle", 12.34, {"session_cores": 0.01, "cluster_cores": 0.2, "seconds": 3}),
    Suite("scale", 3, {"growth": [1]}),
    Suite("produce", 1, {"rows_equal": False}, "exit status 1: rows differ"),
]


def test_each_suite_has_an_object_and_a_failed_one_its_error() -> None:
    found = suites_figures(FOUND)["suites"]
    assert found["idle"] == {"suite_seconds": 12.3, "session_cores": 0.01, "cluster_cores": 0.2, "seconds": 3}
    assert found["produce"] == {"error": "exit status 1: rows differ", "suite_seconds": 1, "rows_equal": False}


def test_the_summary_has_the_main_figures_of_each_suite() -> None:
    assert [tuple(row.values()) for row in suites_rows(FOUND)] == [
        ("idle", "session cores", "0.01"),
        ("idle", "cluster cores", "0.2"),
        ("scale", "seconds of the suite", "3"),
        ("produce", "error", "exit status 1: rows differ"),
    ]


def test_every_benchmark_is_a_suite_whose_quick_arguments_are_right() -> None:
    assert {*SUITES, "kafka", "all"} == set(COMMANDS), "kafka needs a registry and a client"
    args = make_parser().parse_args(["all"])
    assert set(args.only) == set(SUITES)
    for name, (flags, _) in SUITES.items():
        assert make_parser().parse_args([name, *flags, "--out", "figures.json"]).what == name


def test_a_failed_suite_does_not_lose_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        name, out = command[4], Path(command[-1])
        if name == "idle":
            return SimpleNamespace(returncode=1, stderr="a trace\nlakelog: Error: no memory\n\n")
        out.write_text(json.dumps({"longest_seconds": 1.5, "commits": 3}))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    out = tmp_path / "all.json"
    assert main(["all", "--only", "idle,controller", "--out", str(out)]) == 1
    found = json.loads(out.read_text())["suites"]
    assert found["idle"]["error"] == "exit status 1: lakelog: Error: no memory"
    assert found["controller"]["longest_seconds"] == 1.5
    said = capsys.readouterr()
    assert "2 of 2: controller: done" in said.err
    assert "longest seconds" in said.out


def test_a_suite_runs_in_a_process_of_its_own() -> None:
    """A real one: the controller, with few partitions."""
    lines: list[str] = []
    (found,) = commands.run_suites(["controller"], True, lines.append)
    assert (found.error, found.figures["partitions"], len(lines)) == (None, 60, 2)


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--only", "idle,nothing"]) == 2
    assert "there is no benchmark 'nothing'" in capsys.readouterr().err
