"""What the headers of an object tell of the rules of its bucket, and how a store is asked for them."""

import socket
import threading

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.object_headers import ObjectRules, SigningException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.s3.server import Response, error
from tests.storage import faulty_store as faults
from tests.storage.faulty_store import FaultyStore, faulty_store

DAY = "Thu, 31 Dec 2026 00:00:00 GMT"
TOLD = {
    "nothing": ({"etag": '"1"', "x-amz-storage-class": ""}, ObjectRules()),
    "S3: a rule deletes it": (
        {"x-amz-expiration": f'expiry-date="{DAY}", rule-id="tmp%2Fold%20files"'},
        ObjectRules(expires="2026-12-31", rule="tmp/old files"),
    ),
    "S3: a rule with the longest id": (
        {"x-amz-expiration": f'expiry-date="{DAY}", rule-id="{"a" * 255}"'},
        ObjectRules(expires="2026-12-31", rule="a" * 255),
    ),
    "S3: a rule without an id": ({"x-amz-expiration": f'expiry-date="{DAY}"'}, ObjectRules(expires="2026-12-31")),
    "S3: a day that nobody can read": (
        {"x-amz-expiration": 'expiry-date="soon", rule-id="a"'},
        ObjectRules(expires="soon", rule="a"),
    ),
    "S3: a day with too many digits": (
        {"x-amz-expiration": f'expiry-date="{DAY.replace("2026", "9" * 20)}", rule-id="a"'},
        ObjectRules(expires=DAY.replace("2026", "9" * 20), rule="a"),
    ),
    "S3: an empty day": (
        {"x-amz-expiration": 'expiry-date="", rule-id="a"'},
        ObjectRules(unknown='expiry-date="", rule-id="a"'),
    ),
    "S3: a directory bucket": ({"x-amz-expiration": "NotImplemented"}, ObjectRules(unknown="NotImplemented")),
    "S3: versioning": ({"x-amz-version-id": "3HL4kqtJlcpXroDTDmJ"}, ObjectRules(version="3HL4kqtJlcpXroDTDmJ")),
    "S3: versioning is suspended": ({"x-amz-version-id": "null"}, ObjectRules()),
    "S3: object lock": (
        {"x-amz-object-lock-mode": "COMPLIANCE", "x-amz-object-lock-retain-until-date": "2026-12-31T00:00:00.000Z"},
        ObjectRules(lock="until 2026-12-31 (compliance)"),
    ),
    "S3: a legal hold": ({"x-amz-object-lock-legal-hold": "ON"}, ObjectRules(lock="until its legal hold is removed")),
    "S3: no legal hold": ({"x-amz-object-lock-legal-hold": "OFF"}, ObjectRules()),
    "S3: an archive": (
        {"x-amz-storage-class": "DEEP_ARCHIVE"},
        ObjectRules(storage_class="DEEP_ARCHIVE", archived="DEEP_ARCHIVE"),
    ),
    "S3: an archive of intelligent tiering": (
        {"x-amz-storage-class": "INTELLIGENT_TIERING", "x-amz-archive-status": "ARCHIVE_ACCESS"},
        ObjectRules(storage_class="INTELLIGENT_TIERING", archived="ARCHIVE_ACCESS"),
    ),
    "Google: an age deletes it": ({"x-goog-expiration": DAY}, ObjectRules(expires="2026-12-31")),
    "Google: a class that can be read at once": (
        {"x-goog-storage-class": "ARCHIVE", "x-goog-generation": "1700000000000000"},
        ObjectRules(storage_class="ARCHIVE"),
    ),
    "Google: object lock": (
        {"x-goog-object-lock-mode": "GOVERNANCE", "x-goog-object-lock-retain-until-date": "2026-12-31T00:00:00Z"},
        ObjectRules(lock="until 2026-12-31 (governance)"),
    ),
    "Azure: versioning": ({"x-ms-version-id": "2026-06-28T05:50:49Z"}, ObjectRules(version="2026-06-28T05:50:49Z")),
    "Azure: immutability": (
        {"x-ms-immutability-policy-until-date": DAY, "x-ms-immutability-policy-mode": "unlocked"},
        ObjectRules(lock="until 2026-12-31 (unlocked)"),
    ),
    "Azure: a legal hold": ({"x-ms-legal-hold": "true"}, ObjectRules(lock="until its legal hold is removed")),
    "Azure: a tier": ({"x-ms-access-tier": "Hot"}, ObjectRules(storage_class="Hot")),
    "Azure: an archive": ({"x-ms-access-tier": "Archive"}, ObjectRules(storage_class="Archive", archived="Archive")),
    "signs of a terminal": ({"x-amz-expiration": "\x1b[31m\nred"}, ObjectRules(unknown="?[31m?red")),
}


