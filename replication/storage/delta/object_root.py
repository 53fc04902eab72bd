"""A storage root in an object store (S3, Azure or Google Cloud Storage, by obstore); the options of its store, and its
objects as files that pyarrow reads in parts.

Looking up a file is one request, whether it exists or not, and a file is put only if there is none. obstore takes the
options of delta-rs, which opens tables: both use the same Rust library.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import from_url

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.storage.delta.checkpoint import create_checkpoint
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.freshness import VersionCache
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reading, words_of, writing
from lakelog.replication.storage.delta.store_requests import CountedStore
from lakelog.replication.storage.delta.table_handle import TableHandle
from lakelog.replication.storage.in_threads import in_threads

if TYPE_CHECKING:
    from obstore import ObjectMeta

logger = logging.getLogger(__name__)

# Options of obstore's HTTP client. It takes all others as those of a store.
_CLIENT_OPTIONS = frozenset(
    """
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_keep_alive_interval
    http2_keep_alive_timeout http2_keep_alive_while_idle http2_only pool_idle_timeout pool_max_idle_per_host
    proxy_ca_certificate proxy_excludes proxy_url randomize_addresses read_timeout timeout user_agent
    """.split()
)
_PREFIXES = ("aws_", "azure_", "google_")
_LONGEST_TRANSFER = 10  # a large file may take this many times the time of an operation, while bytes come
_RETRY_MS = 500  # that one of several roots repeats an operation
_QUICK_MS = 400  # for an attempt at a quick root: the slowest read in a thousand takes longer
_FEW = 2  # look-ups that are not worth threads
_CONNECTIONS = 8  # look-ups of many files at a time
_ASK_AGAIN_SECONDS = 600
_refuses_copies: dict[int, float] = {}  # stores of `_opened`, which keeps them, and when each is asked again


@dataclass(frozen=True)
class ObjectRoot(StorageRoot):
    """A folder of a bucket. Stores have no folders: one exists as long as there is a file in it. `retry_ms`: for how
    long an operation that fails is repeated, in ms; by default half of `timeout_ms`. `attempt_ms`: how long an attempt
    waits for an answer, by default as long."""

    retry_ms: int | None = field(default=None, repr=False, compare=False)
    attempt_ms: int | None = field(default=None, repr=False, compare=False)

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""
        return False

    @property
    def version_cache(self) -> VersionCache:
        """The cache of this process for the tables of one store and its access options."""
        return _version_cache(tuple(sorted(self.options.items())))

    @property
    def spark_uri(self) -> str:
        """The root's URI for Spark: Hadoop's S3 connector is `s3a`."""
        return "s3a" + self.uri[2:] if self.uri.startswith("s3://") else self.uri

    @property
    def delta_options(self) -> dict[str, str]:
        """The options of the root for delta-rs, with time limits."""
        return delta_options(self.options, self.timeout_ms, self.retry_ms, self.attempt_ms)

    @property
    def one_of_several(self) -> StorageRoot:
        """The same root, which repeats an operation that fails for half a second at most: others answer."""
        return replace(self, retry_ms=min(_RETRY_MS, self.timeout_ms // 2))

    @property
    def quick(self) -> StorageRoot:
        """The same root, where an attempt fails if nothing comes for 0.4 s, or for half of `timeout_ms`, and none
        begins after that."""
        soon = min(_QUICK_MS, self.timeout_ms // 2)
        return replace(self, attempt_ms=soon, retry_ms=soon)

    @property
    def _store(self) -> CountedStore:
        scheme, _, rest = self.uri.partition("://")
        bucket = f"{scheme}://{rest.partition('/')[0]}"
        try:
            options = tuple(sorted(self.options.items()))
            return _opened(bucket, options, self.timeout_ms, self.retry_ms, self.attempt_ms)
        except (BaseError, ValueError) as error:
            raise InvalidConfigurationException(f"storage root {self.uri}: {words_of(error)}") from error

    def _key(self, name: str = "") -> str:
        return self.path(name).partition("://")[2].partition("/")[2]

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """A stamp of each file, None for a file that does not exist."""
        return in_threads(self._stamp, names, _CONNECTIONS if len(names) > _FEW else 1)

    def _stamp(self, name: str) -> Stamp | None:
        with reading(self.path(name)), suppress(FileNotFoundError), os_errors():
            return _stamp_of(self._store.head(self._key(name)))
        return None

    def mark(self, name: str) -> str | None:
        """The time at which the store has written the object."""
        with reading(self.path(name)), suppress(FileNotFoundError), os_errors():
            return str(self._store.head(self._key(name))["last_modified"].timestamp())
        return None

    def checkpoint_table(self, version: int) -> TableHandle:
        """Writes a checkpoint of a version and returns a handle on it. Raises DeltaError, LakelogException, OSError."""
        try:
            create_checkpoint(self, version)
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a log that our writer cannot read
            return super().checkpoint_table(version)
        return self.open_table(version)

    def headers(self, name: str) -> Mapping[str, str]:
        """The headers with which the store answers a HEAD of a file. It waits for half of `timeout_ms`, and does not
        repeat an attempt. Raises FileNotFoundError, KafkaStorageException, and SigningException."""
        client = client_arguments(self.options, self.timeout_ms)["client_options"]
        with reading(self.path(name)), os_errors():
            return self._store.headers(self._key(name), client, self.timeout_ms / 2000)

    def list(self) -> list[str]:
        """Names of the files and folders directly below this root; empty if there are none. Raises
        KafkaStorageException, also if there is no such bucket."""
        files, folders = self._listed()
        return sorted([*files, *folders])

    def _files(self) -> dict[str, tuple[int, float]]:
        return self._listed()[0]

    def _listed(self) -> tuple[dict[str, tuple[int, float]], Sequence[str]]:
        key = self._key()
        with reading(self.uri), os_errors():
            try:
                found = self._store.list_with_delimiter(key or None)
            except FileNotFoundError as error:  # a bucket that is not there is not an empty folder
                raise OSError(words_of(error)) from None
        files = [file for file in found["objects"] if file["path"] != key]  # some tools put an object for a folder
        return (
            {_base_name(file["path"]): (file["size"], file["last_modified"].timestamp()) for file in files},
            [_base_name(folder) for folder in found["common_prefixes"]],
        )

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, KafkaStorageException."""
        return self.read_buffer(name).to_pybytes()

    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        """The content of a file and its stamp, by one request. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self.path(name)), os_errors():
            found = self._store.get(self._key(name))
            return bytes(found.bytes()), _stamp_of(found.meta)

    def read_buffer(self, name: str) -> pa.Buffer:
        """The content of a file that may be large. Raises FileNotFoundError, KafkaStorageException."""
        with reading(self.path(name)), os_errors():
            return pa.py_buffer(self._store.get(self._key(name)).bytes())

    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        """Opens a file to read parts of it, each by one request. Raises OSError."""
        with os_errors():
            known = self._store.head(self._key(name))["size"] if size is None else size
        return pa.PythonFile(ObjectFile(self._store, self._key(name), known), "r")

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Writes a file atomically. Raises KafkaStorageException."""
        with writing(self.path(name)), os_errors():
            self._store.put(self._key(name), memoryview(content).cast("B"))

    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        """Lets the store copy a file of `source`, which must be in the same bucket, to this root. Returns whether it
        did: some stores that speak S3 cannot copy."""
        store = self._store
        if not isinstance(source, ObjectRoot) or source._store is not store:
            return False
        if time.monotonic() < _refuses_copies.get(id(store), 0):
            return False
        try:
            store.copy(source._key(name), self._key(new_name))
        except FileNotFoundError:
            return False
        except BaseError as error:
            logger.warning("%s: the store does not copy files, so they stream: %s", self.uri, words_of(error))
            _refuses_copies[id(store)] = time.monotonic() + _ASK_AGAIN_SECONDS  # a refusal may take a time-out
            return False
        return True

    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file and returns its stamp, or None if a file of that name exists: a put with If-None-Match.

        Raises KafkaStorageException: the file may have been written then, or may be written later.
        """
        with writing(self.path(name)), os_errors():
            try:
                put = self._store.put(self._key(name), content, mode="create")
            except AlreadyExistsError:
                return None
        return (len(content), put["e_tag"]) if put["e_tag"] else self._stamp(name)

    def create_folder(self) -> None:
        """Does nothing, as there are no folders."""

    def delete(self, name: str) -> None:
        """Deletes a file; a missing file is no error."""
        self._delete(self.path(name), [self._key(name)])

    def delete_folder(self) -> None:
        """Deletes all files below this root; a missing folder is no error."""
        with writing(self.uri), os_errors():
            keys = self._store.keys(self._key() or None)
        self._delete(self.uri, keys)

    def _delete(self, where: str, keys: Sequence[str]) -> None:
        with writing(where), suppress(FileNotFoundError), os_errors():
            self._store.delete(keys)


@cache
def _version_cache(_: tuple[tuple[str, str], ...]) -> VersionCache:
    return VersionCache()


@cache
def _opened(
    bucket: str, options: tuple[tuple[str, str], ...], timeout_ms: int, retry_ms: int | None, attempt_ms: int | None
) -> CountedStore:  # fmt: skip
    """The store of a bucket. All roots in it share its connections."""
    client = client_arguments(dict(options), timeout_ms, retry_ms, attempt_ms)
    given = store_options(dict(options))
    known: Any = {name: value for name, value in given.items() if _is_known(bucket, {name: value})}
    return CountedStore(from_url(bucket, config=known, **client))


def _is_known(bucket: str, option: Any) -> bool:
    """Whether obstore's store knows an option. It does not know those of delta-rs alone."""
    try:
        from_url(bucket, config=option)
    except UnknownConfigurationKeyError:
        return False
    except BaseError:  # opening the store with all options raises the error
        return True
    return True


