"""`docs/operations.md`, Change the brokers: its commands remove a broker, add one and replace a dead one, on a cluster
that runs."""

import importlib
import shlex
from collections import Counter

import pytest

from lakelog.jobs.launch.launcher import VERBS
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.local_cluster import LocalCluster
from tests.pages import commands
from tests.processes import wait_until

OF_THE_PAGE = list(commands("operations.md"))
FIRST = next(number for number, line in enumerate(OF_THE_PAGE) if "cordoned.log.dirs=*" in line)
(CORDON, SHOW, DRAIN, DRAINED, UNREGISTER_3, START_4, REBALANCE, REBALANCED, START_5, REPLACE, REPLACED,
 UNREGISTER_2) = OF_THE_PAGE[FIRST : FIRST + 12]  # fmt: skip
RECORDS = 200


@pytest.fixture
def lake(spark, tmp_path, monkeypatch):
    """Brokers 1, 2 and 3 with the topic t of two replicas; brokers 4 and 5 do not run yet."""
    monkeypatch.chdir(tmp_path)
    with LocalCluster(spark, str(tmp_path / "lake"), brokers=5) as running:
        for broker in (4, 5):
            running.stop_broker(broker)
        running.admin().create_topic("t", assignment={n: [n % 3 + 1, (n + 1) % 3 + 1] for n in range(6)})
        with Producer(running.cluster_uri) as producer:
            raise_first_error(producer.send("t", [{"key": str(n), "value": str(n)} for n in range(RECORDS)]))
        yield running


def run(lake, command):
    """Runs a command of the page in this process. Returns its status."""
    _, verb, *words = shlex.split(command.replace("/lake/cluster", lake.cluster_uri))
    return importlib.import_module(VERBS[verb].module).main(words)


def start(lake, command):
    """Starts the broker of a command of the page."""
    words = shlex.split(command)
    assert words[1] == "broker"
    lake.start_broker(int(words[words.index("--broker-id") + 1]))


def verify(lake, command, capsys):
    """Runs --verify until all moves are completed."""

    def has_ended():
        assert run(lake, command) == 0
        lines = capsys.readouterr().out.splitlines()
        return lines and all(line.endswith(" is completed.") for line in lines)

    wait_until(has_ended, "the moves", 120)


def held(lake):
    return Counter(broker for r in lake.admin().describe_topic("t").partitions for broker in r.replicas)


def test_the_commands_of_the_page_remove_add_and_replace_brokers(spark, lake, capsys):
    assert run(lake, CORDON) == 0
    assert run(lake, SHOW) == 0
    assert "4 replicas of 4 partitions move" in capsys.readouterr().out
    assert held(lake) == {1: 4, 2: 4, 3: 4}
    assert run(lake, DRAIN) == 0
    capsys.readouterr()
    verify(lake, DRAINED, capsys)
    assert held(lake) == {1: 6, 2: 6}
    assert run(lake, UNREGISTER_3) == 1
    assert "InvalidRequestException: broker 3 is alive" in capsys.readouterr().err
    lake.stop_broker(3)
    wait_until(lambda: run(lake, UNREGISTER_3) == 0, "the end of the session of broker 3", 60)
    assert (3 in lake.admin().describe_brokers(), lake.admin().describe_broker_configs()) == (False, {})

    start(lake, START_4)
    capsys.readouterr()
    wait_until(lambda: run(lake, REBALANCE) == 0 and "4 replicas of " in capsys.readouterr().out, "broker 4", 60)
    verify(lake, REBALANCED, capsys)
    assert held(lake) == {1: 4, 2: 4, 4: 4}

    lake.kill_broker(2)
    start(lake, START_5)
    wait_until(lambda: run(lake, REPLACE) == 0, "broker 5", 60)
    capsys.readouterr()
    verify(lake, REPLACED, capsys)
    assert held(lake) == {1: 4, 4: 4, 5: 4}
    wait_until(lambda: run(lake, UNREGISTER_2) == 0, "the end of the session of broker 2", 60)
    assert sorted(lake.admin().describe_brokers()) == [1, 4, 5]
    rows = read_committed(spark, lake.cluster_uri, "t").select("value").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(RECORDS))
