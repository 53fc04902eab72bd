"""A storage root: the only module that knows whether files are on a local disk, in an object store or in memory.

A missing file raises FileNotFoundError. Every other error of a store leaves this module as a KafkaStorageException that
names the file.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema

from lakelog.replication.errors import InvalidConfigurationException, KafkaStorageException
from lakelog.replication.storage.delta.root_uri import normal_uri
from lakelog.replication.storage.delta.store_errors import reading, reason, writing
from lakelog.replication.storage.delta.store_options import delta_options, s3_arguments
from lakelog.replication.storage.delta.table_handle import TableHandle

TIMEOUT_MS = 10_000
_OTHER_ROOTS: dict[str, type[StorageRoot]] = {}
Stamp = tuple[int, int]  # a file's size in bytes and its time of writing in ns, which tell it from another file


def use_root(scheme: str, kind: type[StorageRoot]) -> None:
    """Registers the class of the roots whose URI begins with this scheme."""
    _OTHER_ROOTS[scheme] = kind


@dataclass(frozen=True)
class StorageRoot:
    """A folder in a file system, by its URI: `/dir`, `file:///dir`, or one that pyarrow and delta-rs both take.

    `options` are credentials and endpoints under delta-rs's names (`AWS_ENDPOINT_URL` …). `fsync` makes local writes
    survive a power cut; by default replication does that, as in Kafka. `timeout_ms` is the approximate limit in ms of
    an operation on an object store, shared by its attempts.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    fsync: bool = False
    timeout_ms: int = TIMEOUT_MS

    @classmethod
    def of(
        cls, uri: str, options: Mapping[str, str] | None = None, fsync: bool = False, timeout_ms: int = TIMEOUT_MS
    ) -> StorageRoot:
        """The root at `uri`, in any spelling; `timeout_ms` in ms. Raises InvalidConfigurationException."""
        scheme, is_uri, _ = uri.partition("://")
        kind = _OTHER_ROOTS.get(scheme) if is_uri else None
        return (kind or cls)(uri.rstrip("/") if kind else normal_uri(uri), dict(options or {}), fsync, timeout_ms)

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""
        return self.uri.startswith("/")

    @property
    def spark_uri(self) -> str:
        """The root's URI for Spark: Hadoop's S3 connector is `s3a`."""
        return "s3a" + self.uri[2:] if self.uri.startswith("s3://") else self.uri

    def child(self, *names: str) -> StorageRoot:
        """A folder below this one."""
        return replace(self, uri="/".join((self.uri, *names)))

    def open_table(self, version: int | None = None) -> TableHandle:
        """A handle on the Delta table here, at a version or the newest. Raises DeltaError if none exists, OSError."""
        return DeltaTable(self.uri, version, storage_options=self.delta_options)

    def create_table(
        self, schema: Schema, name: str, description: str, configuration: Mapping[str, str]
    ) -> TableHandle:
        """Creates a Delta table here and returns a handle. Raises DeltaError if one exists, OSError."""
        return DeltaTable.create(
            self.uri, schema, "error", None, name, description, dict(configuration), self.delta_options,
            commit_properties=CommitProperties(max_commit_retries=0),
        )  # fmt: skip  # no retries: the second of two creators would put its table over the first one's

    @property
    def delta_options(self) -> dict[str, str]:
        """The options of the root for delta-rs, with time limits."""
        return {} if self.is_local else delta_options(self.options, self.timeout_ms)

    @cached_property
    def _filesystem(self) -> tuple[pafs.FileSystem, str]:
        if self.is_local:
            return pafs.LocalFileSystem(), self.uri
        parts = urlsplit(self.uri)
        try:
            if parts.scheme in ("s3", "s3a"):
                return pafs.S3FileSystem(**s3_arguments(self.options, self.timeout_ms)), parts.netloc + parts.path
            filesystem, path = pafs.FileSystem.from_uri(self.uri)
        except (ValueError, OSError) as error:
            raise InvalidConfigurationException(f"storage root {self.uri}: {error}") from error
        return filesystem, path

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The pyarrow file system of the root. Raises InvalidConfigurationException."""
        return self._filesystem[0]

    def path(self, name: str = "") -> str:
        """The path of a file in `filesystem`; `name` is relative to this root."""
        return f"{self._filesystem[1]}/{name}" if name else self._filesystem[1]

    def _named(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else self.uri

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The size in bytes of each file, None for one that does not exist."""
        return [stamp[0] if stamp else None for stamp in self.stamps(names)]

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """The size and time of each file, None for a file that does not exist."""
        if self.is_local:
            return [self._local_stamp(name) for name in names]
        with reading(self._named(", ".join(names))):
            infos = self.filesystem.get_file_info([self.path(name) for name in names])
        return [(info.size, info.mtime_ns or 0) if info.type == pafs.FileType.File else None for info in infos]

    def _local_stamp(self, name: str) -> Stamp | None:
        with reading(self._named(name)):
            try:
                found = os.stat(self.path(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found.st_size, found.st_mtime_ns

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self.stamps([name]) != [None]

    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if it does not exist."""
        return sorted(info.base_name for info in self._infos())

    def sizes_listed(self) -> dict[str, int]:
        """The files directly below this root and their sizes in bytes, from one listing."""
        return {info.base_name: info.size for info in self._infos() if info.type == pafs.FileType.File}

    def modified(self) -> dict[str, float]:
        """The files directly below this root and their times of writing, in seconds since the epoch."""
        infos = self._infos()
        return {i.base_name: i.mtime_ns / 1e9 for i in infos if i.type == pafs.FileType.File and i.mtime_ns is not None}

    def _infos(self) -> Sequence[pafs.FileInfo]:
        with reading(self.uri):
            return tuple(self.filesystem.get_file_info(pafs.FileSelector(self.path(), allow_not_found=True)))

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self._named(name)), self.filesystem.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def read_buffer(self, name: str) -> pa.Buffer:
        """The content of a file that may be large. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self._named(name)), self.filesystem.open_input_file(self.path(name)) as file:
            return file.read_buffer()

    def open(self, name: str) -> pa.NativeFile:
        """Opens a file to read parts of it. Raises the store's OSError: readers of Parquet name the file anyway."""
        return self.filesystem.open_input_file(self.path(name))

    def check_is_handed_out(self, name: str) -> None:
        """For readers that cannot parse a file: raises KafkaStorageException if the store does not return the file."""
        with suppress(FileNotFoundError):
            self.read(name)

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically and creates its folder. Raises KafkaStorageException."""
        self.create_folder()
        self.put(name, content)

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Like `write`, but the folder must exist: a write must not create a root again that has gone."""
        with _AtomicPath(self, name) as path, self.filesystem.open_output_stream(path) as stream:
            stream.write(content)

    def create_folder(self) -> None:
        """Creates the folder and its parents. In an object store it does nothing, as there are no folders."""
        if self.is_local:
            with writing(self.uri):
                os.makedirs(self.uri, exist_ok=True)

    def rename(self, name: str, new_name: str) -> None:
        """On a local disk: renames a file, over another file if there is one."""
        self.sync_file(name)
        with writing(self._named(new_name)):
            os.replace(self.path(name), self.path(new_name))
        self.sync_folder()

    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""
        with writing(self._named(name)), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(name))

    def delete_folder(self) -> None:
        """Deletes this folder and all files in it; a missing folder is no error."""
        with writing(self.uri), suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path())

    def sync_folder(self, name: str = "") -> None:
        """With `fsync`, makes the names in a folder durable."""
        if self.fsync and self.is_local:
            self._fsync(name)

    def sync_file(self, name: str) -> None:
        """With `fsync`, makes the content of a file durable."""
        if self.fsync and self.is_local:
            self._fsync(name)

    def _fsync(self, name: str) -> None:
        with writing(self._named(name)):
            descriptor = os.open(self.path(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class _AtomicPath:
    """On a local disk: a temporary file that is renamed at the end. So a writer that was frozen never truncates a
    committed file. An object store shows only complete files."""

    def __init__(self, root: StorageRoot, name: str) -> None:
        self._root, self._name = root, name
        self._temporary = f".{name}.{uuid.uuid4().hex}.tmp" if root.is_local else name

    def __enter__(self) -> str:
        return self._root.path(self._temporary)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            if self._temporary != self._name:
                with suppress(KafkaStorageException):  # the error below says why the write failed
                    self._root.delete(self._temporary)
            if isinstance(error, OSError):
                raise KafkaStorageException(
                    f"{self._root.uri}/{self._name}: cannot be written: {reason(error)}"
                ) from error
        elif self._temporary != self._name:
            self._root.rename(self._temporary, self._name)
