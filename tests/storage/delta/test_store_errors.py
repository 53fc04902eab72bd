"""A store's error is one line that names the settings that may help."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason

KEY, SECRET = "LAKELOG_STORAGE_<OWNER>_AWS_ACCESS_KEY_ID", "storage.<owner>.aws.secret.access.key"
AZURE = (
    "set LAKELOG_STORAGE_<OWNER>_AZURE_STORAGE_ACCOUNT_NAME and LAKELOG_STORAGE_<OWNER>_AZURE_STORAGE_ACCOUNT_KEY in "
    "the environment, or storage.<owner>.azure.storage.account.name and storage.<owner>.azure.storage.account.key in"
)
GOOGLE = (
    "set LAKELOG_STORAGE_<OWNER>_GOOGLE_SERVICE_ACCOUNT in the environment, or storage.<owner>.google.service.account"
)
NO_CREDENTIALS = """Kernel error -> Generic S3 error
          \x1b[31m↳\x1b[0m Error performing PUT http://169.254.169.254/latest/api/token in 2.2ms
           \x1b[31m↳\x1b[0m 403 Forbidden"""


class Refuses(BaseHTTPRequestHandler):
    """A store that lets nobody in."""

    def do_GET(self) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_HEAD = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def refusing_store() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_store_that_refuses_access_names_the_settings(refusing_store: str) -> None:
    options = {"endpoint_url": refusing_store, "access_key_id": "x", "secret_access_key": "y", "allow_http": "true"}
    config = Config.from_properties({f"storage.cluster.aws.{name}": value for name, value in options.items()})
    with pytest.raises(KafkaStorageException) as raised:
        Cluster.open("s3://bucket/cluster", config)
    message = str(raised.value)
    assert message.startswith("s3://bucket/cluster/cluster/_delta_log: cannot be read: the store refuses access (")
    assert all(word in message for word in (KEY, SECRET, "the owner is `cluster` or the id of the broker"))
    assert "\n" not in message


def test_a_store_without_credentials_names_the_settings() -> None:
    message = reason(OSError(NO_CREDENTIALS))
    assert message.startswith(f"there are no credentials for it: set {KEY} and ")
    assert all(word in message for word in (SECRET, "the owner is `cluster` or the id of the broker"))
    assert "Kernel error" not in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Generic MicrosoftAzure error: Error performing GET http://169.254.169.254/metadata/identity", AZURE),
        ("The operation lacked the necessary privileges: 403 Forbidden <Code>AuthorizationFailure</Code>", AZURE),
        ("Generic MicrosoftAzure error: error sending request", "LAKELOG_STORAGE_<OWNER>_AZURE_STORAGE_ENDPOINT"),
        ("Generic GCS error: GET http://metadata.google.internal/computeMetadata/v1/instance", GOOGLE),
        ("Generic S3 error: error sending request", "LAKELOG_STORAGE_<OWNER>_AWS_ENDPOINT_URL"),
        ("Generic S3 error: 403 Forbidden", KEY),
    ],
)
def test_the_settings_are_those_of_the_kind_of_store(words: str, expected: str) -> None:
    message = reason(OSError(words))
    assert expected in message
    assert sum(kind in message for kind in ("_AWS_", "_AZURE_", "_GOOGLE_")) == 1


def test_a_store_that_cannot_be_reached_names_the_endpoint() -> None:
    message = reason(OSError("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 6"))
    assert "LAKELOG_STORAGE_<OWNER>_AWS_ENDPOINT_URL" in message
    assert message.startswith("AWS Error NETWORK_CONNECTION")


def test_other_errors_are_told_as_they_are() -> None:
    assert reason(OSError("Kernel error\n \x1b[31m↳\x1b[0m disk on fire")) == "Kernel error disk on fire"


def test_a_file_that_is_gone_has_no_error_number(root: str) -> None:
    with pytest.raises(KafkaStorageException) as raised:
        StorageRoot.of(f"{root}/none").put("file", b"x")
    assert str(raised.value) == f"{root}/none/file: cannot be written: No such file or directory"
