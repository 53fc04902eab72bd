"""Dicts, str and bytes as records."""

import datetime as dt
from collections import namedtuple

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from lakelog.replication.clients.record_set import record_set
from lakelog.replication.clients.records import check_columns, python_records, to_records
from lakelog.replication.errors import InvalidPartitionsException, InvalidRecordException

Pair = namedtuple("Pair", ["key", "value"])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([{"key": "k", "value": "v"}], [{"key": b"k", "value": b"v"}]),
        ([{"key": b"k", "value": bytearray(b"v")}], [{"key": b"k", "value": b"v"}]),
        ([{"value": "grün"}, {"value": memoryview(b"\x00\xff")}], [{"value": "grün".encode()}, {"value": b"\x00\xff"}]),
        ([{"value": None}], [{"value": None}]),
        ([{"value": "a", "key": "k"}, {"value": "b"}], [{"key": b"k", "value": b"a"}, {"key": None, "value": b"b"}]),
        ([{"value": "", "partition": 2}, {"value": "", "partition": None}],
         [{"value": b"", "partition": 2}, {"value": b"", "partition": None}]),
        ([{"value": "v", "timestamp": NOON}], [{"value": b"v", "timestamp": NOON}]),
        ([{"value": "v", "headers": [("a", "1"), ("a", None), {"key": "b", "value": b"2"}]}],
         [{"value": b"v", "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None},
                                      {"key": "b", "value": b"2"}]}]),
        (["a", b"b"], [{"value": b"a"}, {"value": b"b"}]),
        ({"value": "alone"}, [{"value": b"alone"}]),
        ("text", [{"value": b"text"}]),
        (b"bytes", [{"value": b"bytes"}]),
        (({"value": "of a tuple"},), [{"value": b"of a tuple"}]),
        ([], []),
    ],
)  # fmt: skip
def test_dicts_text_and_bytes_become_a_table_of_records(records, rows):
    table = python_records(records, "t")
    assert table.to_pylist() == rows
    check_columns(table.schema, "t")
    assert to_records(table).num_rows == len(rows)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        ([{"key": "k"}], "record 0 has no value (None is a tombstone, and allowed)"),
        ([{"value": "v"}, {"value": 5}], "record 1: value is of type int, it must be str, bytes or None"),
        ([{"value": "v", "key": ["k"]}], "record 0: key is of type list, it must be str, bytes or None"),
        ([{"value": "v", "topic": "other"}], "record 0: column topic is unknown; known are key, value, timestamp"),
        ([{"value": "v", 3: 4}], "record 0: column 3 is unknown"),
        ([["v"]], "record 0 is of type list, it must be a dict, str or bytes"),
        ([None], "record 0 is of type NoneType, it must be a dict, str or bytes"),
        (
            [{"value": "v", "timestamp": pd.NaT}],
            "record 0: timestamp is of type NaTType, it must be a datetime or None",
        ),
        ([{"value": "v", "headers": [("\ud800", b"1")]}], "record 0: headers: header 0 is no text that UTF-8 can hold"),
        (range(2), "record 0 is of type int, it must be a dict, str or bytes"),
        ([{"value": "v", "partition": "2"}], "record 0: partition is of type str, it must be an int or None"),
        ([{"value": "v", "partition": True}], "record 0: partition is of type bool, it must be an int or None"),
        ([{"value": "v", "partition": 2**70}], "which is no number of a partition"),
        ([{"value": "v", "timestamp": 5}], "record 0: timestamp is of type int, it must be a datetime or None"),
        ([{"value": "v", "headers": {"a": b"1"}}], "record 0: headers is of type dict, it must be a list of pairs"),
        ([{"value": "v", "headers": [("a", b"1"), "b"]}], "record 0: headers: header 1 is 'b', it must be a pair"),
        ([{"value": "v", "headers": [(b"a", b"1")]}], "header 0 is (b'a', b'1'), it must be a pair of a name and a"),
        ([{"value": "v", "headers": [("a", 1)]}], "header 0 is of type int, it must be str, bytes or None"),
        ([{"value": "\ud800"}], "record 0: value is no text that UTF-8 can hold"),
    ],
)
def test_an_invalid_record_is_an_error_with_its_number_and_column(records, fault):
    with pytest.raises(InvalidRecordException, match=r"^records for topic orders: record") as raised:
        python_records(records, "orders")
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_record_for_a_partition_that_the_topic_lacks_is_refused():
    with pytest.raises(InvalidPartitionsException, match="partition 3 is out of range, the topic has 0 to 2"):
        record_set("orders", [{"value": "v", "partition": 3}], 3, 1000)


@pytest.mark.parametrize("records", [5, None, object(), pa.array([1]), {"a set"}])
def test_an_argument_that_holds_no_records_is_refused_by_its_type(records):
    kind = f"{type(records).__module__}.{type(records).__qualname__}"
    with pytest.raises(InvalidRecordException, match=f"for topic orders are a {kind}, they must be a DataFrame"):
        record_set("orders", records, 3, 1000)


@pytest.mark.parametrize("row", [Row(key="k", value="v"), Pair("k", "v")])
def test_a_single_row_is_refused_instead_of_read_as_a_list_of_values(row):
    with pytest.raises(InvalidRecordException, match=r"topic orders are one row, of type .*: give a list of dicts"):
        record_set("orders", row, 3, 1000)


def test_a_key_as_text_and_as_bytes_has_one_partition():
    given = record_set("orders", [{"key": "21", "value": "a"}, {"key": b"21", "value": "b"}], 3, 1000)
    assert given.counts == {(-973932308 & 0x7FFFFFFF) % 3: 2}, "text and its bytes are the same key"
