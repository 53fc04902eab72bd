"""What a Delta table says at one version, made of its commits one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake import Schema
from deltalake.exceptions import DeltaError

Action = Mapping[str, Any]
_PARTS = {"null_count": "nullCount", "min": "minValues", "max": "maxValues"}


@dataclass(frozen=True)
class Snapshot:
    """Files and facts of a table at one version. `made_of` tells it from what other commits make: their stamps."""

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
        """The data files, with statistics as structs."""
        return self._files(lambda stats: {part: stats.get(name, {}) for part, name in _PARTS.items()})

    @cached_property
    def flat_add_actions(self) -> pa.Table:
        """The data files, with statistics as columns."""
        columns = [field.name for field in self.schema.fields]
        return self._files(
            lambda stats: {f"{p}.{c}": stats.get(name, {}).get(c) for p, name in _PARTS.items() for c in columns}
        )

    def _files(self, statistics: Callable[[Action], dict[str, Any]]) -> pa.Table:
        rows = []
        for path, file in sorted(self.files.items()):
            stats = json.loads(file.get("stats") or "{}")
            row = {"path": path, "size_bytes": file["size"], "modification_time": file["modificationTime"]}
            rows.append({**row, "num_records": stats.get("numRecords"), **statistics(stats)})
        none = pa.schema([("path", pa.string()), ("size_bytes", pa.int64())])
        return pa.Table.from_pylist(rows) if rows else pa.Table.from_pylist([], none)


NOTHING = Snapshot()


def applied(before: Snapshot, version: int, made_of: object, content: bytes) -> Snapshot:
    """What the commit with this content makes of a snapshot. An empty one changes nothing. Raises DeltaError for one
    that is torn within a line."""
    try:
        actions = [json.loads(line) for line in content.splitlines()]
    except ValueError as error:
        raise DeltaError(f"Kernel error: Json error: version {version}: {error}") from error
    table, files, transactions = before.table, dict(before.files), dict(before.transactions)
    for action in actions:
        ((kind, body),) = action.items()
        if kind == "metaData":
            table = body
        elif kind == "add":
            files[body["path"]] = body
        elif kind == "remove":
            files.pop(body["path"], None)
        elif kind == "txn":
            transactions[body["appId"]] = body["version"]
    return Snapshot(version, made_of, table, files, transactions)


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
