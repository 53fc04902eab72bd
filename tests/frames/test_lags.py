"""The views `lag`, `consumer_groups` and `log_files`."""

from lakelog.replication.frames.cluster_state import consumer_groups_view, lag_view, log_files_view
from tests.frames.rows import has, seconds, table

LEADER = {"broker_id": 1, "role": "leader", "log_start_offset": 2, "log_end_offset": 25, "high_watermark": 20}
BATCHES = [
    {
        "broker_id": 1,
        "file": "a",
        "base_offset": 2,
        "last_offset": 9,
        "records": 5,
        "bytes": 80,
        "max_timestamp": seconds(10),
    },
    {
        "broker_id": 1,
        "file": "a",
        "base_offset": 10,
        "last_offset": 14,
        "records": 5,
        "bytes": 100,
        "max_timestamp": seconds(30),
    },
    {
        "broker_id": 1,
        "file": "b",
        "base_offset": 15,
        "last_offset": 24,
        "records": 10,
        "bytes": 200,
        "max_timestamp": seconds(50),
    },
    {
        "broker_id": 2,
        "file": "c",
        "base_offset": 2,
        "last_offset": 24,
        "records": 0,
        "bytes": 999,
        "max_timestamp": seconds(0),
    },
]
EPOCHS = ({"leader_epoch": 3, "producer_id": 7}, {"leader_epoch": 1, "producer_id": -1}, {}, {})


def tables(spark):
    metadata = table(
        spark, "metadata", {"leader": 1, "replicas": [1, 2, 3, 4]}, {"partition": 1, "leader": -1, "replicas": [2]}
    )
    rows = [{"broker_id": broker, "log_end_offset": offset} for broker, offset in ((2, 12), (3, 23))]
    groups = [{"group_id": "g", "committed_offset": 0}, {"group_id": "h", "committed_offset": 20}]
    lost = {"group_id": "h", "topic_id": "gone", "committed_offset": 3}
    broken = {"broker_id": 2, "file": "d", "file_bytes": 9, "error": "torn", "topic": None}
    batches = [{"partition": 0, **row, **more} for row, more in zip(BATCHES, EPOCHS, strict=True)]
    return (
        metadata, table(spark, "replicas", LEADER, *rows), table(spark, "groups", *groups, lost),
        table(spark, "batches", *batches, broken),
    )  # fmt: skip


def test_ft_08_lag_is_in_records_ms_and_bytes_up_to_the_hw(spark):
    """Broker 2 has three fifths of a batch to fetch and half of the next one; group g begins at the log start."""
    has(
        lag_view(*tables(spark)), "kind broker_id group_id partition leader fetch_offset lag lag_ms lag_bytes",
        ("follower", 2, None, 0, 1, 12, 8, 30_000, 160), ("follower", 3, None, 0, 1, 23, 0, 0, 0),
        ("follower", 4, None, 0, 1, None, None, None, None), ("follower", 2, None, 1, None, None, None, None, None),
        ("group", None, "g", 0, 1, 0, 18, 50_000, 280), ("group", None, "h", 0, 1, 20, 0, 0, 0),
        ("group", None, "h", 0, None, 3, None, None, None),
    )  # fmt: skip


def test_ap_04_a_group_lags_behind_the_hw(spark):
    metadata, replicas, groups, _ = tables(spark)
    has(
        consumer_groups_view(groups, metadata, replicas), "group_id topic_id committed_offset high_watermark lag",
        ("g", "id", 0, 20, 18), ("h", "id", 20, 20, 0), ("h", "gone", 3, None, None),
    )  # fmt: skip


def test_a_file_is_a_row_a_partition_and_a_broken_one_says_why(spark):
    columns = "broker_id file topic base_offset last_offset records batches bytes leader_epochs producer_ids error"
    has(
        log_files_view(tables(spark)[3]), columns,
        (1, "a", "orders", 2, 14, 10, 2, 180, [1, 3], [7], None), (1, "b", "orders", 15, 24, 10, 1, 200, [], [], None),
        (2, "c", "orders", 2, 24, 0, 1, 999, [], [], None), (2, "d", None, None, None, 0, 0, 0, [], [], "torn"),
    )  # fmt: skip
