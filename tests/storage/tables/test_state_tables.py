"""The state tables: rows are read back, and concurrent compare-and-sets of processes lose nothing."""

import dataclasses
import threading
from dataclasses import replace

import pytest

from lakelog.replication.errors import (
    ControllerMovedException,
    CorruptRecordException,
    KafkaStorageException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.admin_request import DECIDED, AdminRequest, Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables import state_table
from lakelog.replication.storage.tables.admin_table import AdminTable, _row
from lakelog.replication.storage.tables.broker_table import BrokerTable, broker_ids
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.replication.storage.tables.topic_table import TopicTable
from lakelog.schemas import PRODUCERS
from tests.processes import race
from tests.storage.delta.answers import refuse_all
from tests.storage.log.test_replay import clean_up, fails_once

REGISTRATION = BrokerRegistration(1, "/root", "rack a", 1, -1, False, None, "log-id", 3)
REPLICA = ReplicaStatus(
    "t", "id", 0, 1, 2, 3, "follower", "Fetching", 0, 9, 7, (EpochEntry(0, 0), EpochEntry(3, 5)), None, 4
)
PARTITION = PartitionRegistration("t", "id", 0, (1, 2, 3), 1, 4, (1, 3), 2, 5, (3,), (2,))


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def producers(storage):
    return StateTable.create_at(storage, PRODUCERS, [row("first")])


def row(name):
    return {"name": name, "producer_id": 1, "producer_epoch": 0, "owner": "me", "idle_ms": 0}


def add(name):
    return lambda rows: [*rows, row(name)]


def names(table):
    return [found["name"] for found in table.rows]


def test_a_table_has_its_first_rows_and_their_cause(storage, producers):
    assert names(StateTable.open_at(storage, PRODUCERS)) == ["first"]
    producers.update({"who": "me", "why": "because"}, add("second"))
    info = read_commit(storage, producers.version).info
    assert (info["who"], info["why"]) == ("me", "because")


def test_nothing_to_do_commits_nothing(storage, producers):
    assert producers.update({}, lambda _: None) is None
    assert last_version(storage) == 1


def test_a_commit_that_changes_no_row_has_no_file_and_readers_read_none(storage, producers, monkeypatch):
    """So a heartbeat, a claim and a renewal of the lease are one small object each."""
    other = StateTable.open_at(storage, PRODUCERS)
    version = producers.update({"why": "claim"}, lambda rows: rows, {"epoch": 7})
    commit = read_commit(storage, version)
    assert (commit.adds, commit.removes, commit.txns) == ((), (), {"epoch": 7})
    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "read_buffer", lambda *_: pytest.fail("a file was read"))
        assert other.refresh()
    for table in (producers, other, StateTable.open_at(storage, PRODUCERS)):
        assert (table.version, names(table), table.transaction_version("epoch")) == (version, ["first"], 7)


