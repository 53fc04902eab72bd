"""Roots in object stores: how many requests each operation is, and what obstore is told of a store."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import InvalidConfigurationException, KafkaStorageException
from lakelog.replication.storage.delta.delta_log import CommitTracker, DeltaLog
from lakelog.replication.storage.delta.object_root import client_arguments, store_options
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_requests import COUNTER, DOLLARS, RequestCounts
from lakelog.replication.storage.log.segment import read_segment
from lakelog.schemas import CLUSTER
from lakelog.verification.s3.server import StoreServer
from tests.storage.logs import P0, fill, new_log


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that the store has answered, by their method and, of a listing, its kind."""
    seen: list[str] = []
    answer = StoreServer.answer

    def counted(server, method, url, *rest):
        seen.append("LIST" if "list-type" in url else method)
        return answer(server, method, url, *rest)

    monkeypatch.setattr(StoreServer, "answer", counted)
    return seen


@pytest.fixture
def counted() -> Callable[[], RequestCounts]:
    """What this process has counted since the test began, and since the last call."""
    before = COUNTER.counts()

    def since() -> RequestCounts:
        nonlocal before
        last, before = before, COUNTER.counts()
        return RequestCounts(*({m: now[m] - was[m] for m in now} for now, was in zip(before, last, strict=True)))

    return since


@pytest.fixture
def root(s3_options: dict[str, str]) -> Iterator[StorageRoot]:
    made = StorageRoot.of("s3://bucket/requests", s3_options)
    made.write("a", b"123")
    yield made
    made.delete_folder()


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        pytest.param(lambda root: root.exists("a"), ["HEAD"], id="a file that is there"),
        pytest.param(lambda root: root.exists("none"), ["HEAD"], id="a file that is not there"),
        pytest.param(lambda root: root.sizes(["a", "none", "a"]), ["HEAD"] * 3, id="sizes"),
        pytest.param(lambda root: CommitTracker(root).is_there(0), ["HEAD"], id="a commit that is not there"),
        pytest.param(lambda root: root.list(), ["LIST"], id="list"),
        pytest.param(lambda root: root.child("none").list(), ["LIST"], id="an empty folder"),
        pytest.param(lambda root: root.read("a"), ["GET"], id="read"),
        pytest.param(lambda root: root.write("a", b"1"), ["PUT"], id="write"),
        pytest.param(lambda root: root.delete("a"), ["DELETE"], id="delete"),
    ],
)
def test_an_operation_is_one_request_a_file(root, requests, counted, operation, sent):
    requests.clear()
    counted()
    operation(root)
    assert requests == sent
    found = counted()
    assert found.requests == {**dict.fromkeys(DOLLARS, 0), **Counter(sent)}
    assert {method for method, seconds in found.seconds.items() if seconds > 0} == set(sent)
    assert set(found.errors.values()) == {0}, "a file that is not there is an answer"
    assert found.dollars == pytest.approx(sum(DOLLARS[method] for method in sent) / 1e6)


def test_a_folder_that_is_deleted_is_counted_by_its_files(root, requests, counted):
    for number in range(3):
        root.child("folder").write(str(number), b"1")
    requests.clear()
    counted()
    root.child("folder").delete_folder()
    assert Counter(requests) == {"LIST": 1, "DELETE": 3} == {m: n for m, n in counted().requests.items() if n}


def test_a_listing_of_many_names_is_counted_by_its_pages(root, requests, counted):
    for number in range(1001):
        root.child("many")._store.store.put(f"{root.child('many')._key()}/{number}", b"")
    requests.clear()
    counted()
    assert len(root.child("many").list()) == 1001
    root.child("many").delete_folder()
    assert Counter(requests) == {m: n for m, n in counted().requests.items() if n} == {"LIST": 4, "DELETE": 1001}


def test_a_request_that_fails_is_counted_once_whatever_its_attempts(s3_options, counted):
    root = StorageRoot.of("s3://nowhere/root", s3_options)
    counted()
    with pytest.raises(KafkaStorageException):
        root.list()
    found = counted()
    assert (found.requests["LIST"], found.errors["LIST"]) == (1, 1)
    assert sum(found.errors.values()) == 1


def test_the_footer_of_a_segment_is_one_request(s3_options, requests):
    log = new_log(StorageRoot.of("s3://bucket/footers/log", s3_options), P0)
    fill(log, P0, 3)
    (segment,) = log.current().segments.values()
    requests.clear()
    assert read_segment(log.root, segment.file) == segment
    assert requests == ["GET"]


