"""Storage roots and Delta tables in memory, `memory://<store>/<folder>`: shipped code runs on them, and they can fail.

Commits are a true Delta log. Errors are those of a real root and of delta-rs: a missing file raises FileNotFoundError,
and every other error names the place."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.json as pajson
from deltalake import Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.commit_format import commit_name, is_commit
from lakelog.replication.storage.delta.freshness import VersionCache
from lakelog.replication.storage.delta.storage_root import StorageRoot, use_root
from lakelog.replication.storage.delta.store_errors import reading, writing

_CHECKPOINT = ".checkpoint.parquet"
_RETENTION = "delta.logRetentionDuration"
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?\b")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_DEFAULT_RETENTION = 30 * _SECONDS["day"]
Action = Mapping[str, Any]
_FILES = pa.schema(
    [
        pa.field(n, t, False)
        for n, t in (("path", pa.string()), ("size_bytes", pa.int64()), ("modification_time", pa.int64()))
    ]
)
_STATISTICS = {"numRecords": "num_records", "nullCount": "null_count", "minValues": "min", "maxValues": "max"}
SCHEME = "memory"


def create_table(store: MemoryStore, uri: str, content: bytes) -> None:
    """Makes a table. Raises CommitFailedError if a table, or a part of its log, exists."""

    def put() -> bool:
        return not _log_files(store, uri) and store.put_if_absent(f"{uri}/{commit_name(0)}", content)

    if not store.faults.commit(uri, put):
        raise CommitFailedError("Generic error: A Delta Lake table already exists at that location.")


def _log_files(store: MemoryStore, uri: str) -> Mapping[str, File]:
    files = store.files(f"{uri}/_delta_log")
    return {n: f for n, f in files.items() if is_commit(n) or (n.endswith(_CHECKPOINT) and n[:20].isdigit())}


class MemoryTable:
    """A table at one version, see `TableHandle`."""

    def __init__(self, store: MemoryStore, uri: str, version: int | None = None) -> None:
        self._store, self._uri = store, uri
        self._snapshot, self._checkpoint = NOTHING, -1
        self._log: list[int] = []  # the versions of the commits that the handle has read after the checkpoint
        store.faults.read(uri)
        checkpoint, commits = self._listed(0, version)
        if checkpoint < 0 and not commits:
            raise TableNotFoundError("Generic delta kernel error: No files in log segment")
        self._begin(checkpoint, commits)
        if not self._snapshot.table:
            raise DeltaError("Kernel error: No table metadata or protocol found in delta log.")
        if version is not None and self.version() != version:
            raise DeltaError(f"LogSegment end version {self.version()} not the same as the specified one {version}")

    def _listed(self, first: int, last: int | None = None) -> tuple[int, list[int]]:
        """The newest checkpoint, -1 if there is none, and the commits after it. Raises DeltaError if one is missing."""
        names = _log_files(self._store, self._uri)
        found = sorted((int(n[:20]), is_commit(n)) for n in names)
        found = [(v, commit) for v, commit in found if v >= first and (last is None or v <= last)]
        checkpoint = max((v for v, commit in found if not commit), default=-1)
        commits = [v for v, commit in found if commit and v > checkpoint]
        _check_follow([checkpoint, *commits] if checkpoint >= 0 else commits)
        return checkpoint, commits

    def _begin(self, checkpoint: int, commits: list[int]) -> None:
        base = NOTHING
        if checkpoint >= 0:
            base = self._made(NOTHING, checkpoint, self._file(_checkpoint_name(checkpoint)))
        self._snapshot, self._checkpoint, self._log = self._replayed(base, commits), checkpoint, commits

    def _replayed(self, found: Snapshot, commits: Sequence[int]) -> Snapshot:
        for version in commits:
            found = self._made(found, version, self._file(commit_name(version)))
        return found

    def _file(self, name: str) -> File:
        found = self._store.find(f"{self._uri}/{name}")
        if found is None:
            raise DeltaError(f"Kernel error: File not found: {self._uri}/{name}")
        return found

    def _made(self, before: Snapshot, version: int, file: File) -> Snapshot:
        """Builds each snapshot once for all handles that have read the same commits."""
        made_of = hash((self._uri, before.made_of, file.stamp))
        known = self._store.parsed.get(made_of)
        if not isinstance(known, Snapshot):
            known = self._store.parsed[made_of] = applied(before, version, made_of, self._change(file))
        return known

    def _change(self, file: File) -> Change:
        known = self._store.parsed.get(file.stamp)
        if not isinstance(known, Change):
            known = self._store.parsed[file.stamp] = change_of(bytes(file.content))
        return known

    def version(self) -> int:
        return self._snapshot.version

    def schema(self) -> Schema:
        return self._snapshot.schema

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(id=self._snapshot.table["id"])

    def protocol(self) -> SimpleNamespace:
        found = self._snapshot.table["protocol"]
        return SimpleNamespace(
            min_reader_version=found["minReaderVersion"], min_writer_version=found["minWriterVersion"],
            writer_features=found.get("writerFeatures"),
        )  # fmt: skip

    def transaction_version(self, app_id: str) -> int | None:
        self._store.faults.read(self._uri)
        names = [commit_name(version) for version in reversed(self._log)]
        for name in [*names, *([_checkpoint_name(self._checkpoint)] if self._checkpoint >= 0 else [])]:
            found = self._change(self._file(name)).transactions
            if app_id in found:
                return found[app_id]
        return None

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        return self._snapshot.flat_add_actions if flatten else self._snapshot.add_actions

    def create_checkpoint(self) -> None:
        target = f"{self._uri}/{_checkpoint_name(self.version())}"
        content = to_checkpoint(MemoryTable(self._store, self._uri, self.version())._snapshot)
        self._store.faults.write(target, lambda: self._store.put(target, content))

    def cleanup_metadata(self) -> None:
        """Keeps the commits that are younger than the retention, and a checkpoint to read them from."""
        self._store.faults.read(f"{self._uri}/_delta_log")
        oldest = self._store.wall_clock() - _retention(self._snapshot.table["configuration"])
        files = _log_files(self._store, self._uri)
        young = [int(name[:20]) for name, file in files.items() if file.stamp[1] / 1e9 >= oldest]
        read_from = min([self.version(), *young])
        checkpoints = [int(name[:20]) for name in files if not is_commit(name)]
        base = max((v for v in checkpoints if v <= read_from), default=-1)
        for name in sorted(files):
            if int(name[:20]) < base:
                target = f"{self._uri}/_delta_log/{name}"
                self._store.faults.write(target, partial(self._store.delete, target))


def _checkpoint_name(version: int) -> str:
    return f"_delta_log/{version:020d}{_CHECKPOINT}"


def _check_follow(versions: Iterable[int]) -> None:
    for before, after in pairwise(versions):
        if after != before + 1:
            raise DeltaError(f"Expected contiguous commit files, but found gap: {before} to {after}")


def _retention(configuration: Mapping[str, str]) -> int:
    """The retention in seconds; the default if the setting is missing or cannot be read."""
    found = _INTERVAL.match(configuration.get(_RETENTION, ""))
    return int(found[1]) * _SECONDS[found[2]] if found else _DEFAULT_RETENTION


@dataclass(frozen=True)
class Change:
    """The changes of one commit, or the content of a checkpoint. A file that a commit both adds and removes stays."""

    table: Action
    added: Mapping[str, Action]
    removed: frozenset[str]
    transactions: Mapping[str, int]


@dataclass(frozen=True)
class Snapshot:
    """Files and metadata of a table at one version, the files of the newest commit first. `made_of` has the stamps of
    the commits, to tell it from the result of other commits."""

    version: int = -1
    made_of: object = None
    table: Action = field(default_factory=dict)
    files: Mapping[str, Action] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def schema(self) -> Schema:
        """The table's columns."""
        return Schema.from_json(self.table["schemaString"])

    @cached_property
    def add_actions(self) -> pa.Table:
        """The data files as a table: path, size_bytes, modification_time (ms since the epoch), and statistics as
        structs.

        Raises DeltaError if statistics do not have the types of the columns.
        """
        facts = [(f["path"], f["size"], f["modificationTime"]) for f in self.files.values()]
        columns = zip(*facts, strict=True) if facts else ((), (), ())
        found = pa.table([pa.array(c, f.type) for c, f in zip(columns, _FILES, strict=True)], schema=_FILES)
        statistics = self._statistics()
        for name, column in _STATISTICS.items():
            found = found.append_column(column, statistics[name])
        return found

    @cached_property
    def flat_add_actions(self) -> pa.Table:
        """The data files as a table with one column a statistic, such as `min.<name>`."""
        return self.add_actions.flatten()

    def _statistics(self) -> pa.Table:
        found = [file.get("stats") or "{}" for file in self.files.values()]
        expected = _statistics_schema(pa.schema(self.schema))
        if set(found) <= {"{}"}:  # most files have none, and parsing JSON takes half a millisecond
            return pa.table([pa.nulls(len(found), kind) for kind in expected.types], schema=expected)
        lines = "\n".join(found).encode()
        options = pajson.ParseOptions(expected, newlines_in_values=True, unexpected_field_behavior="ignore")
        try:
            return pajson.read_json(pa.BufferReader(lines), pajson.ReadOptions(False, len(lines) + 1), options)
        except pa.ArrowInvalid as error:
            raise DeltaError(f"Kernel error: Json error: {error}") from error


