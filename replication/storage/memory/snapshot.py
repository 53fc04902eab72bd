"""The state of a Delta table at one version, built from its commits in order."""

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
