"""Brokers whose Spark is a standalone cluster: a master and two workers in processes of their own."""

import json
import os
import subprocess
import sys

from lakelog.jobs.launch.spark_submit import SOURCES
from lakelog.verification.bench.workers import standalone

SECRET = "in-no-log-and-in-no-plan"

# Broker 3 has its root in a bucket, and is away during the sends. When it is back, executors copy the segments for it.
PROGRAM = """
import json, logging, sys, threading
import lakelog

master, folder, configs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
logging.getLogger("lakelog.replication.server.fetcher.segment_copier").setLevel(logging.INFO)
logging.basicConfig()
spark = lakelog.spark_session("standalone", master, {
    "spark.executor.memory": "512m", "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"{folder}/events",
    "spark.eventLog.compress": "false",
})
roots = {3: "s3://bucket/standalone/broker-3"}
with lakelog.LocalCluster(spark, f"{folder}/lake", configs=configs, roots=roots) as cluster:
    admin, config = cluster.admin(), lakelog.Config.from_properties(configs)
    admin.create_topic("orders", partitions=3, replication_factor=3)
    cluster.stop_broker(3)
    producer, sent = lakelog.Producer(cluster.cluster_uri, acks="all", config=config), []
    for number in range(6):
        values = [f"{number}-{place}" for place in range(50)]
        outcomes = producer.send("orders", [{"key": value, "value": value} for value in values], 60_000).values()
        assert not any(outcome.error for outcome in outcomes), outcomes
        sent += values
    cluster.start_broker(3)
    while any(len(partition.isr) < 3 for partition in admin.describe_topic("orders").partitions):
        threading.Event().wait(0.1)
    fetched = cluster.consumer().fetch("orders", dict.fromkeys(range(3), 0)).values()
    committed = [value.decode() for each in fetched for value in each.records["value"].to_pylist()]
print(json.dumps({"sent": sorted(sent), "committed": sorted(committed)}))
spark.stop()
"""


def drive(master, folder, configs):
    """Runs the program. Returns the result that it prints, and the text of its log."""
    unset = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP")
    environment = {name: value for name, value in os.environ.items() if name not in unset and name[:4] != "AWS_"}
    words = [sys.executable, "-c", PROGRAM, master, str(folder), json.dumps(configs)]
    log = folder / "driver.log"
    with log.open("wb") as file:
        run = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=file, timeout=300, check=False,
            env={**environment, "PYTHONPATH": str(SOURCES)},
        )  # fmt: skip
    assert run.returncode == 0, log.read_text()
    return json.loads(run.stdout.splitlines()[-1]), log.read_text()


def test_brokers_run_on_a_standalone_cluster_and_its_executors_copy_segments(tmp_path, s3_options):
    """The executors know the credentials of a root from the driver alone, and no log has them."""
    options = {**s3_options, "AWS_SECRET_ACCESS_KEY": SECRET}
    configs = {f"storage.3.{name}": value for name, value in options.items()}
    (tmp_path / "events").mkdir()
    with standalone(tmp_path, 2) as cluster:
        found, told = drive(
            cluster.master, tmp_path, {**configs, "min.insync.replicas": 2, "lakelog.executor.copy.bytes": 1}
        )
    assert found["committed"] == found["sent"]
    assert len(found["sent"]) == 300
    assert "executors have copied 6 of 6 segments" in told
    executors = list(tmp_path.glob("worker-*/*/*/stderr"))
    assert len(executors) == 2
    assert all("PythonRunner: Times" in log.read_text() for log in executors), "each has run Python"
    logs = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".jar", ".zip")]
    assert any(path.parent.parent.name == "events" for path in logs)
    assert [path for path in logs if SECRET.encode() in path.read_bytes()] == []
