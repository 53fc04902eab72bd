import pytest
from chispa import assert_df_equality

from lakelog.replication.frames.fetch_plan import fetch_plan
from lakelog.schemas import FETCH_STATES, RECORD_BATCHES

COLUMNS = """topic_id string, partition int, base_offset bigint, last_offset bigint, leader_epoch int, segment string,
    segment_bytes bigint, bytes bigint, previous string, chain string, gap string"""

STATE = ("id", 0, 10)  # P0 is fetched from offset 10 on


def header(base, last, epoch=3, topic_id="id", partition=0, segment="a"):
    return (7, segment, 100, "t", topic_id, partition, epoch, base, last, 40, f"@{base}", f"@{last + 1}", None)


def gap(reason, segment=None):
    return (7, segment, *[None] * 10, reason)


def plan(spark, headers, states):
    return fetch_plan(
        spark.createDataFrame(headers, RECORD_BATCHES.types), spark.createDataFrame(states, FETCH_STATES.types)
    )


def planned(base, last, epoch=3, topic_id="id", partition=0, segment="a"):
    return (topic_id, partition, base, last, epoch, segment, 100, 40, f"@{base}", f"@{last + 1}", None)


CASES = {
    "FT-10 at the LEO": (10, 12, True),
    "FT-10 above the LEO: append_plan finds the gap": (20, 29, True),
    "FT-04 below the LEO": (0, 9, False),
    "FT-04 its last record is new": (5, 10, True),
}


def test_ft_04_ft_10_what_reaches_the_fetch_offset_is_fetched(spark):
    """All cases in one frame: a case costs nothing then, and none may concern another."""
    headers = [header(base, last, segment=name) for name, (base, last, _) in CASES.items()]
    expected = [planned(base, last, segment=name) for name, (base, last, is_fetched) in CASES.items() if is_fetched]
    assert_df_equality(plan(spark, headers, [STATE]), spark.createDataFrame(expected, COLUMNS), ignore_row_order=True)


def test_ft_07_batches_of_partitions_that_are_not_fetched_are_left_out(spark):
    headers = [header(10, 12, partition=1), header(10, 12, topic_id="made again"), header(10, 12)]
    expected = spark.createDataFrame([planned(10, 12)], COLUMNS)
    assert_df_equality(plan(spark, headers, [STATE]), expected)


@pytest.mark.parametrize("states", [[STATE], []], ids=["fetched", "nothing is fetched"])
def test_a_gap_in_the_stream_stays_a_gap(spark, states):
    expected = spark.createDataFrame([(*[None] * 10, "cleaned up")], COLUMNS)
    assert_df_equality(plan(spark, [gap("cleaned up")], states), expected)


def test_each_partition_is_fetched_from_its_own_offset(spark):
    headers = [header(5, 7, partition=1), header(5, 7), header(0, 0, partition=2)]
    found = plan(spark, headers, [STATE, ("id", 1, 5), ("id", 2, 0)])
    expected = [planned(5, 7, partition=1), planned(0, 0, partition=2)]
    assert_df_equality(found, spark.createDataFrame(expected, COLUMNS), ignore_row_order=True)


def test_the_plan_is_one_partition(spark):
    """It runs in every micro-batch, where each task is cost."""
    headers = spark.createDataFrame([header(10, 12)], RECORD_BATCHES.types).repartition(3)
    states = spark.createDataFrame([STATE], FETCH_STATES.types)
    assert fetch_plan(headers, states).rdd.getNumPartitions() == 1
