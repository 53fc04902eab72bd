"""Copies of segments to an object store, on executors."""

import dataclasses

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.server import executors
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.fetcher import segment_copier
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import broken_segments
from lakelog.replication.storage.log.segment import Segment, read_segment
from tests.hanging import raises
from tests.storage.logs import P0, P1, fill, new_log


class Plan:
    """Wants all batches of a log."""

    def __init__(self, log):
        self._segments = {
            segment.name: [FetchedBatch.of(header, segment.name, segment.file.size) for header in segment.headers]
            for segment in log.refresh().segments.values()
        }

    def by_segment(self):
        return self._segments


class World:
    """A copier from a local log with four segments to a folder of a bucket. `given` has the names of the segments of
    each task, of each job that executors got."""

    def __init__(self, spark, root, target):
        self.spark, self.target, self.given = spark, target, []
        self.log = new_log(root, P0, P1)
        fill(self.log, P0, 3, 4, 5)
        fill(self.log, P1, 6)
        self.plan = Plan(self.log)
        self.bytes = sum(segment.file.size for segment in self.log.refresh().segments.values())

    def copy(self, target=None, executor_bytes=None, known=None):
        copier = SegmentCopier(self.log.root, target or self.target, self.spark, executor_bytes or self.bytes)
        return copier.copy(self.plan, known)

    def on_executors(self, session, call, shares):
        self.given.append([[item.name for item in share] for share in shares])
        return executors.on_executors(session, call, shares)


@pytest.fixture
def world(spark, root, s3_options, monkeypatch, request):
    """Local workers of the shared session play the executors."""
    made = World(spark, root, StorageRoot.of(f"s3://bucket/{request.node.name}", s3_options))
    monkeypatch.setattr(executors, "has_executors", lambda _: True)
    monkeypatch.setattr(segment_copier, "has_executors", lambda _: True)
    monkeypatch.setattr(segment_copier, "on_executors", made.on_executors)
    return made


def contents(root, segments):
    return sorted(root.read(segment.name) for segment in segments)


def is_whole(world, copied, target=None):
    """Whether each segment has a copy in the target, byte for byte, and the target has nothing else."""
    target, originals = target or world.target, list(world.log.refresh().segments.values())
    same = contents(target, copied.segments) == contents(world.log.root, originals)
    return same and not copied.failed and len(target.list()) == len(originals)


def test_executors_copy_a_round_of_many_bytes(world, caplog):
    caplog.set_level("INFO")
    assert is_whole(world, world.copy())
    (tasks,) = world.given
    assert [len(names) for names in tasks] == [2, 2], "a task for each core"
    assert sorted(name for names in tasks for name in names) == sorted(world.plan.by_segment())
    assert f"{world.log.root.uri}: executors have copied 4 of 4 segments" in caplog.messages


def test_the_driver_copies_what_is_small_or_near_and_all_without_executors(world, root, monkeypatch):
    assert is_whole(world, world.copy(executor_bytes=world.bytes + 1))
    near = StorageRoot.of(root).child("near")
    near.create_folder()
    assert is_whole(world, world.copy(target=near), near)
    world.target.delete_folder()
    monkeypatch.setattr(segment_copier, "has_executors", lambda _: False)
    assert is_whole(world, world.copy())
    assert world.given == []


def test_large_segments_are_copied_first(world, monkeypatch):
    copied, real = [], segment_copier.copy_segment
    monkeypatch.setattr(segment_copier, "_COPIERS", 1)
    monkeypatch.setattr(segment_copier, "copy_segment", lambda *args: copied.append(args[1].file.size) or real(*args))
    assert is_whole(world, world.copy(executor_bytes=world.bytes + 1))
    assert copied == sorted(copied, reverse=True) != sorted(copied)


def test_the_driver_copies_one_segment_alone(world):
    while len(world.plan.by_segment()) > 1:
        world.plan.by_segment().popitem()
    assert len(world.copy(executor_bytes=1).segments) == 1
    assert world.given == []


def test_a_broken_segment_fails_its_partition_and_no_other(world):
    broken = next(s.name for s in world.log.refresh().segments.values() if s.headers[0].topic_id_partition == P1)
    world.log.root.delete(broken)
    copied = world.copy()
    assert {partition: type(error) for partition, error in copied.failed.items()} == {P1: CorruptRecordException}
    assert broken in str(copied.failed[P1])
    assert len(copied.segments) == 3
    assert len(world.given) == 1


def test_the_driver_copies_what_executors_cannot(world, caplog, monkeypatch):
    def fails(*_):
        raise ExecutorsFailed("Spark has no executor")

    monkeypatch.setattr(segment_copier, "on_executors", fails)
    assert is_whole(world, world.copy())
    assert f"{world.log.root.uri}: the driver copies 4 segments itself: Spark has no executor" in caplog.messages


