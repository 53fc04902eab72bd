"""Rows of a state table as dicts, and as the columns of its data files.

A table is read whole and written whole, but from one version to the next few rows change. Only those are converted;
the others stay the same dicts, so that readers can tell by identity which rows are new to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter, le
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

_Row = dict[str, Any]
Key = TypeVar("Key")
Value = TypeVar("Value")

_FEW = 64  # new rows that are put between the others faster than all rows are taken one by one


class RowCodec:
    """Converts the rows of one table. It remembers the last ones: nobody may change a dict that it was given."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = schema.empty_table()
        self._rows: list[_Row] = []

    def decode(self, columns: pa.Table) -> list[_Row]:
        """The rows of a table with this schema. Rows that are equal to the last ones, place by place, are the same
        dicts."""
        is_as_long = columns.num_rows == len(self._rows)
        changed = _changed_rows(self._columns, columns) if is_as_long else None
        if changed is None:
            rows = columns.to_pylist()
        else:
            rows = list(self._rows)
            for place, row in zip(changed, columns.take(pa.array(changed, pa.int64())).to_pylist(), strict=True):
                rows[place] = row
        self._columns, self._rows = columns, rows
        return rows

    def encode(self, rows: Sequence[_Row]) -> pa.Table:
        """The columns of rows. Raises ArrowInvalid or ArrowTypeError for a value that does not fit its column."""
        is_as_long = len(rows) == len(self._rows)
        fresh = [place for place, row in enumerate(rows) if not is_as_long or row is not self._rows[place]]
        columns = self._replaced(rows, fresh) if is_as_long and len(fresh) <= _FEW else self._reordered(rows)
        self._columns, self._rows = columns, list(rows)
        return columns

    def _replaced(self, rows: Sequence[_Row], fresh: Sequence[int]) -> pa.Table:
        """The known columns with other rows at these places."""
        new = pa.Table.from_pylist([rows[place] for place in fresh], self._schema)
        pieces, end = [self._schema.empty_table()], 0
        for number, place in enumerate(fresh):
            pieces += [self._columns.slice(end, place - end), new.slice(number, 1)]
            end = place + 1
        return pa.concat_tables([*pieces, self._columns.slice(end)]).combine_chunks()

    def _reordered(self, rows: Sequence[_Row]) -> pa.Table:
        """The columns of known rows and new ones, in any order."""
        place_of = {id(row): place for place, row in enumerate(self._rows)}
        fresh = [row for row in rows if id(row) not in place_of]
        new_places = iter(range(len(self._rows), len(self._rows) + len(fresh)))
        places = [place_of[id(row)] if id(row) in place_of else next(new_places) for row in rows]
        known = [self._schema.empty_table(), self._columns, pa.Table.from_pylist(fresh, self._schema)]
        return pa.concat_tables(known).take(pa.array(places, pa.int64())).combine_chunks()


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
    """Converts rows to values of this system, by key, and back. It remembers the last ones: a row that is the same dict
    stays the same value, and the reverse. Threads may share it."""

    def __init__(
        self, value_of: Callable[[_Row], Value], row_of: Callable[[Value], _Row], key_of: Callable[[Value], Key]
    ) -> None:
        self._value_of = value_of
        self._row_of = row_of
        self._key_of = key_of
        self._known: tuple[Sequence[_Row], dict[Key, Value]] = (), {}

    def decode(self, rows: Sequence[_Row]) -> dict[Key, Value]:
        """The values of rows, in their order. Raises what `value_of` raises."""
        known_rows, known = self._known
        of_row = {id(row): value for row, value in zip(known_rows, known.values(), strict=True)}
        values = [of_row[id(row)] if id(row) in of_row else self._value_of(row) for row in rows]
        found = self._by_key(values)
        self._known = (rows, found) if len(found) == len(rows) else ((), {})
        return found

    def _by_key(self, values: Sequence[Value]) -> dict[Key, Value]:
        """The values by their keys, which are asked only of new values if the others are in their places."""
        known = self._known[1]
        if len(values) != len(known):
            return {self._key_of(value): value for value in values}
        return {
            key if old is value else self._key_of(value): value
            for (key, old), value in zip(known.items(), values, strict=True)
        }

    def encode(self, values: Mapping[Key, Value]) -> tuple[list[_Row], dict[Key, Value]]:
        """The rows of values and the values themselves, both in order of the keys."""
        keys: list[Any] = list(values)
        is_in_order = all(map(le, keys, keys[1:]))
        ordered = dict(values) if is_in_order else dict(sorted(values.items(), key=itemgetter(0)))
        known_rows, known = self._known
        of_value = {id(value): row for row, value in zip(known_rows, known.values(), strict=True)}
        rows = [of_value[id(v)] if id(v) in of_value else self._row_of(v) for v in ordered.values()]
        self._known = rows, ordered
        return rows, ordered
