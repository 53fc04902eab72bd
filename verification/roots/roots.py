"""Where the roots of a cluster are, and how each can be taken away or replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from lakelog.jobs.demo.root_names import DISK, S3, owners, root_name
from lakelog.replication.config import Owner
from lakelog.verification.faults import storage_faults
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
        """The roots can be reached during the block."""


class DiskRoots:
    """Folders below one folder of the local disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def uri(self, owner: Owner) -> str:
        """The path of an owner's root."""
        return str(self._folder / root_name(owner))

    def take_away(self, uri: str) -> None:
        """Puts a plain file in the place of a root."""
        storage_faults.take_away(uri)

    def copy(self, uri: str, target: str) -> None:
        """Copies the folder of a root."""
        storage_faults.copy(uri, target)

    def replace(self, uri: str, other: str | None) -> None:
        """Puts a root aside, and another folder in its place."""
        storage_faults.replace(uri, other)

    def bring_back(self, uri: str) -> None:
        """Puts a root back. Does nothing if it was neither taken away nor replaced."""
        storage_faults.bring_back(uri)

    def is_away(self, uri: str) -> bool:
        """Whether a root was taken away or replaced."""
        return storage_faults.is_away(uri)

    def running(self) -> AbstractContextManager[object]:
        """Nothing has to run for a folder."""
        return nullcontext()


# Makes the roots of a cluster of so many brokers below a folder, by the argument `--store`.
STORES: Mapping[str, Callable[[Path, int], Roots]] = {
    DISK: lambda folder, _: DiskRoots(folder),
    S3: lambda folder, brokers: ObjectStores(folder, owners(brokers)),
}
