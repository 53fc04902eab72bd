"""Upgrades a cluster and goes back, process by process, with the commands of `docs/upgrade.md`, while producers and
consumers of both versions work. `versions.py` says which version the earlier one is.
"""

import json
import signal
import subprocess
from collections import defaultdict
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.faults.log_check import check_logs
from lakelog.verification.faults.number_producer import AcknowledgedRecord
from tests.long.clients_of_a_version import PARTITIONS
from tests.long.shell import Shell, of_page, wait_for_brokers
from tests.long.versions import PATIENCE, other_version, this_version
from tests.processes import wait_until

BROKERS = (1, 2, 3)
CONTROLLERS = ("controller 1", "controller 2")
EARLIER, NEW = "/opt/lakelog-0.1.0", "/opt/lakelog-0.2.0"  # the environments, as the page names them
TOPIC, GROUP = "orders", "rolling"
CLIENTS = Path(__file__).with_name("clients_of_a_version.py")
STANDS = "stands for election"


def of_upgrade(which):
    """The only command of the page with this text."""
    (line,) = of_page("upgrade.md", which)
    return line


class Upgrade:
    """A cluster of the earlier version, with its processes by broker id or name. The folder has their logs."""

    def __init__(self, shell, folder):
        self.shell = shell
        self._log = folder / "processes.log"
        self._processes = {}
        shell.run(f"{EARLIER}/bin/lakelog format --cluster /lake/cluster")
        for server in (*CONTROLLERS, *BROKERS):
            self.start(server, EARLIER)
        wait_for_brokers(shell.cluster, *BROKERS)
        self.admin = AdminClient(shell.cluster)
        self.admin.create_topic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": 2})

    def start(self, server, environment):
        """Starts a server as the page says, with the environment of a version."""
        line = of_upgrade(f"{environment}/bin/lakelog {'broker' if server in BROKERS else 'controller'} ")
        if server in BROKERS:
            line = line.replace("--broker-id 1 ", f"--broker-id {server} ").replace("/broker-1", f"/broker-{server}")
        self._processes[server] = self.shell.start(line.removesuffix("&"))

    def replace(self, server, environment):
        """Stops a server and starts it as another version, then waits for what the page says."""
        process, stood = self._processes[server], self._stood()
        process.terminate()
        assert process.wait(PATIENCE) == 0, f"{server} ends in order"
        self.start(server, environment)
        if server in CONTROLLERS:
            wait_until(lambda: self._stood() > stood, f"{server} stands for election", PATIENCE)
        self.wait()

    def _stood(self):
        return self._log.read_text("utf-8", "replace").count(STANDS)

    def wait(self):
        """Repeats the page's command until nothing is wrong."""
        line = "lakelog status --cluster /lake/cluster"
        assert line in of_page("upgrade.md", " status ")
        wait_until(lambda: self.shell.tried(line).returncode == 0, "nothing is wrong", PATIENCE)

    def replace_brokers(self, environment):
        for broker in BROKERS:
            self.replace(broker, environment)
        self.shell.run(of_upgrade("leader-election"))

    def replace_controllers(self, environment):
        """Those that stand by first."""
        shown = json.loads(self.shell.run(f"{of_upgrade('controller --cluster /lake/cluster --describe')} -o json"))
        active = int(shown[0]["controller"].split("-")[-2])
        for name in sorted(CONTROLLERS, key=lambda name: self._processes[name].pid == active):
            self.replace(name, environment)


