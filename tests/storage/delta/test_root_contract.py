"""The contract of a storage root. Each test checks the implementations on disk, in an object store and in memory."""

import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.memory_root import MemoryStore

NAMES = ["a", "with space", "ünï-ç", "100%", "a#b?c=d", "a.parquet", ".hidden"]


@dataclass
class RootPlace:
    """A place for roots. `unusable`: a root whose calls all raise an OSError with `reason`."""

    root: StorageRoot
    unusable: Callable[[], StorageRoot]
    reason: str


class AlwaysBusy:
    """Answers everything with 503."""

    def read(self, _):
        raise OSError("503 Slow Down")

    def write(self, uri, _):
        self.read(uri)

    def commit(self, uri, _):
        self.read(uri)


_folders = itertools.count()


def in_a_bucket(options):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"

    def unreachable():
        return StorageRoot.of("s3://bucket/loop", {**options, "AWS_ENDPOINT_URL": nobody}, timeout_ms=20)

    root = StorageRoot.of(f"s3://bucket/contract-{next(_folders)}/root", options)
    return RootPlace(root, unreachable, "error sending request")


@pytest.fixture(params=["disk", "bucket", "disk in memory", "store in memory"])
def place(request, root):
    if request.param == "bucket":
        yield in_a_bucket(request.getfixturevalue("s3_options"))
        return
    if request.param == "disk":

        def loop():
            Path(root, "loop").symlink_to("loop")
            return StorageRoot.of(f"{root}/loop")

        yield RootPlace(StorageRoot.of(f"{root}/root"), loop, "Too many levels of symbolic links")
        return

    def faulty():
        store.faults = AlwaysBusy()
        return StorageRoot.of(f"{store.uri}/loop")

    with MemoryStore("contract", is_local="disk" in request.param).opened() as store:
        yield RootPlace(StorageRoot.of(f"{store.uri}/root"), faulty, "503 Slow Down")


@pytest.fixture
def storage(place):
    return place.root


def read_in_parts(root, name):
    with root.open(name) as file:
        assert file.size() == root.sizes([name])[0]
        return file.read(3) + file.read()


def read_at(root, name):
    with root.open(name) as file:
        return b"".join(file.read_at(3, at) for at in range(0, file.size(), 3))


READERS = [
    pytest.param(lambda root, name: root.read(name), id="read"),
    pytest.param(lambda root, name: root.read_buffer(name).to_pybytes(), id="read_buffer"),
    pytest.param(read_in_parts, id="open"),
    pytest.param(read_at, id="read_at"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("content", [b"", b"a", b"\x00\xff\n\r" * 5])
@pytest.mark.parametrize("wrapped", [bytes, pa.py_buffer])
def test_what_was_written_is_read(storage, read, content, wrapped):
    storage.write("a", wrapped(content))
    assert read(storage, "a") == content
    assert storage.sizes(["a"]) == [len(content)]


@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)) * 10])
def test_a_file_is_written_only_if_there_is_none(storage, content):
    storage.write("other", b"")  # makes the folder
    stamp = storage.put_if_absent("a", content)
    assert storage.read_stamped("a") == (content, stamp)
    assert storage.stamps(["a"]) == [stamp]
    assert storage.put_if_absent("a", b"another") is None
    assert storage.put_if_absent("a", content) is None
    assert storage.read_stamped("a") == (content, stamp)
    assert storage.list() == ["a", "other"]
    storage.delete("a")
    assert storage.put_if_absent("a", b"another")
    assert storage.read("a") == b"another"


def test_what_is_not_there_has_no_stamp(storage):
    with pytest.raises(FileNotFoundError):
        storage.read_stamped("a")


def test_a_file_in_a_folder_is_written_if_there_is_none(storage):
    storage.child("folder").write("other", b"")
    assert storage.put_if_absent("folder/a", b"content")
    assert storage.child("folder").list() == ["a", "other"]
    assert storage.list() == ["folder"]


@pytest.mark.parametrize("read", READERS[:3])
def test_a_large_file_is_read_whole(storage, read):
    content = bytes(range(256)) * (1 << 15)
    storage.write("a", content)
    assert read(storage, "a") == content


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_written_again_has_the_new_content(storage, read):
    storage.write("a", b"long content")
    storage.write("a", b"short")
    assert read(storage, "a") == b"short"
    assert storage.list() == ["a"]


def test_a_buffer_that_was_read_keeps_its_content_when_the_file_is_gone(storage):
    storage.write("a", b"content")
    buffer = storage.read_buffer("a")
    storage.write("a", b"another")
    storage.delete("a")
    assert buffer.to_pybytes() == b"content"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("folder", [(), ("gone",), ("gone", "deep")])
