"""A small table that is read whole and written whole, by compare-and-set.

Its rows have three forms: columns in files, dicts (`RowCodec` converts these two), and values of a type (`RowValues`).
`StateTable` reads and commits dicts. The tables beside this module derive from it, and make values of them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter, le
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.replication.errors import ControllerMovedException, CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_format import commit_name, inlined, read_commit
from lakelog.replication.storage.delta.compare_and_set import compare_and_set
from lakelog.replication.storage.delta.data_file_name import is_data_file
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot, TableState
from lakelog.replication.storage.delta.table_history import table_at
from lakelog.schemas import Table

Row = dict[str, Any]
Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

_SMALL, _SMALL_BYTES = 64, 16 * 1024  # up to so many rows, all are converted: faster than to find the changed ones
_FEW = 64  # up to this number of new rows it is faster to insert them than to gather all rows one by one
_UPDATE = "lakelog.update"  # in a commit's info: the id of its update, which all attempts of the update share
_COMMITS_A_FILE = 50  # after this many commits the rows are written again, in case their file was lost
CONTROLLER_EPOCH = "controller-epoch"
_MAINTENANCE_SECONDS = 30.0  # the maximum staleness of a view for maintenance: a checkpoint may be so late


class RowCodec:
    """Converts the rows of one table between dicts and columns.

    A table is read whole and written whole, but few rows change from one version to the next. Only those are converted.
    The others stay the same dicts, so that readers find the new rows by identity: no caller may change a dict.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = _no_rows(schema)
        self._rows: list[Row] = []

    def decode(self, columns: pa.Table) -> list[Row]:
        """The rows of a table with this schema. A row that equals the last one at its place is the same dict."""
        rows = self._decoded(columns)
        self._columns, self._rows = columns, rows
        return rows

    def _decoded(self, columns: pa.Table) -> list[Row]:
        if columns.num_rows != len(self._rows):
            return list(columns.to_pylist())
        if columns.num_rows <= _SMALL and columns.nbytes <= _SMALL_BYTES:
            pairs = zip(self._rows, columns.to_pylist(), strict=True)
            return [was if was == row else row for was, row in pairs]
        changed = _changed_rows(self._columns, columns)
        if changed is None:
            return list(columns.to_pylist())
        rows = list(self._rows)
        fresh = columns.take(pa.array(changed, pa.int64())).to_pylist() if changed else ()
        for place, row in zip(changed, fresh, strict=True):
            rows[place] = row
        return rows

    def encode(self, rows: Sequence[Row]) -> pa.Table:
        """The columns of rows. Raises ArrowInvalid or ArrowTypeError for a value that does not fit its column."""
        columns = self._encoded(rows)
        self._columns, self._rows = columns, list(rows)
        return columns

    def _encoded(self, rows: Sequence[Row]) -> pa.Table:
        if len(rows) <= _SMALL and self._columns.nbytes <= _SMALL_BYTES:
            return pa.Table.from_pylist(list(rows), self._schema)
        is_as_long = len(rows) == len(self._rows)
        fresh = [place for place, row in enumerate(rows) if not is_as_long or row is not self._rows[place]]
        return self._replaced(rows, fresh) if is_as_long and len(fresh) <= _FEW else self._reordered(rows)

    def _replaced(self, rows: Sequence[Row], fresh: Sequence[int]) -> pa.Table:
        """The known columns with other rows at these places."""
        new = pa.Table.from_pylist([rows[place] for place in fresh], self._schema)
        pieces, end = [_no_rows(self._schema)], 0
        for number, place in enumerate(fresh):
            pieces += [self._columns.slice(end, place - end), new.slice(number, 1)]
            end = place + 1
        return pa.concat_tables([*pieces, self._columns.slice(end)]).combine_chunks()

    def _reordered(self, rows: Sequence[Row]) -> pa.Table:
        """The columns of known rows and new ones, in any order."""
        place_of = {id(row): place for place, row in enumerate(self._rows)}
        fresh = [row for row in rows if id(row) not in place_of]
        if len(fresh) == len(rows):
            return pa.Table.from_pylist(fresh, self._schema)
        new_places = iter(range(len(self._rows), len(self._rows) + len(fresh)))
        places = [place_of[id(row)] if id(row) in place_of else next(new_places) for row in rows]
        known = [_no_rows(self._schema), self._columns, pa.Table.from_pylist(fresh, self._schema)]
        return pa.concat_tables(known).take(pa.array(places, pa.int64())).combine_chunks()


