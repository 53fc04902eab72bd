"""Commands that a verb prints can be copied as they are."""

import subprocess
from pathlib import Path

import pytest

from lakelog.jobs.cli.options import Invocation

SCRIPT = Path(__file__).parents[3] / "spark-submit.sh"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKELOG_CLUSTER", raising=False)
    monkeypatch.delenv("LAKELOG_PROGRAM", raising=False)


def test_a_command_names_the_program_and_the_cluster() -> None:
    invocation = Invocation.of("/lake/cluster", "/lake/cluster")
    assert invocation.command("controller") == "`lakelog controller --cluster /lake/cluster`"
    assert invocation.command("broker", "--broker-id", 2) == "`lakelog broker --cluster /lake/cluster --broker-id 2`"
    assert invocation.command("dump-log", "--verify", on_cluster=False) == "`lakelog dump-log --verify`"


def test_a_checkout_is_started_by_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKELOG_PROGRAM", "./spark-submit.sh")
    assert Invocation.of("/c", "/c").command("controller") == "`./spark-submit.sh controller --cluster /c`"


def test_the_script_passes_on_the_name_that_it_was_called_by(tmp_path: Path) -> None:
    """Its last line, with another program in Python's place. Only a verb is told: tests print `lakelog`."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$LAKELOG_PROGRAM" "$@"\n')
    python.chmod(0o755)
    line = SCRIPT.read_text("utf-8").splitlines()[-1]
    words = ["bash", "-c", line, "./spark-submit.sh", "status"]
    printed = subprocess.run(words, env={"python": str(python)}, capture_output=True, text=True, check=True)
    assert printed.stdout == "./spark-submit.sh -m lakelog.jobs status\n"


def test_a_cluster_of_the_environment_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKELOG_CLUSTER", "cluster")
    assert Invocation.of("cluster", "/lake/cluster").command("controller") == "`lakelog controller`"
    assert Invocation.of("/other", "/other").command("controller") == "`lakelog controller --cluster /other`"


def test_a_relative_cluster_becomes_an_absolute_one() -> None:
    """The command may be run elsewhere."""
    assert Invocation.of("cluster", "/lake/cluster").command("brokers") == "`lakelog brokers --cluster /lake/cluster`"


def test_what_a_shell_would_split_is_quoted() -> None:
    assert Invocation("lakelog", "/my lake").command("brokers") == "`lakelog brokers --cluster '/my lake'`"
    assert Invocation("/my home/spark-submit.sh", None).command("brokers") == "`'/my home/spark-submit.sh' brokers`"
