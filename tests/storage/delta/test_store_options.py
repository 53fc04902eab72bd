"""The store options for delta-rs, and a store that accepts connections and never answers."""

import socket
import threading
from datetime import timedelta

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.cluster import storage_root
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.object_root import delta_options
from lakelog.replication.storage.delta.storage_root import StorageRoot


def test_every_operation_has_a_deadline():
    assert delta_options({"AWS_REGION": "eu"}, 9000) == {
        "AWS_REGION": "eu", "timeout": "4500ms", "connect_timeout": "4500ms", "retry_timeout": "4500ms",
    }  # fmt: skip


def test_a_root_may_have_deadlines_of_its_own():
    assert delta_options({"TIMEOUT": "1s"}, 9000) == {
        "TIMEOUT": "1s", "connect_timeout": "4500ms", "retry_timeout": "4500ms",
    }  # fmt: skip


def test_the_deadline_is_a_setting_and_every_folder_of_a_root_has_it():
    config = Config.from_properties({"lakelog.storage.timeout.ms": 2000, "storage.2.aws.region": "eu"})
    root = storage_root("s3://bucket/broker-2", 2, config).child("log")
    assert root.delta_options == delta_options({"AWS_REGION": "eu"}, 2000)
    assert StorageRoot.of("/broker-2", {"AWS_REGION": "eu"}).delta_options == {}, "a disk takes none"


def test_one_of_several_roots_gives_up_soon_an_operation_that_fails():
    """Both of obstore and of delta-rs. It waits for an answer as long as any root, unless others are asked next."""
    config = Config.from_properties({"lakelog.storage.timeout.ms": 9000})
    uris = ["s3://bucket/a", "s3://bucket/b", "s3://bucket/c"]
    (folder, *_) = storage_root(",".join(uris), "cluster", config).child("metadata").parts
    assert folder.delta_options == delta_options({}, 9000) | {"retry_timeout": "500ms"}
    assert folder._store.store.retry_config["retry_timeout"] == timedelta(milliseconds=500)
    assert folder._store.store.client_options["read_timeout"] == "4500ms"
    soon = {"timeout": "400ms", "connect_timeout": "400ms", "retry_timeout": "400ms"}
    assert folder.quick.child("x").delta_options == folder.delta_options | soon
    assert folder.quick._store.store.client_options["read_timeout"] == "400ms"
    alone = storage_root(uris[0], "cluster", config)
    assert alone.delta_options == delta_options({}, 9000)
    assert alone._store.store.retry_config["retry_timeout"] == timedelta(milliseconds=4500)


@pytest.fixture
def black_hole():
    """A bucket of a region that hangs."""
    server, taken = socket.create_server(("127.0.0.1", 0)), []

    def accept():
        while True:
            try:
                taken.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(30)
    for connection in taken:
        connection.close()


@pytest.mark.parametrize(
    "poll",
    [
        pytest.param(lambda root: root.sizes(["a"]), id="obstore"),
        pytest.param(lambda root: root.list(), id="a listing"),
        pytest.param(DeltaLog.open, id="delta-rs"),
    ],
)
def test_a_store_that_never_answers_has_failed(black_hole, poll):
    """Without deadlines of our own, delta-rs takes three minutes to say so."""
    options = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "eu", "AWS_ALLOW_HTTP": "true"}
    root = StorageRoot.of("s3://bucket/broker-2", {**options, "AWS_ENDPOINT_URL": black_hole}, timeout_ms=1000)
    with pytest.raises(KafkaStorageException, match=r"s3://bucket/broker-2.*: cannot be read: "):
        poll(root)
