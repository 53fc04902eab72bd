"""A wrong command line gets one sentence that says what to use. The cluster may come from the environment."""

from typing import Any

import pytest

from lakelog.jobs import broker, brokers, dump_log, log_dirs, topics
from lakelog.verification.verbs import bench

Run = Any  # what a verb has answered: (status, stdout, stderr)

NO_SERVER = "Lakelog has no server to connect to: use --cluster URI, or set LAKELOG_CLUSTER"


@pytest.mark.parametrize(
    ("verb", "words", "fault"),
    [
        (topics, ["--bootstrap-server", "localhost:9092", "--list"], f"no option --bootstrap-server; {NO_SERVER}"),
        (topics, ["--zookeeper=localhost:2181", "--list"], f"no option --zookeeper; {NO_SERVER}"),
        (topics, ["--creat", "--topic", "t"], "no option --creat; did you mean --create?"),
        (topics, ["--lst"], "no option --lst; did you mean --list?"),
        (log_dirs, ["--describe", "--topic", "t"], "no option --topic; did you mean --topic-list?"),
        (dump_log, ["--bootstrap-server", "x"], "no option --bootstrap-server; there are --help, --root, "),
        (broker, ["--config", "server.properties"], "no option --config; did you mean --command-config"),
        (brokers, ["--xyz"], "no option --xyz; there are --help, --cluster, --output, --command-config"),
        (bench, ["replication", "--round", "3"], "no option --round; did you mean --rounds?"),
        (brokers, [], "--cluster URI is missing: give it, or set LAKELOG_CLUSTER"),
        (brokers, ["--cluster", ""], "--cluster URI is missing"),
        (brokers, ["--cluster", "c", "extra"], "unrecognized arguments: extra"),
        (brokers, ["--cluster", "c", "--", "--xyz"], "unrecognized arguments: "),
    ],
)
def test_wrong_usage_is_one_line_with_the_cause(
    lakelog: Run, monkeypatch: pytest.MonkeyPatch, verb: Any, words: list[str], fault: str
) -> None:
    monkeypatch.delenv("LAKELOG_CLUSTER", raising=False)
    status, out, err = lakelog(verb, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert fault in err
    assert err.startswith("lakelog ")
    assert err.endswith("--help` lists the options\n")


def test_help_comes_before_a_mistake(lakelog: Run) -> None:
    status, out, err = lakelog(topics, "--lst", "--help")
    assert (status, out.startswith("usage: lakelog topics"), err) == (0, True, "")


def test_the_cluster_may_come_from_the_environment(lakelog: Run, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKELOG_CLUSTER", cluster)
    assert lakelog(topics, "--list") == (0, "", "")
    status, _, err = lakelog(topics, "--cluster", f"{cluster}-other", "--list")
    assert (status, f"{cluster}-other" in err) == (1, True)
