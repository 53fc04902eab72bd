"""Where the roots of a cluster are, and how each can be taken away or replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from lakelog.jobs.cli.root_names import DISK, S3, owners, root_name
from lakelog.replication.config import Owner
from lakelog.replication.errors import InvalidRequestException
from lakelog.verification.roots import storage_faults
from lakelog.verification.roots.disks import Disks
from lakelog.verification.roots.object_stores import ObjectStores


class Roots(Protocol):
    """The root of the cluster and those of its brokers."""

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root."""

    def take_away(self, uri: str) -> None:
        """Makes a root unreachable."""

    def copy(self, uri: str, target: str) -> None:
        """Copies a root to another place beside it."""

    def replace(self, uri: str, other: str | None) -> None:
        """Moves the folder `other`, which is beside a root, to the place of the root. None: nothing is there then."""

    def bring_back(self, uri: str) -> None:
        """Makes a root reachable again, with its content. Does nothing if it was neither taken away nor replaced."""

    def is_away(self, uri: str) -> bool:
        """Whether a root was taken away or replaced."""

    def running(self) -> AbstractContextManager[object]:
        """Keeps the roots reachable during the block."""


class LocalRoots:
    """Roots on this machine, below `folder`. Each is a plain folder, unless its owner is in one of two lists.

    `stored`: the owners whose roots are in object stores, one store a root. `on_disks`: those whose roots are on disks
    of their own, which can lose their power. `cluster_roots`: how many roots the cluster has, on no disks if several.
    The only one may get others: see `add_cluster_roots`.
    """

    def __init__(
        self, folder: Path, stored: Iterable[Owner] = (), on_disks: Iterable[Owner] = (), cluster_roots: int = 1
    ) -> None:  # fmt: skip
        self._folder = folder
        self._cluster_roots, self._first = cluster_roots, "cluster" if cluster_roots == 1 else "cluster-1"
        self.stores = ObjectStores(folder, stored, cluster_roots)
        self.disks = Disks(folder, on_disks)

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root; those of several cluster roots, separated by commas."""
        if owner in self.stores.owners:
            return self.stores.uri(owner)
        if owner == "cluster" and self._cluster_roots > 1:
            names = [self._first, *(f"{root_name(owner)}-{n}" for n in range(2, self._cluster_roots + 1))]
            return ",".join(str(self._folder / name) for name in names)
        return str(self.disks.root(owner) if owner in self.disks.owners else self._folder / root_name(owner))

    def add_cluster_roots(self, count: int) -> None:
        """From now on the cluster has so many roots, in folders: the present one, and others, which are to be made."""
        if self._cluster_roots > 1 or "cluster" in (*self.stores.owners, *self.disks.owners):
            raise InvalidRequestException("only the one root of a cluster, in a folder, gets others")
        self._cluster_roots = count

    def path(self, owner: Owner) -> Path:
        """The folder with the files of an owner's only root, or with its objects."""
        return Path(self._path(self.uri(owner)))

    def take_away(self, uri: str) -> None:
        """Lets the store of a root answer every request with an error; without a store, puts a file in its place."""
        if store := self.stores.processes.get(uri):
            store.begin_errors()
        else:
            storage_faults.take_away(uri)

    def hang(self, uri: str) -> None:
        """Lets the store of a root accept requests and not answer them. Raises InvalidRequestException without one."""
        store = self.stores.processes.get(uri)
        if store is None:
            raise InvalidRequestException(f"{uri}: a folder cannot hang, only a root in an object store")
        store.pause()

    def delete(self, uri: str) -> None:
        """Deletes a root for good, wherever it is now, and what lies in its place. Its store works."""
        storage_faults.delete(self._path(uri))
        self.bring_back(uri)

    def copy(self, uri: str, target: str) -> None:
        """Copies a root to another place beside it."""
        storage_faults.copy(self._path(uri), self._path(uri, target))

    def replace(self, uri: str, other: str | None) -> None:
        """Moves the folder `other`, which is beside a root, to the place of the root. None: nothing is there then."""
        path = None if other is None else self._path(uri, other)
        storage_faults.replace(self._path(uri), path if path and Path(path).exists() else None)

    def bring_back(self, uri: str) -> None:
        """Makes a root reachable again, with its content. Does nothing if it was neither taken away nor replaced."""
        if store := self.stores.processes.get(uri):
            store.end_errors()
            store.resume()
        storage_faults.bring_back(self._path(uri))

    def is_away(self, uri: str) -> bool:
        """Whether a root was taken away or replaced, or hangs."""
        store = self.stores.processes.get(uri)
        return bool(store and (store.has_errors or store.is_paused)) or storage_faults.is_away(self._path(uri))

    def _path(self, uri: str, other: str | None = None) -> str:
        """The folder of a root, or of another place beside it."""
        store = self.stores.processes.get(uri)
        place = other or uri
        return str(store.folder / place.removeprefix("s3://").partition("/")[2]) if store else place

    @contextmanager
    def running(self) -> Iterator[LocalRoots]:
        """Runs the stores and mounts the disks during the block."""
        with self.stores.running(), self.disks.running():
            yield self


# By value of `--store`: makes the roots of a cluster, given the folder that they lie in, the number of brokers and that
# of cluster roots.
STORES: Mapping[str, Callable[..., LocalRoots]] = {
    DISK: lambda folder, _, cluster_roots=1: LocalRoots(folder, cluster_roots=cluster_roots),
    S3: lambda folder, brokers, cluster_roots=1: LocalRoots(folder, owners(brokers), cluster_roots=cluster_roots),
}
