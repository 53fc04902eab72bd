"""Runs the commands of the README and of `docs/` that start a JVM or take minutes, as they stand.

`pytest` is not run. The command for Kubernetes runs without a cluster, and must name the missing API server.
`test_drills.py` has the commands of the drills.
"""

import re

import pytest

from tests.long.shell import SECONDS, of_page, operating, start_controller, wait_for_brokers
from tests.long.yarn import yarn
from tests.pages import PAGES, commands

HOUR = 3600.0


def test_the_commands_of_operations_start_a_cluster(shell):
    start_controller(shell)
    for line in operating("--rack")[:3]:  # the others join later on the page, see tests/test_change_brokers.py
        shell.run(line)
    wait_for_brokers(shell.cluster, 1, 2, 3)
    assert re.findall(r"^ +(\d) +alive", shell.run(*operating(" status ")), re.M) == ["1", "2", "3"]
    shown = [shell.run(line) for line in operating(" topics ")]
    assert "min.insync.replicas=2" in shown[1]


def test_plain_spark_submit_runs_a_broker(shell):
    start_controller(shell)
    shell.run(*operating("zipfile"))
    shell.start(*operating("jobs/broker.py"))
    wait_for_brokers(shell.cluster, 2)


def test_a_broker_runs_on_sparks_standalone_cluster(shell):
    start_controller(shell)
    for line in (*operating("SPARK="), *operating("spark-class"), *operating("--master spark")):
        shell.run(line)
    wait_for_brokers(shell.cluster, 1)


def test_a_broker_runs_on_yarn(shell, tmp_path):
    start_controller(shell)
    with yarn(tmp_path) as node:
        shell.set(node.variables)
        broker = shell.start(*operating("--master yarn"))
        try:
            wait_for_brokers(shell.cluster, 1)
            assert node.containers() == [2], "the application master and an executor"
        finally:
            broker.terminate()
            status = broker.wait(SECONDS)
        assert status == 0


def test_a_broker_for_kubernetes_says_that_there_is_no_api_server(shell):
    start_controller(shell)
    done = shell.tried(*operating("--master k8s"))
    assert done.returncode == 1, done.stderr
    sentence = "lakelog: InvalidConfigurationException: Spark does not start: java.net.UnknownHostException: "
    assert done.stderr.splitlines()[-1].startswith(f"{sentence}kubernetes.default.svc")


def test_the_event_script_of_testing_runs(shell):
    shell.run(*of_page("testing.md", "scenario"))


@pytest.mark.parametrize("line", of_page("testing.md", "simulate"))
def test_the_simulations_of_testing_find_nothing(shell, line):
    shown = shell.run(line, HOUR)
    seeds = re.search(r"--seeds (\d+)", line)[1]
    assert re.findall(r"^(?:histories|violations) +(\d+)$", shown, re.M) == [seeds, "0"]


def test_the_first_commands_of_start_install_lakelog(shell, tmp_path):
    for line in commands("start.md"):
        shell.run(line)
    assert list(tmp_path.glob("start/lib/python*/site-packages/pyspark_lakelog*"))


def figures(text):
    """The numbers of records in a summary of the quickstart."""
    return dict(re.findall(r"^(records_\w+) +([\d,]+)$", text, re.M))


def test_the_quickstart_of_the_readme_runs(shell):
    (line,) = (line for line in commands("README.md") if re.match("lakelog quickstart +#", line))
    shown = figures(PAGES["README.md"].read_text("utf-8"))
    assert shown["records_lost"] == "0"
    assert figures(shell.run(line)) == shown
