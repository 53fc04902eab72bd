"""A storage root: a folder through which Lakelog reads and writes files, on a local disk or in an object store.

`StorageRoot` is the contract, and `StorageRoot.of` makes the kind of root that a URI names. A missing file raises
FileNotFoundError. Every other error of a store leaves a root as a KafkaStorageException that names the file.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from lakelog.replication.errors import IllegalStateException, InvalidConfigurationException
from lakelog.replication.properties import is_utf8
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.freshness import VersionCache
from lakelog.replication.storage.delta.table_handle import Opened, TableHandle, opened

TIMEOUT_MS = 10_000
STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_ADDRESSES = re.compile(r"(?:[A-Za-z_]+://)?[^/,\s]+:\d+(?:,[^/,\s]+:\d+)*/?")
_SEPARATOR = re.compile(r",(?=/|[a-z][a-z0-9]*://)")
_EXAMPLES = "such as /data/lakelog or s3://bucket/lakelog"
_LOCAL = "file"
_KINDS: dict[str, type[StorageRoot]] = {}  # by the scheme of their URIs
_user: int | None = None  # the process that has used delta-rs or obstore


def check_no_fork() -> None:
    """delta-rs and obstore have threads, which no fork has: delta-rs panics there, and obstore waits for ever. Raises
    IllegalStateException in a fork of a process that has used them."""
    global _user
    process = os.getpid()
    if _user not in (None, process):
        raise IllegalStateException(
            f"process {process} is a fork of process {_user}, which has opened tables: Delta's library does not work "
            "in a fork; start processes with spawn or forkserver, or fork before the first use of Lakelog"
        )
    _user = process


class TableState(NamedTuple):
    """A state of a table: Delta's id of the table, a version, and the unique id of that version's commit, "" if it has
    none."""

    table_id: str
    version: int
    commit: str


class RootGuard(Protocol):
    """Refuses a root if this process has seen another one at its address: see `ClusterRootGuard`."""

    @property
    def is_wrong(self) -> bool:
        """Whether the last check has refused the root."""

    def check(self, max_staleness: float = 0.0) -> None:
        """Raises KafkaStorageException unless the root is the one that was seen. In an object store an
        earlier check counts if it is at most `max_staleness` seconds old."""

    def hold(self, table: StorageRoot) -> None:
        """From now on refuses another table in the place of this one, which is that of the process's own broker."""

    def open(self, table: StorageRoot) -> Opened:
        """Opens a table of the root. Raises InconsistentClusterIdException if there is none, KafkaStorageException."""

    def reopen(self, table: StorageRoot) -> Opened:
        """Opens a table that was there before, as `open` does. Raises KafkaStorageException."""

    def saw(self, table: StorageRoot, state: TableState, stamp: Stamp | None) -> None:
        """Notes a state of a table that was read or written, and the stamp of its commit."""

    def seen(self, table: StorageRoot) -> TableState | None:
        """The newest state of a table that was read or written, if one was noted."""

    def confirm(self, table: StorageRoot) -> None:
        """Notes that the last commit of a table was just found to be there."""

    def voting(self) -> Sequence[str]:
        """The roots that vote on the table `cluster` by now, by their identities; none if the root is alone. Raises
        KafkaStorageException."""

    def join(self, voting: Sequence[str]) -> None:
        """Uses all roots of the cluster from now on, as these vote, by their identities. Raises
        KafkaStorageException."""

    def has_settled(self) -> bool:
        """Whether this process uses all roots of the cluster, and no root decides alone on any table any more. Raises
        KafkaStorageException."""

    def current(self, folder: StorageRoot, of_table: bool = True) -> StorageRoot:
        """As `StorageRoot.current`, or `current_files`."""


def use_root(scheme: str, kind: type[StorageRoot]) -> None:
    """Registers the class of the roots whose URI begins with this scheme; `file` is that of local paths."""
    _KINDS[scheme] = kind