def test_a_large_file_is_written_in_parts_and_read_in_one(root, requests, counted):
    content = bytes(range(256)) * (1 << 16)
    requests.clear()
    counted()
    root.write("large", content + b"more")
    assert requests == ["POST", "PUT", "PUT", "PUT", "POST"]
    assert Counter(requests) == {method: count for method, count in counted().requests.items() if count}
    assert root.read("large") == content + b"more"
    assert requests[5:] == ["GET"]


def test_of_a_file_only_the_parts_that_are_needed_are_read(root, requests):
    rows = pa.table({"a": range(300_000), "b": [str(n) for n in range(300_000)]})
    written = pa.BufferOutputStream()
    pq.write_table(rows, written)
    root.write("rows", written.getvalue())
    requests.clear()
    with root.open("rows", written.getvalue().size) as file:
        assert pq.read_table(file, columns=["a"]).equals(rows.select(["a"]))
    assert set(requests) == {"GET"}
    assert len(requests) <= 3


def test_a_file_of_another_size_than_it_is_said_to_have_is_not_read(root):
    for size in (2, 4, 400):
        with pytest.raises(OSError, match=r"bytes|range"), root.open("a", size) as file:
            file.read()


def test_an_object_that_stands_for_a_folder_is_no_file(root):
    """Consoles of stores make one when a person makes a folder."""
    folder = root.child("made")
    folder._store.put(f"{folder._key()}/", b"")
    assert folder.list() == []
    assert root.list() == ["a", "made"]


def test_a_bucket_that_is_not_there_is_no_empty_folder(s3_options):
    with pytest.raises(KafkaStorageException, match=r"s3://nowhere/root: cannot be read: .*NoSuchBucket"):
        StorageRoot.of("s3://nowhere/root", s3_options).list()


def test_a_root_may_be_a_whole_bucket(s3_options):
    root = StorageRoot.of("s3://bucket", s3_options)
    root.write("of the bucket", b"1")
    assert root.read("of the bucket") == b"1"
    assert "of the bucket" in root.list()
    root.delete("of the bucket")


def test_a_root_works_in_another_process(root):
    root.read("a")
    assert pickle.loads(pickle.dumps(root)).read("a") == b"123"


def test_options_in_the_environment_apply_to_every_root(s3_options, monkeypatch):
    """obstore and delta-rs take both those of a store and those of its client from there."""
    for name, value in s3_options.items():
        monkeypatch.setenv(name, value)
    root = StorageRoot.of("s3://bucket/environment", timeout_ms=9999)  # no other test opens a store like this
    root.write("a", b"1")
    assert DeltaLog.create(root.child("table"), CLUSTER).root.list() == ["_delta_log"]


def test_a_store_and_its_client_are_told_their_own_options():
    """delta-rs takes both in one, and some that obstore does not know."""
    options = {"AWS_REGION": "eu", "AWS_ALLOW_HTTP": "true", "TIMEOUT": "1s", "azure_proxy_url": "http://p"}
    assert store_options(options) == {"AWS_REGION": "eu", "aws_disable_bulk_delete": "true"}
    assert client_arguments(options, 9000) == {
        "client_options": {
            "allow_http": "true", "timeout": "1s", "proxy_url": "http://p",
            "connect_timeout": "4500ms", "read_timeout": "4500ms",
        },
        "retry_config": {"retry_timeout": timedelta(milliseconds=4500)},
    }  # fmt: skip


def test_options_that_only_delta_rs_knows_are_no_error(s3_options):
    options = {**s3_options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "MAX_RETRIES": "3"}
    assert StorageRoot.of("s3://bucket/other", options).list() == []


@pytest.mark.parametrize(
    ("uri", "options", "words"),
    [
        ("az://container/a", {}, "Account must be specified"),
        ("s3://bucket/a", {"AWS_S3_EXPRESS": "maybe"}, 'failed to parse "maybe" as boolean'),
        ("s3://bucket/a", {"TIMEOUT": "soon"}, "soon"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_wrong_setting(uri, options, words):
    with pytest.raises(InvalidConfigurationException, match=f"^storage root {uri}: .*{words}[^\n]*$"):
        StorageRoot.of(uri, options).list()