@lru_cache(maxsize=100)
def _no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. pyarrow makes it in 60 µs, as long as it takes to read a commit."""
    return schema.empty_table()


def _changed_rows(before: pa.Table, after: pa.Table) -> list[int] | None:
    """The places at which two tables of one schema and length differ; None if a column cannot be compared."""
    changed: set[int] = set()
    for was, now in zip(before.columns, after.columns, strict=True):
        if not was.equals(now):
            found = _changed_values(was.combine_chunks(), now.combine_chunks())
            if found is None:
                return None
            changed.update(found)
    return sorted(changed)


def _changed_values(before: pa.Array, after: pa.Array) -> Iterable[int] | None:
    kind = before.type
    if pa.types.is_map(kind):
        return None
    if pa.types.is_list(kind):
        return _changed_lists(before, after)
    if pa.types.is_struct(kind):
        fields = [_changed_values(b, a) for b, a in zip(before.flatten(), after.flatten(), strict=True)]
        known = [field for field in fields if field is not None]
        return {place for field in known for place in field} if len(known) == len(fields) else None
    differ = pc.fill_null(pc.not_equal(before, after), False)
    return _places(pc.or_(differ, pc.xor(before.is_null(), after.is_null())))


def _changed_lists(before: pa.Array, after: pa.Array) -> Iterable[int] | None:
    """Lists of different lengths differ; the others are compared value by value."""
    lengths = [pc.fill_null(pc.list_value_length(lists), -1) for lists in (before, after)]
    same = pc.equal(*lengths)
    values = _changed_values(*(pc.list_flatten(lists.filter(same)) for lists in (before, after)))
    if values is None:
        return None
    parents = pc.list_parent_indices(after.filter(same)).take(pa.array(sorted(values), pa.int64()))
    return {*_places(pc.invert(same)), *pc.indices_nonzero(same).take(parents).to_pylist()}


def _places(mask: pa.Array) -> list[int]:
    return list(pc.indices_nonzero(mask).to_pylist())


class RowValues(Generic[Key, Value]):
    """Converts rows to values by key, and back. It remembers the last ones: the same dict gives the same value, and the
    same value the same dict. Threads may share it."""

    def __init__(
        self, value_of: Callable[[Row], Value], row_of: Callable[[Value], Row], key_of: Callable[[Value], Key]
    ) -> None:
        self._value_of = value_of
        self._row_of = row_of
        self._key_of = key_of
        self._known: tuple[Sequence[Row], dict[Key, Value]] = (), {}

    def decode(self, rows: Sequence[Row]) -> dict[Key, Value]:
        """The values of rows, in their order. Raises what `value_of` raises."""
        known_rows, known = self._known
        of_row = {id(row): value for row, value in zip(known_rows, known.values(), strict=True)}
        values = [of_row[id(row)] if id(row) in of_row else self._value_of(row) for row in rows]
        found = self._by_key(values)
        # Rows with equal keys have one value, so they make no pairs.
        self._known = (rows, found) if len(found) == len(rows) else ((), {})
        return found

    def _by_key(self, values: Sequence[Value]) -> dict[Key, Value]:
        """The values by their keys. If there are as many as last time, keys are computed only where a value is new."""
        known = self._known[1]
        if len(values) != len(known):
            return {self._key_of(value): value for value in values}
        return {
            key if old is value else self._key_of(value): value
            for (key, old), value in zip(known.items(), values, strict=True)
        }

    def encode(self, values: Mapping[Key, Value]) -> tuple[list[Row], dict[Key, Value]]:
        """The rows of values and the values themselves, both in order of the keys."""
        keys: list[Any] = list(values)
        is_in_order = all(map(le, keys, keys[1:]))
        ordered = dict(values) if is_in_order else dict(sorted(values.items(), key=itemgetter(0)))
        known_rows, known = self._known
        of_value = {id(value): row for row, value in zip(known_rows, known.values(), strict=True)}
        rows = [of_value[id(v)] if id(v) in of_value else self._row_of(v) for v in ordered.values()]
        self._known = rows, ordered
        return rows, ordered


class StateTable(Generic[Value]):
    """One state table: its rows at the version last read, and its commits. Threads may share it.

    A class that derives from it has the schema of its table as `TABLE`; the table lies in the folder of that name.
    `Value`: the type of what it makes of the rows.
    """

    TABLE: ClassVar[Table]

    def __init__(self, log: DeltaLog, table: Table) -> None:
        self._log = log
        self._schema = table
        self._lock = threading.RLock()
        self._loaded = -1
        self._wrote = [-1, -1]  # the versions of its last own commits
        self._rows: list[Row] = []
        # The rows that were last decoded, and their value. To decode the rows of a large cluster at each access would
        # take most of the time.
        self._decoded: tuple[list[Row], Value] | None = None
        self._codec = RowCodec(table.arrow)
        self._names: set[str] = set()
        self._named_at = -1  # the version at which these names were first seen
        self._cleaner: FileCleaner | None = None
        self._load()

    @classmethod
    def create(cls, root: StorageRoot, *owner: int | str) -> Self:
        """Makes the table of a root without rows. Raises InconsistentClusterIdException if it is there."""
        return cls.create_at(cls.folder(root, *owner), cls.TABLE)

    @classmethod
    def open(cls, root: StorageRoot, *owner: int | str) -> Self:
        """Opens the table of a formatted root. Raises InconsistentClusterIdException if there is none."""
        return cls.open_at(cls.folder(root, *owner), cls.TABLE)

    @classmethod
    def as_of(cls, root: StorageRoot, at: float, *owner: int | str) -> tuple[Self, float]:
        """The table of a root as it was at a time, only to be read, and when that version was committed; both in
        seconds since the epoch. Raises as `table_at`."""
        return cls.as_of_at(cls.folder(root, *owner), cls.TABLE, at)

    @classmethod
    def folder(cls, root: StorageRoot, *owner: int | str) -> StorageRoot:
        """Where the table lies. `owner`: the broker or group, if each has a table of its own in the cluster's root."""
        return root.child(cls.TABLE.name, *map(str, owner))

    @classmethod
    def create_at(cls, folder: StorageRoot, table: Table, rows: Sequence[Row] = ()) -> Self:
        """As `create`, in a folder, with this schema and first rows."""
        created = cls(DeltaLog.create(folder, table), table)
        if rows:
            created.update({"who": "format", "why": "created"}, lambda _: list(rows))
        return created

    @classmethod
    def open_at(cls, folder: StorageRoot, table: Table) -> Self:
        """As `open`, in a folder, with this schema."""
        return cls(DeltaLog.open(folder), table)

    @classmethod
    def as_of_at(cls, folder: StorageRoot, table: Table, at: float | None) -> tuple[Self, float]:
        """As `as_of`, in a folder, with this schema. Without a time it has the newest version."""
        log, committed_at = table_at(folder, at)
        try:
            return cls(log, table), committed_at
        except FileNotFoundError as error:
            raise KafkaStorageException(f"{log.root.uri}: version {log.version} has lost a file: {error}") from error

    @property
    def root(self) -> StorageRoot:
        """The folder of the table."""
        return self._log.root

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

    @property
    def state(self) -> TableState:
        """The state of the table as last read."""
        with self._lock:
            return TableState(self._log.table_id, self._log.version, self._log.unique_id or "")

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed to this table, as last read."""
        with self._lock:
            return self._log.transaction_version(app_id)

    def snapshot(self) -> tuple[int, list[Row]]:
        """The version of the table that was last read, and its rows, which nobody may change."""
        with self._lock:
            return self._log.version, self._rows

    def decoded(self, decode: Callable[[list[Row]], Result]) -> Result:
        """The result of `decode` for the rows as last read. Meanwhile no other thread moves the table, so that `decode`
        may read `txn`s of the same version."""
        with self._lock:
            return decode(self._rows)

    @property
    def _value(self) -> Value:
        """The value of the rows as last read: the same object as long as the rows are the same."""
        rows, decoded = self._rows, self._decoded
        if decoded is None or decoded[0] is not rows:
            self._decoded = decoded = rows, self._decode(rows)
        return decoded[1]

    def _decode(self, rows: list[Row]) -> Value:
        """The value of rows, which follows from them alone."""
        raise TypeError(f"{type(self).__name__} does not decode its rows")

    def _check_rows(self, before: list[Row], after: list[Row]) -> None:
        """Raises KafkaStorageException if newer rows contradict the rows as last read, which the table then keeps."""

    @property
    def polled_at(self) -> float:
        """When the last poll began that left the rows up to date, in seconds of the monotonic clock. Rows that are read
        after this call are as new as that poll. It waits for a refresh that is under way."""
        with self._lock:
            return self._log.polled_at

    def refresh(self, max_staleness: float | None = None) -> bool:
        """Reads the table again if it has moved. Returns whether it had. In an object store, with a `max_staleness` in
        seconds, it may use an earlier poll of this process that is at most so old.

        A decision on the table must not rely on this read. It reads the table itself, as `update` does, because this
        read may go on without a majority of the cluster roots."""
        with self._lock:
            return self._follow(self._log.move(max_staleness, is_read=max_staleness is None))

    def poll(self, max_staleness: float = LONGEST_SECONDS) -> bool:
        """As `refresh` with a `max_staleness` that is shorter while commits are frequent."""
        return self.refresh(self.root.poll_staleness(max_staleness))

    def refresh_versions(self, max_staleness: float | None = None) -> list[Value]:
        """As `refresh`, and returns the value of each version since the last read that has changed the rows, oldest
        first. A version whose file cannot be read any more is left out, and so are those that a clean-up has deleted:
        the newest one is always there."""
        with self._lock:
            before, commits = self._rows, self._log.move(max_staleness, is_read=max_staleness is None)
            found = [rows for commit in (commits or ())[:-1] if commit.adds and (rows := self._rows_of(commit))]
            self._follow(commits)
            return [self._decode(rows) for rows in (found if self._rows is before else [*found, self._rows])]

    def _rows_of(self, commit: Commit) -> list[Row] | None:
        with suppress(FileNotFoundError, CorruptRecordException):
            return self._read(commit.adds)
        return None

    def _follow(self, commits: Sequence[Commit] | None) -> bool:
        """Loads the rows, unless the log has not moved since they were loaded. Returns whether it had. `commits`: what
        its move has found."""
        has_moved = commits != [] or self._loaded != self._log.version
        if has_moved:
            self._load()
        return has_moved

    def _load(self) -> None:
        files = self._log.active_files()
        if self._loaded < 0 or _names(files) != self._names:
            self._loaded = -1  # a load that fails is repeated: an update of older rows would undo others' changes
            rows = self._read(files)
            self._check_rows(self._rows, rows)
            self._rows = rows
        self._note(files)

    def _note(self, files: Sequence[AddedFile]) -> None:
        """Notes that these are the files of the table's version, and which of the earlier ones it has removed."""
        names = _names(files)
        if self._cleaner:
            self._cleaner.removed(self._names - names)
        self._loaded = self._log.version
        if names != self._names or self._named_at < 0:
            self._names, self._named_at = names, self._loaded

    def _read(self, files: Sequence[AddedFile]) -> list[Row]:
        found = [self.read_file(file) for file in files]
        return self._codec.decode(pa.concat_tables([_no_rows(self._schema.arrow), *found]))

    def read_file(self, file: AddedFile) -> pa.Table:
        """The rows of a data file of this table, with the columns of its schema. Raises FileNotFoundError,
        CorruptRecordException and KafkaStorageException."""
        path = self._log.root.path(file.name)
        if not is_data_file(file.name):
            raise CorruptRecordException(f"{path}: not the name of a file in the table's folder")
        try:
            source = pa.BufferReader(file.content or self._log.root.read_buffer(file.name))
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            columns = parquet.read(use_threads=False)  # the table is small: threads would cost more than they save
            return conformed(columns, self._schema.arrow)
        except (OSError, pa.ArrowException) as error:  # the content is wrong: errors of the store are of other types
            raise CorruptRecordException(f"{path}: {error}") from error

    def recover(self) -> None:
        """Puts aside commits that follow lost ones: see `DeltaLog.recover`. For the owner, before its first commit."""
        with self._lock:
            self._log.recover()

    def maintain(self) -> None:
        """Writes a checkpoint if one is due, and deletes files that no version needs. For the table's owner, the active
        controller or a broker, now and then."""
        with self._lock:
            self._log.check_root()
            if self._cleaner is None or self._cleaner.root != self._log.root:  # the cluster may have got more roots
                self._log.recover()
                self._cleaner = FileCleaner(self._log.root, self._schema.log_retention_seconds)
            self._log.checkpoint_if_due(self._schema.commits_kept)
            self._cleaner.clean(self._newest_names)

    def _newest_names(self) -> set[str]:
        """The names of the newest version, which others may have written since the owner's last read."""
        self._follow(self._log.move())  # it would delete the files of a newer version
        return self._names

    def update(
        self,
        cause: Mapping[str, Any],
        change: Callable[[list[Row]], list[Row] | None],
        txns: Mapping[str, int] | None = None,
        deadline: float | None = None,
        once: bool = False,
        noop_staleness: float | None = None,
    ) -> int | None:
        """Commits the rows that `change` returns for the newest ones. It calls `change` again if another writer wins in
        between.

        Returns the version written, or None if `change` returned None because there is nothing to do; then the rows as
        read are durable, as after a commit. A commit that changes no row writes `cause` and `txns`, but no file, except
        for one commit in 50.

        If the outcome of a commit is unknown, `change` runs again, so it must be idempotent. With `once`, each attempt
        first searches the log for an earlier one that has landed, so that it does not overwrite the rows of a later
        writer; then `change` must return the same for the same rows. `noop_staleness`: see `compare_and_set`.

        Raises KafkaStorageException, and TimeoutException if others win until `deadline`, in seconds of the monotonic
        clock.
        """
        update, tried = uuid.uuid4().hex, set[int]()

        def attempt(max_staleness: float | None) -> int | None:
            with self._lock:
                if max_staleness is not None and noop_staleness is None and self._writes_alone:
                    max_staleness = LONGEST_SECONDS
                self._follow(self._log.move(max_staleness, for_commit=True))
                landed = self._landed(tried, update) if once else None
                rows = None if landed is not None else change(list(self._rows))
                if rows is None:
                    self._log.sync()  # the caller relies on these rows, so they must survive a power cut
                    return landed
                tried.add(self._log.version + 1)
                # `change` may have added to the cause.
                version = self._commit({**cause, _UPDATE: update}, rows, txns)
                self._wrote = [self._wrote[1], version]
                return version

        return compare_and_set(self._log.root, attempt, deadline, noop_staleness)

    @property
    def _writes_alone(self) -> bool:
        """Whether this table has written the last two commits that it knows, and several cluster roots vote on the next
        one. Such a writer most likely writes that, too. If another has, the votes say so, but that takes longer than to
        read the table first."""
        newest = self._log.version
        return self._log.root.is_sequential and self._wrote == [newest - 1, newest]

    def _landed(self, tried: Iterable[int], update: str) -> int | None:
        """The version that an earlier attempt of this update has committed; None if there is none, or its commit is
        gone. `tried`: the versions that it has attempted.

        A commit does not count if it is no part of the table: if it is above the table's version, or if the commit
        before it is missing, as in a gap that a log clean-up has left. Of several roots any has what was decided, and
        this process may read at one that is behind. Raises KafkaStorageException.
        """
        for version in sorted(tried):
            if version <= self._log.version and (found := self._tried(version)) is not None:
                is_part = self._log.root.is_sequential or self._log.root.exists(commit_name(version - 1))
                if is_part and found.info.get(_UPDATE) == update:
                    return version
        return None

    def _tried(self, version: int) -> Commit | None:
        """The commit of a version, None if it is gone."""
        root = self._log.root
        with suppress(FileNotFoundError):
            return read_commit(root, version)
        if not root.is_sequential:
            return None
        for part in root.parts:
            with suppress(FileNotFoundError, KafkaStorageException):
                return read_commit(part, version)
        raise KafkaStorageException(f"{root.uri}: version {version} cannot be read here")

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
        self._note(files)
        return version

    def _write(self, rows: list[Row]) -> AddedFile:
        root, name = self._log.root, f"{uuid.uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(self._codec.encode(rows), buffer, write_page_checksum=True)
        written = buffer.getvalue()
        root.put(name, written)
        content = None if root.is_local else inlined(written)
        return AddedFile(name, written.size, f'{{"numRecords":{len(rows)}}}', content=content)


