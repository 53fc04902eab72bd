"""What a Delta table says at one version, made of its commits one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson
from deltalake import Schema
from deltalake.exceptions import DeltaError

Action = Mapping[str, Any]
_FILES = pa.schema(
    [
        pa.field(n, t, False)
        for n, t in (("path", pa.string()), ("size_bytes", pa.int64()), ("modification_time", pa.int64()))
    ]
)
_STATISTICS = {"numRecords": "num_records", "nullCount": "null_count", "minValues": "min", "maxValues": "max"}


@dataclass(frozen=True)
class Change:
    """What one commit does, or all that a checkpoint says. A file that a commit both adds and removes is there."""

    table: Action
    added: Mapping[str, Action]
    removed: frozenset[str]
    transactions: Mapping[str, int]


@dataclass(frozen=True)
class Snapshot:
    """Files and facts of a table at one version, the files of the newest commit first. `made_of` tells it from what
    other commits make: their stamps."""

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
        """The data files, with statistics as structs. Raises DeltaError for those of other types than the columns."""
        facts = [(f["path"], f["size"], f["modificationTime"]) for f in self.files.values()]
        columns = zip(*facts, strict=True) if facts else ((), (), ())
        found = pa.table([pa.array(c, f.type) for c, f in zip(columns, _FILES, strict=True)], schema=_FILES)
        statistics = self._statistics()
        for name, column in _STATISTICS.items():
            found = found.append_column(column, statistics[name])
        return found

    @cached_property
    def flat_add_actions(self) -> pa.Table:
        """The data files, with statistics as columns."""
        return self.add_actions.flatten()

    def _statistics(self) -> pa.Table:
        found = [file.get("stats") or "{}" for file in self.files.values()]
        expected = _statistics_schema(pa.schema(self.schema))
        if set(found) <= {"{}"}:  # as most are: a look at JSON takes half a millisecond
            return pa.table([pa.nulls(len(found), kind) for kind in expected.types], schema=expected)
        lines = "\n".join(found).encode()
        options = pajson.ParseOptions(expected, newlines_in_values=True, unexpected_field_behavior="ignore")
        try:
            return pajson.read_json(pa.BufferReader(lines), pajson.ReadOptions(False, len(lines) + 1), options)
        except pa.ArrowInvalid as error:
            raise DeltaError(f"Kernel error: Json error: {error}") from error


def _statistics_schema(columns: pa.Schema) -> pa.Schema:
    """Every column has its nulls counted; those of bytes and of many values have no range."""
    ranged = [c for c in columns if not (pa.types.is_nested(c.type) or pa.types.is_binary(c.type))]
    ranges = pa.struct([(c.name, c.type) for c in ranged])
    nulls = pa.struct([(c.name, pa.int64()) for c in columns])
    return pa.schema(zip(_STATISTICS, (pa.int64(), nulls, ranges, ranges), strict=True))


NOTHING = Snapshot()


def change_of(content: bytes) -> Change:
    """What a file of a log says: nothing, if it is empty. Raises DeltaError for one that is torn within a line, or says
    what no log says."""
    table: Action = {}
    added: dict[str, Action] = {}
    removed, transactions = set(), {}
    try:
        for kind, body in _actions(content):
            if kind == "metaData":
                table = body
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
    """Statistics that are no JSON object keep delta-rs from the whole table."""
    stats = file.get("stats")
    if stats is not None and not isinstance(json.loads(stats), dict):
        raise TypeError(f"statistics {stats!r}")
    return {"path": file["path"], "size": file["size"], "modificationTime": file["modificationTime"], **file}


def applied(before: Snapshot, version: int, made_of: object, change: Change) -> Snapshot:
    """What a commit makes of a snapshot, and a checkpoint of nothing."""
    kept = before.files
    if change.removed:
        kept = {path: file for path, file in kept.items() if path not in change.removed}
    files = {
        **change.added,
        **kept,
        **change.added,
    }  # first, as they are new; and last, as they are in the others' place
    transactions = {**before.transactions, **change.transactions}
    return Snapshot(version, made_of, change.table or before.table, files, transactions)


def to_checkpoint(found: Snapshot) -> bytes:
    """All that a snapshot says, as actions."""
    facts: Iterable[Action] = [
        {"metaData": found.table},
        *({"add": file} for file in found.files.values()),
        *({"txn": {"appId": app, "version": version}} for app, version in found.transactions.items()),
    ]
    return lines(facts)


def lines(actions: Iterable[Action]) -> bytes:
    """Actions as a commit has them."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
