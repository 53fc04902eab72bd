"""A store copies a segment within its bucket, and the copy counts only if it has the committed bytes."""

import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta import object_root
from lakelog.replication.storage.delta.data_file_name import named_digest
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.object_root import ObjectRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import segment_copy
from lakelog.replication.storage.log.segment import read_segment, write_segment
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.schemas import LOG
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.s3.server import StoreServer, error
from tests.storage.logs import header, log_rows

NOISE = Random(7).randbytes(50_000)  # in a segment that is too large to lie in its commit


def written(root, noise=NOISE):
    rows = log_rows().set_column(LOG.names.index("value"), LOG.arrow.field("value"), pa.array([noise], pa.binary()))
    return write_segment(root, 4, rows, [header()])


@pytest.fixture
def source(s3_options):
    made = StorageRoot.of("s3://bucket/copies/source", s3_options)
    yield made
    StorageRoot.of("s3://bucket/copies", s3_options).delete_folder()


@pytest.fixture
def target(source):
    return StorageRoot.of("s3://bucket/copies/target", source.options)


@pytest.fixture
def requests(monkeypatch):
    """The requests that the store has answered, by method, with the number of bytes that each has brought."""
    seen, answer = [], StoreServer.answer

    def counted(server, method, url, headers, body):
        seen.append((method, len(body)))
        return answer(server, method, url, headers, body)

    monkeypatch.setattr(StoreServer, "answer", counted)
    return seen


def test_within_a_bucket_the_store_copies(source, target, requests):
    segment = written(source)
    requests.clear()
    copied = copy_segment(source, segment, target)
    assert requests == [("PUT", 0), ("GET", 0)]
    assert target.read(copied.name) == source.read(segment.name)
    assert (read_segment(target, copied.file), copied.file.size) == (copied, segment.file.size)