def _stamp_of(found: ObjectMeta) -> Stamp:
    return found["size"], found["e_tag"] or str(found["last_modified"])


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def delta_options(
    options: Mapping[str, str], timeout_ms: int, retry_ms: int | None = None, attempt_ms: int | None = None
) -> dict[str, str]:  # fmt: skip
    """The options for delta-rs. An attempt takes at most `attempt_ms`, and none begins after `retry_ms`, both by
    default half of `timeout_ms` (ms). The root's own options take precedence."""
    half = timeout_ms // 2
    longest, last = (f"{half if given is None else given}ms" for given in (attempt_ms, retry_ms))
    return _with_defaults(options, timeout=longest, connect_timeout=longest, retry_timeout=last)


def store_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for a store of obstore, possibly some that it does not know. Not every store that speaks S3 can
    delete several objects by one request."""
    given = {name: value for name, value in options.items() if _plain(name) not in _CLIENT_OPTIONS}
    return _with_defaults(given, aws_disable_bulk_delete="true")


def client_arguments(
    options: Mapping[str, str], timeout_ms: int, retry_ms: int | None = None, attempt_ms: int | None = None
) -> dict[str, Any]:  # fmt: skip
    """The arguments for obstore's HTTP client. An attempt fails if nothing comes for `attempt_ms`, and none begins
    after `retry_ms`, both by default half of `timeout_ms` (ms). The root's own options take precedence. obstore reads
    those of its stores from the environment, and not those of its client."""
    everywhere = {name: value for name, value in os.environ.items() if name.lower().startswith(_PREFIXES)}
    named = {**everywhere, **options}.items()
    given = {_plain(name): value for name, value in named if _plain(name) in _CLIENT_OPTIONS}
    half, longest = timeout_ms // 2, f"{timeout_ms * _LONGEST_TRANSFER}ms"
    quiet = f"{half if attempt_ms is None else attempt_ms}ms"
    return {
        "client_options": _with_defaults(given, connect_timeout=quiet, read_timeout=quiet, timeout=longest),
        "retry_config": {"retry_timeout": timedelta(milliseconds=half if retry_ms is None else retry_ms)},
    }


def _with_defaults(options: Mapping[str, str], **defaults: str) -> dict[str, str]:
    given = {name.lower() for name in options}
    return {**options, **{name: value for name, value in defaults.items() if name not in given}}


def _plain(name: str) -> str:
    plain = name.lower()
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain


@contextmanager
def os_errors() -> Iterator[None]:
    """Turns the errors of obstore into OSError, which those who read Parquet expect. A missing file is one already."""
    try:
        yield
    except BaseError as error:
        raise OSError(words_of(error)) from None  # its text repeats itself over many lines


class ObjectFile(io.RawIOBase):
    """The parts of an object of `size` bytes, for pyarrow, which asks for each part that it needs."""

    def __init__(self, store: CountedStore, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        if stop <= self._at:
            return b""
        with os_errors():
            found = self._store.get(self._key, options={"range": (self._at, stop)})
            if found.meta["size"] != self._size:
                raise OSError(f"has {found.meta['size']} bytes, not {self._size}")
            content = bytes(found.bytes())
        self._at = stop
        return content