class Load:
    """A producer and a consumer of each version. The consumers are one group."""

    def __init__(self, cluster_uri, folder, versions, ending):
        self._processes = {}
        self._files = {}
        for number, version in enumerate(versions):
            for kind, given in (("produce", str(number * 10**9)), ("consume", GROUP)):
                name = f"{kind} {version.name}"
                out = self._files[name] = folder / f"{name}.json"
                out.touch()
                words = [*version.python, str(CLIENTS), kind, cluster_uri, TOPIC, given, str(out)]
                with (folder / f"{name}.log").open("wb") as log:
                    process = self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log)
                ending.callback(process.wait)
                ending.callback(process.kill)

    def check(self):
        """Every client works: an error would have ended it."""
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        assert not ended, ended

    def stop(self, kind):
        for name, process in self._processes.items():
            if name.startswith(kind):
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0, name

    def lines(self, kind):
        """The whole lines of each client of a kind, in their order. The last one may be half written."""
        return {
            name: [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            for name, file in self._files.items()
            if name.startswith(kind)
        }

    def acknowledged(self):
        """The acknowledged records of each producer, in the order of its sends."""
        return {
            name: [
                AcknowledgedRecord(partition, offset, number)
                for partition, base, numbers, _ in lines
                for offset, number in enumerate(numbers, base)
            ]
            for name, lines in self.lines("produce").items()
        }

    def consumed(self):
        """The records that each consumer got, in their order."""
        return {name: [tuple(line) for line in lines] for name, lines in self.lines("consume").items()}

    def counts(self):
        """How many records each client has sent or got."""
        return {name: len(records) for name, records in {**self.acknowledged(), **self.consumed()}.items()}

    def wait_for_more(self):
        """Every client has gone on since this call."""
        before = self.counts()

        def has_gone_on():
            self.check()
            return all(count > before[name] for name, count in self.counts().items())

        wait_until(has_gone_on, "every client goes on", PATIENCE)


@pytest.fixture
def versions(tmp_path):
    """The earlier version and this one, installed where the page has their environments."""
    found = other_version(tmp_path), this_version()
    where = ("-c", "import lakelog.jobs; print(lakelog.jobs.__file__)")
    code = {subprocess.check_output([*version.python, *where]) for version in found}
    assert len(code) == 2, "each runs its own code"
    for version in found:
        version.install(tmp_path / "environments" / version.name)
    return found


@pytest.fixture
def shell(tmp_path, versions):
    folders = (str(tmp_path / "environments" / version.name) for version in versions)
    environments = dict(zip((EARLIER, NEW), folders, strict=True))
    with Shell(tmp_path, environments) as made:
        yield made


def test_a_cluster_is_upgraded_and_goes_back_under_load(shell, versions, tmp_path):
    cluster = Upgrade(shell, tmp_path)
    with ExitStack() as ending:
        load = Load(shell.cluster, tmp_path, versions, ending)
        load.wait_for_more()
        the_steps_before(shell)
        cluster.replace_brokers(NEW)
        cluster.replace_controllers(NEW)
        load.wait_for_more()
        for version in versions:
            version.run("status", "--cluster", shell.cluster)
        cluster.replace_controllers(EARLIER)
        cluster.replace_brokers(EARLIER)
        load.wait_for_more()
        load.stop("produce")
        check_records(load, shell.cluster)
    for version in versions:
        check_events(version, shell.cluster)


def the_steps_before(shell):
    shell.run(of_upgrade(" backup "))
    shown = shell.tried(of_upgrade(" doctor ")).stdout  # it may find other faults of this machine
    assert "; this version of Lakelog knows " in shown, shown


def check_records(load, cluster_uri):
    """Every acknowledged record is there once, in the order of its producer, and the group got all of them, once."""
    acknowledged = load.acknowledged()
    everything = list(chain.from_iterable(acknowledged.values()))
    places = {(record.partition, record.offset, record.number) for record in everything}
    wait_until(lambda: places <= set(chain.from_iterable(load.consumed().values())), "the group gets all", PATIENCE)
    load.stop("consume")
    found = check_logs(TopicView(Cluster.open(cluster_uri)), TOPIC, everything)
    assert found.is_good, found
    assert found.records == len(everything) == len(places)
    for records in (*acknowledged.values(), *load.consumed().values()):
        assert is_in_order(records)
    assert sorted(chain.from_iterable(load.consumed().values())) == sorted(places), "no record comes twice"
    longest = {name: max(seconds for *_, seconds in lines) for name, lines in load.lines("produce").items()}
    print(f"{len(everything)} records; the longest send:", ", ".join(f"{n} {s:.1f} s" for n, s in longest.items()))


def is_in_order(records):
    """Whether the offsets of each partition, and their numbers, rise. The numbers of two producers are far apart."""
    seen = defaultdict(list)
    for partition, offset, number in records:
        seen[partition, number // 10**9].append((offset, number))
    columns = chain.from_iterable(zip(*pairs, strict=True) for pairs in seen.values())
    return all(list(column) == sorted(column) for column in columns)


def check_events(version, cluster_uri):
    """No partition was offline, and no election was unclean."""
    told = {event["event"] for event in json.loads(version.run("events", "--cluster", cluster_uri, "-o", "json"))}
    assert "LeaderElected" in told
    assert not told & {"PartitionOffline", "UncleanLeaderElected"}, told
