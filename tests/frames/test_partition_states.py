"""The views `partitions` and `replicas`: a row a case, so that each view is computed once."""

from random import Random

from lakelog.replication.frames.cluster_state import broker_registrations, partitions_view, replicas_view
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_loss import missing_records
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.schemas.views import VIEWS
from tests.frames.rows import NOON, epoch, has, seconds, table

# (partition, registration), (leader, replicas_count, under_replicated, under_min_isr, at_min_isr, is_offline,
#                             is_reassigning, is_preferred_leader)
JUDGED = [
    ({"leader": 1, "replicas": [1, 2, 3], "isr": [1, 2, 3]}, (1, 3, False, False, False, False, False, True)),
    ({"leader": 2, "replicas": [1, 2, 3], "isr": [2, 3]}, (2, 3, True, False, True, False, False, False)),
    ({"leader": 1, "replicas": [1, 2, 3], "isr": [1]}, (1, 3, True, True, False, False, False, True)),
    ({"leader": -1, "replicas": [1, 2, 3], "isr": [1]}, (None, 3, False, False, False, True, False, False)),
    ({"leader": 1, "replicas": [1], "isr": [1]}, (1, 1, False, False, True, False, False, True)),
    (
        {"leader": 1, "replicas": [1, 2, 3], "isr": [1, 2], "adding_replicas": [3], "removing_replicas": [1]},
        (1, 2, False, False, True, False, True, True),
    ),
]
COLUMNS = (
    "partition leader replicas_count under_replicated under_min_isr at_min_isr is_offline is_reassigning "
    "is_preferred_leader"
)


def test_is_03_a_partition_is_judged_as_its_leader_judges(spark):
    metadata = table(spark, "metadata", *({"partition": n, **given} for n, (given, _) in enumerate(JUDGED)))
    topics = table(spark, "topics", {"configs": {"min.insync.replicas": "2"}})
    found = partitions_view(metadata, topics, table(spark, "replicas"), 1)
    has(found, COLUMNS, *((n, *wanted) for n, (_, wanted) in enumerate(JUDGED)))
    assert {f.name: f.metadata["comment"] for f in found.schema} == {
        c.name: c.comment for c in VIEWS["partitions"].columns
    }


def test_min_isr_is_the_topics_or_the_default_and_null_for_a_topic_that_is_not_known(spark):
    rows = [
        {"topic_id": name, "leader": 1, "replicas": [1, 2, 3, 4], "isr": [1]} for name in ("set", "not", "bad", "?")
    ]
    settings = {"set": {"min.insync.replicas": "2"}, "not": {}, "bad": {"min.insync.replicas": "two"}}
    topics = table(spark, "topics", *({"topic_id": name, "configs": configs} for name, configs in settings.items()))
    found = partitions_view(table(spark, "metadata", *rows), topics, table(spark, "replicas"), 3)
    has(found, "topic_id min_insync_replicas", ("set", 2), ("not", 3), ("bad", 3), ("?", None))


LEADER = {"broker_id": 1, "role": "leader", "leader_epoch": 3, "log_start_offset": 5, "log_end_offset": 40}
LINEAGE = [epoch(1, 5, "a"), epoch(2, 20, "b"), epoch(3, 30, "c")]

# The row of broker 2, then (lag, log_end_offset_lag, matching_end_offset, has_leaders_records), and the committed
# records that are on the leader only. The HW is 38.
FOLLOWERS = [
    ({"leader_epoch": 3, "log_end_offset": 35, "epochs": LINEAGE}, (3, 5, 35, None), (35, 3)),
    ({"leader_epoch": 3, "log_end_offset": 40, "epochs": LINEAGE, "chain": "x"}, (0, 0, 40, True), (38, 0)),
    ({"leader_epoch": 3, "log_end_offset": 40, "epochs": LINEAGE, "chain": "y"}, (0, 0, 40, False), (38, 0)),
    ({"leader_epoch": 2, "log_end_offset": 33, "epochs": LINEAGE[:2]}, (5, 7, 30, None), (30, 8)),
    ({"leader_epoch": 0, "log_end_offset": 0, "epochs": []}, (38, 40, 0, None), (5, 33)),
    ({"leader_epoch": 3, "log_end_offset": 39, "epochs": LINEAGE, "state": "Truncating"}, (0, 1, None, None), (5, 33)),
    (None, (None, None, None, None), (5, 33)),
]


