"""The content of a commit file, by Delta's protocol: a line of JSON for each action."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakelog.replication.storage.delta.commit import FOLLOWS, NONCE, AddedFile
from lakelog.replication.storage.delta.commit_reader import ACTIONS, CONTENTS

ENGINE = "Lakelog"
INLINED_BYTES = 32 << 10  # of small files, whose readers then need not ask an object store for them


def commit_content(
    cause: Mapping[str, Any],
    nonce: str,
    adds: Sequence[AddedFile],
    removes: Sequence[AddedFile],
    txns: Mapping[str, int],
    *,
    follows: str | None = None,
    overwrite: bool = False,
    data_change: bool = True,
    expire: Collection[str] = (),
) -> bytes:
    """The content of a commit. `cause`, its unique id `nonce` and that of the commit before it, if it has one, go into
    its metadata.

    The added files of a commit that also removes files are no new data, unless it is an `overwrite`: such a commit
    rewrites rows. Marking them as new would end every Spark stream that ignores deletes. Only a `txn` with a time, one
    of those that may `expire`, is ever dropped by `delta.setTransactionRetentionDuration`.
    """
    now, has_new_rows = int(time.time() * 1000), data_change and (overwrite or not removes)
    counts = {"add": len(adds), "txn": len(txns), "remove": len(removes)}
    mode = {"mode": "Overwrite" if overwrite else "Append"}
    ids = {NONCE: nonce} if follows is None else {NONCE: nonce, FOLLOWS: follows}
    is_blind = {"isBlindAppend": not removes and not overwrite}
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": mode, "engineInfo": ENGINE, **is_blind}
    actions: Iterable[Mapping[str, Any]] = (
        {"commitInfo": {**info, **cause, **ids, ACTIONS: counts, **_contents(adds)}},
        *({"remove": _removed(file, data_change, now)} for file in removes),
        *({"add": _added(file, has_new_rows, now)} for file in adds),
        *({"txn": _txn(app_id, version, now if app_id in expire else None)} for app_id, version in txns.items()),
    )
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def _txn(app_id: str, version: int, updated_at: int | None) -> Mapping[str, Any]:
    at = {} if updated_at is None else {"lastUpdated": updated_at}
    return {"appId": app_id, "version": version, **at}


def inlined(content: pa.Buffer) -> bytes | None:
    """The content of a file that is small enough for its commit; None for a larger one."""
    return content.to_pybytes() if content.size <= INLINED_BYTES else None


def _contents(adds: Sequence[AddedFile]) -> Mapping[str, Any]:
    small = {file.name: file.content for file in adds if file.content is not None}
    if not small or sum(map(len, small.values())) > INLINED_BYTES:
        return {}
    return {CONTENTS: {name: base64.b64encode(content).decode() for name, content in small.items()}}


def _added(file: AddedFile, data_change: bool, now: int) -> Mapping[str, Any]:
    facts = {"path": file.name, "partitionValues": {}, "size": file.size, "modificationTime": now}
    return {**facts, "dataChange": data_change, "stats": file.stats}


def _removed(file: AddedFile, data_change: bool, now: int) -> Mapping[str, Any]:
    facts = {"path": file.name, "partitionValues": {}, "size": file.size, "deletionTimestamp": now}
    return {**facts, "dataChange": data_change, "extendedFileMetadata": True}
