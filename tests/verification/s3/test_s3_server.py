"""A small S3 server: delta-rs and obstore can use it; it hangs, returns errors, and recovers."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import CLUSTER
from lakelog.verification.s3.server import ObjectStore, Request, Response, StoreServer, answer, errors_file
from tests.processes import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "bucket") as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def root(server: StoreServer) -> StorageRoot:
    options = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return StorageRoot.of("s3://bucket/a root", {**options, **keys})


def test_files_are_written_read_listed_and_deleted(root: StorageRoot, tmp_path: Path) -> None:
    root.write("sub/a & b", b"one")
    root.child("sub").write("c", b"x" * 7_000_000)
    assert (root.read("sub/a & b"), root.list(), root.child("sub").list()) == (b"one", ["sub"], ["a & b", "c"])
    assert root.sizes(["sub/a & b", "sub/c", "sub/d"]) == [3, 7_000_000, None]
    assert (tmp_path / "bucket" / "a root" / "sub" / "a & b").read_bytes() == b"one"
    with root.open("sub/c") as stream:
        stream.seek(6_999_990)
        assert stream.read() == b"x" * 10
    root.write("d", root.read("sub/a & b"))
    root.delete("sub/a & b")
    root.delete("sub/a & b")
    assert (root.child("sub").list(), root.read("d")) == (["c"], b"one")
    StorageRoot.of(root.uri, {**root.options, "AWS_DISABLE_BULK_DELETE": "false"}).child("sub").delete_folder()
    assert root.list() == ["d"]
    with pytest.raises(FileNotFoundError):
        root.open("sub/c")


def test_the_store_copies_a_file(root: StorageRoot) -> None:
    root.write("sub/a & b", b"one")
    assert root.child("other").copy_from(root.child("sub"), "a & b", "copied")
    assert root.child("other").read("copied") == b"one"
    assert not root.child("other").copy_from(root.child("sub"), "none", "copied")


def test_of_two_who_commit_the_same_version_one_loses(root: StorageRoot) -> None:
    first = DeltaLog.create(root.child("t"), CLUSTER)
    second = DeltaLog.open(root.child("t"))
    first.commit({"who": "first"})
    with pytest.raises((CommitConflict, CommitUnknown)):
        second.commit({"who": "second"})
    assert last_version(root.child("t")) == 1


def told(server: StoreServer, method: str, key: str, body: bytes | None = None) -> int:
    connection = HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, f"/bucket/{key}", body)
    return connection.getresponse().status


def test_a_client_that_asks_whether_to_send_its_content_is_told_before_it_does(server: StoreServer) -> None:
    """The AWS client would wait for a second with each object."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
        client.sendall(b"PUT /bucket/key HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"x")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_it_answers_errors_while_it_is_told_to_and_carries_some_puts_out(server: StoreServer, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    assert told(server, "PUT", "before", b"1") == 200
    errors_file(bucket).touch()
    assert {told(server, "PUT", f"during-{n}", b"1") for n in range(6)} == {503}
    assert told(server, "GET", "before") == told(server, "HEAD", "before") == 503
    errors_file(bucket).unlink()
    assert (told(server, "GET", "before"), told(server, "GET", "never")) == (200, 404)
    assert len(list(bucket.glob("during-*"))) == 2, "their answers were lost"


def answered(store: ObjectStore, key: str, query: dict[str, str] | None = None, **headers: str) -> Response:
    return answer(store, Request("GET", key, query or {}, headers))


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=8-", 206, b"89"),
        ("bytes=-2", 206, b"89"),
        ("bytes=8-20", 206, b"89"),
        ("bytes=10-", 416, None),
        ("", 200, b"0123456789"),
    ],
)
def test_a_part_of_an_object_is_read(tmp_path: Path, wanted: str, status: int, body: bytes | None) -> None:
    store = ObjectStore(tmp_path)
    store.put("key", b"0123456789", only_new=True)
    found = answered(store, "key", range=wanted)
    assert found.status == status
    assert body in (None, found.body)


def test_a_listing_comes_in_pages_and_goes_on_where_it_was(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    for key in ("a/1", "a/2", "a/b/3", "a/b/4", "ab/5", "c"):
        store.put(key, b"", only_new=False)
    assert [found.key for found in store.list("a", "", "")] == ["a/1", "a/2", "a/b/3", "a/b/4", "ab/5"]
    assert [found.key for found in store.list("a/", "/", "")] == ["a/1", "a/2", "a/b/"]
    assert [found.key for found in store.list("", "/", "a/")] == ["ab/", "c"]
    assert [found.key for found in store.list("a/b/4", "/", "")] == ["a/b/4"]
    assert store.list("nowhere/", "/", "") == []
    page = answered(store, "", {"prefix": "a/", "max-keys": "2"}).body.decode()
    assert "<NextContinuationToken>a/2</NextContinuationToken><IsTruncated>true</IsTruncated>" in page
    rest = answered(store, "", {"prefix": "a/", "continuation-token": "a/2"}).body.decode()
    assert (rest.count("<Key>"), "<IsTruncated>false</IsTruncated>" in rest) == (2, True)


def test_no_key_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    store = ObjectStore(tmp_path / "bucket")
    assert [answered(store, key).status for key in ("../secret", "a/../../secret", "/etc/hosts")] == [404] * 3


def test_a_store_ends_when_the_process_that_has_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lakelog.verification.s3.server import StoreProcess\n"
        "store = StoreProcess(Path(sys.argv[1]) / 'bucket', Path(sys.argv[1]) / 'log')\n"
        "store.start(); store.await_options(); print(store.pid, flush=True); input()"
    )
    with Popen([sys.executable, "-c", code, str(tmp_path)], stdin=PIPE, stdout=PIPE, text=True) as starter:
        assert starter.stdout
        pid = int(starter.stdout.readline())
        starter.kill()
    wait_until(lambda: not is_alive(pid), "the store has ended")


def is_alive(pid: int) -> bool:
    """Whether a process runs; an ended one may wait for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_only_a_server_in_a_process_of_its_own_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with StoreServer(tmp_path / "bucket") as server:
        server.service_actions()
        server.parent = 2
        with pytest.raises(SystemExit, match="has ended"):
            server.service_actions()
