"""Runs what the README and the pages of `docs/` show: Python and SQL in their order, commands in a shell.

Pages that need no Spark run in `tests/clients/test_documented_clients.py`, the queries of the past of `docs/views.md`
in `tests/clients/test_views.py`, and `docs/sql.md`, `docs/typed-values.md` and
`docs/debezium.md` in `tests/test_topics_in_sql.py`.
"""

import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lakelog.jobs.launch.launcher import VERBS
from lakelog.jobs.launch.spark_submit import split_arguments
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.local_cluster import LocalCluster
from tests.pages import HOUSE, PAGES, blocks, commands
from tests.processes import wait_until

ELSEWHERE = {"python-clients.md", "serializers.md", "dataframes.md", "sql.md", "typed-values.md", "debezium.md"}
OF_THE_PAST = "then_"  # views of an earlier time
# Commands that start no JVM and change nothing that other commands read. Only the words of the others are checked here:
# `tests/long/test_documented_commands.py` and `tests/long/test_drills.py` run them.
RUN = {
    "status",
    "topics",
    "consumer-groups",
    "console-producer",
    "console-consumer",
    "producer-perf-test",
    "consumer-perf-test",
}
NOT_OURS = {"python3", "python", "pip", "spark-submit", "export", "pytest"} | {
    *("aws", "az", "cp", "docker", "gcloud", "kubectl", "ln", "mkdir", "openssl", "systemctl", "umask", "useradd"),
}


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    with LocalCluster(spark, str(tmp_path_factory.mktemp("lake")), brokers=3) as running:
        for topic in ("orders", "copies", "flights", "perf", "addresses"):
            running.admin().create_topic(topic, partitions=6, replication_factor=3)
        with Producer(running.cluster_uri) as producer:
            for topic in ("orders", "flights"):
                raise_first_error(producer.send(topic, [{"key": str(n), "value": f"{topic} {n}"} for n in range(60)]))
        running.consumer("billing").commit({"orders": {0: 0}})
        yield running


class Ended(Exception):
    """Ends an endless loop of a page."""


def prints(count):
    """A `print` that ends the page after so many calls."""
    left = itertools.count(1)

    def show(*values):
        print(*values)
        if next(left) == count:
            raise Ended

    return show


def run_python(page, names, places):
    """Runs the blocks of a page one after the other."""
    for text, _ in blocks(page, "python"):
        for path, place in places.items():
            text = text.replace(path, str(place))
        exec(compile(text, page, "exec"), names)
    return names


@pytest.mark.parametrize("page", ["README.md", "start.md"])
def test_a_page_that_starts_a_cluster_runs(spark, tmp_path, capsys, page):
    names = {}
    try:
        run_python(page, names, {"/tmp/lake": tmp_path / "lake", "/tmp/checkpoint": tmp_path / "checkpoint"})
    finally:
        for name in ("query", "cluster"):
            if name in names:
                names[name].stop()
    assert names["spark"] is spark
    assert names["query"].exception() is None
    shown = capsys.readouterr().out
    for line in {"README.md": [r"\|orders\|"], "start.md": ["\n100\n", r"\n\d+ b'order \d+'", r"\| billing\|"]}[page]:
        assert re.search(line, shown), f"{line} is not in {shown}"


def test_the_consumer_of_a_group_runs(lake, capsys):
    with pytest.raises(Ended):
        run_python("consumer-groups.md", {"print": prints(60)}, {"/lake/cluster": lake.cluster_uri})
    assert sorted(set(capsys.readouterr().out.split("\n"))) == sorted({"", *(f"b'orders {n}'" for n in range(60))})


def test_the_queries_of_spark_run(spark, lake, tmp_path):
    places = {"/lake/checkpoints": tmp_path, "/lake/cluster": lake.cluster_uri}
    query = run_python("spark.md", {"spark": spark}, places)["query"]
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None


