import pytest
from chispa import assert_df_equality

from replication.frames.fetch_plan import fetch_plan
from replication.protocol.append_plan import FetchedBatch
from replication.protocol.follow import may_append
from replication.protocol.leader_epoch import EpochEntry
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from schemas import FETCH_STATES, RECORD_BATCHES

COLUMNS = """topic_id string, partition int, base_offset bigint, last_offset bigint, leader_epoch int, segment string,
    segment_bytes bigint, bytes bigint, previous string, chain string, action string NOT NULL, gap string"""

# P0 is fetched from offset 10 on; its leader wrote 0-9 under epoch 1 and 10-29 under epoch 3.
STATE = ("id", 0, 10, [(1, 0, 10), (3, 10, 30)])


def header(base, last, epoch, topic_id="id", partition=0, segment="a"):
    return (7, segment, 100, "t", topic_id, partition, epoch, base, last, 40, f"@{base}", f"@{last + 1}", None)


def gap(reason, segment=None):
    return (7, segment, *[None] * 10, reason)


def plan(spark, headers, states):
    return fetch_plan(
        spark.createDataFrame(headers, RECORD_BATCHES.types), spark.createDataFrame(states, FETCH_STATES.types)
    )


def planned(base, last, epoch, action, topic_id="id", partition=0, segment="a"):
    return (topic_id, partition, base, last, epoch, segment, 100, 40, f"@{base}", f"@{last + 1}", action, None)


CASES = {
    "FT-10 at the LEO": (header(10, 12, 3), "append"),
    "FT-10 above the LEO: append_plan finds the gap": (header(20, 29, 3), "append"),
    "FT-04 below the LEO": (header(0, 9, 1), "skip"),
    "FT-04 below the LEO, of whatever epoch": (header(5, 9, 99), "skip"),
    "FT-04 its last record is new": (header(10, 10, 3), "append"),
    "EP-01 an older epoch wrote it, and it was cut": (header(10, 12, 1), "fenced"),
    "EP-01 an epoch that the leader has no records of": (header(10, 12, 2), "fenced"),
    "EP-01 it ends above the leader's LEO": (header(25, 30, 3), "fenced"),
    "EP-01 it ends in another epoch": (header(5, 12, 1), "fenced"),
    "DR-01 the leader has deleted what lies below the LEO of it": (header(9, 12, 3), "append"),
}


def test_ft_04_ft_10_ep_01_what_becomes_of_each_batch(spark):
    """All cases in one frame: a case costs nothing then, and none may concern another."""
    headers = [(*values[:1], name, *values[2:]) for name, (values, _) in CASES.items()]
    expected = [
        planned(values[7], values[8], values[6], action, segment=name) for name, (values, action) in CASES.items()
    ]
    assert_df_equality(plan(spark, headers, [STATE]), spark.createDataFrame(expected, COLUMNS), ignore_row_order=True)


@pytest.mark.parametrize("name", CASES)
def test_ft_07_the_frame_and_the_rule_of_the_simulation_agree(name):
    """`may_append` says of one batch what the frame says of all; below the LEO the frame does not ask."""
    (_, segment, size, _, topic_id, partition, epoch, base, last, *_), action = CASES[name]
    batch = FetchedBatch(TopicIdPartition(topic_id, partition), base, last, epoch, segment, size)
    lineage = tuple(EpochEntry(leader_epoch, start) for leader_epoch, start, _ in STATE[3])
    leader = Replica("t", topic_id, partition, 1, 1, 3, "leader", "Fetching", 0, 30, 0, lineage, None, 0)
    assert action == "skip" or last >= 30 or may_append(batch, leader, STATE[2]) == (action == "append")


def test_ft_07_batches_of_partitions_that_are_not_fetched_are_left_out(spark):
    headers = [header(10, 12, 3, partition=1), header(10, 12, 3, topic_id="made again"), header(10, 12, 3)]
    expected = spark.createDataFrame([planned(10, 12, 3, "append")], COLUMNS)
    assert_df_equality(plan(spark, headers, [STATE]), expected)


def test_a_gap_in_the_stream_stays_a_gap(spark):
    """Whatever is fetched, and also if nothing is."""
    expected = spark.createDataFrame([(*[None] * 10, "gap", "cleaned up")], COLUMNS)
    assert_df_equality(plan(spark, [gap("cleaned up")], [STATE]), expected)
    assert_df_equality(plan(spark, [gap("cleaned up")], []), expected)


def test_each_partition_is_planned_by_its_own_state(spark):
    states = [STATE, ("id", 1, 5, [(0, 0, 8)]), ("id", 2, 0, [])]
    headers = [header(5, 7, 0, partition=1), header(5, 7, 1), header(0, 0, 0, partition=2)]
    expected = [
        planned(5, 7, 0, "append", partition=1),
        planned(5, 7, 1, "skip"),
        planned(0, 0, 0, "fenced", partition=2),
    ]
    found = plan(spark, headers, states)
    assert_df_equality(found, spark.createDataFrame(expected, COLUMNS), ignore_row_order=True)


def test_the_plan_is_one_partition(spark):
    """It runs in every micro-batch, where each task is cost."""
    headers = spark.createDataFrame([header(10, 12, 3)], RECORD_BATCHES.types).repartition(3)
    states = spark.createDataFrame([STATE], FETCH_STATES.types)
    assert fetch_plan(headers, states).rdd.getNumPartitions() == 1
