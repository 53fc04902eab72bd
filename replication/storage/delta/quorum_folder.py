"""A folder of the cluster's roots whose files belong to no table, such as the stage of a streaming query.

A writer waits until a majority of the roots has a file, and a reader asks a majority. So a reader finds the file while
any minority is away, also if it asks a root that was away when the file was written. Of racing writers of one name, the
quorum lets one win. A file never changes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.quorum_slot import ProposedCommit
from lakelog.replication.storage.delta.cluster_quorum import ATTEMPTS, ClusterQuorum
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.freshness import VersionCache
from lakelog.replication.storage.delta.quorum_member import FOLDER, TableName
from lakelog.replication.storage.delta.storage_root import StorageRoot

_STAGES = re.compile(r"sinks(-\d+)?")  # folders below the roots: each folder in them has files of no table

Value = TypeVar("Value")
_OfRoot: TypeAlias = Callable[[StorageRoot], Any]


@dataclass(frozen=True)
class QuorumFolder(StorageRoot):
    """The folder. `names`: its path below each root. All methods raise KafkaStorageException if no majority answers."""

    quorum: ClusterQuorum = field(kw_only=True, repr=False, compare=False)
    names: tuple[str, ...] = ()

    def child(self, *names: str) -> QuorumFolder:
        """A folder below this one."""
        return replace(self, uri="/".join((self.uri, *names)), names=(*self.names, *names))

    def _at_majority(self, call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        return self.quorum.at_majority(lambda root: call(root.child(*self.names) if self.names else root), is_sure=True)

    def _found(self, name: str, call: Callable[[StorageRoot], Value]) -> Value:
        """The result of `call` at a root that has the file. Raises FileNotFoundError if a majority has none."""

        def look(folder: StorageRoot) -> tuple[Value] | None:
            try:
                return (call(folder),)
            except FileNotFoundError:
                return None

        found = [each[0] for each in self._at_majority(look) if each is not None]
        if not found:
            raise FileNotFoundError(self.path(name))
        if any(each != found[0] for each in found) and isinstance(found[0], bytes | pa.Buffer):
            self.put_if_absent(name, bytes(found[0]))  # a writer knew one root when others voted: one of them counts
            return self._found(name, call)
        return found[0]

    @property
    def is_local(self) -> bool:
        """Whether the home is a folder of this machine."""
        return self.quorum.home.root.is_local

    @property
    def version_cache(self) -> VersionCache | None:
        """Always None, because no tables lie here."""
        return None

    @property
    def parts(self) -> Sequence[StorageRoot]:
        """The folder at each root, those included that do not answer."""
        return [member.root.child(*self.names) for member in self.quorum.roots]

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """A stamp of each file, by the first root that has it."""
        found = self._at_majority(lambda folder: folder.stamps(names))
        return [next((stamp for stamp in stamps if stamp is not None), None) for stamps in zip(*found, strict=True)]

    def list(self) -> list[str]:
        """The names that one root of a majority has, or more."""
        return sorted({name for names in self._at_majority(lambda folder: folder.list()) for name in names})

    def _files(self) -> dict[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}
        for files in self._at_majority(lambda folder: folder._files()):
            found |= {name: max(file, found.get(name, file), key=lambda file: file[1]) for name, file in files.items()}
        return found

    def read(self, name: str) -> bytes:
        return self._found(name, lambda folder: folder.read(name))

    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        return self._found(name, lambda folder: folder.read_stamped(name))

    def read_buffer(self, name: str) -> pa.Buffer:
        return self._found(name, lambda folder: folder.read_buffer(name))

    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        return self._found(name, lambda folder: folder.open(name, size))

    def mark(self, name: str) -> str | None:
        return next((mark for mark in self._at_majority(lambda folder: folder.mark(name)) if mark is not None), None)

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file, and makes its folder: only roots that vote get either. Again if other roots vote once it is
        done."""
        for _ in range(ATTEMPTS):
            roots = self.quorum.voters()
            self.quorum.at_majority(partial(_write, (*self.names, name), content))
            if not roots or self.quorum.voters(is_sure=True) == roots:
                return
        raise KafkaStorageException(f"the cluster roots have changed {ATTEMPTS} times while a file was written")

    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file if there is none of the name. The quorum decides which one that is, once and for all. If it has
        decided another content, this writes that one, and returns None."""
        names, nonce = (*self.names, name), uuid.uuid4().hex
        decided: ProposedCommit | None = None
        for _ in range(ATTEMPTS):
            roots = self.quorum.voters(is_sure=True)
            contents = self.quorum.at_majority(partial(_content, self.names, name))
            there = next((each for each in contents if each is not None), None)
            if there is not None and all(each is not None and each == there for each in contents):
                is_own = decided is not None and decided.nonce == nonce and there.to_pybytes() == content
                return (len(content), 0) if is_own else None
            self.quorum.at_majority(lambda root: root.child(FOLDER, *names).create_folder())
            own = decided or ProposedCommit(nonce, "", content=content)
            if there is not None:  # its writer has ended before a majority had it, or knew one root when others voted
                own = decided or ProposedCommit(uuid.uuid4().hex, "", content=there.to_pybytes())
            decided = self.quorum.decide_file(names, own, roots)
            if self.quorum.voters(is_sure=True) == roots:  # else a process that slept would write over another's file
                self.quorum.at_majority(partial(_write, names, decided.content))
                if self.quorum.voters(is_sure=True) == roots:
                    return (len(content), 0) if decided.nonce == nonce else None
        raise KafkaStorageException(f"{'/'.join(names)}: the cluster roots have changed {ATTEMPTS} times meanwhile")

    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        return False

    def create_folder(self) -> None:
        """Does nothing: a folder comes with its first file."""

    def delete(self, name: str) -> None:
        """Deletes a file, and the votes for it, at all roots that answer in time."""
        self._at_majority(lambda folder: folder.delete(name))
        self._forget(name)

    def delete_folder(self) -> None:
        """Deletes the folder and the votes for its files at all roots that answer in time."""
        self._at_majority(lambda folder: folder.delete_folder())
        self._forget()

    def _forget(self, *name: str) -> None:
        """Deletes the votes for a file, or for all in the folder."""
        self.quorum.at_majority(lambda root: root.child(FOLDER, *self.names, *name).delete_folder())

    def sync(self, name: str = "") -> None:
        """Makes names durable whose writer may have died before it did."""
        self._at_majority(lambda folder: folder.sync(name) if folder.list() else None)


def bring_files(quorum: ClusterQuorum, roots: Sequence[str], read: Callable[[_OfRoot], Sequence[Any]]) -> None:
    """Copies the files of no table to a majority of roots that will vote, from those that `read` asks. Raises
    KafkaStorageException."""
    for names in sorted({names for found in read(_folders) for names in found}):
        for name in sorted({name for found in read(partial(_names_in, names)) for name in found}):
            contents = read(partial(_content, names, name))
            content = next((each for each in contents if each is not None), None)
            if content is not None:
                quorum.of_majority(roots, partial(_write_if_missing, (*names, name), content))


def _folders(root: StorageRoot) -> Sequence[TableName]:
    """The folders that have files of no table."""
    stages = [name for name in root.list() if _STAGES.fullmatch(name)]
    return [(stage, name) for stage in stages for name in root.child(stage).list()]


def _names_in(names: TableName, root: StorageRoot) -> Sequence[str]:
    return root.child(*names).list()


def _content(names: TableName, name: str, root: StorageRoot) -> pa.Buffer | None:
    try:
        return root.child(*names).read_buffer(name)
    except FileNotFoundError:
        return None


def _write(names: TableName, content: bytes | pa.Buffer, root: StorageRoot) -> None:
    folder = root.child(*names[:-1])
    folder.write(names[-1], content)
    folder.sync()


def _write_if_missing(names: TableName, content: pa.Buffer, root: StorageRoot) -> None:
    if not root.child(*names[:-1]).exists(names[-1]):
        _write(names, content, root)
