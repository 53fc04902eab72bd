"""Wrong entries from anybody who may write to a log: they harm the partitions that they name, and no others."""

import dataclasses
import os
import re

import pyarrow as pa
import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import linked
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import named_digest, snapshot_name
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_segment, write_segment
from lakelog.replication.storage.log.truncate import delete_logs
from tests.storage.logs import (
    P0,
    P1,
    TOPIC,
    TOPIC_ID,
    chain,
    fill,
    header,
    lead,
    leo,
    log_rows,
    new_log,
    request,
    send,
    values,
)

ESCAPES = ["../metadata/active.parquet", "..%2Fmetadata%2Factive.parquet", "/etc/passwd"]


@pytest.fixture
def log(root):
    """Both partitions have three records, in a segment each."""
    made = new_log(root, P0, P1)
    fill(made, P0, 3)
    fill(made, P1, 3)
    return made


def commit(log, *files, **more):
    """Commits as a writer that knows no rules."""
    log._log.move()
    log._log.commit({"why": "nonsense"}, files, **more)


def at_work_and_opened(log):
    return log, ReplicaLog.open(log.root)


@pytest.mark.parametrize("name", ESCAPES)
def test_a_file_outside_the_log_is_not_taken_in_and_costs_no_partition(log, name):
    commit(log, AddedFile(name, 10))
    for handle in at_work_and_opened(log):
        assert (leo(handle, P0), leo(handle, P1), len(handle.refresh().broken)) == (3, 3, 1)
    rows, failed = batches_from(log.root, {P0: 0, P1: 0}, {P0: TOPIC, P1: TOPIC})
    assert (len(rows), failed) == (2, {})


@pytest.mark.parametrize("name", ESCAPES[:2])
def test_a_file_outside_the_log_is_neither_read_nor_deleted(log, name):
    """It stays in the table, where it does no harm. To remove it, a commit would have to name it again."""
    segment = next(iter(log.refresh().segments.values()))
    target = os.path.normpath(log.root.path(name))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(log.root.read(segment.name))
    commit(log, AddedFile(name, segment.file.size, segment.file.stats))
    assert delete_logs(log, (), "test") is None
    assert (leo(log), values(log), os.path.exists(target)) == (3, [b"0", b"1", b"2"], True)


def refused(log, partition=P0):
    """The error for which the partition is refused, or None."""
    return log.refresh().fault(partition)


def nonsense(base=3, last=4, epoch=0, **changes):
    """Another writer's append to P0, whose log ends at 3."""
    rows = log_rows(P0, base, last - base + 1, epoch)

    def header_after(previous):
        return linked(dataclasses.replace(header(P0, base, last, epoch), **changes), previous)

    return header_after, rows


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        pytest.param(nonsense(leader_epoch=-1), "leader_epoch -1", id="an epoch below zero"),
        pytest.param(nonsense(partition="0"), "partition '0'", id="a partition that is a text"),
        pytest.param(nonsense(last_offset=2**70), "last_offset", id="an offset that is none"),
        pytest.param(nonsense(last_offset=1002), "1000 records, but it has 2 rows", id="more records than rows"),
        pytest.param(nonsense(base_offset=9, last_offset=4), "offsets 9 to 4", id="it ends before it begins"),
        pytest.param(nonsense(base_offset=4, last_offset=5), "statistics have offset from 3 to 4", id="other offsets"),
        pytest.param(nonsense(1000, 1001), "begins at offset 1000, but .* ends before 3", id="a gap"),
        pytest.param(nonsense(1, 4), "begins at offset 1, but .* ends before 3", id="an overlap"),
    ],
)
def test_nonsense_breaks_its_own_partition_at_work_and_when_the_log_is_opened(log, batch, fault):
    other = ReplicaLog.open(log.root)
    header_after, rows = batch
    segment = write_segment(log.root, 1, rows, [header_after(chain(log))])
    commit(log, segment.file)
    (refusal,) = send(other, request(P0, 1, producer_id=8))
    assert (refusal.name, re.search(fault, str(refusal)) is not None) == ("KafkaStorageException", True)
    for handle in (other, ReplicaLog.open(log.root)):
        assert re.search(fault, refused(handle))
        assert (refused(handle, P1), values(handle, P1)) == (None, [b"0", b"1", b"2"])
        with pytest.raises(CorruptRecordException):
            handle.read(P0, 0)
        fill(handle, P1, 1)
        assert values(handle, P1) == [b"0", b"1", b"2", b"0"]
        commit(handle, removes=[handle.refresh().segments[handle.refresh().known(P1).batches[-1].segment].file])
    commit(log, removes=[segment.file])
    for handle in (other, ReplicaLog.open(log.root)):
        assert (refused(handle), values(handle)) == (None, [b"0", b"1", b"2"]), "it is whole when that is gone"