class ClientTable(StateTable[Value]):
    """A table that clients write and the active controller maintains."""

    def maintain(self) -> None:
        """As in `StateTable`, but reads first what clients have written."""
        self.refresh(_MAINTENANCE_SECONDS)
        super().maintain()


class ControlledTable(StateTable[Value]):
    """A table that the active controller writes. The claim of a newer controller fences older ones. [CE-04, CE-05]"""

    def claim(self, controller_epoch: int, controller_id: str | None = None) -> None:
        """Makes a controller the only one that may write here. `controller_id`: for the history of the table. Raises
        ControllerMovedException if a newer controller has claimed the table."""

        def change(rows: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            return None if self.transaction_version(CONTROLLER_EPOCH) == controller_epoch else rows

        self.recover()
        cause = {"who": "controller", "why": "claim", "controller_epoch": controller_epoch}
        cause |= {"controller": controller_id} if controller_id is not None else {}
        self.update(cause, change, {CONTROLLER_EPOCH: controller_epoch})

    def _check_claim(self, controller_epoch: int | None) -> None:
        """Raises ControllerMovedException if the table, as last read, is claimed by a newer controller."""
        claimed = self.transaction_version(CONTROLLER_EPOCH)
        if controller_epoch is not None and claimed is not None and claimed > controller_epoch:
            raise ControllerMovedException(
                f"{self.TABLE.name}: controller epoch {controller_epoch} is over: epoch {claimed} has claimed the table"
            )


def _names(files: Sequence[AddedFile]) -> set[str]:
    return {file.name for file in files}


def conformed(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of our schema, by name. A newer version of Lakelog may have written others too. An older one may have
    written fewer, which are null then; raises ArrowInvalid for one that must not be null."""
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