def test_a_compacted_topic_is_a_table(lake, capsys):
    with Producer(lake.cluster_uri) as producer:
        moves = [("ann", "Rome"), ("bob", "Oslo"), ("ann", "Bern"), ("bob", None)]
        raise_first_error(producer.send("addresses", [{"key": who, "value": where} for who, where in moves]))
    run_python("compaction.md", {}, {"/tmp/lake/cluster": lake.cluster_uri})
    shown = re.findall(r"\|\s*(\w+)\|\s*(\w+)\|", capsys.readouterr().out)
    assert shown == [("customer", "address"), ("ann", "Bern")]


def test_the_consumer_of_the_operator_runs(lake):
    fetched = run_python("operations.md", {"cluster": lake}, {})["fetched"]
    assert fetched.error is None
    assert lake.consumer("billing").committed("orders")[0] == fetched.records.num_rows > 0


def test_a_log_is_a_stream_of_delta(spark, lake):
    home = Path(lake.cluster_uri).parent
    run_python("tables.md", {"spark": spark}, {"/tmp/flights": home})


def test_the_copies_of_the_cluster_are_tables_of_delta(spark, lake):
    home = Path(lake.cluster_uri).parent
    copy = home / "broker-1" / "cluster-copy" / "groups" / "_delta_log" / f"{1:020}.json"
    wait_until(copy.exists, "the controller has copied the groups")
    run_python("disaster.md", {"spark": spark}, {"/lake": home})


@pytest.mark.parametrize("page", ["README.md", "tables.md", "views.md"])
def test_a_query_has_the_columns_that_the_page_shows(spark, lake, page):
    if page == "views.md":
        text, _ = blocks(page, "python")[0]
        exec(compile(text.replace("/tmp/lake/cluster", lake.cluster_uri), page, "exec"), {})
    queries = [(query, after) for query, after in blocks(page, "sql") if OF_THE_PAST not in query]
    for query, after in queries:
        rows = spark.sql(query.replace("/tmp/flights", str(Path(lake.cluster_uri).parent)))
        shown = re.search(r"^\|(.*)\|$", after, re.M)
        assert shown, f"{page}: no result follows {query}"
        assert rows.columns == [name.strip() for name in shown[1].split("|")]
        rows.collect()
    assert queries


def test_no_page_is_left_out():
    ran = {
        *("README.md", "start.md", "consumer-groups.md", "spark.md", "operations.md", "tables.md", "views.md"),
        *("disaster.md", "compaction.md"),
    }
    assert {page for page in PAGES if blocks(page, "python", "sql")} - ELSEWHERE == ran


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")])
def test_commands_have_words_that_their_verbs_know(page, monkeypatch, tmp_path):
    monkeypatch.setenv("LAKELOG_CLUSTER", "/lake/cluster")
    monkeypatch.chdir(tmp_path)
    for name in ("drain", "added", "dead"):  # what `reassign-partitions --out` has written
        plan = {"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(plan))
    (tmp_path / "console.token").touch(0o600)
    (tmp_path / "console.token").write_text("0123456789abcdef" * 4)
    for line in commands(page):
        words = shlex.split(line.rpartition("|")[2], comments=True)
        words = [word for word in words if word != "&" and not re.match(r"[A-Z_]+=", word)]
        if not words or Path(words[0]).name in NOT_OURS or words[0].startswith(("$", "/tmp/start")):
            continue
        assert Path(words[0]).name in ("spark-submit.sh", "lakelog"), line
        _, (verb, *rest) = split_arguments(words[1:])
        if verb not in NOT_OURS:
            importlib.import_module(VERBS[verb].module).make_parser().parse_args(rest)


def test_commands_run_in_a_shell(lake):
    bin = Path(sys.executable).parent
    environment = {**os.environ, "LAKELOG_CLUSTER": lake.cluster_uri, "PATH": f"{bin}:{os.environ['PATH']}"}
    ran = set()
    for page in PAGES:
        for line in commands(page):
            verb = re.search(r"(?:lakelog|spark-submit\.sh) ([a-z-]+)", line)
            if not verb or verb[1] not in RUN or {"--create", "--follow", "kubectl"} & set(line.split()):
                continue
            text = re.sub(r"(--num-records|--messages) \d+", r"\1 300", line.replace("/lake/cluster", lake.cluster_uri))
            done = subprocess.run(
                ["bash", "-c", text],
                cwd=HOUSE,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            ran.add(verb[1])
    assert ran == RUN