def _statistics_schema(columns: pa.Schema) -> pa.Schema:
    """Every column has a count of nulls. Binary and nested columns have no minimum and maximum."""
    ranged = [c for c in columns if not (pa.types.is_nested(c.type) or pa.types.is_binary(c.type))]
    ranges = pa.struct([(c.name, c.type) for c in ranged])
    nulls = pa.struct([(c.name, pa.int64()) for c in columns])
    return pa.schema(zip(_STATISTICS, (pa.int64(), nulls, ranges, ranges), strict=True))


NOTHING = Snapshot()


def change_of(content: bytes) -> Change:
    """The changes in a file of a log; none if it is empty. Raises DeltaError if it is torn within a line or is not a
    log."""
    table: Action = {}
    added: dict[str, Action] = {}
    removed, transactions = set(), {}
    try:
        for kind, body in _actions(content):
            if kind == "metaData":
                table = {**table, **body}
            elif kind == "protocol":
                table = {**table, "protocol": body}
            elif kind == "add":
                added[body["path"]] = _checked(body)
            elif kind == "remove":
                removed.add(body["path"])
            elif kind == "txn":
                transactions[body["appId"]] = int(body["version"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeltaError(f"Kernel error: Json error: {error!r}") from error
    return Change(table, added, frozenset(removed), transactions)


def _actions(content: bytes) -> Iterable[tuple[str, Action]]:
    for line in content.splitlines():
        if line.strip():
            yield from ((kind, body) for kind, body in json.loads(line).items() if body is not None)


def _checked(file: Action) -> Action:
    """Like delta-rs, refuses the whole table if a file's statistics are not a JSON object."""
    stats = file.get("stats")
    if stats is not None and not isinstance(json.loads(stats), dict):
        raise TypeError(f"statistics {stats!r}")
    return {"path": file["path"], "size": file["size"], "modificationTime": file["modificationTime"], **file}


def applied(before: Snapshot, version: int, made_of: object, change: Change) -> Snapshot:
    """The snapshot after a commit; a checkpoint applies to the empty snapshot."""
    kept = before.files
    if change.removed:
        kept = {path: file for path, file in kept.items() if path not in change.removed}
    files = {
        **change.added,
        **kept,
        **change.added,
    }  # first, because they are new; and again last, because they replace the others
    transactions = {**before.transactions, **change.transactions}
    return Snapshot(version, made_of, {**before.table, **change.table}, files, transactions)


def to_checkpoint(found: Snapshot) -> bytes:
    """The whole content of a snapshot, as actions."""
    facts: Iterable[Action] = [
        {"metaData": found.table},
        *({"add": file} for file in found.files.values()),
        *({"txn": {"appId": app, "version": version}} for app, version in found.transactions.items()),
    ]
    return lines(facts)


def lines(actions: Iterable[Action]) -> bytes:
    """Actions in the format of a commit."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


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
    too, or an object store. `process` returns the process that uses it now: processes share no polls."""

    name: str
    is_local: bool = False
    wall_clock: Callable[[], float] = time.time
    faults: Faults = field(default_factory=NoFaults)
    folders: dict[str, dict[str, File]] = field(default_factory=dict)
    parsed: dict[object, object] = field(default_factory=dict)  # commits that handles have parsed, by their stamps
    process: Callable[[], object] = lambda: None
    _version_caches: dict[object, VersionCache] = field(default_factory=dict)
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
    def version_cache(self) -> VersionCache:
        """What the process that uses the store now has seen of its tables."""
        return self._version_caches.setdefault(self.process(), VersionCache())

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
    def version_cache(self) -> VersionCache | None:
        """Where a process notes the versions of tables in an object store in memory."""
        return None if self.is_local else self.store.version_cache

    def open_table(self, version: int | None = None) -> MemoryTable:
        """A handle on the Delta table here. Raises TableNotFoundError, DeltaError or OSError."""
        return MemoryTable(self.store, self.uri, version)

    def is_whole_checkpoint(self, name: str) -> bool:
        """Whether a checkpoint in memory, which has actions as JSON, can be read to its end."""
        try:
            return bool(change_of(self.read(name)).table)
        except (FileNotFoundError, DeltaError):
            return False

    def create_table(self, commit: bytes) -> None:
        """Makes a Delta table here. Raises CommitFailedError if one exists, OSError if the store fails."""
        create_table(self.store, self.uri, commit)

    def _found(self, name: str) -> File:
        with reading(self.path(name)):
            self.store.faults.read(self.path(name))
        found = self.store.find(self.path(name))
        if found is None:
            raise FileNotFoundError(f"{self.path(name)}: no such file")
        return found

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """A stamp of each file, None for a file that does not exist."""
        return [self._stamp(name) for name in names]

    def _stamp(self, name: str) -> Stamp | None:
        with reading(self.path(name)):
            self.store.faults.read(self.path(name))
        found = self.store.find(self.path(name))
        return found.stamp if found else None

    def mark(self, name: str) -> str | None:
        """The time of writing, which no two files share."""
        stamp = self._stamp(name)
        return None if stamp is None else str(stamp[1])

    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if it does not exist."""
        self._access()
        return self.store.names(self.uri)

    def _files(self) -> dict[str, tuple[int, float]]:
        self._access()
        return {name: (file.stamp[0], file.stamp[1] / 1e9) for name, file in self.store.files(self.uri).items()}

    def _access(self) -> None:
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

    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""
        uri = self.path(name)
        with writing(uri):
            self.store.faults.write(uri, lambda: self.store.delete(uri))

    def delete_folder(self) -> None:
        """Deletes this folder and all files in it; a missing folder is no error."""
        with writing(self.uri):
            self.store.faults.write(self.uri, lambda: self.store.delete_folder(self.uri))


use_root(SCHEME, MemoryRoot)
