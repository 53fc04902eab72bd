"""A streaming query whose driver is killed (SIGKILL) at twenty random moments writes each record exactly once.

The driver's processes are killed with it. Each run splits the same batches into other tasks, and one task of a batch
fails at its first attempt. Most tasks have enough bytes to encode a batch themselves.
"""

import os
import random
import signal
import subprocess
import sys
import threading

from lakelog.jobs.launch.spark_submit import SOURCES
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.local_cluster import LocalCluster

KILLS, RECORDS, PARTITIONS = 20, 4_000, 3

PROGRAM = """
import random, sys
import lakelog
from pyspark import TaskContext

cluster, checkpoint, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = lakelog.spark_session("copies", "local[2, 2]", {"spark.driver.memory": "512m", "spark.speculation": "true"})
records = spark.readStream.format("lakelog").options(
    cluster=cluster, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="100").load()

def fails_once(batches):
    context = TaskContext.get()
    for batch in batches:
        yield batch
    if context.partitionId() == 0 and context.attemptNumber() == 0 and random.random() < 0.5:
        raise RuntimeError("this attempt fails")

copied = records.select("value").repartition(tasks).mapInArrow(fails_once, "value binary")
writer = copied.writeStream.format("lakelog").options(cluster=cluster, topic="out", checkpointLocation=checkpoint)
print("started", flush=True)
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
print("finished", flush=True)
"""


def start(cluster, checkpoint, tasks):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    words = [sys.executable, "-c", PROGRAM, cluster, str(checkpoint), str(tasks)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    )


def value(number):
    return f"{number}:{random.Random(number).randbytes(4000).hex()}"


def copied(cluster):
    """All values of the topic `out`."""
    consumer, offsets, found = Consumer(cluster), dict.fromkeys(range(PARTITIONS), 0), []
    while True:
        fetched = consumer.fetch("out", offsets, max_wait_ms=1000)
        count = sum(each.records.num_rows for each in fetched.values())
        if not count:
            return found
        for number, each in fetched.items():
            offsets[number] += each.records.num_rows
            found += [value.decode() for value in each.records["value"].to_pylist()]


def test_twenty_kills_lose_nothing_and_double_nothing(spark, tmp_path):
    chance, kills, runs = random.Random(17), 0, 0
    with LocalCluster(spark, str(tmp_path / "lake"), brokers=2) as cluster:
        for topic in ("in", "out"):
            cluster.admin().create_topic(topic, partitions=PARTITIONS, replication_factor=2)
        with Producer(cluster.cluster_uri) as producer:
            producer.send("in", [{"key": str(n), "value": value(n)} for n in range(RECORDS)], 60_000)
        is_finished = False
        while not is_finished:
            driver = start(cluster.cluster_uri, tmp_path / "checkpoint", chance.randrange(1, 5))
            runs += 1
            timer = threading.Timer(chance.uniform(0.5, 8.0), os.killpg, (driver.pid, signal.SIGKILL))
            lines = iter(driver.stdout.readline, "")
            assert next(lines) == "started\n"
            if kills < KILLS:
                timer.start()
            is_finished = "finished\n" in list(lines)
            timer.cancel()
            killed = driver.wait() == -signal.SIGKILL
            kills += killed
            assert killed or is_finished, "it ended by itself"
        found = copied(cluster.cluster_uri)
    print(f"{kills} kills in {runs} runs")
    assert kills >= KILLS // 2, "most kills hit a query that had work left"
    assert sorted(found) == sorted(value(number) for number in range(RECORDS))
