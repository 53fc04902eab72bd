"""A storage root on a local disk."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs

from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reading, writing

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of Linux
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True)
class LocalRoot(StorageRoot):
    """A folder of this machine. A file is written under a temporary name and renamed, so that no reader meets a part
    of it."""

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""
        return True

    @property
    def version_cache(self) -> None:
        """There is no cache: a look-up on a disk costs nothing."""

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """A stamp of each file, None for a file that does not exist."""
        return [self._stamp(name) for name in names]

    def _stamp(self, name: str) -> Stamp | None:
        with reading(self.path(name)):
            try:
                found = os.stat(self.path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found.st_size, found.st_mtime_ns

    def mark(self, name: str) -> str | None:
        """The number of the file's inode, and its generation: an inode that is used again has another one. Without
        generations, as on tmpfs, it is the time of writing."""
        with reading(self.path(name)):
            try:
                descriptor = os.open(self.path(name), os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                found = os.fstat(descriptor)
                try:
                    generation = int.from_bytes(fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8))[:4], "little")
                except OSError:
                    generation = found.st_mtime_ns
            finally:
                os.close(descriptor)
        return f"{found.st_ino}.{generation}"

    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if it does not exist."""
        with reading(self.uri), suppress(FileNotFoundError):
            try:
                return sorted(os.listdir(self.uri))
            except NotADirectoryError:
                if os.path.isfile(self.uri):  # otherwise one of its parents is, and this folder does not exist
                    raise
        return []

    def _files(self) -> dict[str, tuple[int, float]]:
        found = {}
        for name in self.list():
            with reading(self.path(name)), suppress(FileNotFoundError):  # deleted since it was listed
                status = os.stat(self.path(name))
                if stat.S_ISREG(status.st_mode):
                    found[name] = status.st_size, status.st_mtime
        return found

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self.path(name)), open(self.path(name), "rb") as file:
            return file.read()

    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        """The content of a file and its stamp. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self.path(name)), open(self.path(name), "rb") as file:
            found = os.fstat(file.fileno())
            return file.read(), (found.st_size, found.st_mtime_ns)

    def read_buffer(self, name: str) -> pa.Buffer:
        """The content of a file that may be large. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self.path(name)), pa.OSFile(self.path(name)) as file:
            return file.read_buffer()

    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        """Opens a file to read parts of it. Raises OSError."""
        return pa.OSFile(self.path(name))

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically into a folder that exists. Raises KafkaStorageException."""
        with writing(self.path(name)), temporary_file(self.uri, name, content) as temporary:
            self.rename(temporary, name)

    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file atomically and returns its stamp, or None if a file of that name exists. The folder must exist;
        `sync` of the folder makes the name durable.

        After a KafkaStorageException the file may have been written, or may be written later.
        """
        with writing(self.path(name)), temporary_file(self.uri, name, content) as temporary:
            self.sync(temporary)
            written_at = os.stat(self.path(temporary)).st_mtime_ns
            try:
                os.link(self.path(temporary), self.path(name))
            except FileExistsError:
                return None
        return len(content), written_at

    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        """Returns False: a disk does not copy by itself."""
        return False

    def create_folder(self) -> None:
        """Creates the folder and its parents, with `fsync` for good."""
        new, folder = list[str](), self.uri
        while self.fsync and folder != "/" and not os.path.isdir(folder):
            new.append(folder)
            folder = os.path.dirname(folder)
        with writing(self.uri):
            os.makedirs(self.uri, exist_ok=True)
        for made in new:
            replace(self, uri=os.path.dirname(made)).sync()

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file, over another file if there is one."""
        self.sync(name)
        with writing(self.path(new_name)):
            os.replace(self.path(name), self.path(new_name))
        self.sync()

    def move_out(self, name: str, stamp: Stamp, folder: StorageRoot, new_name: str) -> None:
        """Moves a file to another folder of this disk, if it has this stamp; a missing file is no error. A file that
        takes its name meanwhile stays. Raises KafkaStorageException."""
        if self.stamps([name]) != [stamp]:
            return
        target = replace(self, uri=folder.uri)
        target.create_folder()
        moved = f".{new_name}.{uuid.uuid4().hex}.tmp"
        with writing(self.path(name)), suppress(FileNotFoundError):
            os.replace(self.path(name), target.path(moved))
            if target.stamps([moved]) == [stamp]:  # another file may have taken the name since the check
                target.rename(moved, new_name)
            else:
                os.link(target.path(moved), self.path(name))
                os.remove(target.path(moved))

    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""
        with writing(self.path(name)), suppress(FileNotFoundError):
            os.remove(self.path(name))

    def delete_folder(self) -> None:
        """Deletes this folder and all files in it; a missing folder is no error."""
        with writing(self.uri), suppress(FileNotFoundError):
            pafs.LocalFileSystem().delete_dir(self.uri)  # files may vanish meanwhile

    def sync(self, name: str = "") -> None:
        """With `fsync`, makes the content of a file durable, or the names in a folder."""
        if self.fsync:
            with writing(self.path(name)):
                descriptor = os.open(self.path(name), os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a file is one of `temporary_file`. A kill leaves it."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def temporary_file(root: str, name: str, content: bytes | pa.Buffer | Iterable[memoryview]) -> Iterator[str]:
    """The name of a temporary file with this content, whole or in pieces, beside the file `name`; both are relative to
    the folder `root`.

    The file is removed at the end, unless it has been renamed. Its dot hides it from readers of tables.
    """
    folder, base = os.path.split(name)
    temporary = os.path.join(folder, f".{base}.{uuid.uuid4().hex}.tmp")
    try:
        with open(os.path.join(root, temporary), "wb") as file:
            file.writelines([content] if isinstance(content, bytes | pa.Buffer) else content)
        yield temporary
    finally:
        with suppress(OSError):  # an error of the block says why the write failed
            os.remove(os.path.join(root, temporary))
