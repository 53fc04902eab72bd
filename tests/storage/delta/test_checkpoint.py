"""Checkpoints of tables in an object store are those that delta-rs would write, from fewer requests."""

import itertools
import json

import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.checkpoint import checkpoint_name, last_checkpoint
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.storage.delta.tables import facts, filled, go_on, lose, names

_tables = itertools.count()


@pytest.fixture
def root(s3_options):
    return StorageRoot.of(f"s3://bucket/checkpoints/{next(_tables)}", s3_options)


def actions(root, version):
    """The actions of a checkpoint, in the order of their text."""
    rows = pq.read_table(root.open(checkpoint_name(version))).to_pylist()
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def test_a_checkpoint_has_what_that_of_delta_rs_has(root):
    log = filled(root, 3)
    assert last_checkpoint(root) == -1
    for commits in (3, 2):  # the second one is made of the first one and the commits after it
        root.checkpoint_table(log.version)
        assert last_checkpoint(root) == log.version
        own, told = actions(root, log.version), root.read("_delta_log/_last_checkpoint")
        root.open_table(log.version).create_checkpoint()
        assert (actions(root, log.version), root.read("_delta_log/_last_checkpoint")) == (own, told)
        lose(root, *range(log.version - commits, log.version))
        go_on(log, log.version + 1, log.version + 2)
    assert facts(root.open_table())[:2] == (log.version, names(log.version))


def test_the_handle_is_at_the_version_of_the_checkpoint(root):
    log = filled(root, 3)
    assert root.checkpoint_table(2).version() == 2
    assert facts(root.open_table())[:2] == (3, names(3))
    assert log.version == 3


@pytest.mark.parametrize("told", ["nothing", "{}", "[]", '{"version":null}', '{"version":9}', '{"version":1}'])
def test_where_the_last_checkpoint_cannot_be_told_delta_rs_makes_the_next_one(root, told):
    """The last of these is one of several files, or a file that is not there."""
    log = filled(root, 3)
    root.put("_delta_log/_last_checkpoint", told.encode())
    root.checkpoint_table(log.version)
    assert last_checkpoint(root) == 3
    lose(root, 0, 1, 2)
    assert facts(root.open_table())[:2] == (3, names(3))


def test_a_commit_that_is_missing_is_an_error_and_leaves_the_last_checkpoint(root, monkeypatch):
    log = filled(root, 3)
    monkeypatch.setattr("lakelog.replication.storage.delta.delta_log.CHECKPOINT_COMMITS", 1)
    root.checkpoint_table(log.version)
    go_on(log, 4, 5)
    lose(root, 4)
    with pytest.raises(KafkaStorageException, match="a checkpoint cannot be written"):
        log.checkpoint_if_due()
    assert last_checkpoint(root) == 3
    assert not root.exists(checkpoint_name(5))
    assert root.exists(commit_name(5))
