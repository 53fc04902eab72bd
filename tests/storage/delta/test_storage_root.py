"""Storage roots: local folders in every spelling, and buckets on moto's server on localhost."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException, KafkaStorageException
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta import storage_root
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import PRODUCERS
from tests.odd_names import NO_PATTERN, NO_PATTERN_IN_A_BUCKET
from tests.storage.logs import P0, fill, new_log, offsets, values


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("{tmp}/dir", "{tmp}/dir"),
        ("{tmp}/dir/", "{tmp}/dir"),
        ("{tmp}/a dir", "{tmp}/a dir"),
        ("{tmp}/100%", "{tmp}/100%"),
        ("file://{tmp}/dir", "{tmp}/dir"),
        ("file://{tmp}/dir%20with%20space/", "{tmp}/dir with space"),
        ("file://localhost{tmp}/a%3Fb%23c", "{tmp}/a?b#c"),
        ("//{tmp}/dir", "{tmp}/dir"),
        ("dir", "{tmp}/dir"),
        ("./dir/../other", "{tmp}/other"),
    ],
)
def test_every_spelling_of_a_local_folder_is_one(root, monkeypatch, uri, path):
    monkeypatch.chdir(root)
    found = StorageRoot.of(uri.format(tmp=root))
    found.write("x", b"content")
    assert found.uri == found.spark_uri == path.format(tmp=root)
    assert Path(path.format(tmp=root), "x").read_bytes() == b"content"


def test_a_folder_of_the_home_is_found(root, monkeypatch):
    monkeypatch.setenv("HOME", root)
    assert StorageRoot.of("~/dir").uri == f"{root}/dir"


def check_log(folder):
    """A log in this folder is made, filled, given a checkpoint and read."""
    log = new_log(folder.child("log"), P0)
    fill(log, P0, 2)
    log.root.checkpoint_table(log.refresh().version)
    assert offsets(ReplicaLog.open(log.root)) == [0, 1]


@pytest.mark.parametrize("name", ["a dir", "100%", "dir#1", "a?b", "ünï", NO_PATTERN, "e\u0301", "\u00e9", ".a", "_a"])
def test_a_log_may_lie_in_a_folder_of_any_name(root, name):
    check_log(StorageRoot.of(f"{root}/{name}"))
    assert os.listdir(root) == [name]


@pytest.mark.parametrize("name", ["a key", "100%", NO_PATTERN_IN_A_BUCKET, "e\u0301", "\u00e9"])
def test_a_log_may_lie_at_a_key_of_any_name(s3_options, name):
    bucket = StorageRoot.of("s3://bucket/names", s3_options)
    check_log(StorageRoot.of(f"s3://bucket/names/{name}", s3_options))
    assert bucket.list() == [name]
    bucket.delete_folder()


def test_a_bucket_is_s3a_for_spark():
    assert StorageRoot.of("s3://bucket/a/").child("log").spark_uri == "s3a://bucket/a/log"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("", "'' is not a storage root: give a folder or a URI, such as /data/lakelog or s3://bucket/lakelog"),
        (" ", "' ' is not a storage root"),
        (
            "nosuch://a/b",
            "nosuch://a/b is not a storage root: .* one of file://, s3://, .*abfss:// and a bucket or host",
        ),
        ("s3:/bucket/a", "s3:/bucket/a is not a storage root: .* and a bucket or host"),
        ("localhost:9092", "localhost:9092 is the address of a server, but Lakelog has no servers: give the URI of"),
        ("127.0.0.1:9092,[::1]:9093", "is the address of a server"),
        ("PLAINTEXT://broker:9092", "is the address of a server"),
    ],
)
def test_a_text_that_names_no_folder_and_no_store_is_told_what_is_wrong_with_it(uri, told):
    with pytest.raises(InvalidConfigurationException, match=told):
        StorageRoot.of(uri)


@pytest.mark.parametrize(
    "uri", ["s3://bucket:9000/a", "s3a://b", "gs://b", "az://container/a", "abfss://container@account/a"]
)
def test_a_bucket_or_host_of_a_known_store_is_taken_as_it_is(uri):
    assert StorageRoot.of(uri + "/").uri == uri


@pytest.mark.parametrize("uri", ["/data/a%20b", "file:///data/a%2520b", "s3://bucket/a%20b"])
def test_a_path_that_delta_rs_would_read_as_another_is_refused(uri):
    with pytest.raises(InvalidConfigurationException, match="escape"):
        StorageRoot.of(uri)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("/data/a\\b", r"a\\b: its path must not contain a backslash or a control character"),
        ("file:///data/a%0Ab", "a%0Ab: its path must not contain a backslash or a control character"),
        ("/data/a\nb", "its name must be UTF-8 without control characters"),
        ("s3://bucket/a\tb", "its name must be UTF-8 without control characters"),
        ("/data/\udce9", "its name must be UTF-8 without control characters"),
        ("file://data/lake", "file://data/lake: a URI of a local folder is file:/// and its absolute path"),
        ("file:///data/a?b", "with %3F for"),
        ("file:///data/a#b", "%23 for #"),
        ("s3://bucket/a?b", r"must not contain \?, which ends the path of a URI"),
        ("s3://bucket/a#b", "must not contain #, which ends the path of a URI"),
        ("s3://bucket/a//b", "must not contain an empty part, . or .."),
        ("s3://bucket/./b", "must not contain an empty part, . or .."),
        ("s3://bucket/a/../b", "must not contain an empty part, . or .."),
    ],
)
def test_a_path_that_would_lie_elsewhere_is_refused(uri, told):
    with pytest.raises(InvalidConfigurationException, match=told):
        StorageRoot.of(uri)


def test_credentials_are_not_shown():
    assert "secret" not in repr(StorageRoot.of("s3://bucket", {"AWS_SECRET_ACCESS_KEY": "secret"}))


def fsynced(root):
    return StorageRoot.of(root.uri, fsync=True)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda root: root.sizes(["a"]), id="sizes"),
        pytest.param(lambda root: root.exists("a"), id="exists"),
        pytest.param(lambda root: root.list(), id="list"),
        pytest.param(lambda root: root.modified(), id="modified"),
        pytest.param(lambda root: root.read("a"), id="read"),
        pytest.param(lambda root: root.write("a", b""), id="write"),
        pytest.param(lambda root: root.create_folder(), id="create_folder"),
        pytest.param(lambda root: root.read_buffer("a"), id="read_buffer"),
        pytest.param(lambda root: root.delete("a"), id="delete"),
        pytest.param(lambda root: root.child("b").delete_folder(), id="delete_folder"),
        pytest.param(lambda root: root.rename("a", "b"), id="rename"),
        pytest.param(lambda root: fsynced(root).sync("a"), id="sync_file"),
        pytest.param(lambda root: fsynced(root).sync(), id="sync_folder"),
    ],
)
def test_no_error_of_a_file_system_is_raised_as_it_is(root, operation):
    """A link that leads to itself is an error to everything."""
    Path(root, "loop").symlink_to("loop")
    with pytest.raises(KafkaStorageException, match=f"^{root}/loop.*: cannot be (read|written): ") as caught:
        operation(StorageRoot.of(f"{root}/loop"))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_file_that_is_not_there_is_an_answer_to_a_reader_and_an_error_to_a_writer(root):
    storage, gone = StorageRoot.of(root), StorageRoot.of(f"{root}/gone")
    with pytest.raises(FileNotFoundError):
        storage.read("a")

    with pytest.raises(KafkaStorageException, match=f"{root}/gone/a: cannot be written"):
        gone.put("a", b"")
    assert storage.list() == []


def test_a_root_that_cannot_be_made_is_named(root):
    Path(root, "file").write_bytes(b"")
    with pytest.raises(KafkaStorageException, match=f"{root}/file/dir"):
        StorageRoot.of(f"{root}/file/dir").create_folder()


def test_files_are_written_read_listed_and_deleted(new_root):
    root = new_root()
    assert root.list() == []
    root.write("a", b"12345")
    root.child("sub").write("c", b"")
    root.write("a", b"123")
    assert root.read("a") == root.read_buffer("a").to_pybytes() == b"123"
    assert root.list() == ["a", "sub"]
    assert root.sizes(["a", "none", "a/none"]) == [3, None, None]
    assert (root.exists("a"), root.exists("b")) == (True, False)
    with pytest.raises(FileNotFoundError):
        root.read("b")
    root.delete("a")
    root.delete("a")
    assert root.list() == ["sub"]
    root.child("sub").delete_folder()
    root.child("sub").delete_folder()
    assert root.list() == []


def temporaries(folder):
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


@pytest.mark.parametrize("write", [LocalRoot.put, LocalRoot.put_if_absent])
def test_a_write_that_fails_leaves_nothing(root, monkeypatch, write):
    storage = StorageRoot.of(root)

    def fails(*_):
        raise OSError(errno.EIO, "cut short")

    monkeypatch.setattr(storage_root.os, "replace", fails)
    monkeypatch.setattr(storage_root.os, "link", fails)
    with pytest.raises(KafkaStorageException, match="a: cannot be written: Input/output error"):
        write(storage, "a", b"half")
    assert os.listdir(root) == []


@pytest.mark.parametrize("write", [LocalRoot.put, LocalRoot.put_if_absent])
def test_a_frozen_writer_does_not_touch_what_another_has_written(root, monkeypatch, write):
    """It stands still before its last step while the other one writes the same name whole; then it goes on or dies."""
    storage, written, go_on = StorageRoot.of(root), threading.Event(), threading.Event()

    def stands_still(*_):
        written.set()
        assert go_on.wait(30)
        raise KeyboardInterrupt

    def frozen():
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(storage_root.os, "replace", stands_still)
            patched.setattr(storage_root.os, "link", stands_still)
            write(storage, "a", b"half")

    thread = threading.Thread(target=frozen)
    thread.start()
    assert written.wait(30)
    assert len(temporaries(root)) == 1
    Path(root, "a").write_bytes(b"whole")
    go_on.set()
    thread.join(30)
    assert (storage.list(), storage.read("a")) == (["a"], b"whole")


def test_readers_see_the_old_file_or_the_new_one(root, monkeypatch):
    storage, seen, replace = StorageRoot.of(root), [], os.replace
    storage.write("a", b"old")
    monkeypatch.setattr(storage_root.os, "replace", lambda *args: seen.append(storage.read("a")) or replace(*args))
    storage.write("a", b"new")
    assert (seen, storage.read("a")) == ([b"old"], b"new")


def test_a_log_lives_in_a_bucket(s3_options):
    """Append, compare-and-set against a second handle, replay, read, headers: all of it over S3."""
    broker = StorageRoot.of("s3://bucket/broker-1", s3_options)
    log = new_log(broker.child("log"), P0)
    other, new = ReplicaLog.open(log.root), NewSegments(log.root, 1)
    new.begin()
    fill(log, P0, 3)
    fill(other, P0, 2)
    fill(log, P0, 1)
    assert offsets(log) == list(range(6))
    assert values(ReplicaLog.open(log.root), P0, 3, 5) == [b"0", b"1"]
    assert len(batches_from(log.root, {P0: 3}, {})[0]) == 2
    assert len(new.read()) == 3


def test_a_state_table_lives_in_a_bucket(s3_options):
    root = StorageRoot.of("s3://bucket/producers", s3_options)
    first = StateTable.create_at(root, PRODUCERS)
    second = StateTable.open_at(root, PRODUCERS)
    for number, table in enumerate((first, second, first)):
        row = {"name": str(number), "producer_id": number, "producer_epoch": 0, "owner": "me", "idle_ms": 0}
        table.update({"why": "test"}, lambda rows, row=row: [*rows, row])
    second.refresh()
    assert [row["name"] for row in second.rows] == ["0", "1", "2"]


def test_a_cluster_is_formatted_in_a_bucket(s3_options):
    config = Config.from_properties({f"storage.cluster.{name}": value for name, value in s3_options.items()})
    root = StorageRoot.of("s3://bucket/cluster", s3_options)
    cluster_id = format_cluster(root, config)
    assert Cluster.open("s3://bucket/cluster", config).cluster_id == cluster_id
    assert not [name for name in root.list() if name.startswith("_probe")]
