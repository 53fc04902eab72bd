"""A table at a time: the newest version that was committed by then."""

import os

import pytest

from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_history import commit_times, table_at
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import CONTROLLER

WRITTEN = {0: 100, 1: 110, 2: 120, 3: 120, 4: 90}  # the clock of version 4's writer is behind


@pytest.fixture
def table(root):
    made = StateTable.create_at(StorageRoot.of(f"{root}/controller"), CONTROLLER)
    for epoch in range(1, 5):
        row = {"controller_id": "c", "controller_epoch": epoch, "resigned": False}
        made.update({"who": "test"}, lambda _, row=row: [row])
    for version, at in WRITTEN.items():
        written(made._log.root, version, at)
    return made._log.root


def written(root, version, at):
    os.utime(f"{root.uri}/{commit_name(version)}", (at, at))


@pytest.mark.parametrize(
    ("at", "version"), [(None, 4), (100, 0), (109.9, 0), (110, 1), (119, 1), (120, 2), (120.0011, 3), (1000, 4)]
)
def test_a_table_at_a_time_is_its_newest_version_by_then(table, at, version):
    found = table_at(table, at)
    assert found.log.version == version
    assert StateTable(found.log, CONTROLLER).rows == (
        [{"controller_id": "c", "controller_epoch": version, "resigned": False}] if version else []
    )


def test_later_versions_have_later_times(table):
    assert commit_times(table) == pytest.approx({0: 100, 1: 110, 2: 120, 3: 120.001, 4: 120.002})


def test_a_time_before_the_history_is_refused_and_says_how_far_back_it_reaches(table):
    with pytest.raises(KafkaStorageException, match="does not reach back to 1970-01-01T00:01:39") as caught:
        table_at(table, 99)
    assert "its oldest commit is of 1970-01-01T00:01:40" in str(caught.value)


def test_a_commit_in_the_gap_of_a_clean_up_does_not_count(table):
    table.delete(commit_name(1))
    assert list(commit_times(table)) == [2, 3, 4]


def test_a_version_without_its_checkpoint_is_refused_in_one_sentence(table):
    for version in (0, 1):
        table.delete(commit_name(version))
    with pytest.raises(KafkaStorageException, match=r"does not reach back to .*: version 2 cannot be read"):
        table_at(table, 120)


def test_a_folder_without_a_table_is_refused(root):
    nothing = StorageRoot.of(f"{root}/nothing")
    with pytest.raises(InconsistentClusterIdException):
        table_at(nothing, None)
    with pytest.raises(KafkaStorageException, match="it has no commit"):
        table_at(nothing, 100)