OTHER_REGION = {"AWS_REGION": "eu-west-1"}
# Where the target is, and the requests: methods, and whether they bring the bytes.
STREAMS = {
    "to a disk": (lambda _, folder: (str(folder), {}), [("GET", False)]),
    "to a client with other settings": (
        lambda options, _: ("s3://bucket/copies/target", options | OTHER_REGION), [("GET", False), ("PUT", True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS)
def test_between_stores_the_bytes_stream(source, case, requests, tmp_path):
    (elsewhere, expected), segment = STREAMS[case], written(source)
    target = StorageRoot.of(*elsewhere(source.options, tmp_path))
    requests.clear()
    copied = copy_segment(source, segment, target)
    assert requests == [(method, segment.file.size if brings else 0) for method, brings in expected]
    assert target.read(copied.name) == source.read(segment.name)


def test_from_a_disk_the_bytes_stream(target, requests, tmp_path):
    disk = StorageRoot.of(str(tmp_path))
    segment = written(disk)
    requests.clear()
    copied = copy_segment(disk, segment, target)
    assert requests == [("PUT", segment.file.size)]
    assert target.read(copied.name) == disk.read(segment.name)


def test_a_file_without_a_digest_in_its_name_streams(source, target, requests):
    segment = written(source)
    source.put("part-1.parquet", source.read(segment.name))
    other = replace(segment, file=replace(segment.file, name="part-1.parquet"))
    requests.clear()
    copied = copy_segment(source, other, target)
    assert requests == [("GET", 0), ("PUT", segment.file.size)]
    assert target.read(copied.name) == source.read(segment.name)


def test_a_small_segment_is_put_from_its_commit(source, target, requests):
    segment = written(source, b"small")
    requests.clear()
    copied = copy_segment(source, segment, target)
    assert requests == [("PUT", segment.file.size)]
    assert target.read(copied.name) == segment.file.content


@pytest.mark.parametrize("is_local", [False, True])
def test_a_store_in_memory_copies_as_what_it_stands_in_for(is_local):
    """An object store copies a file that it has, a disk never does."""
    with MemoryStore("copies", is_local).opened() as store:
        source, target = (StorageRoot.of(f"{store.uri}/{name}") for name in ("source", "target"))
        for root in (source, target):
            root.create_folder()
        segment = written(source)
        assert target.copy_from(source, segment.name, "copied") is not is_local
        assert not target.copy_from(source, "none", "copied")
        assert target.read(copy_segment(source, segment, target).name) == source.read(segment.name)


def test_the_bytes_stream_where_the_store_cannot_copy_and_it_is_asked_every_ten_minutes(source, target, monkeypatch):
    bare = ObjectRoot(source.uri, {**source.options, "AWS_REGION": "eu-west-2"})  # a store that no other test asks
    segment, copies = written(source), []

    def refused(server, method, url, headers, body):
        if "x-amz-copy-source" in headers:
            copies.append(url)
            return error(405, "MethodNotAllowed")
        return answer(server, method, url, headers, body)

    answer = StoreServer.answer
    monkeypatch.setattr(StoreServer, "answer", refused)
    there = replace(target, options=bare.options)
    copied = [copy_segment(bare, segment, there) for _ in range(2)]
    assert [there.read(each.name) for each in copied] == [source.read(segment.name)] * 2
    assert len(copies) == 1
    later = time.monotonic() + 600
    monkeypatch.setattr(object_root.time, "monotonic", lambda: later)
    copy_segment(bare, segment, there)
    assert len(copies) == 2


def test_the_bytes_stream_where_the_store_makes_an_empty_copy(source, target, monkeypatch):
    """A server that does not know the header of a copy puts the body of the request, which has none."""
    segment = written(source)
    monkeypatch.setattr(ObjectRoot, "copy_from", lambda root, _, __, name: root.put(name, b"") is None)
    copied = copy_segment(source, segment, target)
    assert target.read(copied.name) == source.read(segment.name)
    assert target.list() == [copied.name]


def test_a_copy_that_the_store_cannot_delete_stays_for_the_file_cleaner(source, target, monkeypatch):
    segment = written(source)
    monkeypatch.setattr(ObjectRoot, "copy_from", lambda root, _, __, name: root.put(name, b"") is None)
    monkeypatch.setattr(ObjectRoot, "delete", failed)
    copied = copy_segment(source, segment, target)
    assert target.read(copied.name) == source.read(segment.name)
    assert len(target.list()) == 2


def failed(*_):
    raise KafkaStorageException("the store does not answer")


def test_a_copy_that_cannot_be_read_is_made_again(source, target, monkeypatch):
    segment, read = written(source), ObjectRoot.read_buffer
    monkeypatch.setattr(ObjectRoot, "read_buffer", lambda root, name: failed() if root == target else read(root, name))
    copied = copy_segment(source, segment, target)
    assert read(target, copied.name) == read(source, segment.name)


@pytest.mark.parametrize("harm", [lambda content: content[:-10], lambda content: b"x" * len(content)])
def test_the_store_does_not_spread_a_segment_that_has_rotted(source, target, harm):
    segment = written(source)
    source.write(segment.name, harm(source.read(segment.name)))
    with pytest.raises(CorruptRecordException, match=f"source/{segment.name}: its .* bytes are not the"):
        copy_segment(source, segment, target)
    assert target.list() == []


def test_a_segment_that_is_gone_is_named(source, target):
    segment = written(source)
    source.delete(segment.name)
    with pytest.raises(CorruptRecordException, match=f"source/{segment.name}: is gone"):
        copy_segment(source, segment, target)
    assert target.list() == []


@pytest.fixture
def disks(tmp_path):
    made = [StorageRoot.of(str(tmp_path / name)) for name in ("source", "target")]
    for root in made:
        root.create_folder()
    return made


LARGE = Random(8).randbytes(2_000_000)


def test_a_large_segment_is_copied_in_pieces_between_disks(disks, monkeypatch):
    source, target = disks
    segment = written(source, LARGE)
    monkeypatch.setattr(LocalRoot, "read_buffer", failed)
    pieces, hashed = [], segment_copy._hashed_pieces
    monkeypatch.setattr(
        segment_copy, "_hashed_pieces", lambda *args: (pieces.append(len(p)) or p for p in hashed(*args))
    )
    copied = copy_segment(source, segment, target)
    assert max(pieces) <= 1 << 19
    assert target.read(copied.name) == source.read(segment.name)
    assert (read_segment(target, copied.file), target.list()) == (copied, [copied.name])


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes are not the"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "bytes are not the"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes are not the"),
    ],
)
def test_a_copy_in_pieces_does_not_spread_a_segment_that_has_rotted(disks, harm, text):
    source, target = disks
    segment = written(source, LARGE)
    harm(Path(source.path(segment.name)))
    with pytest.raises(CorruptRecordException, match=f"source/{segment.name}: .*{text}"):
        copy_segment(source, segment, target)
    assert target.list() == []


def test_a_large_segment_of_another_name_streams_between_disks(disks):
    source, target = disks
    segment = written(source, LARGE)
    source.put("part-1.parquet", source.read(segment.name))
    copied = copy_segment(source, replace(segment, file=replace(segment.file, name="part-1.parquet")), target)
    assert target.read(copied.name) == source.read(segment.name)
    assert named_digest(copied.name) == named_digest(segment.name)


def test_a_small_segment_is_read_once_between_disks(disks, monkeypatch):
    source, target = disks
    segment, read = written(source), []
    original = LocalRoot.read_buffer
    monkeypatch.setattr(LocalRoot, "read_buffer", lambda root, name: read.append(name) or original(root, name))
    copied = copy_segment(source, segment, target)
    assert (read, target.list()) == ([segment.name], [copied.name])
