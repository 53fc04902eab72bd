"""Which values fit a schema, and what becomes of them."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from lakelog.replication.clients.value_decoder import JsonDecoder, ValueMisfit, misfit_of
from lakelog.replication.protocol.value_json_schema import parse_json_schema
from lakelog.replication.protocol.value_type import parse_ddl

DAY = dt.date(2026, 11, 30)
NOON = dt.datetime(2026, 11, 30, 12)
HALF = NOON + dt.timedelta(milliseconds=500)


@pytest.mark.parametrize(
    ("type", "json", "expected"),
    [
        ("BOOLEAN", "true", True),
        ("BOOLEAN", "1", "is 1, it must be BOOLEAN"),
        ("TINYINT", "-128", -128),
        ("TINYINT", "128", "is 128, it must be TINYINT"),
        ("SMALLINT", "32768", "is 32768, it must be SMALLINT"),
        ("INT", "2147483647", 2147483647),
        ("INT", "2147483648", "is 2147483648, it must be INT"),
        ("INT", "1.0", "is 1.0, it must be INT"),
        ("INT", "true", "is true, it must be INT"),
        ("INT", '"1"', 'is "1", it must be INT'),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "9" * 5000, "is no JSON that can be read: Exceeds the limit"),
        ("DOUBLE", "1.5", 1.5),
        ("DOUBLE", "3", 3.0),
        ("DOUBLE", "1e400", "is too large for DOUBLE"),
        ("DOUBLE", "9" * 400, "it must be DOUBLE"),
        ("DOUBLE", "NaN", "is no JSON: NaN is no number there"),
        ("DOUBLE", '"1"', 'is "1", it must be DOUBLE'),
        ("FLOAT", "0.5", 0.5),
        ("FLOAT", "1e39", "is 1e+39, it must be FLOAT"),
        ("DECIMAL(5, 2)", "123.45", Decimal("123.45")),
        ("DECIMAL(5, 2)", "1e2", Decimal(100)),
        ("DECIMAL(5, 2)", "0.10000", Decimal("0.1")),
        ("DECIMAL(5, 2)", "0e9", Decimal(0)),
        ("DECIMAL(5, 2)", "1.234", "is 1.234, it must be DECIMAL(5, 2)"),
        ("DECIMAL(5, 2)", "1000", "is 1000, it must be DECIMAL(5, 2)"),
        ("DECIMAL(5, 2)", "1e999999999", "it must be DECIMAL(5, 2)"),
        ("DECIMAL(5, 2)", "1" + "0" * 25 + "e-24", Decimal(10)),
        ("DECIMAL(5, 2)", "1e" + "9" * 25, "is no JSON that can be read: a number has too large an exponent"),
        ("DECIMAL(5, 2)", "0e-" + "9" * 25, "is no JSON that can be read: a number has too large an exponent"),
        ("DECIMAL(38, 38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
        ("STRING", '"sp\\u00e4ti"', "späti"),
        ("STRING", '""', ""),
        ("STRING", "1", "is 1, it must be STRING"),
        ("STRING", '{"a": 1}', "is an object, it must be STRING"),
        ("STRING", '"\\ud800"', "is half of a surrogate pair, it must be text that UTF-8 can hold"),
        ("BINARY", '"aGk="', b"hi"),
        ("BINARY", '"*"', 'is "*", it must be BINARY, as text in Base64'),
        ("BINARY", "5", "is 5, it must be BINARY, as text in Base64"),
        ("BINARY", '"ä"', "it must be BINARY, as text in Base64"),
        ("DATE", '"2026-11-30"', DAY),
        ("DATE", '"2026-02-30"', 'is "2026-02-30", it must be DATE, such as 2026-11-30'),
        ("DATE", '"20261130"', "it must be DATE"),
        ("DATE", "20000", "is 20000, it must be DATE"),
        ("TIMESTAMP", '"2026-11-30T13:00:00.5+01:00"', HALF.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2026-11-30 12:00Z"', NOON.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2026-11-30T12:00:00"', "it must be TIMESTAMP, such as 2026-11-30T12:03:00.5Z"),
        ("TIMESTAMP", '"0001-01-01T00:00:00+10:00"', "it must be TIMESTAMP of the years 1 to 9999"),
        ("TIMESTAMP", '"2026-11-30T12:00:00.1234567Z"', "it must be TIMESTAMP, such as"),
        ("TIMESTAMP", "1764504000000", "it must be TIMESTAMP, such as"),
        ("TIMESTAMP_NTZ", '"2026-11-30T12:00:00.500"', HALF),
        ("TIMESTAMP_NTZ", '"2026-11-30T12:00:00Z"', "without a time zone"),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("ARRAY<INT>", "1", "is 1, it must be an array"),
        ("ARRAY<INT>", '[1, "2"]', 'field x[1] is "2", it must be INT'),
        ("MAP<STRING, INT>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        ("MAP<STRING, INT>", '{"a": "1"}', 'field x{a} is "1", it must be INT'),
        ("MAP<STRING, INT>", "[]", "is an array, it must be an object"),
        ("STRUCT<y: INT>", '{"y": 1, "z": 2}', {"y": 1}),
        ("STRUCT<y: INT>", "[1]", "field x is an array, it must be an object"),
        ("ARRAY<STRUCT<y: ARRAY<INT>>>", '[{"y": [0, true]}]', "field x[0].y[1] is true, it must be INT"),
        ("STRUCT<y: INT NOT NULL>", '{"z": 2}', "field x.y is missing, and it is NOT NULL"),
        ("STRUCT<y: INT NOT NULL>", '{"y": null}', "field x.y is null, and it is NOT NULL"),
        ("INT", "null", None),
    ],
)
def test_a_field_has_exactly_the_value_of_its_type_or_does_not_fit(type, json, expected):
    schema = parse_ddl(f"x {type}")
    value = f'{{"x": {json}}}'.encode()
    misfit = misfit_of(schema, value)
    if misfit is not None:
        assert isinstance(expected, str)
        assert expected in misfit
        return
    found = JsonDecoder(schema)(value).get("x")
    assert (found, found.__class__) == (expected, expected.__class__)


@pytest.mark.parametrize(
    ("value", "misfit"),
    [
        (b"", "the value is no JSON: Expecting value at character 1"),
        (b"{", "the value is no JSON: Expecting property name enclosed in double quotes at character 2"),
        (b"null", "the value is null, it must be an object"),
        (b"[]", "the value is an array, it must be an object"),
        (b"{}", "field a is missing, and it is NOT NULL"),
        (b'{"A": 1}', "field a is missing, and it is NOT NULL"),
        (b'{"a": 1}{"a": 2}', "the value is no JSON: Extra data at character 9"),
        (b'\xff{"a": 1}', "the value is no text in UTF-8: byte 1 cannot be read"),
        ('\ufeff{"a": 1}'.encode(), "the value is no JSON: Expecting value at character 1"),
        ('{"a": 1}'.encode("utf-16"), "the value is no text in UTF-8: byte 1 cannot be read"),
        (b"[" * 100_000, "the value is no JSON that can be read: it has too many brackets inside one another"),
        (b' {"a": 1, "b": "more"}\n', None),
        (b'\0\0\0\1\2{"a": 1}', None),
        (b'\0\0\0\1\2{"a": "1"}', 'field a is "1", it must be INT'),
        (b'\0\0\0{"a": 1}', "the value is no JSON: Expecting value at character 1"),
        (b"\0\0", "the value is no JSON: Expecting value at character 1"),
    ],
)
def test_a_value_is_one_object_of_json_in_utf_8(value, misfit):
    assert misfit_of(parse_ddl("a INT NOT NULL"), value) == misfit


def test_a_value_of_a_closed_schema_has_no_other_fields():
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false}'
    schema = parse_json_schema(text)
    assert [misfit_of(schema, value) for value in (b'{"a": 1}', b"{}", b'{"a": 1, "c": 1, "b": 2}')] == [
        None, None, "field b is not in the schema, which takes no others",
    ]  # fmt: skip


@pytest.mark.parametrize("zeros", [60, 20_000, 1_000_000])
def test_zeros_at_the_end_of_a_decimal_change_nothing_for_arrow(zeros):
    found = JsonDecoder(parse_ddl("a DECIMAL(5, 2)"))(b'{"a": 1.5' + b"0" * zeros + b"}")
    assert pa.array([found["a"]], pa.decimal128(5, 2)).to_pylist() == [Decimal("1.50")]


@pytest.mark.parametrize(
    ("ddl", "value", "misfit"),
    [
        ("a INT", b'{"a": "\\ud800"}', 'field a is "\\ud800", it must be INT'),
        ("a MAP<STRING, INT>", b'{"a": {"\\ud800": 1}}', "field a{\\ud800} is half of a surrogate pair"),
    ],
)
def test_a_misfit_is_text_that_arrow_can_hold_whatever_the_value_has(ddl, value, misfit):
    found = misfit_of(parse_ddl(ddl), value)
    assert found.startswith(misfit)
    assert pa.array([found], pa.string()).to_pylist() == [found]


def test_a_misfit_shows_no_more_of_a_value_than_a_reader_needs():
    with pytest.raises(ValueMisfit) as found:
        JsonDecoder(parse_ddl("a INT"))(b'{"a": "' + b"x" * 1000 + b'"}')
    assert str(found.value) == f'field a is "{"x" * 39}…, it must be INT'
