"""A small table that is read whole and written whole, by compare-and-set."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_reader import commit_name, read_commit
from lakelog.replication.storage.delta.commit_writer import inlined
from lakelog.replication.storage.delta.compare_and_set import compare_and_set
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_name import is_data_file
from lakelog.replication.storage.tables.row_codec import RowCodec
from lakelog.schemas import Table

Row = dict[str, Any]
Value = TypeVar("Value")

_UPDATE = "lakelog.update"  # names an update in its commits, of which only one can win
_COMMITS_A_FILE = 50  # after so many commits the rows are written again, in case their file was lost


class StateTable:
    """Rows of one state table at the version last read. May be shared by threads."""

    def __init__(self, log: DeltaLog, table: Table) -> None:
        # Raises KafkaStorageException for rows that cannot follow those that were seen before: they are not taken over.
        self.check_rows: Callable[[list[Row], list[Row]], None] = lambda *_: None
        self._log = log
        self._table = table
        self._lock = threading.RLock()
        self._loaded = -1
        self._rows: list[Row] = []
        self._codec = RowCodec(table.arrow)
        self._names: set[str] = set()
        self._named_at = -1  # the version at which the names were seen first
        self._cleaner: FileCleaner | None = None
        self._load()

    @classmethod
    def create(cls, root: StorageRoot, table: Table, rows: Sequence[Row] = ()) -> StateTable:
        """Makes the table with its first rows. Raises InconsistentClusterIdException if it is there."""
        created = cls(DeltaLog.create(root, table), table)
        if rows:
            created.update({"who": "format", "why": "created"}, lambda _: list(rows))
        return created

    @classmethod
    def open(cls, root: StorageRoot, table: Table) -> StateTable:
        """Opens the table. Raises InconsistentClusterIdException if there is none."""
        return cls(DeltaLog.open(root), table)

    @property
    def uri(self) -> str:
        """The URI of the table's folder."""
        return self._log.root.uri

    @property
    def version(self) -> int:
        """The version that `rows` is from."""
        return self._log.version

    @property
    def rows(self) -> list[Row]:
        """The rows as last read."""
        return self._rows

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed to this table, as last read."""
        with self._lock:
            return self._log.transaction_version(app_id)

    def decoded(self, decode: Callable[[list[Row]], Value]) -> Value:
        """What `decode` makes of the rows as last read. Meanwhile no other thread moves the table, so that `decode` may
        ask for `txn`s of the same version."""
        with self._lock:
            return decode(self._rows)

    @property
    def looked_at(self) -> float:
        """The monotonic time at which the look began that found the rows to be the newest. Rows that are read after it
        are from that look or a later one. It waits for a refresh that is under way."""
        with self._lock:
            return self._log.looked_at

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._refresh(None)

    def poll(self, age: float = LONGEST_SECONDS) -> bool:
        """Like `refresh`, but in an object store it may take a look of this process, at most `age` seconds old; the
        more happens, the younger."""
        return self._refresh(self._log.root.poll_age(age))

    def watch(self, age: float) -> bool:
        """Like `poll`, where it does not count how much happens."""
        return self._refresh(age)

    def _refresh(self, age: float | None) -> bool:
        with self._lock:
            if self._log.move(age) == [] and self._loaded == self._log.version:
                return False
            self._load()
            return True

    def _load(self) -> None:
        files = self._log.active_files()
        if self._loaded < 0 or _names(files) != self._names:
            self._loaded = -1  # a load that fails is done again: to decide on older rows would undo others' changes
            rows = self._read(files)
            self.check_rows(self._rows, rows)
            self._rows = rows
        self._hold(files)

    def _hold(self, files: Sequence[AddedFile]) -> None:
        names = _names(files)
        if self._cleaner:
            self._cleaner.removed(self._names - names)
        self._loaded = self._log.version
        if names != self._names or self._named_at < 0:
            self._names, self._named_at = names, self._loaded

    def _read(self, files: Sequence[AddedFile]) -> list[Row]:
        found = [self.read_file(file) for file in files]
        return self._codec.decode(pa.concat_tables([self._table.arrow.empty_table(), *found]))

    def read_file(self, file: AddedFile) -> pa.Table:
        """The rows of a data file of this table, with the columns of its schema. Raises FileNotFoundError,
        CorruptRecordException and KafkaStorageException."""
        path = self._log.root.path(file.name)
        if not is_data_file(file.name):
            raise CorruptRecordException(f"{path}: is no name of a file in the table's folder")
        try:
            source = pa.BufferReader(file.content or self._log.root.read_buffer(file.name))
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            few = parquet.read(use_threads=False)  # threads would cost more than they save
            return _conformed(few, self._table.arrow)
        except (OSError, pa.ArrowException) as error:  # not of the store, which has handed it out
            raise CorruptRecordException(f"{path}: {error}") from error

    def recover(self) -> None:
        """For the owner, before its first commit: puts aside what follows lost commits, see `DeltaLog.recover`."""
        with self._lock:
            self._log.recover()

    def maintain(self) -> None:
        """Keeps commits and opening cheap, and deletes files that are needed no more; for the owner, now and then."""
        with self._lock:
            self._log.check_root()
            if self._cleaner is None:
                self._log.recover()
                self._cleaner = FileCleaner(self._log.root, self._table.log_retention_seconds)
            self._log.checkpoint_if_due(self._table.commits_kept)
            self._cleaner.clean(self._newest_names)

    def _newest_names(self) -> set[str]:
        """Others write this table too, and its owner may not have looked at it for long."""
        self.refresh()
        return self._names

    def update(
        self,
        cause: Mapping[str, Any],
        change: Callable[[list[Row]], list[Row] | None],
        txns: Mapping[str, int] | None = None,
        deadline: float | None = None,
        once: bool = False,
        patience: float | None = None,
    ) -> int | None:
        """Writes what `change` makes of the newest rows, asking again when somebody else has written in between.

        Returns the version written, or None if `change` answered None: nothing to do; what is there is durable then,
        too, as after a commit. A commit that changes no row has no file, but for one in 50: it moves the version, and
        writes `cause` and `txns`. Since an outcome that cannot be told is decided anew, `change` must know its own work
        when it sees it. With `once` the table's log is looked at first: what has landed is not written again over what
        others have made of it since; `change` must then answer the same for the same rows. `patience`: see
        `compare_and_set`. Raises KafkaStorageException, and TimeoutException where others have won until `deadline`, of
        the monotonic clock.
        """
        update, tried = uuid.uuid4().hex, set[int]()

        def attempt(age: float | None) -> int | None:
            with self._lock:
                self._refresh(age)
                landed = self._landed(tried, update) if once else None
                rows = None if landed is not None else change(list(self._rows))
                if rows is None:
                    self._log.sync()  # what is there already counts, too
                    return landed
                tried.add(self._log.version + 1)
                return self._commit({**cause, _UPDATE: update}, rows, txns)  # `change` may have added to the cause

        return compare_and_set(self._log.root, attempt, deadline, patience)

    def _landed(self, tried: Iterable[int], update: str) -> int | None:
        """The version that is this update's own commit, of those that it has tried; None if none is, or none is left.

        One without the commit before it may lie in the hole that a clean-up has left, and one after the table's version
        does not follow it.
        """
        for version in sorted(tried):
            try:
                is_own = read_commit(self._log.root, version).info.get(_UPDATE) == update
            except FileNotFoundError:
                continue
            if is_own and version <= self._log.version and self._log.root.exists(commit_name(version - 1)):
                return version
        return None

    def _commit(self, cause: Mapping[str, Any], rows: list[Row], txns: Mapping[str, int] | None) -> int:
        if rows == self._rows and self._log.version - self._named_at < _COMMITS_A_FILE:
            self._log.commit(cause, txns=txns)
            self._loaded = self._log.move_own().version
            return self._loaded
        self._log.check_root()
        files = [self._write(rows)] if rows else []
        self._log.commit(cause, files, txns=txns, overwrite=True)
        version = self._log.move_own().version
        self._rows = rows
        self._hold(files)
        return version

    def _write(self, rows: list[Row]) -> AddedFile:
        root, name = self._log.root, f"{uuid.uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(self._codec.encode(rows), buffer, write_page_checksum=True)
        written = buffer.getvalue()
        root.put(name, written)
        content = None if root.is_local else inlined(written)
        return AddedFile(name, written.size, f'{{"numRecords":{len(rows)}}}', content=content)


def _names(files: Sequence[AddedFile]) -> set[str]:
    return {file.name for file in files}


def _conformed(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns that we know, by name: a newer version of Lakelog may have added some, an older one may lack some
    that may be null. Raises ArrowInvalid where one must not be."""
    if found.schema.equals(schema):
        return found
    columns = []
    for field in schema:
        is_there = field.name in found.column_names
        column = found[field.name].cast(field.type) if is_there else pa.nulls(found.num_rows, field.type)
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"column {field.name} {'has nulls' if is_there else 'is missing'}")
        columns.append(column)
    return pa.table(columns, schema)
