"""A user's session may have any settings: reads return every committed record, as it was written. [FE-01]"""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lakelog.replication.clients.reader import read_committed
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.clients.spark_record_set import run_data_frame
from lakelog.replication.protocol.append import AppendPosition
from lakelog.replication.storage.log.segment import read_records
from tests.clients.world import World
from tests.odd_settings import NTZ, SHIPPED, WITHOUT_EFFECT
from tests.storage.logs import COLUMNS, NOON, P0, P1, TOPIC, new_log, request, send

OLD = dt.datetime(1850, 3, 1, 12, tzinfo=dt.UTC)  # another day in the calendar of old versions of Spark
SEGMENTS, RECORDS = 3, 4  # of each segment; the last one is not committed


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(str(tmp_path_factory.mktemp("settings")))
    for first in range(0, SEGMENTS * RECORDS, RECORDS):
        rows = [
            {"key": b"k", "value": str(first + index).encode(), "timestamp": at, "headers": headers}
            for index, (at, headers) in enumerate([(OLD, None), (NOON, [{"key": "h", "value": b"x"}])] * 2)
        ]
        tables = {P0: pa.Table.from_pylist(rows, COLUMNS)}
        send(made.logs[1], request(P0, RECORDS, first), tables=tables)
    made.say(SEGMENTS * RECORDS - 1)
    made.say(0, P1)
    return made


def frames(spark, world):
    """Reads of the same records: as a whole, within bounds, and by the source."""
    yield read_committed(spark, world.uri, TOPIC)
    yield read_committed(spark, world.uri, TOPIC, {0: 0}, {0: SEGMENTS * RECORDS - 1})
    yield spark.read.format("lakelog").options(cluster=world.uri, subscribe=TOPIC, includeHeaders="true").load()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        SHIPPED,
        NTZ,
        {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"},
        {"spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION"},
        WITHOUT_EFFECT,
    ],
    ids=["none", "as shipped", "timestamps without a zone", "an old calendar", "no old timestamps", "without effect"],
)
def test_fe_01_a_read_has_every_record_as_it_was_written_whatever_the_settings_are(
    spark, world, change_settings, settings
):
    change_settings(settings)
    for frame in frames(spark, world):
        assert dict(frame.dtypes)["timestamp"] == "timestamp"
        found = frame.selectExpr(
            "`offset`", "CAST(value AS STRING)", "unix_micros(timestamp) AS at", "headers"
        ).collect()
        assert sorted((row["offset"], row["value"]) for row in found) == [(n, str(n)) for n in range(11)]
        assert {(row["offset"] % 2, row["at"], bool(row["headers"])) for row in found} == {
            (0, round(OLD.timestamp() * 1e6), False),
            (1, round(NOON.timestamp() * 1e6), True),
        }


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_fe_01_no_setting_lets_a_read_leave_out_a_segment(spark, tmp_path, change_settings, setting):
    world = World(str(tmp_path))
    for first in (0, RECORDS):
        send(world.logs[1], request(P0, RECORDS, first))
    world.say(2 * RECORDS)
    world.say(0, P1)
    change_settings({f"spark.sql.files.{setting}": "true"})
    frame = read_committed(spark, world.uri, TOPIC).select("value")
    segment = Path(world.logs[1].root.uri, next(iter(world.logs[1].refresh().segments)))
    if setting == "ignoreMissingFiles":
        segment.unlink()
    else:
        segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises((PySparkException, Py4JError), match=segment.name):
        frame.collect()


@pytest.mark.parametrize("settings", [NTZ, WITHOUT_EFFECT], ids=["timestamps without a zone", "without effect"])
@pytest.mark.parametrize("is_large", [False, True], ids=["in the driver", "by tasks"])
def test_records_are_sent_as_they_are_whatever_the_settings_are(spark, change_settings, root, settings, is_large):
    change_settings(settings)
    at = f"timestamp_micros({round(OLD.timestamp() * 1e6)})"
    given = spark.range(3).selectExpr("CAST(id AS STRING) AS value", "0 AS partition", f"{at} AS timestamp")
    if is_large:
        log = new_log(root, P0)
        with run_data_frame(TOPIC, given, 1, 0, 1 << 20, {0: log.root}, kept_bytes=0) as large:
            (segment,) = large.write(log.root, 1, [request(P0, 3)], {P0: AppendPosition(0)})
        sent = read_records(log.root, segment.name)
    else:
        (part,) = record_set(TOPIC, given, 1, 1 << 20)._by_partition[0]
        sent = part.table
    assert sorted(map(bytes, sent["value"].to_pylist())) == [b"0", b"1", b"2"]
    assert {each.astimezone(dt.UTC) for each in sent["timestamp"].to_pylist()} == {OLD}
