"""Roots and tables of each kind."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.memory_root import MemoryStore
from tests.storage.delta.tables import Place, in_memory, on_disk

if TYPE_CHECKING:
    from tests.storage.test_root_recovery import Lake

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
    with MemoryStore(uuid.uuid4().hex, is_local=True).opened() as store:
        yield in_memory(store)


@pytest.fixture
def table(place: Place) -> StorageRoot:
    """The folder of such a table."""
    return place.root


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> "Lake":
    """A lake that each test copies."""
    from tests.storage.test_root_recovery import Lake

    return Lake.made(tmp_path_factory.mktemp("pattern") / "lake")


@pytest.fixture
def lake(pattern: "Lake", tmp_path: Path) -> "Lake":
    """The same lake at its own place."""
    return pattern.at(tmp_path / "lake")
