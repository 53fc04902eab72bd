"""Files of records: Parquet, JSON lines or CSV. A file gets its name once all of it is written."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from lakelog.jobs.console.record_texts import COLUMNS, json_lines, text_rows
from lakelog.replication.errors import InvalidRequestException
from lakelog.schemas import LOG

PARQUET, JSON_LINES, CSV = "parquet", "json", "csv"
_HINT = "give --encoding base64"
_PARQUET = pa.schema([LOG.arrow.field(name) for name in COLUMNS])
_CSV = pa.schema(
    [field if pa.types.is_integer(field.type) else pa.field(field.name, pa.string()) for field in _PARQUET]
)


class RecordSink(Protocol):
    """Takes the records of a file, with the columns of `schemas.LOG`."""

    def write(self, records: pa.Table) -> None:
        """Writes records. Raises InvalidRecordException for bytes that are no text, if they are to be text."""

    def close(self) -> None:
        """Writes the end of the file, which stays open."""


class _Parquet:
    def __init__(self, file: BinaryIO, _: str) -> None:
        self._writer = pq.ParquetWriter(pa.PythonFile(file, "w"), _PARQUET, compression="zstd")

    def write(self, records: pa.Table) -> None:
        self._writer.write_table(records.select(COLUMNS).cast(_PARQUET))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file, self._encoding = file, encoding

    def write(self, records: pa.Table) -> None:
        self._file.write(json_lines(records, self._encoding, _HINT))

    def close(self) -> None:
        self._file.flush()


class _Csv:
    """The headers of a record are JSON. Null is nothing between two commas, an empty text is two quotes."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._encoding = encoding
        self._writer = csv.CSVWriter(pa.PythonFile(file, "w"), _CSV)

    def write(self, records: pa.Table) -> None:
        rows = text_rows(records, self._encoding, _HINT)
        for row in rows:
            row["headers"] = json.dumps(row["headers"], ensure_ascii=False)
        self._writer.write_table(pa.Table.from_pylist(rows, _CSV))

    def close(self) -> None:
        self._writer.close()


FORMATS: Mapping[str, Callable[[BinaryIO, str], RecordSink]] = {PARQUET: _Parquet, JSON_LINES: _JsonLines, CSV: _Csv}


def check_may_write(path: Path, overwrites: bool) -> None:
    """Raises InvalidRequestException for a file that is there, if it is not to be overwritten."""
    if os.path.lexists(path) and not overwrites:
        raise InvalidRequestException(f"{path}: is there already; give another name, or --overwrite")


@contextmanager
def whole_file(path: Path, overwrites: bool) -> Iterator[BinaryIO]:
    """A file that gets its name at the end of the block, with all that was written. After an error, a signal or a crash
    nothing has changed under that name; a crash leaves a hidden file beside it.

    Raises InvalidRequestException if a file has the name meanwhile and is not to be overwritten, and OSError.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrites:
            hidden.replace(path)
        else:
            _link(hidden, path)
        _sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            hidden.unlink()


def _link(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except FileExistsError:
        check_may_write(path, overwrites=False)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
