"""Writes a range of a topic to a file or to stdout, as Parquet, JSON lines or CSV.

A file is written whole or not at all: it gets its name once everything is in it. It has the records up to the
high watermark that it finds when it begins; those of each partition are in order.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from lakelog.jobs.cli.console import INTERRUPTED, OK, run, say
from lakelog.jobs.cli.output_paths import out_file
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import until_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.key_values import client_parser
from lakelog.jobs.console.record_range import RecordRange, add_range, range_of, with_keys
from lakelog.jobs.console.record_texts import COLUMNS, ENCODINGS, TEXT, json_lines, text_rows
from lakelog.replication.clients.offset_lookup import EARLIEST
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.storage.cluster import Cluster
from lakelog.schemas import LOG

_WAIT_MS = 500
_MAX_BYTES = 52_428_800
PARQUET, JSON_LINES, CSV = "parquet", "json", "csv"
_HINT = "give --encoding base64"
_PARQUET = pa.schema([LOG.arrow.field(name) for name in COLUMNS])
_CSV = pa.schema(
    [field if pa.types.is_integer(field.type) else pa.field(field.name, pa.string()) for field in _PARQUET]
)


# Writes records with the columns of `schemas.LOG`. Raises InvalidRecordException for bytes that are no text, if they
# are to be text.
WriteRecords: TypeAlias = Callable[[pa.Table], object]


class _Interrupted(Exception):
    """A signal has come before the end, so that the file gets no name."""


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _export_records(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("export-records", __doc__)
    add_range(parser)
    parser.add_argument(
        "--format", choices=tuple(FORMATS), default=JSON_LINES,
        help="parquet; json: an object a line; csv, with a line of names; default: json",
    )  # fmt: skip
    parser.add_argument(
        "--encoding", choices=ENCODINGS, default=TEXT,
        help="keys, values and headers in JSON and CSV; text: as UTF-8; base64: for bytes that are no text; default: "
        "text",
    )  # fmt: skip
    parser.add_argument("--out", type=out_file, metavar="FILE", help="the file to write; default: stdout")
    parser.add_argument("--overwrite", action="store_true", help="replace --out if it is there")
    return parser


def _export_records(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.overwrite and args.out is None:
        parser.error("--overwrite goes with --out only")
    if args.format == PARQUET and args.out is None and sys.stdout.isatty():
        parser.error("--format parquet writes bytes that a terminal cannot show: give --out")
    if args.format == PARQUET and args.encoding != TEXT:
        parser.error("--encoding goes with --format json and csv only: Parquet has bytes as they are")
    if args.out is not None:
        check_may_write(args.out, args.overwrite)
    view = TopicView(Cluster.open(args.cluster, settings(args.command_config), reads_go_on=True))
    within = range_of(view, args.topic, args)
    try:
        with _opened(args.out, args.overwrite) as file, FORMATS[args.format](file, args.encoding) as write:
            count = _write(args, within, write)
    except _Interrupted:
        say("lakelog: stopped before the end" + (f"; {args.out} was not written" if args.out else ""))
        return INTERRUPTED
    say(f"{count} records of topic {args.topic} were written" + (f" to {args.out}" if args.out else ""))
    return OK


def _opened(path: Path | None, overwrites: bool) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdout.buffer) if path is None else whole_file(path, overwrites)


def _write(args: argparse.Namespace, within: RecordRange, write: WriteRecords) -> int:
    """Writes the records, with a bar. Returns their number."""
    reader = ConsoleReader(args.cluster, settings(args.command_config), args.topic, EARLIEST, within=within)
    count = 0
    with counting_bar(sys.stderr.isatty()) as progress, until_signalled() as is_told:
        task = progress.add_task("exporting records", total=within.length)
        while not reader.is_done:
            if is_told():
                raise _Interrupted
            for table in reader.read(_WAIT_MS, sys.maxsize, _MAX_BYTES):
                records = with_keys(table, args.key)
                write(records)
                count += records.num_rows
            progress.update(task, completed=within.length - within.begin_at(reader.positions).length)
    return count


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
