"""Records as lines of JSON: keys, values and headers as text or as base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.errors import InvalidRecordException

TEXT, BASE64 = "text", "base64"
ENCODINGS = (TEXT, BASE64)

COLUMNS = ("topic", "partition", "offset", "timestamp", "leader_epoch", "headers", "key", "value")
_TIME_FORM = "%Y-%m-%dT%H:%M:%S"  # of Arrow, whose seconds have six digits behind the point


def json_lines(records: pa.Table, encoding: str, hint: str) -> bytes:
    """An object and a line feed for each record, with the columns of `COLUMNS`. The columns of `records` are those of
    `schemas.LOG`.

    Raises InvalidRecordException as `text_rows`.
    """
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in text_rows(records, encoding, hint))


def text_rows(records: pa.Table, encoding: str, hint: str) -> list[dict[str, Any]]:
    """The columns of `COLUMNS` of each record. The timestamp is a time of ISO 8601 in UTC, to the microsecond. Bytes
    are text or base64, by `encoding`; null stays null.

    Raises InvalidRecordException, which names the record, if bytes are to be text and are not UTF-8. `hint`: how a user
    asks for base64.
    """
    encode: Callable[[bytes | None], str | None] = _text if encoding == TEXT else _base64
    times = pc.strftime(records["timestamp"], format=_TIME_FORM)
    rows = records.select(COLUMNS).set_column(COLUMNS.index("timestamp"), "timestamp", times).to_pylist()
    for row in rows:
        part = ""
        try:
            for part in ("key", "value"):
                row[part] = encode(row[part])
            part = "header"
            row["headers"] = [{"key": each["key"], "value": encode(each["value"])} for each in row["headers"] or ()]
        except UnicodeDecodeError:
            raise InvalidRecordException(f"{_place(row)}: the {part} is not UTF-8: {hint}") from None
        row["timestamp"] += "Z"
    return rows


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}-{row['partition']}, offset {row['offset']}"


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
