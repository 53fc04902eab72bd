"""The content of a commit file, by Delta's protocol: a line of JSON for each action."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakelog.replication.storage.delta.commit_reader import ACTIONS, AddedFile

NONCE = "lakelog.commit"

_ENGINE = "Lakelog"


def commit_content(
    cause: Mapping[str, Any],
    nonce: str,
    adds: Sequence[AddedFile],
    removes: Sequence[AddedFile],
    txns: Mapping[str, int],
    *,
    overwrite: bool = False,
    data_change: bool = True,
) -> bytes:
    """The content of a commit. `cause` and the unique id `nonce` go into its metadata.

    The added files of a commit that also removes files are no new data, unless it is an `overwrite`: such a commit
    rewrites rows. Marking them as new would end every Spark stream that ignores deletes.
    """
    now, has_new_rows = int(time.time() * 1000), data_change and (overwrite or not removes)
    counts = {"add": len(adds), "txn": len(txns), "remove": len(removes)}
    mode = {"mode": "Overwrite" if overwrite else "Append"}
    is_blind = {"isBlindAppend": not removes and not overwrite}
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": mode, "engineInfo": _ENGINE, **is_blind}
    actions: Iterable[Mapping[str, Any]] = (
        {"commitInfo": {**info, **cause, NONCE: nonce, ACTIONS: counts}},
        *({"remove": _removed(file, data_change, now)} for file in removes),
        *({"add": _added(file, has_new_rows, now)} for file in adds),
        *({"txn": {"appId": app_id, "version": version}} for app_id, version in txns.items()),
    )
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def _added(file: AddedFile, data_change: bool, now: int) -> Mapping[str, Any]:
    facts = {"path": file.name, "partitionValues": {}, "size": file.size, "modificationTime": now}
    return {**facts, "dataChange": data_change, "stats": file.stats}


def _removed(file: AddedFile, data_change: bool, now: int) -> Mapping[str, Any]:
    facts = {"path": file.name, "partitionValues": {}, "size": file.size, "deletionTimestamp": now}
    return {**facts, "dataChange": data_change, "extendedFileMetadata": True}
