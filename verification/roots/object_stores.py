"""Roots of a cluster in object stores on this machine, each a process of its own that can fail on request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakelog.jobs.demo.root_names import root_name
from lakelog.replication.config import Owner
from lakelog.verification.faults import storage_faults
from lakelog.verification.s3.server import StoreProcess


class ObjectStores:
    """One object store, with one bucket, for each owner of a root. `processes`: the stores by owner."""

    def __init__(self, folder: Path, owners: Iterable[Owner]) -> None:
        self.processes = {
            owner: StoreProcess(folder / f"store-{owner}" / _bucket(owner), folder / f"store-{owner}.log")
            for owner in owners
        }

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root."""
        return f"s3://{_bucket(owner)}/{root_name(owner)}"

    def folder(self, owner: Owner) -> Path:
        """The folder on the disk that has the objects of an owner's root."""
        return self.processes[owner].folder / root_name(owner)

    def _store_of(self, uri: str) -> StoreProcess:
        return {self.uri(owner): store for owner, store in self.processes.items()}[uri]

    def take_away(self, uri: str) -> None:
        """Makes the store of a root answer every request with an error."""
        self._store_of(uri).begin_errors()

    def copy(self, uri: str, target: str) -> None:
        """Copies the objects of a root to other keys of its store."""
        storage_faults.copy(self._path(uri), self._path(uri, target))

    def replace(self, uri: str, other: str | None) -> None:
        """Puts the objects of a root aside, and those of other keys of its store in their place."""
        path = None if other is None else self._path(uri, other)
        storage_faults.replace(self._path(uri), path if path and Path(path).exists() else None)

    def bring_back(self, uri: str) -> None:
        """Makes the store of a root work again, with its own objects."""
        self._store_of(uri).end_errors()
        storage_faults.bring_back(self._path(uri))

    def is_away(self, uri: str) -> bool:
        """Whether the store of a root answers every request with an error, or has other objects in its place."""
        return self._store_of(uri).has_errors or storage_faults.is_away(self._path(uri))

    def _path(self, uri: str, other: str | None = None) -> str:
        """The folder on the disk of a root, or of another prefix in its bucket."""
        return str(self._store_of(uri).folder / (other or uri).removeprefix("s3://").partition("/")[2])

    @contextmanager
    def running(self) -> Iterator[ObjectStores]:
        """Runs the stores, and gives their options to all clients in this process and its children, during the block.
        Kills the stores at its end, also after an error."""
        with ExitStack() as ending:
            for store in self.processes.values():
                ending.callback(store.kill)
                store.start()
            options = {owner: store.await_options() for owner, store in self.processes.items()}
            names = {
                f"LAKELOG_STORAGE_{owner}_{name}".upper(): value
                for owner, given in options.items()
                for name, value in given.items()
            }
            with _environment(names):
                yield self

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a store has ended by itself."""
        for store in self.processes.values():
            store.check()


def _bucket(owner: Owner) -> str:
    return f"bucket-{owner}"


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables for this process and its children during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
