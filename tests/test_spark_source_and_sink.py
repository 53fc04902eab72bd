"""`format("lakelog")` with running brokers: queries that write and read while the cluster works."""

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.cluster import Cluster
from tests.odd_names import NO_PATTERN


@pytest.fixture(scope="module")
def cluster(spark, tmp_path_factory):
    with LocalCluster(spark, str(tmp_path_factory.mktemp(NO_PATTERN)), brokers=2) as running:
        for topic, partitions in {"in": 2, "out": 3, "many": 3, "copies": 3, "moves": 2}.items():
            running.admin().create_topic(topic, partitions, replication_factor=2)
        yield running


def read(spark, cluster, topic):
    return spark.read.format("lakelog").options(cluster=cluster.cluster_uri, subscribe=topic).load()


def values(spark, cluster, topic):
    return sorted(
        int(row["value"]) for row in read(spark, cluster, topic).selectExpr("CAST(value AS STRING)").collect()
    )


def copy(spark, cluster, folder):
    """Runs the query that copies the topic `in` to `out`, until it has nothing to do."""
    records = spark.readStream.format("lakelog").options(
        cluster=cluster.cluster_uri, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    writer = records.load().selectExpr("key", "value", "'out' AS topic").writeStream.format("lakelog")
    query = writer.options(cluster=cluster.cluster_uri, checkpointLocation=folder).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert query.exception() is None
    return str(query.id)


def test_a_batch_and_two_runs_of_a_query_write_each_record_once(spark, cluster, tmp_path):
    numbers = spark.range(100).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
    numbers.write.format("lakelog").mode("append").options(cluster=cluster.cluster_uri, topic="in").save()
    assert values(spark, cluster, "in") == list(range(100))
    query_id = copy(spark, cluster, str(tmp_path))
    more = spark.range(100, 110).selectExpr("CAST(id AS STRING) AS value", "1 AS partition", "'in' AS topic")
    more.write.format("lakelog").mode("append").options(**{"kafka.bootstrap.servers": cluster.cluster_uri}).save()
    assert copy(spark, cluster, str(tmp_path)) == query_id
    assert values(spark, cluster, "out") == list(range(110))
    stage = Cluster.open(cluster.cluster_uri).root.child("sinks", query_id)
    assert [name.partition("-")[0] for name in stage.list()] == ["batch", "done"], "nothing else stays"


def test_records_that_tasks_have_encoded_are_there_once_in_batch_and_in_streaming(spark, cluster, tmp_path):
    """Each task has more than 256 KiB for partition 0, and less for partition 2. One broker leads both."""
    rows = spark.range(0, 6000, 1, 2).selectExpr(
        "IF(id % 10 < 9, 0, 2) AS partition", "CAST(CAST(id AS STRING) AS BINARY) AS key",
        "concat_ws(' ', sha2(CAST(id AS STRING), 512), sha2(CAST(-id AS STRING), 512)) AS value",
    )  # fmt: skip
    rows.write.format("lakelog").mode("append").options(cluster=cluster.cluster_uri, topic="many").save()
    records = spark.readStream.format("lakelog").options(
        cluster=cluster.cluster_uri, subscribe="many", startingOffsets="earliest"
    )
    writer = records.load().selectExpr("partition", "key", "value").writeStream.format("lakelog")
    writer = writer.options(cluster=cluster.cluster_uri, topic="copies", checkpointLocation=str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(300)
    expected = sorted(map(tuple, rows.selectExpr("partition", "key", "CAST(value AS BINARY)").collect()))
    for topic in ("many", "copies"):
        found = read(spark, cluster, topic).selectExpr("partition", "key", "value", "offset").collect()
        assert sorted(row[:3] for row in found) == expected
        assert sorted((row["partition"], row["offset"]) for row in found) == [
            (p, o) for p, count in ((0, 5400), (2, 600)) for o in range(count)
        ]


def test_a_batch_that_spark_runs_again_adds_nothing(spark, cluster, tmp_path):
    """The commit of the last batch is gone from the checkpoint, as after a crash of the driver."""
    copy(spark, cluster, str(tmp_path))
    before = values(spark, cluster, "out")
    commits = tmp_path / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()
    copy(spark, cluster, str(tmp_path))
    assert values(spark, cluster, "out") == before


def test_a_batch_whose_stage_is_gone_is_not_written_again(spark, cluster, tmp_path):
    """As after an older copy of the cluster root: the logs know the batch, its stage does not."""

    def run(partition):
        records = spark.readStream.format("lakelog").options(
            cluster=cluster.cluster_uri, subscribe="many", startingOffsets="earliest"
        )
        writer = records.load().selectExpr("value", f"{partition} AS partition").writeStream.format("lakelog")
        writer = writer.options(cluster=cluster.cluster_uri, topic="moves", checkpointLocation=str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            (tmp_path / "commits" / "0").unlink(missing_ok=True)
            (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
            Cluster.open(cluster.cluster_uri).root.child("sinks", str(query.id)).delete_folder()

    run(0)
    before = read(spark, cluster, "moves").select("partition", "value").collect()
    assert {row["partition"] for row in before} == {0}
    for partition in (0, 1):
        with pytest.raises(StreamingQueryException, match="moves-0 has records of this query that its stage"):
            run(partition)
    assert read(spark, cluster, "moves").select("partition", "value").collect() == before


@pytest.mark.parametrize(
    ("columns", "options", "mode", "text"),
    [
        (["'v' AS other"], {"topic": "in"}, "append", "there is no column value"),
        (["'v' AS value"], {}, "append", "there is no topic: set the option topic, or add a column topic"),
        (["id AS value"], {"topic": "in"}, "append", "column value is bigint; allowed: binary or string"),
        (["'v' AS value"], {"topic": "nobody"}, "append", "no topic nobody; there are: copies, in, many, moves, out"),
        (["'v' AS value"], {"topic": "in"}, "overwrite", "mode overwrite: a topic cannot be overwritten"),
        (["'v' AS value"], {"topic": "in", "ack": "1"}, "append", "option ack is unknown; did you mean acks?"),
    ],
)
def test_a_write_that_cannot_be_is_refused_in_one_sentence(spark, cluster, columns, options, mode, text):
    writer = spark.range(1).selectExpr(*columns).write.format("lakelog").mode(mode)
    with pytest.raises(AnalysisException) as error:
        writer.options(cluster=cluster.cluster_uri, **options).save()
    assert text in str(error.value)
    assert "Traceback" not in str(error.value)
