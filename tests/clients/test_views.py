"""Views of a cluster in SQL: as it is, as it was, and with brokers that are gone."""

import datetime as dt
import re
import shutil
from pathlib import Path

import pytest

from lakelog.replication.clients.reader import read_committed
from lakelog.replication.clients.views import _seconds, register_views
from lakelog.replication.errors import InconsistentClusterIdException, InvalidConfigurationException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.schemas.views import VIEWS
from lakelog.schemas.views.metrics import METRICS
from tests.clients.world import World
from tests.odd_settings import NTZ, WITHOUT_EFFECT
from tests.registrations import register
from tests.storage.logs import NOON, P0, P1, fill, replicate

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "views.md").read_text("utf-8")


@pytest.fixture
def world(root):
    """Broker 2 has three of the eight records of P0, and has left its ISR, so that all are committed."""
    made = World(root)
    fill(made.logs[1], P0, 3)
    replicate(made.logs[1], made.logs[2])
    fill(made.logs[1], P0, 5)
    made.change(isr=(1,), isr_epochs={1: 1}, partition_epoch=1)
    made.say(8)
    made.say(0, P1)
    made.say(3, broker=2)
    made.say(0, P1, broker=2)
    return made


def documented(title):
    """The first SQL of a section of the docs."""
    (section,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    return re.search(r"```sql\n(.*?)```", section, re.DOTALL)[1]


def test_the_views_show_past_leaders_and_records_that_one_replica_alone_had(spark, world):
    """The query of the docs, after the other replica has caught up."""
    then = dt.datetime.now(dt.UTC)
    replicate(world.logs[1], world.logs[2])
    world.say(8, broker=2)
    world.change(leader=2, leader_epoch=1, isr=(2, 1), isr_epochs={1: 1, 2: 1}, partition_epoch=2)
    assert register_views(spark, world.uri, as_of=then, prefix="then_") == {}
    world.change(leader=1, leader_epoch=0, partition_epoch=3)
    read_committed(spark, world.uri, "flights").createOrReplaceTempView("orders")
    query = documented("Who led, and which records were on one replica only?")
    query = query.replace("topic = 'orders'", "topic = 'flights'").replace("partition = 3", "partition = 0")
    rows = [row.asDict() for row in spark.sql(query).collect()]
    assert [(row["leader"], row["isr"], row["offset"]) for row in rows] == [(1, [1], offset) for offset in range(3, 8)]


def test_a_view_shows_the_present_state_with_new_and_missing_brokers(spark, world):
    register_views(spark, world.uri)
    query = "SELECT broker_id, partition_count, max_lag, root_error IS NULL FROM brokers ORDER BY broker_id"
    assert [tuple(row) for row in spark.sql(query).collect()] == [(1, 2, None, True), (2, 2, 5, True)]
    register(world.cluster.root, 3, world.roots[1])
    shutil.rmtree(world.roots[2].uri)
    assert [tuple(row) for row in spark.sql(query).collect()] == [
        (1, 2, None, True), (2, 2, None, False), (3, 0, None, False),
    ]  # fmt: skip


def test_a_cluster_without_topics_has_every_view_with_its_columns(spark, root, change_settings):
    """Whatever the settings of the session are."""
    change_settings({**WITHOUT_EFFECT, **NTZ})
    world = World(root)
    world.cluster.metadata.change(lambda found: dict.fromkeys(found), {"who": "test"})
    world.cluster.topics.change([], ["flights"], {"who": "test"})
    assert LocalCluster(spark, root).register_views(prefix="empty_") == {}
    for name, view in VIEWS.items():
        found = spark.table(f"empty_{name}").schema
        assert [(f.name, f.dataType.simpleString(), f.metadata["comment"]) for f in found] == [
            (c.name, c.type, c.comment) for c in view.columns
        ]
    # The history is of partitions that were there, and are not.
    rows = {"partitions": 0, "brokers": 2, "lag": 0, "isr_history": 2, "events": 4}
    counts = ", ".join(f"(SELECT count(*) FROM empty_{name}) AS {name}" for name in rows)
    (row,) = spark.sql(f"SELECT {counts}").collect()
    assert row.asDict() == rows


def test_views_of_a_time_before_the_history_are_left_out_with_the_reason(spark, world, caplog):
    spark.range(1).createOrReplaceTempView("partitions")
    before = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    left_out = register_views(spark, world.uri, as_of=before)
    assert set(left_out) == set(VIEWS)
    assert "metadata: its history does not reach back to" in left_out["partitions"]
    assert not [name for name in VIEWS if spark.catalog.tableExists(name)], (
        "a view of now would be taken for one of then"
    )
    assert "there is no view partitions: " in caplog.text


@pytest.mark.parametrize(
    ("as_of", "problem"),
    [("12 o'clock", "is no timestamp"), ("2999-01-01", "is in the future"), (dt.datetime(2999, 1, 1), "in the future")],
)
def test_an_as_of_that_is_no_past_time_is_refused(spark, world, as_of, problem):
    with pytest.raises(InvalidConfigurationException, match=re.escape(f"as_of={as_of!r}")) as caught:
        register_views(spark, world.uri, as_of)
    assert problem in str(caught.value)


@pytest.mark.parametrize("settings", [{}, NTZ], ids=["timestamps with a zone", "timestamps without a zone"])
def test_a_text_as_of_is_in_the_time_zone_of_the_session(spark, change_settings, settings):
    change_settings(settings)
    assert _seconds(spark, "2026-01-01 12:00:00.5") == NOON.timestamp() + 0.5
    assert _seconds(spark, NOON) == NOON.timestamp()


def test_views_of_a_folder_without_a_cluster_are_refused(spark, root):
    with pytest.raises(InconsistentClusterIdException, match="there is no cluster"):
        register_views(spark, root)


def test_every_metric_is_a_column_of_a_view_and_the_docs_say_which():
    columns = {f"{name}.{column}" for name, view in VIEWS.items() for column in view.names}
    assert {metric.column for metric in METRICS if metric.column} <= columns
    rows = re.findall(r"^\| `(kafka[^`]+)` \| (\w+) \| (?:`([\w.]+)`)? ?\| ?(.*?) ?\|$", DOCS, re.MULTILINE)
    assert rows == [(m.mbean, m.name, m.column or "", m.note) for m in METRICS]


def test_the_docs_have_every_view_and_what_it_reads():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", DOCS, re.MULTILINE)
    assert [(name, described) for name, described, _ in rows] == [(v.name, v.description) for v in VIEWS.values()]