def test_hw_02_tr_03_a_replica_is_compared_with_its_leader(spark):
    """By the lineage: of epoch 2 the leader has nothing from 30 on."""
    numbers = range(len(FOLLOWERS))
    common = {"leader": 1, "leader_epoch": 3, "replicas": [1, 2], "isr": [1]}
    metadata = table(spark, "metadata", *({"partition": n, **common} for n in numbers))
    leaders = [{**LEADER, "partition": n, "high_watermark": 38, "epochs": LINEAGE, "chain": "x"} for n in numbers]
    followers = [{"partition": n, "broker_id": 2, **row} for n, (row, _, _) in enumerate(FOLLOWERS) if row]
    replicas, brokers = table(spark, "replicas", *leaders, *followers), table(spark, "brokers")
    found = replicas_view(metadata, replicas, broker_registrations(brokers, 6000)).where("NOT is_leader")
    columns = "partition lag log_end_offset_lag matching_end_offset has_leaders_records"
    has(found, columns, *((n, *wanted) for n, (_, wanted, _) in enumerate(FOLLOWERS)))
    alone = partitions_view(metadata, table(spark, "topics"), replicas, 1)
    columns = "partition one_replica_from one_replica_records last_stable_offset_lag"
    has(alone, columns, *((n, *wanted, 0) for n, (_, _, wanted) in enumerate(FOLLOWERS)))


def status(random, partition, broker, role):
    """A row with a random lineage. Those of two rows often agree at first, and one may begin later than the other."""
    epochs, start, leader_epoch = [], random.choice((0, 2)), random.choice((0, 0, 0, 1))
    offset = start
    for _ in range(random.randrange(5)):
        epochs.append(EpochEntry(leader_epoch, offset))
        offset, leader_epoch = offset + random.randint(1, 3), leader_epoch + random.randint(1, 2)
    end = offset if epochs else start
    state, high_watermark = "Fetching", random.randint(start, end)
    if role == "follower":  # the leader's row is the newest one
        state, high_watermark = random.choice(("Fetching", "Fetching", "Delayed", "Truncating")), 0
    return ReplicaStatus(
        "t", "id", partition, broker, 1, 9, role, state, start, end, high_watermark, (*epochs,), None, 0
    )


def test_hw_02_tr_03_the_views_find_what_one_replica_has_by_the_rule_of_the_protocol(spark):
    random, numbers = Random(1), range(400)
    leaders = [status(random, n, 1, "leader") for n in numbers]
    followers = [status(random, n, 2, "follower") for n in numbers]
    columns = ("partition", "broker_id", "role", "state", "leader_epoch", "log_start_offset", "log_end_offset")
    rows = [
        {name: getattr(row, name) for name in (*columns, "high_watermark")}
        | {"epochs": [e._asdict() for e in row.epochs]}
        for row in (*leaders, *followers)
    ]
    metadata = [{"partition": n, "leader": 1, "leader_epoch": 9, "replicas": [1, 2], "isr": [1]} for n in numbers]
    found = partitions_view(
        table(spark, "metadata", *metadata), table(spark, "topics"), table(spark, "replicas", *rows), 1
    )
    expected = []
    for n in numbers:
        registration = PartitionRegistration("t", "id", n, (1, 2), 1, 9, (1,))
        missing = missing_records(registration, {1: leaders[n], 2: followers[n]}, {2})
        expected.append((n, missing.committed.start, len(missing.committed)))
    assert len({each[1:] for each in expected}) > 20
    has(found, "partition one_replica_from one_replica_records", *expected)


def test_a_row_of_an_older_leader_epoch_tells_no_offsets_and_a_replica_says_why_it_is_not_there(spark):
    metadata = table(spark, "metadata", {"leader": 1, "leader_epoch": 4, "replicas": [1, 2, 3], "isr": [1]})
    replicas = table(spark, "replicas", LEADER, {"broker_id": 3, "state": "Offline", "error": "broken"})
    brokers = table(
        spark, "brokers", {"broker_id": 1}, {"broker_id": 2, "root_error": "gone", "committed_at": NOON},
        {"broker_id": 3, "storage_error": "disk"},
    )  # fmt: skip
    found = replicas_view(metadata, replicas, broker_registrations(brokers, 6000))
    columns = "broker_id is_leader in_sync is_offline is_current log_end_offset lag published_at error"
    has(
        found, columns, (1, True, True, False, False, 40, None, seconds(0), None),
        (2, False, False, True, None, None, None, None, "gone"),
        (3, False, False, True, False, 0, None, seconds(0), "broken"),
    )  # fmt: skip
