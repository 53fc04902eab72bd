"""A storage root in memory. Its errors are those of a real one: a missing file raises FileNotFoundError, and every
other error names the place."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import DeltaError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.freshness import NewestVersions
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reading, writing
from lakelog.replication.storage.memory.snapshot import change_of
from lakelog.replication.storage.memory.store import SCHEME, File, MemoryStore
from lakelog.replication.storage.memory.table import MemoryTable, create_table


@dataclass(frozen=True)
class MemoryRoot(StorageRoot):
    """A folder of a store in memory, `memory://<store>/<folder>`."""

    @property
    def store(self) -> MemoryStore:
        """The store of this root. Raises KafkaStorageException if this process has no store of that name."""
        name = self.uri.removeprefix(f"{SCHEME}://").split("/")[0]
        found = MemoryStore.open_stores.get(name)
        if found is None:
            raise KafkaStorageException(f"{self.uri}: this process has no store {name} in its memory")
        return found

    @property
    def is_local(self) -> bool:
        """Whether the store simulates disks of this machine."""
        return self.store.is_local

    @property
    def newest_versions(self) -> NewestVersions | None:
        """Where a process notes the versions of tables in an object store in memory."""
        return None if self.is_local else self.store.newest_versions

    def open_table(self, version: int | None = None) -> MemoryTable:
        """A handle on the Delta table here. Raises TableNotFoundError, DeltaError or OSError."""
        return MemoryTable(self.store, self.uri, version)

    def is_whole_checkpoint(self, name: str) -> bool:
        """Whether a checkpoint in memory, which has actions as JSON, can be read to its end."""
        try:
            return bool(change_of(self.read(name)).table)
        except (FileNotFoundError, DeltaError):
            return False

    def create_table(self, commit: bytes) -> MemoryTable:
        """Makes a Delta table here. Raises CommitFailedError if one exists, OSError if the store fails."""
        return create_table(self.store, self.uri, commit)

    def _found(self, name: str) -> File:
        with reading(self.path(name)):
            self.store.faults.read(self.path(name))
        found = self.store.find(self.path(name))
        if found is None:
            raise FileNotFoundError(f"{self.path(name)}: no such file")
        return found

    def _stamp(self, name: str) -> Stamp | None:
        with reading(self.path(name)):
            self.store.faults.read(self.path(name))
        found = self.store.find(self.path(name))
        return found.stamp if found else None

    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if it does not exist."""
        self._look()
        return self.store.names(self.uri)

    def _files(self) -> dict[str, tuple[int, float]]:
        self._look()
        return {name: (file.stamp[0], file.stamp[1] / 1e9) for name, file in self.store.files(self.uri).items()}

    def _look(self) -> None:
        with reading(self.uri):
            self.store.faults.read(self.uri)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""
        return bytes(self._found(name).content)

    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        """The content of a file and its stamp. Raises FileNotFoundError, KafkaStorageException."""
        found = self._found(name)
        return bytes(found.content), found.stamp

    def read_buffer(self, name: str) -> pa.Buffer:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""
        return self._found(name).content

    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        """Opens a file to read parts of it. Raises OSError, KafkaStorageException."""
        if size is not None:
            self._stamp(name)  # a second request, as for two parts of a file: the store may fail between them
        try:
            return pa.BufferReader(self._found(name).content)
        except KafkaStorageException as error:
            raise OSError(str(error)) from error

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically; on a disk its folder must exist. Raises KafkaStorageException."""
        uri = self.path(name)
        with writing(uri):
            if self.is_local and self.uri not in self.store.folders:
                raise FileNotFoundError(f"{self.uri}: no such folder")
            self.store.faults.write(uri, lambda: self.store.put(uri, content))

    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        """Copies a file of the same store, if it simulates an object store. Returns whether it did: a disk does not,
        and a store that fails does not."""
        if self.is_local or not isinstance(source, MemoryRoot) or source.store is not self.store:
            return False
        try:
            self.put(new_name, source.read_buffer(name))
        except (FileNotFoundError, KafkaStorageException):
            return False
        return True

    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file and returns its stamp, or None if one exists. Raises KafkaStorageException as a real one."""
        uri = self.path(name)
        with writing(uri):
            if self.is_local and uri.rpartition("/")[0] not in self.store.folders:
                raise FileNotFoundError(f"{self.uri}: no such folder")
            is_first = self.store.faults.commit(self.uri, lambda: self.store.put_if_absent(uri, content))
        found = self.store.find(uri)
        return found.stamp if is_first and found else None

    def create_folder(self) -> None:
        """Creates the folder and its parents. In an object store it does nothing, as there are no folders."""
        if self.is_local:
            with writing(self.uri):
                self.store.faults.read(self.uri)
            self.store.make_folder(self.uri)

    def move_out(self, name: str, stamp: Stamp, folder: StorageRoot, new_name: str) -> None:
        """Copies a file to a folder of the same store and deletes it, if it has this stamp. Raises
        KafkaStorageException."""
        self._copy_out(name, stamp, folder, new_name)

    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""
        uri = self.path(name)
        with writing(uri):
            self.store.faults.write(uri, lambda: self.store.delete(uri))

    def delete_folder(self) -> None:
        """Deletes this folder and all files in it; a missing folder is no error."""
        with writing(self.uri):
            self.store.faults.write(self.uri, lambda: self.store.delete_folder(self.uri))

    def sync_file(self, name: str) -> None:
        """Does nothing: memory has nothing to make durable."""
