"""A log with some broken files: reads of those files fail with their names, and the rest of the log works."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.partition_log import FOLLOWER, STOPPED, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import snapshot_name
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.log import broken_segments
from lakelog.replication.storage.log.broken_segments import BrokenSegment, with_statistics
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.log_state import LogChange
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.replication.storage.log.truncate import delete_logs
from tests.clock import Clock
from tests.processes import wait_until
from tests.storage.logs import P0, P1, P2, fill, follow, lead, leo, new_log, request, send, values

STATS = '{"minValues":{"topic":"flights","partition":1},"maxValues":{"topic":"hotels","partition":3}}'


def delete(file):
    file.unlink()


def shorten(file):
    file.write_bytes(file.read_bytes()[:-1])


def garble(file):
    file.write_bytes(b"x" * file.stat().st_size)


HARMS = [delete, shorten, garble]


@pytest.fixture
def log(root):
    """Partition 0 has two segments, partition 1 one, and partition 2 none."""
    made = new_log(root, P0, P1, P2)
    fill(made, P0, 2)
    fill(made, P1, 3)
    fill(made, P0, 2)
    return made


def files(log, partition=P0):
    return [Path(log.root.path(batch.segment)) for batch in log.refresh().known(partition).batches]


def refused(log, partition=P0):
    """The file that the partition is refused for, None if it is not."""
    try:
        log.refresh().partition(partition)
    except CorruptRecordException as error:
        return str(error)
    return None


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("number", [0, 1], ids=["the first", "the last"])
def test_ol_01_a_log_is_opened_with_a_broken_file_and_one_partition_is_refused(log, harm, number):
    broken = files(log)[number]
    content = broken.read_bytes()
    harm(broken)
    opened = ReplicaLog.open(log.root)
    assert broken.name in refused(opened)
    assert (refused(opened, P1), values(opened, P1)) == (None, [b"0", b"1", b"2"])
    with pytest.raises(CorruptRecordException, match=broken.name):
        opened.read(P0, 0)
    broken.write_bytes(content)
    assert opened.scrub()
    assert (refused(opened), values(opened), opened.scrub()) == (None, [b"0", b"1", b"0", b"1"], False)


@pytest.mark.parametrize(("harm", "is_found"), [(delete, True), (shorten, True), (garble, False)])
def test_ol_01_a_scrub_finds_the_files_that_are_gone_or_short(log, harm, is_found):
    """Of the right size they are only found when they are read: a listing costs one request, reading costs them all."""
    assert not log.scrub()
    broken = files(log)[0]
    content = broken.read_bytes()
    harm(broken)
    assert log.scrub() == is_found
    assert (refused(log) is not None, refused(log, P1)) == (is_found, None)
    assert log.refresh().known(P0).log_end_offset == 4, "what its headers say stays known"
    broken.write_bytes(content)
    assert log.scrub() == is_found
    assert (refused(log), leo(log)) == (None, 4)


def test_ol_01_one_of_two_is_healed(log):
    first, second = files(log)
    contents = {file: file.read_bytes() for file in (first, second)}
    for file in contents:
        delete(file)
    opened = ReplicaLog.open(log.root)
    for handle in (log, opened):
        handle.scrub()
    first.write_bytes(contents[first])
    for handle in (log, opened):
        assert handle.scrub()
        assert second.name in refused(handle)
    second.write_bytes(contents[second])
    for handle in (log, opened):
        assert handle.scrub()
        assert (refused(handle), leo(handle)) == (None, 4)


@pytest.mark.parametrize("opened_when", ["it was there", "it was gone"])
def test_ol_01_dr_01_a_log_starts_where_it_did_once_a_broken_file_has_gone_from_it(log, opened_when):
    """A reader whose version is old may find the file of its first batches gone, as a compaction has taken its place:
    that must not look like a deletion of records."""
    fill(log, P0, 2)
    opened = ReplicaLog.open(log.root)
    first = log.refresh().segments[files(log)[0].name]
    again = copy_segment(log.root, first, log.root)
    delete(files(log)[0])
    if opened_when == "it was gone":
        opened = ReplicaLog.open(log.root)
        assert refused(opened)
    log.transact({"why": "test"}, lambda _: LogChange(adds=(again,), removes=(first,), data_change=False))
    found = opened.refresh().partition(P0)
    assert (found.log_start_offset, len(found.batches)) == (0, 3)
    assert found == ReplicaLog.open(log.root).refresh().partition(P0)


def test_ol_01_a_producer_or_reader_looks_again_by_itself(log, monkeypatch):
    """Its handle may have been opened when the file was gone, and nobody scrubs for it."""
    clock = Clock()
    monkeypatch.setattr(broken_segments, "time", SimpleNamespace(monotonic=lambda: clock.now))
    broken = files(log)[0]
    content = broken.read_bytes()
    delete(broken)
    opened = ReplicaLog.open(log.root)
    assert refused(opened) is not None
    broken.write_bytes(content)
    clock.now += 9
    assert refused(opened) is not None
    clock.now += 1
    wait_until(lambda: refused(opened) is None, "what is whole again")
    assert leo(opened) == 4


def test_bl_11_what_is_produced_to_it_is_an_error_and_other_partitions_take_it(log):
    broken = files(log)[0]
    delete(broken)
    opened = ReplicaLog.open(log.root)
    refusal, appended = send(opened, request(P0, 1, producer_id=8), request(P1, 1, producer_id=8))
    assert (refusal.name, broken.name in str(refusal)) == ("KafkaStorageException", True)
    assert appended.base_offset == 3


def test_ol_01_a_partition_that_is_not_in_the_broken_file_s_range_is_none_of_its(log):
    """The statistics of the file tell. A partition of a topic without a name known here counts as in the range."""
    delete(files(log)[0])
    state = ReplicaLog.open(log.root).refresh()
    other = TopicIdPartition("hotels-id", 0)
    assert state.fault(other) is not None
    state.topics.update({"hotels-id": "hotels"})
    assert state.fault(other) is None
    assert [state.fault(p) is None for p in (P0, P1, P2)] == [False, True, True]


@pytest.mark.parametrize(
    ("partition", "topic", "may"),
    [
        (TopicIdPartition("id", 1), "flights", True),
        (TopicIdPartition("id", 3), "hotels", True),
        (TopicIdPartition("id", 2), "gates", True),
        (TopicIdPartition("id", 2), None, True),
        (TopicIdPartition("id", 2), "trains", False),
        (TopicIdPartition("id", 0), "flights", False),
        (TopicIdPartition("id", 4), None, False),
    ],
)
def test_ol_01_what_a_file_may_hold_by_its_statistics(partition, topic, may):
    assert BrokenSegment(AddedFile("name", 1, STATS), "gone").may_hold(partition, topic) == may
    assert BrokenSegment(AddedFile("name", 1, "{}"), "gone").may_hold(partition, topic), "without them anything"
    assert not BrokenSegment(AddedFile(snapshot_name("0" * 32), 1, "{}"), "gone").may_hold(partition, topic)


def test_ol_01_a_store_that_does_not_hand_a_file_out_is_no_broken_file(log, monkeypatch):
    def unreachable(*_):
        raise KafkaStorageException("timed out")

    garble(files(log)[0])
    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "read", unreachable)
        with pytest.raises(KafkaStorageException, match="timed out"):
            ReplicaLog.open(log.root)
    assert refused(ReplicaLog.open(log.root)) is not None


@pytest.mark.parametrize("harm", [delete, shorten])
@pytest.mark.parametrize("is_opened", [False, True], ids=["its headers are known", "they are not"])
def test_sr_03_a_broken_partition_can_be_deleted(log, harm, is_opened):
    broken, healthy = files(log)
    harm(broken)
    handle = ReplicaLog.open(log.root) if is_opened else log
    handle.scrub()
    for partition in (P0, P1, P2):
        handle.refresh().known(partition)
    handle.become({P0: Role(1, STOPPED)}, "test")
    delete_logs(handle, [P0], "test")
    assert {broken.name, healthy.name} & set(handle.refresh().segments) == set()
    assert (handle.refresh().broken, refused(handle), leo(handle)) == ({}, None, 0)
    assert values(handle, P1) == [b"0", b"1", b"2"]


def test_sr_03_a_broken_file_stays_as_long_as_it_holds_something_that_is_wanted(root):
    """It cannot be read, to write the rest of it again. When the other partition goes as well, so does the file."""
    log = new_log(root, P0, P1)
    send(log, request(P0, 2), request(P1, 2))
    (name,) = log.refresh().segments
    log.root.delete(name)
    log.scrub()
    for partition, left in ((P0, {name}), (P1, set())):
        log.become({partition: Role(1, STOPPED)}, "test")
        delete_logs(log, [partition], "test")
        assert set(log.refresh().segments) == left


def test_ol_01_maintenance_goes_on_around_a_broken_file(log):
    broken = files(log)[0]
    delete(broken)
    log.scrub()
    fill(log, P1, 1, 1, 1)
    outcomes = raise_log_starts(log, {P0: lambda _: 1, P1: lambda _: 3}, "test", "test")
    assert (outcomes[P0].name, outcomes[P1]) == ("CorruptRecordException", 3)
    delete_old_segments(log, 0, "test")
    assert compact(log, 1 << 20, 2, 1 << 20, "test") == 4
    assert broken.name in log.refresh().segments
    assert values(log, P1, 3) == [b"0", b"0", b"0"]


def test_ol_01_a_file_that_makes_no_sense_is_found_when_maintenance_reads_it(log):
    """Its footer may be in order all along, so that it is whole again only when all of it can be read."""
    fill(log, P0, 1, 1)
    broken = files(log)[0]
    content = broken.read_bytes()
    broken.write_bytes(b"x" * 1000 + content[1000:])
    with pytest.raises(CorruptRecordException, match=broken.name):
        compact(log, 1 << 20, 1, 1 << 20, "test")
    assert not log.scrub()
    assert broken.name in refused(log)
    assert compact(log, 1 << 20, 1, 1 << 20, "test") == 4, "the others are merged"
    broken.write_bytes(content)
    assert log.scrub()
    assert refused(log) is None


def test_ol_01_it_can_be_given_up_and_not_be_led(log):
    """A producer that has not heard of the fault is fenced by the role."""
    delete(files(log)[0])
    opened = ReplicaLog.open(log.root)
    with pytest.raises(CorruptRecordException, match="is gone"):
        lead(opened, P0, epoch=2)
    follow(opened, P0, epoch=3)
    assert opened.refresh().known(P0).role == Role(3, FOLLOWER)
    (refusal,) = send(log, request(P0, 1, producer_id=8))
    assert refusal.name == "FencedLeaderEpochException"


def test_sr_03_a_broken_file_still_has_its_owners_when_another_one_is_whole_again(log):
    """The partition that it holds all of was asked about before the log was read anew."""
    (first, _), (only,) = files(log), files(log, P1)
    content = first.read_bytes()
    first.unlink()
    only.unlink()
    opened = ReplicaLog.open(log.root)
    assert opened.current().known(P1).role == log.current().known(P1).role
    first.write_bytes(content)
    assert opened.scrub()
    assert (set(opened.current().broken), opened.current().broken_for_nobody()) == ({only.name}, [])


def test_a_broken_file_that_its_table_does_not_have_any_more_is_named(log):
    broken = BrokenSegment(AddedFile("part.parquet", 5), "/log/part.parquet: is gone")
    with pytest.raises(KafkaStorageException, match="is gone; its table has no such file"):
        with_statistics(log.root, log.refresh().version, [broken])