def test_a_file_that_is_not_there_is_told_as_such(storage, read, folder):
    storage.write("another", b"")
    with pytest.raises(FileNotFoundError):
        read(storage.child(*folder), "none")
    assert not storage.child(*folder).exists("none")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_have_any_name(storage, name):
    storage.write(name, b"content")
    storage.write("zzz", b"")
    assert storage.read(name) == b"content"
    assert storage.exists(name)
    assert storage.list() == sorted([name, "zzz"])
    assert set(storage.modified()) == {name, "zzz"}
    storage.delete(name)
    assert storage.list() == ["zzz"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_may_have_any_name(storage, name):
    storage.child(name).write("file", b"content")
    assert storage.child(name).read("file") == storage.read(f"{name}/file") == b"content"
    assert storage.list() == [name]
    assert storage.child(name).list() == ["file"]
    assert StorageRoot.of(storage.uri, storage.options).child(name).exists("file")


def test_sizes_and_stamps_of_files_that_are_not_there_are_none(storage):
    storage.write("a", b"123")
    assert storage.sizes(["none", "a", "gone/none", "a/none"]) == [None, 3, None, None]
    stamps = storage.stamps(["none", "a", "gone/none"])
    assert [stamp and stamp[0] for stamp in stamps] == [None, 3, None]
    assert storage.sizes([]) == storage.stamps([]) == []
    assert storage.child("gone").sizes(["a"]) == [None]


def test_a_stamp_stays_as_long_as_the_file_does(storage):
    storage.write("a", b"123")
    (before,) = storage.stamps(["a"])
    storage.write("b", b"123")
    storage.read("a")
    assert storage.stamps(["a", "a"]) == [before, before]


def test_a_file_that_is_written_again_with_the_same_size_has_another_stamp(storage):
    """On a disk as soon as its clock has ticked."""
    storage.write("a", b"123")
    before = storage.stamps(["a"])

    def again():
        storage.write("a", b"124")
        return storage.stamps(["a"])

    assert any(again() != before for _ in range(1000))
    assert storage.sizes(["a"]) == [3]


def test_files_and_folders_right_below_are_listed_in_order(storage):
    for name in ("c", "a", "b"):
        storage.write(name, name.encode())
    storage.child("aa").write("below", b"")
    storage.child("bb", "deep", "deeper").write("below", b"")
    assert storage.list() == ["a", "aa", "b", "bb", "c"]
    assert storage.child("bb").list() == ["deep"]
    assert storage.sizes_listed() == {"a": 1, "b": 1, "c": 1}
    assert set(storage.modified()) == {"a", "b", "c"}
    assert storage.child("bb").sizes_listed() == storage.child("bb").modified() == {}


def test_a_folder_whose_name_begins_with_another_s_is_not_in_it(storage):
    storage.child("ab").write("x", b"")
    storage.child("a").write("y", b"")
    assert storage.child("a").list() == ["y"]
    storage.child("a").delete_folder()
    assert storage.list() == ["ab"]


@pytest.mark.parametrize("folder", ["none", "none/below"])
def test_a_folder_that_is_not_there_is_empty(storage, folder):
    gone = storage.child(folder)
    assert (gone.list(), gone.sizes_listed(), gone.modified()) == ([], {}, {})
    gone.delete("a")
    gone.delete_folder()
    assert storage.list() == []


def test_when_a_file_was_written_is_told_in_seconds_since_the_epoch(storage):
    storage.write("a", b"")
    hour = 3600
    assert abs(storage.modified()["a"] - time.time()) < hour


def test_a_file_is_deleted_once_and_again(storage):
    storage.write("a", b"")
    storage.write("b", b"")
    for _ in range(2):
        storage.delete("a")
        assert (storage.exists("a"), storage.list()) == (False, ["b"])
    storage.write("a", b"new")
    assert storage.read("a") == b"new"


def test_a_folder_is_deleted_with_all_that_is_in_it_once_and_again(storage):
    folder = storage.child("folder")
    folder.write("a", b"")
    folder.child("deep", "deeper").write("b", b"")
    storage.write("stays", b"")
    for _ in range(2):
        folder.delete_folder()
        assert storage.list() == ["stays"]
        assert (folder.list(), folder.child("deep").list(), folder.exists("a")) == ([], [], False)


def test_a_folder_that_has_vanished_is_made_again_by_a_write(storage):
    folder = storage.child("deep", "folder")
    folder.write("a", b"1")
    storage.delete_folder()
    assert (folder.list(), folder.sizes(["a"])) == ([], [None])
    folder.write("b", b"2")
    assert (folder.list(), folder.read("b")) == (["b"], b"2")


def test_only_a_disk_has_empty_folders(storage):
    def seen(*names):
        return list(names) if storage.is_local else []

    storage.child("made", "deep").create_folder()
    storage.child("made", "deep").create_folder()
    assert storage.list() == seen("made")
    storage.child("emptied", "deep").write("a", b"")
    storage.child("emptied", "deep").delete("a")
    assert storage.list() == seen("emptied", "made")
    assert storage.child("emptied").list() == seen("deep")
    storage.child("emptied", "deep").delete_folder()
    assert storage.list() == seen("emptied", "made")
    assert storage.sizes_listed() == {}
    storage.child("made").create_folder()
    assert storage.child("made").list() == seen("deep")


def test_a_child_is_a_root_with_the_options_of_its_parent(storage):
    options = {**storage.options, "key": "secret"}
    storage = StorageRoot.of(storage.uri, options, fsync=True, timeout_ms=7777)
    child = storage.child("a", "b")
    assert child == storage.child("a").child("b") == StorageRoot.of(f"{storage.uri}/a/b", options, True, 7777)
    assert (child.uri, child.is_local, type(child)) == (f"{storage.uri}/a/b", storage.is_local, type(storage))
    child.write("file", b"durable")
    child.sync("file")
    child.sync()
    assert storage.child("a").read("b/file") == b"durable"


def test_roots_are_equal_and_one_key_if_they_are_the_same_folder_with_the_same_options(storage):
    same, other = StorageRoot.of(f"{storage.uri}/", storage.options), storage.child("x")
    assert same == storage
    assert {same: 1}[storage] == 1
    assert other != storage
    assert StorageRoot.of(storage.uri, {"key": "secret"}) != storage
    assert "secret" not in repr(StorageRoot.of(storage.uri, {"key": "secret"}))


def test_two_roots_of_one_folder_see_the_same(storage):
    storage.write("a", b"1")
    other = StorageRoot.of(storage.uri, storage.options)
    assert other.stamps(["a"]) == storage.stamps(["a"])
    other.delete("a")
    assert storage.list() == []


def test_a_path_names_the_root_and_the_file(storage):
    assert storage.path("a/b c") == f"{storage.path()}/a/b c"
    assert storage.child("x").path("y") == storage.path("x/y")


@pytest.mark.parametrize(
    ("operation", "verb"),
    [
        pytest.param(lambda root: root.sizes(["a"]), "read", id="sizes"),
        pytest.param(lambda root: root.stamps(["a"]), "read", id="stamps"),
        pytest.param(lambda root: root.exists("a"), "read", id="exists"),
        pytest.param(lambda root: root.list(), "read", id="list"),
        pytest.param(lambda root: root.sizes_listed(), "read", id="sizes_listed"),
        pytest.param(lambda root: root.modified(), "read", id="modified"),
        pytest.param(lambda root: root.read("a"), "read", id="read"),
        pytest.param(lambda root: root.read_buffer("a"), "read", id="read_buffer"),
        pytest.param(lambda root: root.write("a", b""), "written", id="write"),
        pytest.param(lambda root: root.delete("a"), "written", id="delete"),
        pytest.param(lambda root: root.delete_folder(), "written", id="delete_folder"),
    ],
)
def test_an_error_of_the_store_names_the_place_and_the_reason(place, operation, verb):
    unusable = place.unusable().child("folder")
    with pytest.raises(KafkaStorageException, match=f"^{unusable.uri}.*: cannot be {verb}: .*{place.reason}") as caught:
        operation(unusable)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_disk_that_does_not_work_makes_no_folder_and_a_store_has_none_to_make(place):
    is_local, unusable = place.root.is_local, place.unusable()
    if not is_local:
        unusable.create_folder()
        return
    with pytest.raises(KafkaStorageException, match=f"^{unusable.uri}.*: cannot be written: "):
        unusable.child("a").create_folder()


def test_a_file_that_cannot_be_opened_is_an_os_error_as_readers_of_parquet_take_it(place):
    with pytest.raises(OSError, match=place.reason):
        place.unusable().open("a")


def test_a_table_that_cannot_be_reached_is_an_error_of_delta_rs_or_of_the_system(place):
    with pytest.raises((DeltaError, OSError)):
        place.unusable().open_table()