def test_an_epoch_below_the_one_before_it_is_refused(log):
    lead(log, P0, epoch=4)
    fill(log, P0, 1, epoch=4)
    headers = [header(P0, 4, 4, epoch=3, previous=chain(log))]
    commit(log, write_segment(log.root, 1, log_rows(P0, 4, 1, epoch=3), headers).file)
    for handle in at_work_and_opened(log):
        assert "it has leader epoch 3 after 4" in refused(handle)
        assert refused(handle, P1) is None


def test_a_log_whose_first_records_were_taken_away_is_refused(log):
    fill(log, P0, 2)
    commit(log, removes=[log.refresh().segments[log.refresh().known(P0).batches[0].segment].file])
    for handle in at_work_and_opened(log):
        assert "begins at offset 3, but the log starts at 0" in refused(handle)
        assert refused(handle, P1) is None


def test_a_log_without_records_takes_none_but_at_its_start(root):
    log = new_log(root, P0, P1)
    commit(log, write_segment(log.root, 1, log_rows(P0, 7, 1), [header(P0, 7, 7)]).file)
    for handle in at_work_and_opened(log):
        assert "begins at offset 7, but the log starts at 0" in refused(handle)


def test_nothing_of_a_commit_is_taken_in_that_makes_no_sense(log):
    """Otherwise its first batch would be there, and twice after the next poll."""
    other = ReplicaLog.open(log.root)
    rows = pa.concat_tables([log_rows(P0, 3, 1), log_rows(P1, 9, 1)])
    commit(log, write_segment(log.root, 1, rows, [header(P0, 3, 3, 0, chain(log)), header(P1, 9, 9)]).file)
    for _ in range(2):
        assert [batch.base_offset for batch in other.refresh().known(P0).batches] == [0, 3]
        assert (refused(other), refused(other, P1) is None) == (None, False)


def test_a_compaction_of_other_batches_is_none(log):
    """The log's files decide, so all of them are read again."""
    other = ReplicaLog.open(log.root)
    commit(log, write_segment(log.root, None, log_rows(P0, 0, 2), [header(P0, 0, 1)]).file, data_change=False)
    for handle in (other, ReplicaLog.open(log.root)):
        assert (refused(handle) is not None, refused(handle, P1)) == (True, None)


@pytest.mark.parametrize("app_id", ["role/flights-id/x", "role/0", "start/flights-id/²", "log-start//1", "other/a/b"])
def test_a_fact_that_is_about_nothing_changes_nothing(log, app_id):
    commit(log, txns={app_id: 5})
    for handle in at_work_and_opened(log):
        assert (leo(handle), values(handle)) == (3, [b"0", b"1", b"2"])


@pytest.mark.parametrize("kind", ["role", "start", "log-start"])
def test_a_fact_below_zero_is_none(log, kind):
    commit(log, txns={f"{kind}/{TOPIC_ID}/1": -7})
    for handle in (log, ReplicaLog.open(log.root)):
        known = handle.refresh().known(P1)
        assert (known.log_start_offset, known.epoch_start, known.role.leader_epoch < 1) == (0, 0, True)


def test_a_file_that_tells_of_producers_has_no_records(log):
    segment = write_segment(log.root, 1, log_rows(P0, 3, 1), [header(P0, 3, 3)])
    name = snapshot_name(named_digest(segment.name))
    log.root.rename(segment.name, name)
    with pytest.raises(CorruptRecordException, match="says that it has no records"):
        read_segment(log.root, dataclasses.replace(segment.file, name=name))


def test_a_batch_of_another_history_is_refused(log):
    """Its offsets and its epoch fit. Only the chain does not."""
    commit(log, write_segment(log.root, 1, log_rows(P0, 3, 1), [header(P0, 3, 3, 0, "0" * 32)]).file)
    for handle in at_work_and_opened(log):
        assert "follows the chain" in refused(handle)
        assert refused(handle, P1) is None
