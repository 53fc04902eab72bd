"""The views `brokers`, `topics` and `controller`."""

from lakelog.replication.frames.cluster_state import broker_registrations, brokers_view, controller_view, topics_view
from tests.frames.rows import has, seconds, table, view

# A registration, the age of its heartbeat in s, the state, and whether its replicas count as offline.
STATES = [
    ({}, 2, "alive"),
    ({}, 7, "dead"),
    ({}, -7, "dead"),  # the clocks differ: no proof
    ({"shutting_down": True}, 2, "stopping"),
    ({"shutting_down": True}, 7, "stopped"),
    ({"storage_error": "disk"}, 2, "storage error"),
]


def test_bc_01_the_state_of_a_broker_is_that_of_lakelog_status(spark):
    rows = [{"broker_id": n, **fields, "committed_at": seconds(60 - age)} for n, (fields, age, _) in enumerate(STATES)]
    found = broker_registrations(table(spark, "brokers", *rows), 6000)
    has(found, "broker_id state", *((n, state) for n, (_, _, state) in enumerate(STATES)))


def registered(spark):
    """Broker 2 is dead."""
    rows = ({"broker_id": 1}, {"broker_id": 2, "committed_at": seconds(0)}, {"broker_id": 3})
    return broker_registrations(table(spark, "brokers", *rows), 6000)


def partitions(spark):
    """Topic `orders` has two partitions, one of them without a leader. Topic `old` is being deleted."""
    return view(
        spark, "partitions",
        {"partition": 0, "leader": 1, "replicas": [2, 1], "replicas_count": 2, "under_replicated": True},
        {"partition": 1, "leader": None, "replicas": [1, 2], "replicas_count": 2, "is_offline": True},
        {"topic_id": "old", "leader": None, "replicas": [1, 2, 3], "replicas_count": 3, "is_deleting": True},
    )  # fmt: skip


def test_a_brokers_partitions_are_counted_as_kafka_does(spark):
    replicas = view(
        spark, "replicas", {"broker_id": 1, "is_leader": True, "role": "leader", "lag": 0},
        {"broker_id": 2, "role": "follower", "lag": 5}, {"broker_id": 3, "error": "gone"},
        {"broker_id": 2, "role": "follower", "partition": 1, "state": "Offline", "error": "broken"},
    )  # fmt: skip
    columns = (
        "broker_id state heartbeat_age_ms leader_count partition_count under_replicated_partitions "
        "offline_replica_count failed_partitions_count max_lag total_lag"
    )
    has(
        brokers_view(registered(spark), partitions(spark), replicas), columns,
        (1, "alive", 2000, 1, 1, 1, 0, 0, None, None), (2, "dead", 60_000, 0, 2, 0, 1, 1, 5, 5),
        (3, "alive", 2000, 0, 1, 0, 0, None, None, None),
    )  # fmt: skip


def test_td_03_the_deletion_of_a_topic_waits_for_a_dead_broker(spark):
    """Broker 1 has deleted its replica, broker 2 has not, and broker 3 has not either."""
    topics = table(spark, "topics", {"partitions": 1}, {"topic": "old", "topic_id": "old", "deleting": True})
    rows = [{"broker_id": broker, "topic_id": "old"} for broker in (2, 3)]
    columns = (
        "topic partitions replication_factor offline_partitions under_replicated_partitions is_deleting "
        "is_ineligible_to_delete replicas_to_delete replicas_ineligible_to_delete"
    )
    replicas = table(spark, "replicas", *rows)
    has(
        topics_view(topics, partitions(spark), replicas, registered(spark), 2), columns,
        ("orders", 2, 2, 1, 1, False, False, 0, 0), ("old", 1, 3, 0, 0, True, True, 2, 1),
    )  # fmt: skip


TOTALS = (
    "controller_id controller_epoch active_controller_count controller_state active_broker_count "
    "fenced_broker_count global_topic_count global_partition_count offline_partitions_count "
    "preferred_replica_imbalance_count topics_to_delete_count topics_ineligible_to_delete_count "
    "replicas_to_delete_count replicas_ineligible_to_delete_count"
)


def test_the_controller_has_the_totals(spark):
    deleted = {"is_deleting": True, "is_ineligible_to_delete": True, "replicas_to_delete": 2}
    topics = view(spark, "topics", {}, {**deleted, "replicas_ineligible_to_delete": 1})
    controller = table(spark, "controller", {"controller_id": "c", "controller_epoch": 4})
    admin = table(spark, "admin", {"kind": "delete_topic", "state": "Applying"}, {"kind": "a", "state": "Decided"})
    found = controller_view(controller, admin, topics, partitions(spark), registered(spark), 6000)
    has(found, TOTALS, ("c", 4, 1, "delete_topic", 2, 1, 2, 3, 1, 2, 1, 1, 2, 1))


def test_a_cluster_without_anything_has_one_row_of_zeros(spark):
    registrations = broker_registrations(table(spark, "brokers"), 6000)
    read, views = (
        (table(spark, "controller"), table(spark, "admin")),
        (view(spark, "topics"), view(spark, "partitions")),
    )
    found = controller_view(*read, *views, registrations, 6000)
    has(found, TOTALS, (None, None, 0, "Idle", *[0] * 10))
