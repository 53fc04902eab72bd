"""Files of records: Parquet, JSON lines or CSV. A file gets its name once all of it is written."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

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


# Writes records with the columns of `schemas.LOG`. Raises InvalidRecordException for bytes that are no text, if they
# are to be text.
WriteRecords: TypeAlias = Callable[[pa.Table], object]


@contextmanager
def _parquet(file: BinaryIO, _: str) -> Iterator[WriteRecords]:
    writer = pq.ParquetWriter(pa.PythonFile(file, "w"), _PARQUET, compression="zstd")
    yield lambda records: writer.write_table(records.select(COLUMNS).cast(_PARQUET))
    writer.close()


@contextmanager
def _json_lines(file: BinaryIO, encoding: str) -> Iterator[WriteRecords]:
    yield lambda records: file.write(json_lines(records, encoding, _HINT))
    file.flush()


@contextmanager
def _csv(file: BinaryIO, encoding: str) -> Iterator[WriteRecords]:
    """The headers of a record are JSON. Null is nothing between two commas, an empty text is two quotes."""
    writer = csv.CSVWriter(pa.PythonFile(file, "w"), _CSV)

    def write(records: pa.Table) -> None:
        rows = text_rows(records, encoding, _HINT)
        for row in rows:
            row["headers"] = json.dumps(row["headers"], ensure_ascii=False)
        writer.write_table(pa.Table.from_pylist(rows, _CSV))

    yield write
    writer.close()


# A block in which records are written to a file, with an encoding of their bytes. At its end the file has all of them,
# and stays open.
FORMATS: Mapping[str, Callable[[BinaryIO, str], AbstractContextManager[WriteRecords]]] = {
    PARQUET: _parquet,
    JSON_LINES: _json_lines,
    CSV: _csv,
}


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
