"""Runs the commands of the README and of `docs/` that start a JVM, as they stand there, in another folder.

What needs YARN or Kubernetes is not run, nor `pytest`, nor the unclean election of the drills, whose verb has its own
tests.
"""

import os
import re
import subprocess
from contextlib import ExitStack

import pytest

from lakelog.replication.storage.cluster import Cluster
from tests.pages import HOUSE, PAGES, commands
from tests.processes import wait_until

SECONDS = 300


class Shell:
    """Runs commands in the checkout, with `/lake` in a folder of the test. One with `&` at its end runs on."""

    def __init__(self, folder):
        self._folder, self._stack = folder, ExitStack()
        self._places = {"/lake": f"{folder}/lake", "lakelog.zip": f"{folder}/lakelog.zip"}
        self._places["/tmp/start"] = f"{folder}/start"
        self._environment = {**os.environ, "PATH": f"{HOUSE / '.venv' / 'bin'}:{os.environ['PATH']}"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def run(self, line):
        """Its output, once it has ended with status 0; none if it runs on."""
        text = re.sub(r"\s#.*", "", line).rstrip()
        if setting := re.fullmatch(r"(\w+)=(\S+)", text):
            self._environment[setting[1]] = setting[2]
            return ""
        if text.endswith("&"):
            self.start(text.removesuffix("&"))
            return ""
        done = subprocess.run(
            ["bash", "-c", self._placed(text)], cwd=HOUSE, env=self._environment, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, line):
        """Starts a command that runs until the end of the test."""
        with (self._folder / "processes.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self._placed(line)}"], cwd=HOUSE, env=self._environment, stdout=log, stderr=log
            )
        self._stack.callback(process.wait, SECONDS)
        self._stack.callback(process.terminate)

    def _placed(self, text):
        for shown, place in self._places.items():
            text = text.replace(shown, place)
        return text


@pytest.fixture
def shell(tmp_path):
    with Shell(tmp_path) as made:
        yield made


def operating(which):
    """The commands of `docs/operations.md` with this text."""
    found = [line for line in commands("operations.md") if which in line]
    assert found
    return found


def wait_for_brokers(tmp_path, *ids):
    """Waits until exactly these have registered."""
    cluster = Cluster.open(f"{tmp_path}/lake/cluster")
    wait_until(lambda: tuple(cluster.refresh_brokers()) == ids, f"brokers {ids}", SECONDS)


def start_controller(shell):
    for line in (*operating(" format "), *operating(" controller ")):
        shell.run(line)


def test_the_commands_of_operations_start_a_cluster(shell, tmp_path):
    start_controller(shell)
    for line in operating("--rack"):
        shell.run(line)
    wait_for_brokers(tmp_path, 1, 2, 3)
    assert re.findall(r"^ +(\d) +alive", shell.run(*operating(" status ")), re.M) == ["1", "2", "3"]
    shown = [shell.run(line) for line in operating(" topics ")]
    assert "min.insync.replicas=2" in shown[1]


def test_plain_spark_submit_runs_a_broker(shell, tmp_path):
    start_controller(shell)
    shell.run(*operating("zipfile"))
    shell.start(*operating("jobs/broker.py"))
    wait_for_brokers(tmp_path, 2)


def test_a_broker_runs_on_sparks_standalone_cluster(shell, tmp_path):
    start_controller(shell)
    for line in (*operating("SPARK="), *operating("spark-class"), *operating("--master spark")):
        shell.run(line)
    wait_for_brokers(tmp_path, 1)


def test_the_event_script_of_testing_runs(shell):
    """The simulation starts no JVM, and takes minutes."""
    (line,) = (line for line in commands("testing.md") if "scenario" in line)
    shell.run(line)


def test_the_first_commands_of_start_install_lakelog(shell, tmp_path):
    for line in commands("start.md"):
        shell.run(line)
    assert list(tmp_path.glob("start/lib/python*/site-packages/pyspark_lakelog*"))


def figures(text):
    """The numbers of records in a summary of the quickstart."""
    return dict(re.findall(r"^(records_\w+) +([\d,]+)$", text, re.M))


def test_the_quickstart_of_the_readme_runs(shell):
    (line,) = (line for line in commands("README.md") if "quickstart" in line)
    shown = figures(PAGES["README.md"].read_text("utf-8"))
    assert shown["records_lost"] == "0"
    assert figures(shell.run(line)) == shown
