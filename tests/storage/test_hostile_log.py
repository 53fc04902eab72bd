"""What anybody who may write to a log can put into it: it costs the partitions that it is about, and no other."""

import os

import pytest

from replication.storage.commit import AddedFile
from replication.storage.cut import delete_logs
from replication.storage.log_snapshot import headers_from
from replication.storage.replica_log import ReplicaLog
from tests.storage.logs import P0, P1, TOPIC, fill, leo, new_log, values

ESCAPES = ["../metadata/active.parquet", "..%2Fmetadata%2Factive.parquet", "/etc/passwd"]


@pytest.fixture
def log(root):
    """Both partitions have three records, in a segment each."""
    made = new_log(root, P0, P1)
    fill(made, P0, 3)
    fill(made, P1, 3)
    return made


def commit(log, *files):
    """What a writer that knows no rules commits."""
    log._log.move()
    log._log.commit({"why": "nonsense"}, files)
    log._log.move()


def at_work_and_opened(log):
    return log, ReplicaLog.open(log.root)


@pytest.mark.parametrize("name", ESCAPES)
def test_a_file_outside_the_log_is_not_taken_in_and_costs_no_partition(log, name):
    commit(log, AddedFile(name, 10))
    for handle in at_work_and_opened(log):
        assert (leo(handle, P0), leo(handle, P1), len(handle.refresh().broken)) == (3, 3, 1)
    rows, failed = headers_from(log.root, {P0: 0, P1: 0}, {P0: TOPIC, P1: TOPIC})
    assert (len(rows), failed) == (2, {})


@pytest.mark.parametrize("name", ESCAPES[:2])
def test_a_file_outside_the_log_is_neither_read_nor_deleted(log, name):
    """It stays in the table, where it costs nothing: to remove it, its name would have to be written once more."""
    segment = next(iter(log.refresh().segments.values()))
    target = os.path.normpath(log.root.path(name))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(log.root.read(segment.name))
    commit(log, AddedFile(name, segment.file.size, segment.file.stats))
    assert delete_logs(log, (), "test") is None
    assert (leo(log), values(log), os.path.exists(target)) == (3, [b"0", b"1", b"2"], True)
