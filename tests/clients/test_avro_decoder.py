"""Decodes values in Avro: bytes made by hand, those of fastavro, and those that are torn."""

import datetime as dt
import io
import json
import random
from contextlib import suppress
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from lakelog.replication.clients.avro_decoder import AvroDecoder
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.avro_resolution import first_fault, resolve
from lakelog.replication.protocol.schema_history import AvroValues, history_text, parsed_avro, with_schema
from lakelog.replication.protocol.value_type import ValueMisfit, parse_ddl
from tests.protocol.test_avro_schema import ENUM, FIXED, logical, record

POINT = {"type": "record", "fields": [{"name": "i", "type": "int"}, {"name": "j", "type": "int"}]}


def values_of(*schemas):
    """The values of a topic that has had these schemas, with ids from 7 on."""
    history = ()
    for number, text in enumerate(schemas):
        history = with_schema(history, parsed_avro(text), (7 + number,))
    return AvroValues(history_text(history))


def named(schema, body):
    """A value in Avro's single-object encoding."""
    return b"\xc3\x01" + parsed_avro(schema).fingerprint + body


def encoded(schema, datum):
    """By fastavro."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, json.loads(schema), datum)
    return buffer.getvalue()


def decoded(writer, reader, body):
    return AvroDecoder(values_of(writer, reader) if writer != reader else values_of(reader))(named(writer, body))


# The bytes of the examples in Avro's specification.
TEST = record(("a", "long"), ("b", "string"))


def test_the_examples_of_the_specification_are_decoded():
    assert decoded(TEST, TEST, bytes.fromhex("3606666f6f")) == {"a": 27, "b": "foo"}
    items = record(("a", {"type": "array", "items": "long"}))
    assert decoded(items, items, bytes.fromhex("04063600")) == {"a": [3, 27]}
    union = record(("a", ["string", "null"]))
    assert decoded(union, union, b"\x02") == {"a": None}
    assert decoded(union, union, bytes.fromhex("000261")) == {"a": "a"}


def test_confluents_frame_names_the_schema_by_its_id():
    """A zero, the id 7 in four bytes, and the value: made by hand."""
    decode = AvroDecoder(values_of(TEST, record(("a", "double"), ("b", "string"), ("c", ["null", "int"]))))
    assert decode(bytes.fromhex("00 00000008 000000000000f03f 02 78 02 0a")) == {"a": 1.0, "b": "x", "c": 5}
    with pytest.raises(
        ValueMisfit, match=r"^field c is missing in the schema that wrote the value and without a default"
    ):
        decode(bytes.fromhex("00 00000007 36 06666f6f"))


NUMBERS = [(-(2**31), "ffffffff0f"), (2**31 - 1, "feffffff0f"), (-1, "01"), (64, "8001"), (0, "00")]


@pytest.mark.parametrize(
    ("type", "given", "expected"),
    [
        *[("int", bytes.fromhex(text), number) for number, text in NUMBERS],
        ("long", bytes.fromhex("ffffffffffffffffff01"), -(2**63)),
        ("boolean", b"\1", True),
        ("float", bytes.fromhex("0000c03f"), 1.5),
        ("bytes", b"\4\0\xff", b"\0\xff"),
        (FIXED, b"abcd", b"abcd"),
        (ENUM, b"\2", "B"),
        ({"type": "array", "items": "int"}, b"\0", []),
        ({"type": "array", "items": "int"}, bytes.fromhex("03040204 0206 00"), [1, 2, 3]),
        ({"type": "map", "values": "int"}, bytes.fromhex("0202610a00"), [("a", 5)]),
        ({"type": "map", "values": "int"}, bytes.fromhex("0402610a02610c00"), [("a", 6)]),
        (logical("int", "date"), b"\2", 1),
        (logical("long", "timestamp-millis"), b"\2", 1000),
        (logical("long", "timestamp-micros"), b"\2", 1),
        (logical("long", "time-micros"), b"\2", 1),
        (logical("bytes", "decimal", precision=4, scale=2), b"\4\xff\x9c", Decimal("-1.00")),
        (logical("bytes", "decimal", precision=4, scale=2), b"\6\0\0\x05", Decimal("0.05")),
        ({**FIXED, "logicalType": "decimal", "precision": 9, "scale": 0}, b"\0\0\1\0", Decimal(256)),
        (logical("string", "uuid"), b"\2x", "x"),
    ],
)
def test_each_type_by_its_bytes(type, given, expected):
    schema = record(("a", type))
    found = decoded(schema, schema, given)["a"]
    assert (found, found.__class__) == (expected, expected.__class__)


NESTED = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}
MORE = [{"name": "c", "type": "int", "default": 7}]
ONE = {"name": "z", "type": "int", "default": 1}


@pytest.mark.parametrize(
    ("writer", "datum", "reader", "expected"),
    [
        # promotions
        ("int", 5, "long", 5), ("int", 5, "float", 5.0), ("int", 5, "double", 5.0), ("long", 5, "double", 5.0),
        ("float", 0.5, "double", 0.5), ("string", "ä", "bytes", "ä".encode()), ("bytes", b"\xc3\xa4", "string", "ä"),
        ("int", 5, ["null", "long"], 5), (["null", "int"], 5, "long", 5),
        (["null", "int"], None, ["long", "null"], None),
        # a logical type comes, or goes
        ("long", 5, logical("long", "timestamp-millis"), 5000),
        (logical("int", "time-millis"), dt.time(0, 0, 1), "int", 1000),
        ("bytes", b"\5", logical("bytes", "decimal", precision=3, scale=1), Decimal("0.5")),
        (logical("bytes", "decimal", precision=3, scale=1), Decimal("0.5"),
         logical("bytes", "decimal", precision=9, scale=1), Decimal("0.5")),
        # containers
        ({"type": "array", "items": "int"}, [1], {"type": "array", "items": "double"}, [1.0]),
        ({"type": "map", "values": "int"}, {"a": 1}, {"type": "map", "values": ["null", "long"]}, [("a", 1)]),
        # enums
        (ENUM, "B", {**ENUM, "symbols": ["B", "C"]}, "B"), (ENUM, "A", {**ENUM, "symbols": ["C"], "default": "C"}, "C"),
        # records
        (NESTED, {"b": 1}, {**NESTED, "fields": [{"name": "b", "type": "long"}, *MORE]}, {"b": 1, "c": 7}),
        (NESTED, {"b": 1}, {**NESTED, "name": "S", "aliases": ["R"]}, {"b": 1}),
        (NESTED, {"b": 1}, {**NESTED, "name": "of.R"}, {"b": 1}),
        (NESTED, {"b": 1}, {**NESTED, "fields": [{"name": "c", "type": "int", "aliases": ["b"]}]}, {"c": 1}),
    ],
)  # fmt: skip
def test_a_reader_resolves_what_another_schema_has_written(writer, datum, reader, expected):
    old, new = record(("a", writer)), record(("a", reader), ONE)
    assert decoded(old, new, encoded(old, {"a": datum})) == {"a": expected, "z": 1}


def test_a_field_is_read_by_its_name_before_one_that_has_it_as_an_alias():
    old = record(("a", "int"), ("b", "int"))
    new = record({"name": "c", "type": "int", "aliases": ["a", "b"]}, ("a", "int"))
    assert decoded(old, new, b"\2\4") == {"a": 1, "c": 2}


def test_defaults_are_as_decoded_values_are():
    parts = [
        ("d", logical("int", "date"), 1, 1), ("t", logical("long", "timestamp-millis"), 1, 1000),
        ("n", logical("bytes", "decimal", precision=3, scale=1), "\5", Decimal("0.5")),
        ("x", ["null", "int"], None, None),
        ("r", NESTED, {"b": 1}, {"b": 1}), ("l", {"type": "array", "items": "R"}, [{"b": 1}], [{"b": 1}]),
        ("m", {"type": "map", "values": "bytes"}, {"k": "\xff"}, [("k", b"\xff")]),
    ]  # fmt: skip
    old = record(("a", "int"))
    new = record(("a", "int"), *({"name": name, "type": type, "default": given} for name, type, given, _ in parts))
    assert decoded(old, new, b"\2") == {"a": 1, **{name: expected for name, _, _, expected in parts}}


DECIMAL = logical("bytes", "decimal", precision=3, scale=1)
MILLIS = logical("long", "timestamp-millis")
WROTE = "in the schema that wrote the value and"
PROMOTE = "the same type, or a wider one as in Avro (int to long to float to double, string to bytes and back)"


@pytest.mark.parametrize(
    ("writer", "datum", "reader", "fault"),
    [
        ("string", "x", "int", f"field a is string {WROTE} int in the reader's; allowed: {PROMOTE}"),
        ("long", 1, "int", "field a is long"),
        (["null", "int"], None, "int", f"field a is null or int {WROTE} int in the reader's; allowed: a type that may"),
        (MILLIS, 1, logical("long", "timestamp-micros"), "field a is long as timestamp-millis"),
        (DECIMAL, Decimal(1), {**DECIMAL, "scale": 2},
         "field a is decimal(3, 1)"),
        (DECIMAL, Decimal(1), {**DECIMAL, "precision": 2},
         "field a is decimal(3, 1)"),
        ("string", "x", logical("bytes", "decimal", precision=3, scale=1), "field a is string"),
        (ENUM, "A", {**ENUM, "symbols": ["B"]}, f"field a is an enum with the symbol A {WROTE} an enum without it"),
        (FIXED, b"abcd", {**FIXED, "size": 5}, f"field a is fixed F of 4 bytes {WROTE} fixed F of 5 bytes"),
        (FIXED, b"abcd", {**FIXED, "name": "G"}, "field a is fixed F of 4 bytes"),
        (NESTED, {"b": 1}, {**NESTED, "name": "S"}, f"field a is record R {WROTE} record S"),
        (NESTED, {"b": 1}, {**NESTED, "fields": [{"name": "c", "type": "int"}]},
         f"field a.c is missing {WROTE} without a default in the reader's; allowed: a field with a default"),
        ({"type": "array", "items": "string"}, ["x"], {"type": "array", "items": "int"}, "field a[0] is string"),
    ],
)  # fmt: skip
def test_a_value_that_the_reader_cannot_resolve_names_both_schemas(writer, datum, reader, fault):
    old, new = record(("a", writer)), record(("a", reader), ONE)
    with pytest.raises(ValueMisfit) as refused:
        decoded(old, new, encoded(old, {"a": datum}))
    assert str(refused.value).startswith(fault)


def test_a_branch_that_the_value_does_not_have_need_not_resolve():
    old, new = (
        record(("a", ["null", "string"])),
        record(("a", ["null", "int"]), {"name": "z", "type": "int", "default": 1}),
    )
    assert decoded(old, new, b"\0") == {"a": None, "z": 1}
    with pytest.raises(ValueMisfit, match=r"^field a is string in the schema"):
        decoded(old, new, b"\2\2x")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (
            b"",
            "the value does not name its schema; allowed: Avro's single-object encoding, which begins with C3 01 and",
        ),
        (b"\x36\x06foo", "the value does not name its schema"),
        (b'{"a": 27, "b": "foo"}', "the value does not name its schema"),
        (b"\xc3", "the value does not name its schema"),
        (b"\xc3\x02" + bytes(8), "the value does not name its schema"),
        (b"\xc3\x01" + bytes(7), "the value ends within the name of its schema"),
        (b"\0", "the value ends within the name of its schema"),
        (b"\0\0\0\0", "the value ends within the name of its schema"),
        (b"\0\0\0\0\x08\2", "the value has the schema id 8, which value.schema.history does not have; to add it, set"),
        (
            b"\xc3\x01" + bytes(7) + b"\1",
            "the value has the schema fingerprint 0000000000000001, which value.schema.hi",
        ),
    ],
)
def test_a_value_without_the_name_of_a_known_schema_is_never_decoded(value, fault):
    with pytest.raises(ValueMisfit) as refused:
        AvroDecoder(values_of(TEST))(value)
    assert str(refused.value).startswith(fault)


ARRAY = {"type": "array", "items": "int"}
# The largest long and the least one.
HUGE, LEAST = bytes.fromhex("feffffffffffffffff01"), bytes.fromhex("ffffffffffffffffff01")


@pytest.mark.parametrize(
    ("type", "body", "fault"),
    [
        ("long", b"", "field a ends too early"),
        ("long", b"\x80", "field a ends too early"),
        ("long", b"\xff" * 10 + b"\1", "field a is a number of more than 64 bits"),
        ("long", b"\xff" * 9 + b"\3", "field a is a number of more than 64 bits"),
        ("long", b"\x80" * 9_999, "field a is a number of more than 64 bits"),
        ("int", bytes.fromhex("8080808010"), "field a is 2147483648, it must be int"),
        ("int", b"\2\2", "the value has 1 more bytes than its schema has"),
        ("boolean", b"\2", "field a is the byte 2, it must be 0 or 1"),
        ("float", b"abc", "field a ends too early"),
        ("double", b"abcdefg", "field a ends too early"),
        ("string", b"\x06ab", "field a has a length of 3 bytes, of which 2 are there"),
        ("string", b"\1ab", "field a has a length of -1 bytes, of which 2 are there"),
        ("bytes", HUGE, "field a has a length of 9223372036854775807 bytes, of which 0"),
        ("string", b"\2\xff", "field a is no text in UTF-8: byte 1 cannot be read"),
        (FIXED, b"abc", "field a ends too early"),
        (ENUM, b"\4", "field a has symbol 2 of an enum of 2"),
        (ENUM, b"\1", "field a has symbol -1 of an enum of 2"),
        (["null", "int"], b"\4", "field a has branch 2 of a union of 2"),
        (["null", "int"], b"\1", "field a has branch -1 of a union of 2"),
        (ARRAY, b"\2\2", "field a ends too early"),
        (ARRAY, HUGE + b"\0", "field a has a block of 9223372036854775807 elements in 1 "),
        (ARRAY, LEAST + b"\0\0", "field a has a block of 9223372036854775808 elements in 1 "),
        (ARRAY, b"\1" + HUGE, "field a has a block of 9223372036854775807 bytes, of which 0"),
        (ARRAY, b"\4\2\x80", "field a ends too early"),
        ({"type": "map", "values": "int"}, b"\2\2\xff\2\0", "field a[0] is no text in UTF-8: byte 1 cannot be read"),
        (
            logical("bytes", "decimal", precision=2, scale=0),
            b"\2\x64",
            "field a has 1 bytes, which are no decimal(2, 0)",
        ),
        (logical("bytes", "decimal", precision=2, scale=0), b"\0", "field a has 0 bytes, which are no decimal(2, 0)"),
        (
            logical("int", "date"),
            bytes.fromhex("feffffff0f"),
            "field a is day 2147483647 since 1970, it must be a DATE of",
        ),
        (logical("long", "timestamp-millis"), HUGE, "field a is 9223372036854775807 as"),
    ],
)
def test_bytes_that_are_torn_are_refused_at_their_field(type, body, fault):
    schema = record(("a", type))
    with pytest.raises(ValueMisfit) as refused:
        decoded(schema, schema, body)
    assert str(refused.value).startswith(fault)


DEEP = "int"
for number in range(15):
    DEEP = {"type": "array", "items": {"type": "record", "name": f"D{number}", "fields": [{"name": "x", "type": DEEP}]}}


def test_a_value_cannot_nest_deeper_than_its_schema():
    schema = record(("a", DEEP))
    datum = 5
    for _ in range(15):
        datum = [{"x": datum}]
    assert decoded(schema, schema, encoded(schema, {"a": datum})) == {"a": datum}
    with pytest.raises(ValueMisfit):
        decoded(schema, schema, b"\2" * 100_000)


EVERY = record(
    ("a", "boolean"), ("b", "int"), ("c", "long"), ("d", "float"), ("e", "double"), ("f", "bytes"), ("g", "string"),
    ("h", ENUM), ("i", FIXED), ("j", ["null", "string"]), ("k", {"type": "array", "items": ["null", "long"]}),
    ("l", {"type": "map", "values": {"type": "record", "name": "R", "fields": [{"name": "x", "type": "double"}]}}),
    ("m", {"type": "array", "items": "R"}),
)  # fmt: skip


def drawn(chance):
    """A value of every type."""
    text = "".join(chance.choices("aä€𝄞\0", k=chance.randrange(4)))
    records = [{"x": chance.random()} for _ in range(chance.randrange(3))]
    return {
        "a": chance.random() < 0.5, "b": chance.randrange(-(2**31), 2**31), "c": chance.randrange(-(2**63), 2**63),
        "d": float(chance.randrange(100)), "e": chance.random(), "f": chance.randbytes(chance.randrange(200)),
        "g": text,
        "h": chance.choice("AB"), "i": chance.randbytes(4), "j": chance.choice((None, text)),
        "k": [chance.choice((None, chance.getrandbits(40))) for _ in range(chance.randrange(100))],
        "l": {f"{text}{number}": each for number, each in enumerate(records)}, "m": records,
    }  # fmt: skip


def test_values_of_fastavro_are_decoded_and_torn_ones_are_refused():
    """fastavro is a peer. A value of which bytes are lost or changed is decoded or refused, with no other error."""
    chance, decode = random.Random(7), AvroDecoder(values_of(EVERY))
    for _ in range(200):
        datum = drawn(chance)
        value = named(EVERY, encoded(EVERY, datum))
        assert decode(value) == {**datum, "l": list(datum["l"].items())}
        kept = chance.randrange(len(value))
        with pytest.raises(ValueMisfit):
            decode(value[:kept])
        changed = bytearray(value)
        changed[chance.randrange(10, len(value))] ^= 1 << chance.randrange(8)
        with suppress(ValueMisfit):
            decode(bytes(changed))


def test_arrow_takes_what_is_decoded():
    noon, dates = dt.datetime(2026, 11, 30, 12), {"type": "map", "values": logical("int", "date")}
    types = {
        "a": (logical("int", "date"), pa.date32(), dt.date(2026, 11, 30)),
        "b": (MILLIS, pa.timestamp("us", "UTC"), noon.replace(tzinfo=dt.UTC)),
        "c": (logical("long", "local-timestamp-micros"), pa.timestamp("us"), noon),
        "d": (LONG_DECIMAL, pa.decimal128(38, 10), Decimal("1" * 28 + ".0123456789")),
        "e": (dates, pa.map_(pa.string(), pa.date32()), {"k": dt.date(1, 1, 1)}),
    }
    schema = record(*((name, type) for name, (type, _, _) in types.items()))
    datum = {name: value for name, (_, _, value) in types.items()}
    found = decoded(schema, schema, encoded(schema, datum))
    for name, (_, type, value) in types.items():
        expected = list(value.items()) if isinstance(value, dict) else value
        assert pa.array([found[name]], type).to_pylist() == [expected]
    row = pa.array([found], pa.struct([(name, type) for name, (_, type, _) in types.items()]))
    assert row.to_pylist() == [{**datum, "e": [("k", dt.date(1, 1, 1))]}]


LONG_DECIMAL = logical("bytes", "decimal", precision=38, scale=10)
OLD = record(("a", "int"), ("b", "string"))
NEW = record(("a", "long"), {"name": "c", "type": ["null", "int"], "default": None})


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, {"a": 1, "c": None}),
        ("a INT NOT NULL, b STRING NOT NULL", {"a": 1, "b": "x"}),  # of the schema that stood before
        ("a BIGINT NOT NULL, c INT", {"a": 1, "c": None}),
        ("c INT, a BIGINT", {"a": 1, "c": None}),
        ("a BIGINT", {"a": 1}),
    ],
)
def test_the_columns_choose_the_schema_and_the_fields_of_the_reader(columns, expected):
    decode = AvroDecoder(values_of(OLD, NEW), columns and parse_ddl(columns))
    assert decode(named(OLD, b"\2\2x")) == expected


TIMES = {"type": "array", "items": {"type": "map", "values": ["null", logical("long", "timestamp-millis")]}}
RECORD_OF_TIMES = {"type": "record", "name": "T", "fields": [{"name": "t", "type": TIMES}]}


@pytest.mark.parametrize(
    ("type", "datum"),
    [
        (logical("int", "date"), 2**31 - 1), (logical("bytes", "decimal", precision=2), b"\1\0"),
        (RECORD_OF_TIMES, {"t": [{"k": 2**62}]}),
    ],
)  # fmt: skip
def test_what_no_column_wants_may_lie_outside_of_its_logical_type(type, datum):
    old, new = record(("a", "int"), ("b", type)), record(("a", "int"))
    body = encoded(old.replace("logicalType", "doc"), {"a": 1, "b": datum})
    assert decoded(old, new, body) == {"a": 1}
    assert AvroDecoder(values_of(old), parse_ddl("a INT"))(named(old, body)) == {"a": 1}
    with pytest.raises(ValueMisfit, match="field b"):
        decoded(old, old, body)


def test_an_enum_of_many_symbols_is_resolved_in_many_fields():
    """In the time of some lists of symbols: comparing each symbol with each took minutes, in the controller."""
    enum = {**ENUM, "symbols": [f"S{number}" for number in range(5000)]}
    schema = record(("a", enum), *((f"f{number}", "E") for number in range(500)))
    assert decoded(schema, schema, b"\2" * 501)["f499"] == "S1"


def test_a_record_is_resolved_once_and_read_wherever_its_name_stands():
    """In the controller: a short schema may have 10,000 types by its names, and is compared with a hundred others."""
    names = ("a", "b", "c")
    old, new = (
        record((names[0], {"type": "record", "name": "P", "fields": fields}), *((name, "P") for name in names[1:]))
        for fields in (
            [{"name": "x", "type": "int"}, {"name": "left", "type": {**POINT, "name": "Q"}}],
            [{"name": "x", "type": "long"}, {"name": "more", "type": "int", "default": 5}],
        )
    )
    action = resolve(parsed_avro(old).type, parsed_avro(new).type)
    assert len({id(each.action) for each in action.fields}) == 1
    assert first_fault(action) is None
    assert decoded(old, new, b"\2\4\6" * 3) == {name: {"x": 1, "more": 5} for name in names}
    strict = new.replace(', "default": 5', "")
    assert first_fault(resolve(parsed_avro(old).type, parsed_avro(strict).type))[0] == "a.more"


def test_a_default_of_a_record_fits_the_fields_that_are_wanted():
    more = {"type": "record", "name": "M", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}
    new = record(("a", "int"), {"name": "m", "type": more, "default": {"x": 1, "y": 2}})
    decode = AvroDecoder(values_of(OLD, new), parse_ddl("m STRUCT<y: INT>"))
    assert decode(named(OLD, b"\2\2x")) == {"m": {"y": 2}}


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("a BIGINT, z INT", "schema: value.schema has no field value.z; allowed: a, c"),
        ("a STRING", "schema: field value.a is STRING; value.schema has BIGINT"),
        ("c INT NOT NULL", "schema: field value.c is NOT NULL; by value.schema it may be null"),
    ],
)
def test_columns_that_the_schema_does_not_have_are_refused(columns, fault):
    with pytest.raises(InvalidConfigurationException) as refused:
        AvroDecoder(values_of(OLD, NEW), parse_ddl(columns))
    assert str(refused.value) == fault
