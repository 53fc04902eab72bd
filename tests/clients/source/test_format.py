"""`format("lakelog")` in Spark, over real logs: the examples of Spark's Kafka guide with another format and address."""

import pytest
from pyspark.errors import AnalysisException, PySparkException

from lakelog import offsets_behind_latest
from tests.clients.world import World
from tests.storage.logs import NOON, P0, P1, TOPIC, fill

ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
KAFKA = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Partition 0 has 0-2 | 3-4, of which 4 is not committed, partition 1 has 0-1."""
    made = World(str(tmp_path_factory.mktemp("a world")))
    fill(made.logs[1], P0, 3, 2)
    fill(made.logs[1], P1, 2)
    made.say(4)
    made.say(2, P1)
    return made


def load(reader, world, **given):
    return reader.format("lakelog").option("kafka.bootstrap.servers", world.uri).options(**given).load()


def places(records):
    return sorted((row["partition"], row["offset"]) for row in records.select("partition", "offset").collect())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": TOPIC}, ALL),
        ({"subscribe": f"{TOPIC},{TOPIC}"}, ALL),
        ({"subscribePattern": "f.*"}, ALL),
        ({"assign": f'{{"{TOPIC}":[1]}}'}, ALL[4:]),
        (
            {
                "subscribe": TOPIC,
                "startingOffsets": f'{{"{TOPIC}":{{"0":1,"1":-2}}}}',
                "endingOffsets": f'{{"{TOPIC}":{{"0":3,"1":-1}}}}',
            },
            [(0, 1), (0, 2), (1, 0), (1, 1)],
        ),
        ({"subscribe": TOPIC, "startingTimestamp": str(int(NOON.timestamp() * 1000) + 2),
          "startingOffsetsByTimestampStrategy": "latest"}, [(0, 2), (0, 3)]),
    ],
)  # fmt: skip
def test_a_batch_query_reads_each_committed_record_once(spark, world, given, expected):
    records = load(spark.read, world, **given)
    assert records.columns == KAFKA
    assert places(records) == expected


def test_a_query_casts_values_to_text_and_reads_headers(spark, world):
    records = load(spark.read, world, subscribe=TOPIC, includeHeaders="true", includeLeaderEpoch="true")
    assert records.columns == [*KAFKA, "headers", "leader_epoch"]
    rows = (
        records.where("partition = 1").selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers").collect()
    )
    assert sorted(tuple(row) for row in rows) == [("k", "0", None), ("k", "1", None)]


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_queries_of_one_frame_do_not_see_the_filters_of_others(spark, world, change_settings, pushdown):
    """Spark 4.2 would read the partitions that the first filters have left, for the later ones too."""
    change_settings({"spark.sql.python.filterPushdown.enabled": pushdown})
    records = load(spark.read, world, subscribe=TOPIC, maxRecordsPerPartition="1")
    first, second = records.where("partition = 1"), records.where("partition = 0 AND offset >= 3")
    assert places(first) == ALL[4:]
    assert places(second.union(first)) == ALL[3:]
    assert places(records.where("value = X'30' OR offset = 1")) == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1)]
    assert places(records) == ALL


def test_a_streaming_query_reads_each_record_once_over_restarts(spark, world, tmp_path):
    def run(**given):
        records = load(spark.readStream, world, subscribe=TOPIC, startingOffsets="earliest", **given)
        checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
        writer = records.writeStream.format("parquet").options(path=str(tmp_path / "out"), **checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        (behind,) = offsets_behind_latest(query.lastProgress)
        assert behind["maxOffsetsBehindLatest"] == 0
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert run(maxOffsetsPerTrigger="4") == [4, 2]
    assert sum(run()) == 0
    assert places(spark.read.parquet(str(tmp_path / "out"))) == ALL


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": TOPIC, "startingOffset": "latest"}, "is unknown; did you mean startingOffsets?"),
        ({"subscribe": TOPIC, "assign": "{}"}, "options subscribe, assign exclude one another"),
        ({"subscribe": TOPIC, "startingOffsets": "{"}, "startingOffsets: it is no JSON: Expecting property"),
        ({"subscribe": "nobody"}, "UnknownTopicOrPartitionException: no topic nobody; there are: flights"),
        ({"subscribe": TOPIC, "startingOffsets": f'{{"{TOPIC}":{{"0":9,"1":0}}}}'}, "offset 9 of flights-0 is"),
    ],
)  # fmt: skip
def test_a_wrong_option_fails_a_query_with_one_sentence(spark, world, given, text):
    with pytest.raises(AnalysisException) as error:
        load(spark.read, world, **given).collect()
    assert text in str(error.value)
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "ddl", "text"),
    [
        ({"endingOffsets": "latest"}, None, "option endingOffsets is for batch reads; a stream has no end"),
        ({"endingTimestamp": "1"}, None, "option endingTimestamp is for batch reads; a stream has no end"),
        (
            {"endingOffsetsByTimestamp": f'{{"{TOPIC}":{{"0":1}}}}'},
            None,
            "endingOffsetsByTimestamp is for batch",
        ),
        ({}, "colour STRING", "colour"),
    ],
)
def test_a_refused_stream_fails_with_one_sentence_about_its_option_or_column(spark, world, tmp_path, given, ddl, text):
    reader = spark.readStream.schema(ddl) if ddl else spark.readStream
    writer = load(reader, world, subscribe=TOPIC, **given).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException) as error:
        query.awaitTermination(120)
    assert text in str(error.value)
    assert "Traceback" not in str(error.value)


def test_a_read_of_a_folder_without_a_cluster_fails_when_it_is_defined(spark, tmp_path):
    with pytest.raises(AnalysisException, match=r"there is no cluster at .*: the folder is empty") as error:
        spark.readStream.format("lakelog").options(cluster=str(tmp_path), subscribe="t").load()
    assert "Traceback" not in str(error.value)
