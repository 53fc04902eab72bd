"""Brokers and controllers of another version and of this one run one cluster: each follows, leads and reads what the
other has written. `versions.py` says which version that is."""

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, Server
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.roots.roots import LocalRoots
from tests.long.versions import PATIENCE, Version, other_version, this_version
from tests.processes import wait_until

BROKERS = (1, 2, 3)
TOPIC = "numbers"
# The third broker stays as it is while the first two change their versions: either one takes over from the other.
ASSIGNMENT = {0: (1, 2, 3), 1: (2, 1, 3), 2: (3, 1, 2), 3: (3, 2, 1)}
SETTINGS = {
    "broker.heartbeat.interval.ms": 500,
    "auto.leader.rebalance.enable": "false",
    "log.cleaner.backoff.ms": 1000,
}
A_SEND = 30  # records
PRINTED = ("print.partition", "print.offset", "print.timestamp", "print.headers", "print.key")


@pytest.fixture
def this() -> Version:
    return this_version()


@pytest.fixture
def other(tmp_path: Path) -> Version:
    return other_version(tmp_path)


class Scene:
    """The cluster, and the clients of both versions. All servers begin as the version `first`, which makes the
    cluster."""

    def __init__(self, cluster: ProcessCluster, first: Version, second: Version) -> None:
        self.cluster = cluster
        self.clients = (first, second)
        self.members = cycle(self.clients)
        self.sent = 0
        self.seen_by_group: list[str] = []
        first.run("format", "--cluster", cluster.uri)
        self.admin = AdminClient(cluster.uri)
        for process in cluster.all():
            process.program = first.program
        cluster.launch()
        wait_until(lambda: not cluster.missing_servers(), "all servers start", PATIENCE)
        self.admin.create_topic(TOPIC, assignment=ASSIGNMENT, configs={"min.insync.replicas": 2})

    def start(self, server: Server, version: Version) -> None:
        """Ends a server as SIGKILL does, unless it is dead, and starts it as this version."""
        self.cluster.process(server).program = version.program
        self.cluster.start(server)

    def send(self) -> None:
        """Sends records with both versions, one after the other. All are acknowledged with acks=all."""
        for version in self.clients:
            numbers = range(self.sent, self.sent + A_SEND)
            lines = [f"by:{version.name}\tk{number % 7}\t{number}\n" for number in numbers]
            version.run(
                *("console-producer", "--cluster", self.cluster.uri, "--topic", TOPIC, "--acks", "all"),
                *("--property", "parse.key=true", "--property", "parse.headers=true"),
                given="".join(lines),
            )  # fmt: skip
            self.sent += A_SEND

    def leaders(self) -> Mapping[int, int]:
        return {found.partition: found.leader for found in self.admin.describe_topic(TOPIC).partitions}

    def elect(self, version: Version) -> None:
        """Waits until every ISR is whole. Then every preferred replica leads."""

        def are_in_sync() -> bool:
            self.cluster.check()
            return all(len(found.isr) == len(BROKERS) for found in self.admin.describe_topic(TOPIC).partitions)

        wait_until(are_in_sync, "every replica is in sync", PATIENCE)
        version.run(
            *("leader-election", "--cluster", self.cluster.uri),
            *("--election-type", "preferred", "--all-topic-partitions"),
        )  # fmt: skip
        assert self.leaders() == {partition: replicas[0] for partition, replicas in ASSIGNMENT.items()}

    def check(self) -> None:
        """Sends, and reads all records with both versions: the rows are equal, and no record is missing or doubled.
        `status` of both finds no fault. A group, whose members are of either version in turn, has read each record
        once."""
        self.send()
        first, second = (self.read(version, "--from-beginning") for version in self.clients)
        assert first == second
        assert numbers_of(first) == list(range(self.sent))
        self.seen_by_group += self.read(next(self.members), "--from-beginning", "--group", "readers")
        assert numbers_of(self.seen_by_group) == list(range(self.sent))
        for version in self.clients:
            version.run("status", "--cluster", self.cluster.uri)

    def read(self, version: Version, *words: str) -> list[str]:
        """The committed records, with all that is printed of them, in the order of partitions and offsets."""
        printed = [word for name in PRINTED for word in ("--property", f"{name}=true")]
        found = version.run(
            *("console-consumer", "--cluster", self.cluster.uri, "--topic", TOPIC, "--timeout-ms", "3000"),
            *(*words, *printed),
        )  # fmt: skip
        return sorted(found.splitlines())

    def hand_over(self, before: Version, after: Version) -> None:
        """Replaces every server of `before` by one of `after`, one after another, by kills and by elections. At the end
        both versions find the logs whole."""
        self.start(1, after)  # it follows leaders of `before`
        self.check_after_election(before)  # and leads followers of `before`
        self.cluster.kill(1)
        self.send()  # broker 2 of `before` leads after `after`
        self.start(1, after)
        self.check_after_election(after)
        self.cluster.kill(2)
        self.send()  # broker 1 of `after` leads after `before`
        self.start(2, after)
        self.check_after_election(before)
        for name in CONTROLLERS:  # the second one takes over from the first, or the other way round
            self.start(name, after)
            self.check_after_election(after)
        self.start(3, after)
        self.check_after_election(before)
        for version in self.clients:
            for broker in BROKERS:
                version.run("dump-log", "--root", self.cluster.brokers[broker].root, "--verify")

    def check_after_election(self, version: Version) -> None:
        self.elect(version)
        self.check()


def numbers_of(lines: list[str]) -> list[int]:
    return sorted(int(line.rpartition("\t")[2]) for line in lines)


@pytest.fixture
def scene(tmp_path: Path, this: Version, other: Version) -> Iterator[Scene]:
    with ProcessCluster(LocalRoots(tmp_path), tmp_path, BROKERS, SETTINGS) as cluster:
        yield Scene(cluster, other, this)


def test_a_cluster_of_another_version_is_followed_led_and_read_by_this_one_and_back(
    scene: Scene, this: Version, other: Version
) -> None:
    scene.check()
    scene.hand_over(other, this)
    scene.hand_over(this, other)
