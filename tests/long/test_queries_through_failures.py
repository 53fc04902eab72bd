"""One query copies a topic to another, and one reads the copy into a Delta table, while the cluster fails and changes:
the table has every acknowledged record once.

The brokers and controllers are processes. The leader of a partition is killed (SIGKILL), logs are compacted, partitions
move, records that were read are deleted, and both topics are made again.
"""

import json
import threading
from pathlib import Path

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.roots.roots import LocalRoots
from tests.processes import wait_until

BROKERS, PARTITIONS, A_SEND = (1, 2, 3), 3, 30
ASSIGNMENT = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
MOVED = {0: (3, 2), 1: (1, 3), 2: (2, 1)}
SETTINGS = {"log.cleaner.backoff.ms": 200, "log.cleaner.min.files": 4, "log.segment.delete.delay.ms": 1000}
PATIENCE = 300.0  # s


class Feeder(threading.Thread):
    """Sends the numbers from 0 on to the topic `in` while `may_send` is set. `acknowledged`: how many have arrived."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.error = None
        self.may_send = threading.Event()
        self._cluster = cluster
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def run(self):
        with Producer(self._cluster) as producer:
            while not self._is_over.wait(0.1):
                if self.may_send.is_set():
                    self._send(producer)

    def _send(self, producer):
        with self._lock:
            numbers = range(self.acknowledged, self.acknowledged + A_SEND)
            try:
                raise_first_error(producer.send("in", [{"key": str(n), "value": str(n)} for n in numbers], 120_000))
            except Exception as error:
                self.error = error
                raise
            self.acknowledged += A_SEND

    def pause(self):
        """Stops sending. Returns after the last answer."""
        self.may_send.clear()
        with self._lock:
            return self.acknowledged

    def stop(self):
        self._is_over.set()
        self.join()


class Scene:
    """The cluster, the queries and their table."""

    def __init__(self, spark, folder: Path, processes: ProcessCluster, cluster: str):
        self.spark, self.folder, self.processes, self.cluster = spark, folder, processes, cluster
        self.admin, self.view = AdminClient(cluster), TopicView(Cluster.open(cluster))
        self.feeder = Feeder(cluster)
        self.queries = {}

    def make_topics(self):
        for topic in ("in", "out"):
            self.admin.create_topic(topic, assignment=ASSIGNMENT)

    def start(self):
        copies = self._read("in").selectExpr("key", "value", "'out' AS topic").writeStream.format("lakelog")
        kept = self._read("out").selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number").writeStream.format("delta")
        self.queries["in"] = self._run(copies.option("cluster", self.cluster), "copies")
        self.queries["out"] = self._run(kept.option("path", str(self.folder / "kept")), "kept")
        self.feeder.start()
        self.feeder.may_send.set()

    def _read(self, topic):
        """A stream of the topic. With failOnDataLoss=true it would end when the topic is made again. Records that it
        loses are missing in the table at the end of the test."""
        return self.spark.readStream.format("lakelog").options(
            cluster=self.cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false"
        ).load()  # fmt: skip

    def _run(self, writer, name):
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint-{name}")).start()

    def check(self):
        self.processes.check()
        assert self.feeder.error is None
        for query in self.queries.values():
            assert query.exception() is None, str(query.exception())

    def wait(self, condition, what):
        def is_over():
            self.check()
            return condition()

        return wait_until(is_over, what, PATIENCE)

    def numbers(self):
        rows = self.spark.read.format("delta").load(str(self.folder / "kept")).collect() if self.has_table() else []
        return sorted(row["number"] for row in rows)

    def has_table(self):
        return (self.folder / "kept" / "_delta_log").exists()

    def go_on(self, what):
        """Waits until the table has all that was acknowledged until now."""
        wanted = self.feeder.acknowledged
        self.wait(lambda: len(self.numbers()) >= wanted, f"{what}: the table has {wanted} records")
        print(f"{what}: the table has {wanted} records", flush=True)

    def registration(self, topic, partition=0):
        return self.view.partitions(topic)[partition]

    def done(self, topic):
        """The offsets up to which a query has committed what it read."""
        progress = self.queries[topic].lastProgress
        return json.loads(progress["sources"][0]["endOffset"])["offsets"][topic]


def kill_the_leader(scene):
    leader = scene.registration("in").leader
    scene.processes.brokers[leader].kill()
    scene.wait(lambda: scene.registration("in").leader not in (leader, -1), "another broker leads")
    scene.go_on("a leader was killed")
    scene.processes.brokers[leader].start()
    for topic in ("in", "out"):
        scene.wait(lambda t=topic: all(len(r.isr) == 2 for r in scene.view.partitions(t).values()), "both are in sync")


def see_a_compaction(scene):
    def is_compacted():
        found = scene.registration("in")
        log = scene.view.log(found.leader).refresh().partition(found.topic_id_partition)
        segments = [batch.segment for batch in log.batches]
        return any(segments.count(name) >= SETTINGS["log.cleaner.min.files"] for name in segments)

    scene.wait(is_compacted, "a segment has the batches of several sends")
    scene.go_on("a log was compacted")


def move_partitions(scene):
    moves = {(topic, number): brokers for topic in ("in", "out") for number, brokers in MOVED.items()}
    assert not [error for error in scene.admin.alter_partition_reassignments(moves).values() if error.error]
    scene.wait(lambda: not scene.admin.list_partition_reassignments(), "all partitions have moved")
    assert set(scene.registration("out").replicas) == set(MOVED[0])
    scene.go_on("partitions were moved")


def delete_what_was_read(scene):
    for topic in ("in", "out"):
        offsets = {(topic, int(number)): offset for number, offset in scene.done(topic).items()}
        found = scene.admin.delete_records(offsets)
        assert found == offsets
        assert min(offsets.values()) > 0
    scene.go_on("records were deleted")


def make_topics_again(scene):
    wanted = scene.feeder.pause()
    scene.wait(lambda: len(scene.numbers()) == wanted, "the table has everything")
    for topic in ("in", "out"):
        scene.admin.delete_topic(topic)
    scene.wait(lambda: not scene.admin.list_topics(), "both topics are gone")
    scene.make_topics()
    scene.feeder.may_send.set()
    scene.go_on("the topics were made again")


EVENTS = [kill_the_leader, see_a_compaction, move_partitions, delete_what_was_read, kill_the_leader, make_topics_again]


@pytest.fixture
def scene(spark, tmp_path):
    with ProcessCluster(LocalRoots(tmp_path), tmp_path, BROKERS, SETTINGS) as processes:
        processes.start_all()
        made = Scene(spark, tmp_path, processes, processes.uri)
        made.make_topics()
        yield made
        for query in made.queries.values():
            query.stop()


def test_the_table_has_every_acknowledged_record_once(scene):
    scene.start()
    scene.go_on("the start")
    for event in [*EVENTS, see_a_compaction]:
        before = scene.feeder.acknowledged
        scene.wait(lambda least=before + 10 * A_SEND: scene.feeder.acknowledged >= least, "ten more sends")
        event(scene)
    scene.feeder.stop()
    wanted = list(range(scene.feeder.acknowledged))
    scene.wait(lambda: len(scene.numbers()) >= len(wanted), "the table has everything")
    assert scene.numbers() == wanted
