"""Many look-ups of `txn`s read them all at once, and answer as delta-rs does."""

import pytest
from deltalake import DeltaTable

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.log import log_txns
from lakelog.replication.storage.log.log_txns import BROKER_EPOCH, MANY, Transactions, app_ids, read_transactions
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.storage.logs import new_log

PARTITIONS = [TopicIdPartition("many-id", number) for number in range(100)]
NAMES = [name for partition in PARTITIONS for name in app_ids(partition)]


@pytest.fixture
def log(root):
    """A log whose roles have changed before and after its checkpoint."""
    made = new_log(root)
    made.claim(3)
    made.become(dict.fromkeys(PARTITIONS, Role(0, LEADER)), "test")
    made.become(dict.fromkeys(PARTITIONS[:60], Role(1, FOLLOWER)), "test")
    return made


@pytest.fixture
def checkpointed(log, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 1)
    log.maintain()
    log.become(dict.fromkeys(PARTITIONS[50:70], Role(2, LEADER)), "test")
    return log


@pytest.fixture
def asked(monkeypatch):
    names, original = [], DeltaLog.transaction_version
    monkeypatch.setattr(DeltaLog, "transaction_version", lambda log, name: names.append(name) or original(log, name))
    return names


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_many_look_ups_have_the_answers_of_delta_rs(with_checkpoint, log, asked, request):
    if with_checkpoint:
        request.getfixturevalue("checkpointed")
    opened = DeltaLog.open(log.root)
    expected = {name: opened.transaction_version(name) for name in [*NAMES, BROKER_EPOCH, "unknown"]}
    asked.clear()
    found = Transactions(opened)
    assert {name: found.get(name) for name in expected} == expected
    assert len(asked) == MANY - 1


def test_a_log_with_many_partitions_is_opened_by_few_look_ups(checkpointed, asked):
    state = ReplicaLog.open(checkpointed.root).current()
    assert [state.known(p).role for p in PARTITIONS] == [
        *[Role(1, FOLLOWER)] * 50, *[Role(2, LEADER)] * 20, *[Role(0, LEADER)] * 30
    ]  # fmt: skip
    assert len(asked) < MANY


def test_after_a_commit_the_answers_are_new(log):
    opened = DeltaLog.open(log.root)
    found = Transactions(opened)
    before = [found.get(name) for name in NAMES]
    log.become(dict.fromkeys(PARTITIONS, Role(5, FOLLOWER)), "test")
    assert [found.get(name) for name in NAMES] == before, "the handle has not moved"
    opened.move()
    after = [found.get(name) for name in NAMES]
    assert after == [opened.transaction_version(name) for name in NAMES] != before


def test_delta_rs_searches_the_log_once_for_each_name(checkpointed, monkeypatch):
    opened, asked, search = DeltaLog.open(checkpointed.root), [], DeltaTable.transaction_version
    monkeypatch.setattr(
        DeltaTable, "transaction_version", lambda table, name: asked.append(name) or search(table, name)
    )
    found = [(opened.transaction_version("unknown"), opened.transaction_version(BROKER_EPOCH)) for _ in range(2)]
    assert found == [(None, 3)] * 2
    assert asked == ["unknown", BROKER_EPOCH]


def test_a_store_that_fails_after_the_table_was_opened_anew_is_a_storage_error(log, monkeypatch):
    class Away:
        def transaction_version(self, _):
            raise OSError("operation timed out")

    opened = DeltaLog.open(log.root)
    monkeypatch.setattr(opened, "_handle", Away())
    monkeypatch.setattr(delta_log, "open_version", lambda *_: Away())
    with pytest.raises(KafkaStorageException, match=f"{log.root.uri}: cannot be read: operation timed out"):
        opened.transaction_version("unknown")


@pytest.mark.parametrize("broken", ["_last_checkpoint", "checkpoint.parquet", "00000000000000000004.json"])
def test_delta_rs_answers_if_a_file_cannot_be_read(broken, checkpointed):
    opened = DeltaLog.open(checkpointed.root)
    folder = checkpointed.root.child("_delta_log")
    (name,) = (name for name in folder.list() if name.endswith(broken))
    content = folder.read(name)
    assert read_transactions(opened.root, opened.version) is not None
    folder.write(name, b"not what it was")
    assert read_transactions(opened.root, opened.version) is None
    folder.write(name, content)
    folder.delete(name)
    if broken != "_last_checkpoint":
        assert read_transactions(opened.root, opened.version) is None


def test_a_checkpoint_above_the_version_is_not_used(checkpointed):
    assert read_transactions(checkpointed.root, 2) is None


def test_the_first_look_ups_ask_delta_rs(log, asked, monkeypatch):
    """A few are cheaper than to read all, also in a store that takes its time."""
    monkeypatch.setattr(log_txns, "read_transactions", lambda *_: pytest.fail("all were read"))
    found = Transactions(DeltaLog.open(log.root))
    for name in NAMES[: MANY - 1]:
        found.get(name)
    assert len(asked) == MANY - 1
