"""The scrub reads a log's files again, a number of bytes a second, and finds rot."""

from pathlib import Path

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.server.log_maintenance import DigestScrub
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.memory_root import MemoryRoot, MemoryStore
from tests.clock import Clock
from tests.storage.logs import P0, P1, fill, new_log, values


@pytest.fixture
def log(root):
    made = new_log(root, P0, P1)
    fill(made, P0, 2, 2)
    fill(made, P1, 3)
    return made


def rot(log, partition=P0, number=0):
    """One bit of a file flips, somewhere in it."""
    path = Path(log.root.path(log.refresh().known(partition).batches[number].segment))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    return path


@pytest.fixture
def read(monkeypatch):
    """The files that are read whole."""
    seen, read_buffer = [], LocalRoot.read_buffer
    monkeypatch.setattr(LocalRoot, "read_buffer", lambda self, name: seen.append(name) or read_buffer(self, name))
    return seen


def test_ol_01_rot_takes_its_own_partition_offline_until_the_bytes_are_back(log):
    clock = Clock()
    scrub = DigestScrub(log, 1 << 20, clock)
    path = rot(log)
    clock.now += 1
    assert scrub.run_once() == 1
    assert path.name in log.refresh().fault(P0)
    assert (log.refresh().fault(P1), values(log, P1)) == (None, [b"0", b"1", b"2"])
    assert not log.scrub(), "its size is right all along, and so is its footer"
    assert path.name in log.refresh().fault(P0)
    rot(log)
    assert log.scrub()
    assert (log.refresh().fault(P0), values(log)) == (None, [b"0", b"1", b"0", b"1"])


def test_it_reads_so_many_bytes_a_second(log, read):
    sizes = {name: segment.file.size for name, segment in log.refresh().segments.items()}
    clock = Clock()
    scrub = DigestScrub(log, 100, clock)
    assert (scrub.run_once(), read) == (0, [])
    clock.now += 1
    scrub.run_once()
    assert len(read) == 1, "a file is read whole, and paid for later"
    clock.now += sizes[read[0]] / 100 - 1.5
    scrub.run_once()
    assert len(read) == 1
    clock.now += 1
    scrub.run_once()
    assert len(read) == 2


def test_it_goes_around_and_goes_on_where_it_stood(log, read):
    clock = Clock()
    scrub = DigestScrub(log, 1, clock)
    for _ in range(6):
        clock.now += 1 << 20
        scrub._credit = 0.5
        scrub._run_at = clock.now
        scrub.run_once()
    names = sorted(log.refresh().segments)
    start = names.index(read[0])
    assert read == [*names[start:], *names[:start]] * 2


def test_a_round_reads_a_file_once_at_most(log, read):
    clock = Clock()
    scrub = DigestScrub(log, 1 << 40, clock)
    clock.now += 1
    scrub.run_once()
    assert sorted(read) == sorted(log.refresh().segments)


def test_what_was_missed_for_long_is_not_made_up_for(log):
    clock = Clock()
    scrub = DigestScrub(log, 1, clock)
    clock.now += 86400
    scrub.run_once()
    assert scrub._credit <= 60


def test_none_are_read_at_no_bytes_a_second(log, read):
    clock = Clock()
    rot(log)
    scrub = DigestScrub(log, 0, clock)
    clock.now += 86400
    assert (scrub.run_once(), read) == (0, [])


def test_a_file_that_is_known_to_be_broken_is_not_read_again(log, read):
    clock = Clock()
    scrub = DigestScrub(log, 1 << 20, clock)
    path = rot(log)
    clock.now += 1
    assert scrub.run_once() == 1
    read.clear()
    clock.now += 601
    assert (scrub.run_once(), path.name in read, len(read)) == (0, False, 2)


def test_a_file_is_read_once_in_ten_minutes(log, read):
    """In an object store each read costs money, and a small log is read in a moment."""
    clock = Clock()
    scrub = DigestScrub(log, 1 << 20, clock)
    reads = []
    for seconds in (1, 1, 598, 1, 1):
        clock.now += seconds
        assert scrub.run_once() == 0
        reads.append(len(read))
        read.clear()
    assert reads == [3, 0, 0, 3, 0]


def test_a_store_that_does_not_answer_is_no_rot(log, monkeypatch):
    def unreachable(*_):
        raise KafkaStorageException("timed out")

    clock = Clock()
    scrub = DigestScrub(log, 1 << 20, clock)
    clock.now += 1
    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "read_buffer", unreachable)
        with pytest.raises(KafkaStorageException, match="timed out"):
            scrub.run_once()
    assert log.refresh().broken == {}


def test_a_file_that_was_removed_meanwhile_is_none_of_its(log, monkeypatch):
    clock = Clock()
    scrub = DigestScrub(log, 1 << 20, clock)
    clock.now += 1
    monkeypatch.setattr(scrub, "_due", lambda: ["leader-1-gone.parquet"])
    assert scrub.run_once() == 0


def test_in_an_object_store_a_new_file_is_read_a_day_later_and_then_once_a_day(monkeypatch):
    """The store checks its files itself, and each read costs."""
    read, read_buffer = [], MemoryRoot.read_buffer
    monkeypatch.setattr(MemoryRoot, "read_buffer", lambda self, name: read.append(name) or read_buffer(self, name))
    with MemoryStore("bucket").opened() as store:
        log = new_log(StorageRoot.of(f"{store.uri}/log"), P0)
        fill(log, P0, 1)
        (old,) = log.current().segments
        clock = Clock()
        scrub = DigestScrub(log, 1 << 30, clock)
        fill(log, P0, 1)

        def read_after(hours):
            read.clear()
            clock.now += hours * 3600
            scrub.run_once()
            return set(read)

        (new,) = log.current().segments.keys() - {old}
        assert [read_after(hours) for hours in (1, 1, 23)] == [{old}, set(), {old, new}]
