"""An object store on localhost for tests with buckets as roots, and a table of each kind."""

import itertools
from collections.abc import Callable, Iterator
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.memory.store import MemoryStore
from tests.storage.delta.tables import Place, in_memory, on_disk

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/bucket", method="PUT")):
        pass
    yield {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true"}
    server.stop()


_folders = itertools.count()


@pytest.fixture(params=["local", "s3"])
def new_root(request: pytest.FixtureRequest, root: str) -> Callable[[], StorageRoot]:
    """Makes an empty root, on the local disk and in an object store."""

    def make() -> StorageRoot:
        if request.param == "local":
            made = StorageRoot.of(f"{root}/{next(_folders)}")
            made.create_folder()
            return made
        return StorageRoot.of(f"s3://bucket/{next(_folders)}", request.getfixturevalue("s3_options"))

    return make


@pytest.fixture(params=["delta-rs", "memory"])
def place(request: pytest.FixtureRequest, root: str) -> Iterator[Place]:
    """A place for a table: on disk with handles of delta-rs, and in memory."""
    if request.param == "delta-rs":
        yield on_disk(f"{root}/table")
        return
    with MemoryStore("contract").opened() as store:
        yield in_memory(store)


@pytest.fixture
def table(place: Place) -> StorageRoot:
    """The folder of such a table."""
    return place.root