@pytest.mark.parametrize(("headers", "rules"), TOLD.values(), ids=TOLD)
def test_headers_tell_rules(headers: dict[str, str], rules: ObjectRules) -> None:
    assert ObjectRules.of(headers) == rules


@pytest.fixture
def store(tmp_path):
    with faulty_store(tmp_path) as found:
        yield found


def root_in(store: FaultyStore, **options: str) -> StorageRoot:
    return StorageRoot.of("s3://faulty/a root", {**store.options, **options}, timeout_ms=1000)


def test_a_store_is_asked_by_a_head_that_is_signed_in_its_url(store):
    root, asked = root_in(store), []
    root.put("a file", b"12345")
    told = faults.expires(prefix="a root/a file")

    def noting(answer, method, url, headers, body):
        asked.append((method, faults.SIGNATURE in url, "authorization" in headers))
        return told(answer, method, url, headers, body)

    store.fault = noting
    headers = root.headers("a file")
    assert (headers["content-length"], ObjectRules.of(headers).rule) == ("5", "old files")
    assert asked == [("HEAD", True, False)]
    with pytest.raises(FileNotFoundError):
        root.headers("another")


def test_a_file_of_a_disk_has_no_headers(root):
    assert StorageRoot.of(root).headers("file") == {}


def failing(status: int, code: str) -> faults.Fault:
    return lambda *_: error(status, code)


FAILS = {
    "it refuses": (failing(403, "AccessDenied"), r"the store refuses access \(status code: 403 Forbidden\)"),
    "it is busy": (failing(503, "SlowDown"), "status code: 503 Service Unavailable"),
    "it has a status of its own": (failing(599, "Odd"), "status code: 599"),
    "it has headers that nobody can read": (
        lambda *_: Response(200, b"", {"x-amz-expiration": "x" * 70_000}),
        r"it gives no answer in HTTP that can be read \(LineTooLong\)",
    ),
    "it sends the client round": (lambda _answer, _method, url, *_: Response(302, b"", {"Location": url}), "302 Found"),
}


@pytest.mark.parametrize(("fault", "words"), FAILS.values(), ids=FAILS)
def test_an_answer_that_is_an_error_is_told_without_the_url(store, fault, words):
    store.fault = fault
    with pytest.raises(KafkaStorageException, match=f"^s3://faulty/a root/x: cannot be read: .*{words}") as raised:
        root_in(store).headers("x")
    assert_has_no_secret(raised.value)


def assert_has_no_secret(error: BaseException | None) -> None:
    """In an error and in all that it brings along."""
    while error is not None:
        assert "X-Amz" not in repr(error) + str(vars(error))
        error = error.__cause__ or error.__context__


def test_a_store_that_hangs_or_has_gone_is_an_error(store):
    let_go = threading.Event()
    store.fault = faults.hangs(let_go)
    try:
        with pytest.raises(KafkaStorageException, match="cannot be read: timed out") as raised:
            root_in(store).headers("x")
    finally:
        let_go.set()
    assert_has_no_secret(raised.value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(KafkaStorageException, match="cannot be read: Connection refused") as raised:
        root_in(store, AWS_ENDPOINT_URL=gone).headers("x")
    assert_has_no_secret(raised.value)


def test_the_proxy_of_a_root_is_asked(store):
    root = root_in(store)
    root.put("x", b"")
    behind = root_in(store, AWS_ENDPOINT_URL="http://store.invalid", proxy_url=store.options["AWS_ENDPOINT_URL"])
    assert behind.headers("x")["content-length"] == "0"


def test_a_redirection_is_an_answer_and_not_followed(store):
    """That of a gateway to its page to log in would look like a store without rules."""
    asked = []

    def moved(_answer, method, url, *_):
        asked.append(method)
        return Response(302, b"", {"Location": "/login"}) if faults.SIGNATURE in url else Response(200, b"log in", {})

    store.fault = moved
    with pytest.raises(KafkaStorageException, match=r"status code: 302 Found") as raised:
        root_in(store).headers("x")
    assert asked == ["HEAD"]
    assert_has_no_secret(raised.value)


def test_a_proxy_of_an_unknown_scheme_is_named(store, monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(KafkaStorageException, match="cannot be read: unknown url type: socks5"):
        root_in(store, AWS_ENDPOINT_URL="http://store.invalid").headers("x")


def test_credentials_that_cannot_sign_are_told_without_the_secret():
    options = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_SAS_KEY": "sv=2021&sig=secret"}
    with pytest.raises(SigningException) as raised:
        StorageRoot.of("az://container/root", options).headers("x")
    assert "secret" not in str(raised.value)
