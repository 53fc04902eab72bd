"""Two processes of one broker: the newer claims both tables, and the older notices before it writes again."""

import pytest

from lakelog.replication.errors import StaleBrokerEpochException
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.replica_table import ReplicaTable


def replica(epoch, end):
    return ReplicaStatus(
        "t", "id", 0, 1, epoch, 0, "follower", "Fetching", 0, end, 0, (EpochEntry(0, 0),), None, 1
    )  # fmt: skip


@pytest.fixture
def tables(root):
    home = StorageRoot.of(root)
    older = ReplicaTable.create(home)
    older.claim(1)
    return older, ReplicaTable.open(home)


def test_an_older_process_cannot_publish_after_a_newer_claim(tables):
    older, newer = tables
    older.publish([replica(1, 5)], "test")
    newer.claim(2)
    newer.publish([replica(2, 7)], "test")
    with pytest.raises(StaleBrokerEpochException, match=r"epoch 1 is fenced: .* under epoch 2"):
        older.publish([replica(1, 9)], "test")
    newer.refresh()
    assert [r.log_end_offset for r in newer.replicas.values()] == [7]


def test_an_older_process_cannot_publish_after_a_claim_that_came_right_after_its_own_commit(tables, monkeypatch):
    """The claim lands before the handle moves to its own commit. The next publish must still see the claim."""
    older, newer = tables
    commit = DeltaLog.commit

    def then_claim(log, *given, **options):
        version = commit(log, *given, **options)
        monkeypatch.setattr(DeltaLog, "commit", commit)
        newer.claim(2)
        return version

    monkeypatch.setattr(DeltaLog, "commit", then_claim)
    older.publish([replica(1, 5)], "test")
    for _ in range(2):
        with pytest.raises(StaleBrokerEpochException):
            older.publish([replica(1, 9)], "test")
    newer.refresh()
    assert [r.log_end_offset for r in newer.replicas.values()] == [5]


def test_a_claim_keeps_the_rows(tables):
    older, newer = tables
    older.publish([replica(1, 5)], "test")
    newer.claim(2)
    assert [r.log_end_offset for r in newer.replicas.values()] == [5]


def test_an_older_process_cannot_claim_back(tables):
    older, newer = tables
    newer.claim(2)
    with pytest.raises(StaleBrokerEpochException):
        older.claim(1)


def test_a_reader_claims_nothing(tables):
    older, reader = tables
    older.publish([replica(1, 5)], "test")
    assert reader.refresh()
    assert len(reader.replicas) == 1
