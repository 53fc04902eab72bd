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
    """One object store, with one bucket, for each root of these owners. `processes`: the stores by URI of the root.
    `cluster_roots`: how many roots the cluster has."""

    def __init__(self, folder: Path, owners: Iterable[Owner], cluster_roots: int = 1) -> None:
        self.owners = tuple(owners)
        self._cluster_roots = cluster_roots
        self.processes = {
            _uri(owner, name): StoreProcess(folder / f"store-{name}" / f"bucket-{name}", folder / f"store-{name}.log")
            for owner in self.owners
            for name in self._names(owner)
        }

    def _names(self, owner: Owner) -> list[str]:
        """The names of an owner's stores."""
        if owner == "cluster" and self._cluster_roots > 1:
            return [f"{owner}-{number}" for number in range(1, self._cluster_roots + 1)]
        return [str(owner)]

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root; those of several cluster roots, separated by commas."""
        return ",".join(_uri(owner, name) for name in self._names(owner))

    @contextmanager
    def running(self) -> Iterator[ObjectStores]:
        """Runs the stores, and gives their options to all clients in this process and its children, during the block.
        Kills the stores at its end, also after an error."""
        with ExitStack() as ending:
            for store in self.processes.values():
                ending.callback(store.kill)
                store.start()
            variables = {
                f"LAKELOG_STORAGE_{_scope(owner, name)}_{option}".upper(): value
                for owner in self.owners
                for name in self._names(owner)
                for option, value in self.processes[_uri(owner, name)].await_options().items()
            }
            with _environment(variables):
                yield self

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a store has ended by itself."""
        for store in self.processes.values():
            store.check()


def _uri(owner: Owner, name: str) -> str:
    return f"s3://bucket-{name}/{root_name(owner)}"


def _scope(owner: Owner, name: str) -> str:
    """Whose options a variable has: an owner's, or those of one bucket of several cluster roots."""
    return name if name == str(owner) else f"{owner}__bucket_{name}_".replace("-", "_")


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
