"""The views `isr_history` and `leader_epochs`."""

from lakelog.replication.frames.cluster_state import isr_history_view, leader_epochs_view
from tests.frames.rows import epoch, has, seconds, table

CHANGES = [
    {"version": 2, "leader": 1, "leader_epoch": 0, "partition_epoch": 0, "isr": [1, 2, 3]},
    {"version": 4, "leader": 1, "leader_epoch": 0, "partition_epoch": 1, "isr": [1, 3]},
    {"version": 7, "leader": -1, "leader_epoch": 1, "partition_epoch": 2, "isr": [1]},
    {"version": 8, "leader": 1, "leader_epoch": 2, "partition_epoch": 3, "isr": [1]},
    {"version": 9, "leader": 1, "leader_epoch": 2, "partition_epoch": 4, "isr": [1, 2]},
    {"version": 7, "partition": 1, "leader": 2, "leader_epoch": 5, "partition_epoch": 9, "isr": [2], "is_first": True},
    {"version": 8, "partition": 1, "leader": 2, "leader_epoch": 5, "partition_epoch": 9, "is_removed": True},
]


def changes(spark):
    return table(spark, "metadata_changes", *({"committed_at": seconds(row["version"]), **row} for row in CHANGES))


def test_is_05_each_change_of_a_partition_says_who_left_and_who_joined(spark):
    """An oldest row that is known says neither, and a topic's creation expands no ISR."""
    has(
        isr_history_view(changes(spark)),
        "partition version since until leader left_isr joined_isr is_shrink is_expand",
        (0, 2, seconds(2), seconds(4), 1, [], [1, 2, 3], False, False),
        (0, 4, seconds(4), seconds(7), 1, [2], [], True, False),
        (0, 7, seconds(7), seconds(8), None, [3], [], True, False),
        (0, 8, seconds(8), seconds(9), 1, [], [], False, False),
        (0, 9, seconds(9), None, 1, [], [2], False, True),
        (1, 7, seconds(7), seconds(8), 2, None, None, False, False),
    )


def test_ep_01_a_leader_epoch_has_its_leader_its_time_and_its_offsets(spark):
    """Epoch 1 had no leader, so no record is of it. That of partition 1 is older than the history."""
    row = {"broker_id": 1, "role": "leader", "leader_epoch": 2, "log_end_offset": 30}
    replicas = table(spark, "replicas", {**row, "epochs": [epoch(0, 0, "a"), epoch(2, 20, "b")]})
    has(
        leader_epochs_view(changes(spark), replicas),
        "partition leader_epoch leader elected_at start_offset end_offset chain",
        (0, 0, 1, seconds(2), 0, 20, "a"),
        (0, 1, None, seconds(7), None, None, None),
        (0, 2, 1, seconds(8), 20, 30, "b"),
        (1, 5, 2, None, None, None, None),
    )
