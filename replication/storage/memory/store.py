"""The files of one store in memory. Every operation on them passes a `Faults`, which may make it fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import pyarrow as pa

from lakelog.replication.storage.delta.freshness import NewestVersions

SCHEME = "memory"


class File(NamedTuple):
    """The content of a file and its stamp: size and time of writing. No two files have the same time."""

    content: pa.Buffer
    stamp: tuple[int, int]


class Faults(Protocol):
    """The faults that a user of a store may meet. `uri` names a file, a folder or a table."""

    def read(self, uri: str) -> None:
        """Called before each read. May raise OSError, or let time pass."""

    def write(self, uri: str, put: Callable[[], None]) -> None:
        """Calls `put`, which writes or deletes, or skips it. May raise OSError in either case."""

    def commit(self, uri: str, put: Callable[[], bool]) -> bool:
        """Calls `put` now, later or never. `put` returns whether its commit was first; this returns the client's
        answer, which may differ. May raise OSError."""


class NoFaults:
    """A store that never fails."""

    def read(self, uri: str) -> None:
        """Does nothing."""

    def write(self, _: str, put: Callable[[], None]) -> None:
        """Writes."""
        put()

    def commit(self, _: str, put: Callable[[], bool]) -> bool:
        """Commits, and returns whether the commit was first."""
        return put()


@dataclass
class MemoryStore:
    """Files by folder and name. `is_local`: whether it simulates disks of this machine, where an empty folder exists
    too, or an object store. `process` tells which process uses it now: each shares its looks with nobody else."""

    name: str
    is_local: bool = False
    wall_clock: Callable[[], float] = time.time
    faults: Faults = field(default_factory=NoFaults)
    folders: dict[str, dict[str, File]] = field(default_factory=dict)
    parsed: dict[object, object] = field(default_factory=dict)  # commits that handles have parsed, by their stamps
    process: Callable[[], object] = lambda: None
    _newest_versions: dict[object, NewestVersions] = field(default_factory=dict)
    _writes: int = 0

    open_stores: ClassVar[dict[str, MemoryStore]] = {}

    @contextmanager
    def opened(self) -> Iterator[MemoryStore]:
        """Makes roots `memory://<name>/…` use this store while the context is open."""
        before = self.open_stores.get(self.name)
        self.open_stores[self.name] = self
        try:
            yield self
        finally:
            del self.open_stores[self.name]
            if before is not None:
                self.open_stores[self.name] = before

    @property
    def uri(self) -> str:
        """The URI of the folder of all its roots."""
        return f"{SCHEME}://{self.name}"

    @property
    def newest_versions(self) -> NewestVersions:
        """What the process that uses the store now has seen of its tables."""
        return self._newest_versions.setdefault(self.process(), NewestVersions())

    def find(self, uri: str) -> File | None:
        """A file, None if it is not there."""
        folder, _, name = uri.rpartition("/")
        return self.folders.get(folder, {}).get(name)

    def files(self, folder: str) -> Mapping[str, File]:
        """The files directly in a folder."""
        return self.folders.get(folder, {})

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder."""
        below = {uri[len(folder) + 1 :].split("/")[0] for uri in self.folders if uri.startswith(f"{folder}/")}
        return sorted({*self.files(folder), *below})

    def put(self, uri: str, content: bytes | pa.Buffer) -> None:
        """Writes a file, over an existing one too."""
        folder, _, name = uri.rpartition("/")
        self._writes += 1
        buffer = pa.py_buffer(content)
        written_at = int(self.wall_clock() * 1e9) + self._writes
        self.make_folder(folder)
        self.folders[folder][name] = File(buffer, (buffer.size, written_at))

    def make_folder(self, folder: str) -> None:
        """Creates a folder if it does not exist, and on a disk its parents."""
        while folder not in self.folders and folder != self.uri:
            self.folders[folder] = {}
            folder = folder.rpartition("/")[0] if self.is_local else self.uri

    def put_if_absent(self, uri: str, content: bytes) -> bool:
        """Writes a file if it does not exist, and returns whether it did."""
        is_absent = self.find(uri) is None
        if is_absent:
            self.put(uri, content)
        return is_absent

    def delete(self, uri: str) -> None:
        """Deletes a file; a missing file is no error."""
        folder, _, name = uri.rpartition("/")
        self.folders.get(folder, {}).pop(name, None)
        if not self.is_local and not self.folders.get(folder, True):
            del self.folders[folder]

    def delete_folder(self, folder: str) -> None:
        """Deletes a folder and all files in it."""
        for uri in [uri for uri in self.folders if uri == folder or uri.startswith(f"{folder}/")]:
            del self.folders[uri]