def test_copies_that_the_driver_does_not_find_are_made_again(world, monkeypatch):
    """On the machine of an executor a URI may lead to another store, such as http://localhost:9000."""
    elsewhere = world.target.child("elsewhere")

    def astray(session, call, shares):
        job = dataclasses.replace(call.__self__, target=elsewhere)
        return executors.on_executors(session, job.copy_all, shares)

    monkeypatch.setattr(segment_copier, "on_executors", astray)
    copied = world.copy()
    assert len(elsewhere.list()) == 4
    elsewhere.delete_folder()
    assert is_whole(world, copied)


def footers(copier, log):
    """The segments whose footers it reads, as the log has them, and the names of broken ones."""
    files = [segment.file for segment in log.refresh().segments.values()]
    found = copier.read_footers([dataclasses.replace(file, content=None) for file in files])
    whole = {segment.name: segment.headers for segment in found if isinstance(segment, Segment)}
    return whole, [segment.file.name for segment in found if not isinstance(segment, Segment)]


def headers(log):
    return {segment.name: segment.headers for segment in log.refresh().segments.values()}


@pytest.mark.parametrize("case", ["many", "few", "a failed job"])
def test_executors_read_many_footers(world, monkeypatch, caplog, case):
    monkeypatch.setattr(segment_copier, "_FOOTERS", 5 if case == "few" else 4)
    given = []

    def on_executors(session, call, shares):
        given.append(sorted(map(len, shares)))
        if case == "a failed job":
            raise ExecutorsFailed("Spark has no executor")
        return executors.on_executors(session, call, shares)

    monkeypatch.setattr(segment_copier, "on_executors", on_executors)
    copier = SegmentCopier(world.log.root, world.target, world.spark, 1)
    assert footers(copier, world.log) == (headers(world.log), [])
    assert given == ([] if case == "few" else [[2, 2]])
    told = f"{world.log.root.uri}: the driver reads 4 footers itself: Spark has no executor"
    assert caplog.messages == ([told] if case == "a failed job" else [])


def test_the_driver_reads_a_file_that_executors_do_not_find(world, monkeypatch):
    monkeypatch.setattr(segment_copier, "_FOOTERS", 1)
    elsewhere, copier = world.target.child("none"), SegmentCopier(world.log.root, world.target, world.spark, 1)
    monkeypatch.setattr(
        segment_copier, "on_executors",
        lambda session, call, shares: executors.on_executors(
            session, dataclasses.replace(call.__self__, source=elsewhere).read_footers, shares
        ),
    )  # fmt: skip
    assert footers(copier, world.log) == (headers(world.log), [])
    gone, *_ = headers(world.log)
    world.log.root.delete(gone)
    assert footers(copier, world.log)[1] == [gone]


def test_a_footer_that_was_read_is_not_read_again(world, monkeypatch):
    """In an object store it is a request."""
    reads = []
    monkeypatch.setattr(segment_copier, "read_segment", lambda *given: reads.append(given) or read_segment(*given))
    known = dict(world.log.refresh().segments)
    assert is_whole(world, world.copy(executor_bytes=world.bytes + 1, known=known))
    assert reads == []
    assert len(world.copy(executor_bytes=world.bytes + 1).segments) == len(reads) == 4


def test_br_04_after_a_stop_the_driver_begins_no_other_copy(world, monkeypatch):
    """It would copy all of a large fetch, of which the stop has cancelled the job."""
    copied, real = [], segment_copier.copy_segment
    monkeypatch.setattr(segment_copier, "_COPIERS", 1)
    monkeypatch.setattr(segment_copier, "copy_segment", lambda *args: copied.append(args) or real(*args))
    copier = SegmentCopier(world.log.root, world.target, world.spark, world.bytes + 1, is_over=lambda: bool(copied))
    found = copier.copy(world.plan)
    assert len(copied) == 1
    assert {str(error) for error in found.failed.values()} == {"the fetcher was stopped"}


@pytest.mark.parametrize("by", ["the driver", "executors whose job was cancelled"])
def test_br_04_after_a_stop_the_driver_reads_no_other_footer(world, monkeypatch, caplog, by):
    read, real = [], broken_segments.read_segment
    monkeypatch.setattr(broken_segments, "read_segment", lambda *args: read.append(args) or real(*args))
    is_stopped = by != "the driver"
    if is_stopped:
        monkeypatch.setattr(segment_copier, "_FOOTERS", 1)
        monkeypatch.setattr(segment_copier, "on_executors", raises(ExecutorsFailed("cancelled")))
    copier = SegmentCopier(world.log.root, world.target, world.spark, 1, is_over=lambda: is_stopped or bool(read))
    with pytest.raises(KafkaStorageException, match="the reader was stopped"):
        footers(copier, world.log)
    assert (len(read), caplog.messages) == (0 if is_stopped else 1, [])
