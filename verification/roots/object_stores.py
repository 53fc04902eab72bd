"""Object stores on this machine for the roots of a cluster, each a process of its own that can fail on request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakelog.jobs.cli.root_names import root_name
from lakelog.replication.config import Owner
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

    def store_of(self, uri: str) -> StoreProcess | None:
        """The store that has this root, None if none has it."""
        return {self.uri(owner): store for owner, store in self.processes.items()}.get(uri)

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
