"""`lakelog recover` on a whole cluster, as users do it: its root is deleted under it, or while it is stopped."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from lakelog.jobs.recover import main
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.errors import FencedClusterRootException, LakelogException, error_or
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.staged_batch import Part, StagedBatch, batch_bytes
from lakelog.replication.storage.tables.cluster_copy import read_copy
from tests.pages import commands
from tests.processes import wait_until
from tests.storage.logs import PRODUCER, TOPIC
from tests.storage.test_root_recovery import Lake

CONFIGS = {"min.insync.replicas": 2}
BROKERS = (1, 2, 3)


def send(producer, *values):
    raise_first_error(producer.send("t", [{"key": value, "value": value} for value in values]))


def committed(spark, cluster, topic="t"):
    return sorted(row["value"].decode() for row in read_committed(spark, cluster, topic).select("value").collect())


def consume(cluster, *values):
    """Reads records as the group, which commits that it has."""
    with Consumer(cluster.cluster_uri, "g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found = list[str]()

        def polled():
            found.extend(row["value"].decode() for row in consumer.poll().to_pylist())
            return len(found) >= len(values)

        wait_until(polled, "the records of the group", 60)
        consumer.commit()
    assert sorted(found) == sorted(values)


def copy(spark, cluster, folder):
    """Runs a query that copies the topic `t` to `copies`, a few records a batch, until it has nothing to do."""
    records = spark.readStream.format("lakelog").options(
        cluster=cluster.cluster_uri, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="4"
    )
    writer = records.load().select("key", "value").writeStream.format("lakelog").trigger(availableNow=True)
    query = writer.options(cluster=cluster.cluster_uri, topic="copies", checkpointLocation=folder).start()
    assert query.awaitTermination(300)
    assert query.exception() is None
    return str(query.id)


def marks(cluster, query_id):
    return [StorageRoot.of(cluster.broker_uri(broker)).child("sinks", query_id).list() for broker in BROKERS]


def forget_last_commit(checkpoint):
    """As after a crash of Spark's driver: it runs the last batch again. Returns the number of that batch."""
    commits = Path(checkpoint) / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()
    return last


def is_read(spark, cluster):
    """Whether the new leaders have taken up their roles, which they do after their election."""
    return not isinstance(error_or(committed, spark, cluster), LakelogException)


def copied_offsets(cluster):
    found = [read_copy(StorageRoot.of(cluster.broker_uri(broker))).get("groups") for broker in BROKERS]
    return [copied is not None and sum(row["committed_offset"] for row in copied.rows) for copied in found]


def recover(lake, command, *words):
    """Runs a command of the page, on the cluster in this folder."""
    program, verb, *arguments = shlex.split(command.replace("/lake/", f"{lake}/"))
    assert (program, verb) == ("lakelog", "recover")
    return main([*arguments, *words])


@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_a_cluster_goes_on_after_its_root_was_deleted(spark, tmp_path, capsys, runs):
    lake, old, new = str(tmp_path / "lake"), str(tmp_path / "lake" / "cluster"), str(tmp_path / "lake" / "cluster-2")
    first = LocalCluster(spark, lake, configs=CONFIGS)
    first.start()
    first.admin().create_topic("t", partitions=2, replication_factor=3, configs={"retention.ms": -1})
    producer, zombie = Producer(old, name="p"), Producer(old)
    send(producer, "a", "b", "c")
    send(zombie, "d")
    consume(first, "a", "b", "c", "d")
    first.admin().create_topic("copies", partitions=1, replication_factor=3)
    query_id = copy(spark, first, str(tmp_path / "checkpoint"))
    last = forget_last_commit(tmp_path / "checkpoint")
    wait_until(
        lambda: marks(first, query_id) == [[f"batch-{last}.arrow", f"done-{last}"]] * 3, "the copies of its batch"
    )
    wait_until(lambda: copied_offsets(first) == [4, 4, 4], "the copies of the group's offsets")
    send(producer, "e")  # the group has not read it
    if not runs:
        first.stop()
    dry_run, command = [line for line in commands("disaster.md") if " recover " in line][:2]
    assert recover(lake, command) == 1
    assert "the cluster root is there, so it need not be recovered" in capsys.readouterr().err
    shutil.copytree(old, f"{lake}/aside")
    shutil.rmtree(old)

    assert recover(lake, dry_run, "-o", "json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [(p["may_be_lost"], p["missing"], sorted(p["in_sync"])) for p in told["partitions"]] == [
        ("nothing", [], [1, 2, 3])
    ] * 3
    assert told["queries"] == [{"query": query_id, "batch": last, "written": "all", "lost": []}]
    assert sum(row["committed_offset"] for row in told["groups"]) == 4
    assert "Nothing that was acknowledged with acks=all is lost of any partition" in err
    assert "would become the root of cluster" in err
    assert not StorageRoot.of(new).list()

    assert recover(lake, command) == 0
    assert "is the root of cluster" in capsys.readouterr().err
    if runs:
        for broker in first.brokers.values():
            wait_until(lambda b=broker: not b.is_running, "the old brokers end by themselves")
        first.stop()
    shutil.copytree(f"{lake}/aside", old)  # the old root comes back

    with LocalCluster(spark, lake, configs=CONFIGS, roots={"cluster": new}) as second:
        wait_until(lambda: is_read(spark, new), "leaders that are read", 60)
        assert committed(spark, new) == ["a", "b", "c", "d", "e"]
        assert second.admin().describe_topic("t").topic.configs == {"retention.ms": "-1"}
        with Producer(new, name="p") as again:
            send(again, "f")
        consume(second, "e", "f")
        assert copy(spark, second, str(tmp_path / "checkpoint")) == query_id
        assert committed(spark, new, "copies") == ["a", "b", "c", "d", "e", "f"]
        for name in (producer, zombie):
            with pytest.raises(FencedClusterRootException, match="the cluster root was recovered elsewhere"):
                send(name, "lost")
        with pytest.raises(FencedClusterRootException, match="the cluster root was recovered elsewhere"):
            LocalCluster(spark, lake, configs=CONFIGS).start()
        assert committed(spark, new) == ["a", "b", "c", "d", "e", "f"]
    assert recover(lake, command) == 1
    assert "is the root of cluster" in capsys.readouterr().err


def test_a_query_whose_last_batch_cannot_be_finished_is_named(tmp_path, capsys):
    lake = Lake.made(tmp_path / "lake").lose()
    part = Part("part-8-1.parquet", 1, {TOPIC: {0: 3}})
    batch = StagedBatch(8, PRODUCER, (part,), {TOPIC: {0: 3}}, {TOPIC: {0: 6}})  # the log has one of three records
    lake.root("broker-2").child("sinks", "query").write("batch-8.arrow", batch_bytes(batch))
    roots = [lake.root(f"broker-{broker}").uri for broker in BROKERS]
    assert main(["--cluster", lake.root("new").uri, "--dry-run", "-o", "json", "--roots", *roots]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["queries"] == [{"query": "query", "batch": 8, "written": "some", "lost": [part.name]}]
    assert "Query query cannot go on: batch 8 was written in part" in err
