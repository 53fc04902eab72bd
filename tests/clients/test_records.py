"""Converts a user's table to records by partition."""

import datetime as dt
import time

import pyarrow as pa
import pytest

from lakelog.replication.clients.records import check_columns, partitions_of, python_records, split, to_records
from lakelog.replication.errors import InvalidPartitionsException, InvalidRecordException

VALUES = {"value": pa.array([b"a", b"b", b"c"])}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null()])
def test_values_of_bytes_text_and_null_are_taken(kind):
    table = pa.table({"value": pa.nulls(1, kind)})
    check_columns(table.schema, "t")
    assert to_records(table)["value"].type == pa.binary()


def test_all_faults_of_the_columns_are_in_one_error():
    table = pa.table({"key": [1], "other": [2], "timestamp": ["noon"]})
    with pytest.raises(InvalidRecordException) as raised:
        check_columns(table.schema, "flights")
    for text in ("topic flights", "no column value", "column key is int64", "column other is unknown", "timestamp is"):
        assert text in str(raised.value)


def test_two_columns_of_one_name_are_refused():
    schema = pa.schema([("value", pa.string()), ("key", pa.string()), ("value", pa.string())])
    with pytest.raises(InvalidRecordException, match=r"^records for topic t: column value is there 2 times"):
        check_columns(schema, "t")


def test_missing_columns_are_filled_in():
    records = to_records(pa.table(VALUES), now=1_700_000_000_000_000)
    assert records["key"].null_count == records["headers"].null_count == 3
    assert {int(t.value) for t in records["timestamp"]} == {1_700_000_000_000_000}


def test_a_null_timestamp_is_now_and_others_stay():
    stamps = pa.array([5, None, 7], pa.timestamp("us", tz="UTC"))
    records = to_records(pa.table({**VALUES, "timestamp": stamps}), now=9)
    assert [int(t.value) for t in records["timestamp"]] == [5, 9, 7]


def numbers_of(columns, partitions=3, sticky=1):
    table = pa.table({**VALUES, **columns})
    return partitions_of(table, to_records(table), "t", partitions, sticky).to_pylist()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, [1, 1, 1]),
        ({"partition": [2, 0, 2]}, [2, 0, 2]),
        ({"partition": pa.array([2, None, 0], pa.int64())}, [2, 1, 0]),
        ({"key": [b"21", b"21", None]}, [(-973932308 & 0x7FFFFFFF) % 3] * 2 + [1]),
    ],
    ids=["without a key: sticky", "told", "told for some", "by murmur2 of the key"],
)
def test_the_partition_of_a_record_is_that_of_its_column_or_else_of_its_key(columns, expected):
    assert numbers_of(columns) == expected


@pytest.mark.parametrize("outside", [-1, 3, 2**40])
def test_a_partition_that_the_topic_lacks_is_refused(outside):
    with pytest.raises(InvalidPartitionsException, match=f"partition {outside} is out of range, the topic has 0 to 2"):
        numbers_of({"partition": pa.array([0, outside, 1], pa.int64())})


def test_split_keeps_the_order_within_a_partition():
    records = pa.table({"value": [b"0", b"1", b"2", b"3", b"4"]})
    parts = split(records, pa.chunked_array([pa.array([2, 0, 2, 0, 2], pa.int32())]))
    assert {p: part["value"].to_pylist() for p, part in parts.items()} == {0: [b"1", b"3"], 2: [b"0", b"2", b"4"]}


EXTREME = {
    "seconds beyond all": {"timestamp": pa.array([0, 0, 2**62], pa.timestamp("s"))},
    "the year 10000": {"timestamp": pa.array([0, 253_402_300_800_000_000, 0], pa.timestamp("us"))},
    "before the year 1": {"timestamp": pa.array([0, -62_135_596_800_000_001, 0], pa.timestamp("us", tz="UTC"))},
}


@pytest.mark.parametrize("case", EXTREME)
def test_values_that_the_log_cannot_hold_are_named(case):
    with pytest.raises(InvalidRecordException, match="records for topic flights: column timestamp: "):
        to_records(pa.table({**VALUES, **EXTREME[case]}), topic="flights")


def test_timestamps_of_the_years_1_to_9999_are_kept_to_the_microsecond():
    ends = [-62_135_596_800_000_000, 253_402_300_799_999_999, None]
    found = to_records(pa.table({**VALUES, "timestamp": pa.array(ends, pa.timestamp("us"))}), now=7)
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [*ends[:2], 7]
    fine = to_records(pa.table({**VALUES, "timestamp": pa.array([1_234_567_891, -1, None], pa.timestamp("ns"))}), now=7)
    assert fine["timestamp"].cast(pa.int64()).to_pylist() == [1_234_567, -1, 7], "rounded down"


def test_a_partition_beyond_64_bits_is_refused():
    with pytest.raises(InvalidPartitionsException, match=r"topic t: column partition: .* the topic has 0 to 2"):
        numbers_of({"partition": pa.array([0, 2**63 + 5, 1], pa.uint64())})


def test_a_header_without_a_key_is_refused_from_a_table_as_from_rows():
    headers = pa.array(
        [None, [], [{"key": None, "value": b"x"}]], pa.list_(pa.struct([("key", "str"), ("value", "binary")]))
    )
    with pytest.raises(InvalidRecordException, match="column headers: a header without a key"):
        to_records(pa.table({**VALUES, "headers": headers}))


def test_a_timestamp_without_a_zone_is_in_utc_from_rows_and_from_tables(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        naive = dt.datetime(2026, 1, 2, 3, 4)
        rows = to_records(python_records([{"value": "a", "timestamp": naive}], "t"))
        table = to_records(pa.table({"value": ["a"], "timestamp": pa.array([naive])}))
    finally:
        monkeypatch.undo()
        time.tzset()
    expected = [naive.replace(tzinfo=dt.UTC)]
    assert rows["timestamp"].to_pylist() == table["timestamp"].to_pylist() == expected