@dataclass(frozen=True)
class StorageRoot(ABC):
    """A folder, by its URI: `/dir`, `file:///dir`, or that of an object store.

    `options` are credentials and endpoints under delta-rs's names (`AWS_ENDPOINT_URL` …). `fsync` makes local writes
    survive a power cut; by default replication does that, as in Kafka. `timeout_ms` is the approximate limit in ms of
    an operation on an object store, shared by its attempts. `admits_writers`: whether other tools may write the tables
    that are made here, as in clusters of an older format. `guard` recognises another root in the place of the cluster
    root.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    fsync: bool = False
    timeout_ms: int = TIMEOUT_MS
    admits_writers: bool = field(default=False, compare=False)
    guard: RootGuard | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(
        uri: str, options: Mapping[str, str] | None = None, fsync: bool = False, timeout_ms: int = TIMEOUT_MS
    ) -> StorageRoot:
        """The root at `uri`, in any spelling; `timeout_ms` in ms. Raises InvalidConfigurationException."""
        found = normal_uri(uri, _KINDS.keys() - {_LOCAL})
        scheme = found.partition("://")[0] if "://" in found else _LOCAL
        return _KINDS[scheme](found, dict(options or {}), fsync, timeout_ms)

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""

    @property
    @abstractmethod
    def version_cache(self) -> VersionCache | None:
        """The cache of this process for the versions of the store's tables; None where a look-up costs nothing."""

    @property
    def synced(self) -> StorageRoot:
        """The same root, whose writes survive a power cut, whatever `storage.fsync` says."""
        return replace(self, fsync=self.fsync or self.is_local)

    @property
    def one_of_several(self) -> StorageRoot:
        """The same root, with a short time-out, because other roots answer if this one does not."""
        return self

    @property
    def home_uri(self) -> str:
        """The URI of the folder at which `open_table` opens a table. With a quorum of roots, the one at the home."""
        return self.uri

    @property
    def quick(self) -> StorageRoot:
        """The same root, with a short time-out for reads, because another root can answer them as well."""
        return self

    @property
    def parts(self) -> Sequence[StorageRoot]:
        """The folders in which a write lands: this one, or one at each root of a quorum."""
        return (self,)

    @property
    def current(self) -> StorageRoot:
        """The same folder, at all roots of the cluster if this process has found that its root is not alone any more,
        see `ClusterRootGuard.join`."""
        return self if self.guard is None else self.guard.current(self)

    @property
    def current_files(self) -> StorageRoot:
        """As `current`, for a folder of `files`."""
        return self if self.guard is None else self.guard.current(self, of_table=False)

    def has_table(self) -> bool:
        """Whether a table is here, or a part of one. With several cluster roots, only a table that they vote on counts.
        A temporary file does not count: another process is just making the table, or was killed while it did."""
        return not all(name.startswith(".") for name in self.child("_delta_log").list())

    def is_alone(self) -> bool:
        """Whether a file that was just written here counts: no other cluster roots vote, or this is a folder at all of
        them. If not, the process uses all roots from now on, and the caller writes the file again at `current` or
        `current_files`. Reads the table `cluster`. Raises KafkaStorageException."""
        if self.guard is None or len(self.parts) > 1:
            return True
        if self.current_files is self and (voting := self.guard.voting()):
            self.guard.join(voting)
        return self.current_files is self

    def poll_staleness(self, longest: float) -> float:
        """The maximum staleness of a poll in seconds, at most `longest`. It shrinks while commits are frequent."""
        return longest if self.version_cache is None else self.version_cache.max_staleness(longest)

    @property
    def spark_uri(self) -> str:
        """The root's URI for Spark."""
        return self.uri

    @property
    def delta_options(self) -> dict[str, str]:
        """The options of the root for delta-rs."""
        return {}

    def child(self, *names: str) -> StorageRoot:
        """A folder below this one."""
        return replace(self, uri="/".join((self.uri, *names)))

    def folder_of_files(self, *names: str) -> StorageRoot:
        """A folder below this one for files that belong to no table. With several cluster roots, a majority has each
        file."""
        return self.child(*names)

    def path(self, name: str = "") -> str:
        """The path of a file; `name` is relative to this root."""
        return f"{self.uri}/{name}" if name else self.uri

    # Tables

    @property
    def is_sequential(self) -> bool:
        """Whether a commit lands only if the commit before it is there, so that its writer need not check that."""
        return False

    @property
    def has_signs(self) -> bool:
        """Whether the owner of the table here shows by signs of life, and not by commits, that it is alive."""
        return False

    def show_life(self, epoch: int) -> int:
        """Shows that the table's owner is alive, under its epoch, and returns the number of that sign of life. Raises
        KafkaStorageException."""
        return 0

    def life_sign(self, epoch: int, max_staleness: float | None = None) -> int:
        """A number that rises with each sign of life of the table's owner under an epoch; 0 without any. See
        `LifeSigns.number`."""
        return 0

    def sign_written_at(self) -> float:
        """When the newest sign of life was written, in seconds since the epoch; 0.0 without any."""
        return 0.0

    def catch_up(self, version: int, is_read: bool = False) -> int:
        """Makes all commits visible that were decided before, and returns the last version. `version`: one that the
        caller knows. `is_read`: the caller only reads, and may go on without it, see `ClusterQuorum.newest_to_read`.
        At a single root each written commit is decided, so it does nothing and returns -1."""
        return -1

    def let_reads_go_on(self) -> None:  # noqa: B027
        """Lets the reads of this process go on where it cannot `catch_up`: see `ClusterQuorum.newest_to_read`."""

    @property
    def behind(self) -> str:
        """Why the last read of the table here may lack commits that other roots have decided; empty if it has all. If
        it may lack some, a thing that it has not found may exist."""
        return ""

    def catch_up_now_and_then(self, version: int | None = None) -> None:  # noqa: B027
        """Begins to `catch_up`, and does not wait for it, if this process has not done so for a while.
        `version`: the newest one that the caller knows, if any."""

    def open_newest(self) -> Opened:
        """The Delta table here at its newest version. Raises as `open_table`."""
        return opened(self.open_table())

    def open_table(self, version: int | None = None) -> TableHandle:
        """A handle on the Delta table here, at a version or the newest. Raises DeltaError if none exists, OSError, and
        IllegalStateException in a fork."""
        check_no_fork()
        return DeltaTable(self.uri, version, storage_options=self.delta_options)

    def checkpoint_table(self, version: int) -> TableHandle:
        """Writes a checkpoint of a version and returns a handle on it. Raises DeltaError, LakelogException, OSError."""
        handle = self.open_table(version)
        handle.create_checkpoint()
        self.sync_checkpoint(version)
        return handle

    def sync_checkpoint(self, version: int) -> None:
        """With `fsync`, makes a checkpoint durable, and the hint at it: delta-rs syncs none of its files."""
        log = self.child("_delta_log")
        for name in log.list() if self.fsync else ():
            if name.startswith(f"{version:020d}.checkpoint") or name == "_last_checkpoint":
                log.sync(name)
        log.sync()

    def is_whole_checkpoint(self, name: str) -> bool:
        """Whether a file of a checkpoint is there and can be read to its end. Raises KafkaStorageException."""
        try:
            content = pa.BufferReader(self.read_buffer(name))
            return name.endswith(".json") or pq.read_table(content, use_threads=False).num_rows > 0
        except (FileNotFoundError, pa.ArrowException, OSError):
            return False

    def create_table(self, commit: bytes) -> None:
        """Makes a Delta table here with its first commit. Raises CommitFailedError if one exists, or a part of its log,
        and DeltaError, KafkaStorageException, OSError."""
        log = self.child("_delta_log")
        log.create_folder()
        there = [name for name in log.list() if name[:20].isdigit()]
        first = f"{0:020d}.json"
        # A lost reply of an object store looks like a refusal.
        if there or (log.put_if_absent(first, commit) is None and log.read(first) != commit):
            raise CommitFailedError(f"{self.uri}: a table exists already")
        log.sync()

    # Names, sizes and stamps

    @abstractmethod
    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """A stamp of each file, None for a file that does not exist. A file that is written again has another stamp."""

    @abstractmethod
    def mark(self, name: str) -> str | None:
        """A mark that the store gives a file when it makes it; None if there is no such file. A copy of the file has
        another mark, and so has the file once it is restored from a backup."""

    def names_at_roots(self) -> list[str]:
        """As `list`; of several cluster roots, the names at all that answer soon. Raises KafkaStorageException."""
        return self.list()

    def delete_table(self) -> None:
        """Deletes the table here for good. Nobody may make a table of the same name again, because a process that slept
        may still write the deleted table's next commit, or delete its files.

        After an interruption readers find either the whole table or none: without a checkpoint and the first commit
        they open no older version. With several cluster roots, a majority deletes the table and the votes on it. A root
        that does not answer keeps it until the next call. Raises KafkaStorageException.
        """
        log = self.child("_delta_log")
        names = sorted(name for name in log.list() if name[:20].isdigit())
        commits = [name for name in names if ".checkpoint" not in name]
        for name in [*(name for name in names if name not in commits), *commits[:1]]:  # the newest checkpoint goes last
            log.delete(name)
        self.delete_folder()

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The size in bytes of each file, None for one that does not exist."""
        return [stamp[0] if stamp else None for stamp in self.stamps(names)]

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self.stamps([name]) != [None]

    @abstractmethod
    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if it does not exist. Raises
        KafkaStorageException."""

    @abstractmethod
    def _files(self) -> dict[str, tuple[int, float]]:
        """The files directly below this root, from one listing: size in bytes, time of writing in seconds since the
        epoch."""

    def sizes_listed(self) -> dict[str, int]:
        """The files directly below this root and their sizes in bytes, from one listing."""
        return {name: size for name, (size, _) in self._files().items()}

    def modified(self) -> dict[str, float]:
        """The files directly below this root and their times of writing, in seconds since the epoch."""
        return {name: time for name, (_, time) in self._files().items()}

    def headers(self, name: str) -> Mapping[str, str]:
        """The HTTP headers with which the store answers for a file, their names in lower case. A file on a disk has
        none. Raises FileNotFoundError, KafkaStorageException, and SigningException if this process has no credentials
        with which it can ask."""
        return {}

    # Reading

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""

    @abstractmethod
    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        """The content of a file and its stamp. Raises FileNotFoundError, KafkaStorageException."""

    @abstractmethod
    def read_buffer(self, name: str) -> pa.Buffer:
        """The content of a file that may be large. Raises FileNotFoundError, KafkaStorageException."""

    @abstractmethod
    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        """Opens a file to read parts of it. Raises the store's OSError: readers of Parquet name the file anyway.

        Give the file's `size` in bytes, so that an object store is not asked for it. If the size is wrong, a later read
        may raise OSError.
        """

    def check_is_handed_out(self, name: str) -> None:
        """For a reader that cannot parse a file: raises KafkaStorageException if the fault is the store's, which does
        not return the file."""
        with suppress(FileNotFoundError):
            self.read(name)

    # Writing

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically and creates its folder. Raises KafkaStorageException."""
        self.create_folder()
        self.put(name, content)

    @abstractmethod
    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically. On a disk its folder must exist: a write must not create a root again that was
        deleted. Raises KafkaStorageException."""

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file atomically and returns its stamp, or None if a file of that name exists. On a disk its folder
        must exist, and `sync` of the folder makes the name durable.

        After a KafkaStorageException the file may have been written, or may be written later.
        """

    @abstractmethod
    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        """Lets the store copy a file of `source`, a root of the same store, to this root. Returns whether it did; if
        not, the caller must read and write the file."""

    @abstractmethod
    def create_folder(self) -> None:
        """Creates the folder and its parents, with `fsync` for good. In an object store it does nothing, as there are
        no folders."""

    def move_out(self, name: str, stamp: Stamp, folder: StorageRoot, new_name: str) -> None:
        """Moves a file to a folder of the same store, if it has this stamp; a missing file is no error. Raises
        KafkaStorageException.

        This implementation copies the file and deletes it. It also deletes a file that gets the name between the last
        check and the deletion: obstore cannot delete a file on the condition that it has an ETag.
        """
        try:
            content = self.read_buffer(name)
        except FileNotFoundError:
            return
        if self.stamps([name]) != [stamp]:  # after it was read: the content is that of the stamp
            return
        folder.write(new_name, content)
        if self.stamps([name]) == [stamp]:
            self.delete(name)

    @abstractmethod
    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""

    @abstractmethod
    def delete_folder(self) -> None:
        """Deletes this folder and all files in it; a missing folder is no error."""

    def sync(self, name: str = "") -> None:  # noqa: B027
        """With `fsync`, makes the content of a file durable, or the names in a folder. A store in which each write is
        durable does nothing."""


def root_uris(text: str) -> list[str]:
    """The URIs of a cluster's roots, which are separated by commas: one, or three or five. Each but the first begins
    with a slash or a scheme, so the name of a folder may have a comma. Raises InvalidConfigurationException."""
    found = _SEPARATOR.split(text) if isinstance(text, str) else [text]  # `StorageRoot.of` says what is wrong with it
    if len(found) not in (1, 3, 5):
        raise InvalidConfigurationException(
            f"{text} names {len(found)} roots: a cluster has one root, or three or five, of which a majority decides"
        )
    if len(found) > 1 and len({StorageRoot.of(uri).uri for uri in found}) < len(found):
        raise InvalidConfigurationException(f"{text} names a root twice: give each root a place of its own")
    return found


def normal_uri(uri: str, schemes: Collection[str] = STORES) -> str:
    """The one spelling of a root's URI: local paths are absolute, and no URI ends with a slash.

    `schemes` are those of the roots that are not on a disk. Raises InvalidConfigurationException if the text names
    neither a folder nor a store, or if its path has a character or a part that delta-rs or the store reads as another
    one. Its tables would lie elsewhere, or on top of one another.
    """
    if not isinstance(uri, str) or not uri.strip():
        raise InvalidConfigurationException(f"{uri!r:.80} is not a storage root: give a folder or a URI, {_EXAMPLES}")
    if not (uri.isprintable() and is_utf8(uri)):
        raise InvalidConfigurationException(
            f"{uri!a} is not a storage root: its name must be UTF-8 without control characters"
        )
    parts = urlsplit(uri)
    if parts.scheme not in schemes and _ADDRESSES.fullmatch(uri):
        raise InvalidConfigurationException(
            f"{uri} is the address of a server, but Lakelog has no servers: "
            f"give the URI of the cluster's storage root, {_EXAMPLES}"
        )
    if parts.scheme in ("", "file"):
        return _absolute(uri, _path_of(uri, parts) if parts.scheme else uri)
    if parts.scheme not in schemes or not parts.netloc:
        known = ", ".join(f"{scheme}://" for scheme in ("file", *STORES))
        raise InvalidConfigurationException(
            f"{uri} is not a storage root: give a folder, or a URI that begins with one of {known} and a bucket or host"
        )
    return _in_a_store(uri, uri.rstrip("/"))


def _path_of(uri: str, parts: SplitResult) -> str:
    """The path of a URI of a local file. Refuses a query, a fragment or a host, which would be ignored."""
    if parts.query or parts.fragment or parts.netloc not in ("", "localhost"):
        raise InvalidConfigurationException(
            f"storage root {uri}: a URI of a local folder is file:/// and its absolute path, with %3F for ? and %23 "
            "for #; the path alone is taken as it is"
        )
    return unquote(parts.path)


def _absolute(uri: str, path: str) -> str:
    try:
        found = os.path.abspath(os.path.expanduser(_plain(uri, path)))
    except FileNotFoundError:
        raise InvalidConfigurationException(
            f"storage root {uri}: this process stands in a folder that was deleted; give an absolute path"
        ) from None
    return f"/{found.lstrip('/')}"  # POSIX lets two slashes begin a path, and Hadoop takes what follows for a host


def _in_a_store(uri: str, found: str) -> str:
    key = _plain(uri, found).partition("://")[2]
    if found_at := sorted({"?", "#"}.intersection(key)):
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain {found_at[0]}, which ends the path of a URI"
        )
    if {"", ".", ".."}.intersection(key.split("/")):
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain an empty part, . or ..; a store has no parent folders"
        )
    return found


def _plain(uri: str, path: str) -> str:
    """The path. Raises InvalidConfigurationException if delta-rs or a store would read it as another one."""
    if unquote(path) != path:
        raise InvalidConfigurationException(f"storage root {uri}: its path must not contain an escape such as %20")
    if "\\" in path or not path.isprintable():
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain a backslash or a control character such as a line break"
        )
    return path