def test_spark_reads_rows_and_history_of_commits_without_a_file(spark, storage, producers):
    producers.update({"why": "heartbeat"}, lambda rows: rows)
    assert [found.name for found in spark.read.format("delta").load(storage.spark_uri).collect()] == ["first"]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{storage.spark_uri}`").collect()
    assert [found.version for found in history] == [2, 1, 0]


def test_the_rows_of_a_commit_without_a_file_are_not_older_than_what_was_written_before_it(storage, producers):
    other = StateTable.open_at(storage, PRODUCERS)
    producers.update({}, add("second"))
    producers.update({}, lambda rows: rows)
    assert other.refresh()
    assert names(other) == ["first", "second"]


def test_after_many_commits_without_a_file_the_rows_are_written_again_in_case_it_was_lost(storage, producers):
    first = {file.name for file in producers._log.active_files()}
    for name in first:
        storage.delete(name)
    with pytest.raises(CorruptRecordException):
        StateTable.open_at(storage, PRODUCERS)
    commits = [read_commit(storage, producers.update({}, lambda rows: rows)) for _ in range(51)]
    assert [len(commit.adds) for commit in commits] == [0] * 50 + [1]
    assert {file.name for file in commits[-1].removes} == first
    assert names(StateTable.open_at(storage, PRODUCERS)) == names(producers) == ["first"]
    assert not read_commit(storage, producers.update({}, lambda rows: rows)).adds


def test_a_table_may_lose_its_rows(storage, producers):
    producers.update({}, lambda _: [])
    assert StateTable.open_at(storage, PRODUCERS).rows == producers.rows == []


def test_a_change_is_decided_again_on_what_others_have_written(storage, producers):
    other, seen = StateTable.open_at(storage, PRODUCERS), []

    def change(rows):
        seen.append([found["name"] for found in rows])
        if len(seen) == 1:
            other.update({}, add("theirs"))
        return add("ours")(rows)

    producers.update({}, change)
    assert seen == [["first"], ["first", "theirs"]]
    assert names(StateTable.open_at(storage, PRODUCERS)) == names(producers) == ["first", "theirs", "ours"]


def test_a_refresh_tells_whether_the_table_has_moved(storage, producers):
    other = StateTable.open_at(storage, PRODUCERS)
    assert not other.refresh()
    version = producers.update({}, add("second"))
    assert other.refresh()
    assert (names(other), other.version) == (["first", "second"], version)
    assert not other.refresh()


def test_the_time_of_a_look_is_not_told_before_its_rows_are_there(storage, producers, monkeypatch):
    other, load, told = StateTable.open_at(storage, PRODUCERS), StateTable._load, []
    producers.update({}, add("second"))
    asks = threading.Thread(target=lambda: told.append((other.polled_at, names(other))))

    def loads(table):
        asks.start()
        asks.join(0.1)
        assert told == []
        load(table)

    monkeypatch.setattr(StateTable, "_load", loads)
    before = other.polled_at
    other.refresh()
    asks.join(30)
    ((polled_at, found),) = told
    assert (polled_at > before, found) == (True, ["first", "second"])


def test_a_reader_that_is_far_behind_a_clean_up_reads_the_newest_rows(storage, producers):
    other = StateTable.open_at(storage, PRODUCERS)
    for number in range(5):
        producers.update({}, lambda _, name=str(number): [row(name)])
    clean_up(storage)
    assert other.refresh()
    other.update({}, add("last"))
    producers.refresh()
    assert names(other) == names(producers) == ["4", "last"]


def test_rows_that_could_not_be_read_are_read_before_anything_is_decided(storage, producers, monkeypatch):
    """The handle has moved. A decision on the old rows would undo the changes of others."""
    other = StateTable.open_at(storage, PRODUCERS)
    producers.update({}, add("second"))
    monkeypatch.setattr(state_table.pq, "ParquetFile", fails_once_with_options(state_table.pq.ParquetFile))
    with pytest.raises(CorruptRecordException, match=r"\.parquet: timed out"):
        other.refresh()
    other.update({}, add("third"))
    assert names(StateTable.open_at(storage, PRODUCERS)) == ["first", "second", "third"]


def test_a_table_whose_versions_were_used_again_is_read_anew_until_that_has_worked(storage, producers, monkeypatch):
    """The handle is already at the newest version when reading its file fails."""
    producers.update({"who": "test"}, add("lost"))
    storage.delete(commit_name(last_version(storage)))
    other = StateTable.open_at(storage, PRODUCERS)
    other.update({"who": "test"}, add("kept"))
    monkeypatch.setattr(StateTable, "read_file", fails_once(StateTable.read_file, KafkaStorageException("no answer")))
    with pytest.raises(KafkaStorageException, match="no answer"):
        producers.refresh()
    producers.refresh()
    assert names(producers) == names(other) == ["first", "kept"]


def fails_once_with_options(real):
    first = fails_once(lambda: None, OSError("timed out"))

    def patched(*args, **options):
        first()
        return real(*args, **options)

    return patched


def test_an_outcome_that_stays_unknown_is_an_error(producers, monkeypatch):
    refuse_all(monkeypatch)
    with pytest.raises(KafkaStorageException, match="connection refused"):
        producers.update({}, add("second"))


def test_is_05_metadata_comes_back(storage):
    table = MetadataTable.create(storage)
    other = dataclasses.replace(PARTITION, partition=1, leader=-1, isr=(), adding_replicas=(), removing_replicas=())
    assert table.put([other, PARTITION], {"who": "test"}) == 1
    assert table.put([PARTITION], {"who": "test"}) is None, "nothing has changed"
    opened = MetadataTable.open(storage)
    assert (
        opened.partitions
        == table.partitions
        == {TopicIdPartition("id", 0): PARTITION, TopicIdPartition("id", 1): other}
    )
    moved = dataclasses.replace(PARTITION, leader=3)
    table.put([moved], {"who": "test"})
    assert opened.refresh()
    assert opened.partitions[TopicIdPartition("id", 0)] == moved
    assert opened.version == table.version == 2


def test_topics_come_back(storage):
    table = TopicTable.create(storage)
    topic = Topic("t", "id", 3, {"min.insync.replicas": "2", "x": ""}, False)
    table.change([topic], (), {"who": "test"})
    assert TopicTable.open(storage).topics == table.topics == {"t": topic}


def test_topics_are_put_and_dropped_and_what_is_so_already_is_not_written(storage):
    table, cause = TopicTable.create(storage), {"who": "test"}
    first, second = Topic("a", "1", 1), Topic("b", "2", 1)
    table.change([first, second], (), cause)
    table.change([replace(first, deleting=True)], ("b",), cause)
    assert TopicTable.open(storage).topics == {"a": replace(first, deleting=True)}
    table.change((), ("b",), cause)
    assert last_version(storage.child("topics")) == 2


def test_topics_are_decoded_once_a_version(storage):
    table, other = TopicTable.create(storage), TopicTable.open(storage)
    assert other.topics is other.topics
    table.change([Topic("a", "1", 1)], (), {"who": "test"})
    assert other.topics == {}
    other.refresh()
    assert other.topics == {"a": Topic("a", "1", 1)}
    assert other.topics is other.topics


@pytest.mark.parametrize("name", ["topics", "metadata", "admin"])
def test_ce_05_mc_02_a_table_that_a_newer_controller_has_claimed_refuses_an_older_one(storage, name):
    create, write = {
        "topics": (TopicTable.create, lambda table, epoch: table.change([Topic("t", "1", 1)], (), {}, epoch)),
        "metadata": (MetadataTable.create, lambda table, epoch: table.change(lambda _: {}, {}, epoch)),
        "admin": (AdminTable.create, lambda table, epoch: table.decide({}, epoch)),
    }[name]
    table = create(storage)
    for epoch in (1, 2, 2):
        table.claim(epoch)
    assert last_version(storage.child(name)) == 2, "a claim that stands is not made again"
    for refused in (lambda: table.claim(1), lambda: write(table, 1)):
        with pytest.raises(ControllerMovedException, match=f"{name}: controller epoch 1 is over: epoch 2"):
            refused()
    write(table, 2)


REQUEST = AdminRequest("r", "create_topic", {"topic": "t", "assignment": {"0": [1]}}, True, "me", 7)


def test_requests_and_their_outcomes_come_back(storage):
    table = AdminTable.create(storage)
    table.add(REQUEST)
    table.add(REQUEST)
    assert AdminTable.open(storage).requests == [REQUEST]
    outcomes = {"t": Outcome("TopicExistsException", "topic t exists already")}
    table.decide({"r": outcomes, "another": outcomes}, 3)
    table.decide({"r": {}}, 4)
    decided = replace(REQUEST, outcomes=outcomes, controller_epoch=3, state=DECIDED)
    assert AdminTable.open(storage).requests == [decided], "what is decided stays so"


def test_only_old_decided_requests_are_let_go(storage):
    table = AdminTable.create(storage)
    for number in range(3):
        table.add(replace(REQUEST, request_id=f"open {number}"))
    rows = [replace(REQUEST, request_id=f"r{number}") for number in range(205)]
    table.update({}, lambda found: [*found, *map(_row, rows)])
    table.decide({request.request_id: {} for request in rows}, 1)
    kept = [request.request_id for request in table.requests]
    assert kept == [*(f"open {number}" for number in range(3)), *(f"r{number}" for number in range(5, 205))]


def test_hw_02_replicas_come_back(storage):
    table = ReplicaTable.create(storage)
    leader = dataclasses.replace(REPLICA, partition=1, role="leader", error="x", epochs=())
    assert table.publish([leader, REPLICA], "test") == 1
    opened = ReplicaTable.open(storage)
    assert opened.replicas == table.replicas == {TopicIdPartition("id", 0): REPLICA, TopicIdPartition("id", 1): leader}


@pytest.mark.parametrize(
    ("changes", "is_written"),
    [
        ({}, False),
        ({"log_version": 99}, False),
        ({"high_watermark": 8}, True),
        ({"error": "x"}, True),
        ({"broker_epoch": 3}, True),
    ],
)
def test_a_log_version_alone_is_not_published(storage, changes, is_written):
    """Otherwise each commit of a log would wake all watchers of its replicas."""
    table = ReplicaTable.create(storage)
    table.publish([REPLICA], "test")
    assert (table.publish([dataclasses.replace(REPLICA, **changes)], "test") is not None) == is_written


def test_a_replica_that_is_not_published_again_is_gone(storage):
    table = ReplicaTable.create(storage)
    table.publish([REPLICA], "test")
    table.publish([], "test")
    assert ReplicaTable.open(storage).replicas == {}


def test_bc_01_a_registration_comes_back(storage):
    table = BrokerTable.open_or_create(storage, 1)
    assert table.registration is None
    assert table.register(lambda last: REGISTRATION if last is None else None) == REGISTRATION
    assert (
        BrokerTable.open(storage, 1).registration == BrokerTable.open_or_create(storage, 1).registration == REGISTRATION
    )
    BrokerTable.open_or_create(storage, 12)
    assert broker_ids(storage) == [1, 12]


def test_bc_01_a_write_moves_the_heartbeat(storage):
    table, reader = BrokerTable.open_or_create(storage, 1), BrokerTable.open_or_create(storage, 1)
    table.register(lambda _: REGISTRATION)
    assert table.heartbeat(1, "heartbeat").heartbeat == 2
    updated = table.heartbeat(1, "storage", storage_error="disk full", metadata_version=7)
    assert updated == dataclasses.replace(REGISTRATION, storage_error="disk full", metadata_version=7)
    assert reader.refresh()
    assert reader.registration == updated
    assert reader.registration.heartbeat == updated.heartbeat == 3


def test_bc_01_an_older_process_is_fenced_by_a_newer_epoch(storage):
    older, newer = BrokerTable.open_or_create(storage, 1), BrokerTable.open_or_create(storage, 1)
    older.register(lambda _: REGISTRATION)
    newer.register(lambda last: dataclasses.replace(last, broker_epoch=last.broker_epoch + 1))
    with pytest.raises(StaleBrokerEpochException, match=r"broker 1: epoch 1 is fenced.* epoch 2"):
        older.heartbeat(1, "heartbeat")
    assert newer.heartbeat(2, "heartbeat").heartbeat == 3


HEARTBEATS = 30


def beat(start, uri):
    table = BrokerTable.open(StorageRoot.of(uri), 1)
    start()
    return [table.heartbeat(1, "heartbeat").heartbeat for _ in range(HEARTBEATS)]


def test_two_processes_count_one_heartbeat(storage):
    table = BrokerTable.open_or_create(storage, 1)
    table.register(lambda _: REGISTRATION)
    first, second = race(beat, (storage.uri,), (storage.uri,))
    assert sorted(first + second) == list(range(2, 2 * HEARTBEATS + 2))
    assert first == sorted(first)
    table.refresh()
    assert table.registration.heartbeat == 2 * HEARTBEATS + 1


def test_files_of_older_versions_stay_as_long_as_their_commits(storage, producers, monkeypatch):
    delays = []
    monkeypatch.setattr(
        state_table, "FileCleaner", lambda root, delay: delays.append(delay) or FileCleaner(root, delay)
    )
    MetadataTable.create(storage).maintain()
    producers.maintain()
    assert delays == [7 * 86_400, 3600]
