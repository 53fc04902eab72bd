"""Avro's schemas: their columns, their canonical form, their fingerprint, and what is refused."""

import json

import fastavro
import pytest

from lakelog.replication.protocol.avro_schema import fingerprint, parse_avro


def record(*fields, **more):
    """A schema of a record `Sale` with these pairs of a name and a type."""
    parts = [each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields]
    return json.dumps({"type": "record", "name": "Sale", "fields": parts, **more})


def logical(type, name, **more):
    return {"type": type, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "F", "size": 4}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("type", "column"),
    [
        ("boolean", "BOOLEAN"),
        ("int", "INT"),
        ("long", "BIGINT"),
        ("float", "FLOAT"),
        ("double", "DOUBLE"),
        ("bytes", "BINARY"),
        ("string", "STRING"),
        ({"type": "string", "avro.java.string": "String"}, "STRING"),
        (ENUM, "STRING"),
        (FIXED, "BINARY"),
        (logical("int", "date"), "DATE"),
        (logical("int", "time-millis"), "INT"),
        (logical("long", "time-micros"), "BIGINT"),
        (logical("long", "timestamp-millis"), "TIMESTAMP"),
        (logical("long", "timestamp-micros"), "TIMESTAMP"),
        (logical("long", "timestamp-nanos"), "BIGINT"),
        (logical("long", "local-timestamp-millis"), "TIMESTAMP_NTZ"),
        (logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ"),
        (logical("string", "uuid"), "STRING"),
        (logical("bytes", "decimal", precision=10, scale=2), "DECIMAL(10, 2)"),
        (logical("bytes", "decimal", precision=38), "DECIMAL(38, 0)"),
        ({**FIXED, "logicalType": "decimal", "precision": 9, "scale": 9}, "DECIMAL(9, 9)"),
        # Avro: a logical type that is not valid, or not known, counts as none.
        (logical("bytes", "decimal", precision=2, scale=3), "BINARY"),
        (logical("bytes", "decimal"), "BINARY"),
        (logical("string", "date"), "STRING"),
        (logical("long", "date"), "BIGINT"),
        (logical("int", "of-my-own"), "INT"),
        ({"type": "array", "items": "int"}, "ARRAY<INT>"),
        ({"type": "array", "items": ["null", "int"]}, "ARRAY<INT>"),
        ({"type": "map", "values": {"type": "array", "items": "long"}}, "MAP<STRING, ARRAY<BIGINT>>"),
        ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}, "STRUCT<`b`: INT NOT NULL>"),
        (["null", "int"], "INT"),
        (["int", "null"], "INT"),
        (["int"], "INT"),
    ],
)
def test_each_type_has_its_column(type, column):
    null = "" if isinstance(type, list) and "null" in type else " NOT NULL"
    assert str(parse_avro(record(("a", type))).columns) == f"STRUCT<`a`: {column}{null}>"


SCHEMAS = [
    record(("a", "int")),
    record({"name": "a", "type": {"type": "int"}, "doc": "x", "default": 1, "aliases": ["b"]}, doc="y", aliases=["O"]),
    record(("a", logical("long", "timestamp-millis")), ("b", ["null", "string"]), namespace="of.sales"),
    record(("a", ENUM), ("b", "E"), ("c", {"type": "array", "items": FIXED}), ("d", {"type": "map", "values": "F"})),
    record(("a", {**ENUM, "namespace": "other"}), ("b", "other.E"), namespace="of.sales"),
    record(("a", {**ENUM, "name": "other.E"}), ("b", {"type": "record", "name": "R", "fields": [
        {"name": "c", "type": {"type": "fixed", "name": "F", "size": 2}}, {"name": "d", "type": "F"},
    ]}), namespace="of"),
    record(("a", ENUM), ("b", "of.sales.E"), name="of.sales.Sale"),
]  # fmt: skip


def connect(type, name, **more):
    """A type as Kafka Connect's converter writes it."""
    return {"type": type, "connect.version": 1, "connect.name": f"io.debezium.{name}", **more}


VALUE = {
    "type": "record", "name": "Value", "connect.name": "db.shop.customers.Value", "fields": [
        {"name": "id", "type": "int"},
        {"name": "email", "type": ["null", "string"], "default": None},
        {"name": "since", "type": connect("long", "time.Timestamp", **{"connect.default": 0}), "default": 0},
    ],
}  # fmt: skip
SNAPSHOT = connect("string", "data.Enum", **{"connect.parameters": {"allowed": "true,last,false"}})
SOURCE = {
    "type": "record", "name": "Source", "namespace": "io.debezium.connector.mysql", "fields": [
        {"name": "snapshot", "type": [SNAPSHOT, "null"], "default": "false"}, {"name": "ts_ms", "type": "long"},
    ],
}  # fmt: skip
ENVELOPE = json.dumps({
    "type": "record", "name": "Envelope", "namespace": "db.shop.customers", "connect.version": 2, "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE}, {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
})  # fmt: skip
SCHEMAS.append(ENVELOPE)


def test_the_schema_of_an_event_of_debezium_has_columns():
    row = "STRUCT<`id`: INT NOT NULL, `email`: STRING, `since`: BIGINT NOT NULL>"
    source = "STRUCT<`snapshot`: STRING, `ts_ms`: BIGINT NOT NULL>"
    assert str(parse_avro(ENVELOPE).columns) == (
        f"STRUCT<`before`: {row}, `after`: {row}, `source`: {source} NOT NULL, `op`: STRING NOT NULL, `ts_ms`: BIGINT>"
    )


@pytest.mark.parametrize("text", SCHEMAS)
def test_the_canonical_form_and_the_fingerprint_are_those_of_avro(text):
    """fastavro is a peer."""
    found = parse_avro(text)
    form = fastavro.schema.to_parsing_canonical_form(json.loads(text))
    assert found.canonical == form
    assert found.fingerprint.hex() == fastavro.schema.fingerprint(form, "CRC-64-AVRO")


def test_the_fingerprints_of_the_specification():
    """Avro has them among its tests, as signed numbers: `share/test/data/schema-tests.txt`."""
    known = {b'"null"': 7195948357588979594, b'"boolean"': -6970731678124411036, b'"int"': 8247732601305521295}
    assert {form: int.from_bytes(fingerprint(form), "little", signed=True) for form in known} == known


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (record(("a", "int"), doc="x"), True),
        (record({"name": "a", "type": "int", "default": 5}), True),
        (record(("a", logical("int", "date"))), True),
        (record(("a", "int"), namespace="x"), False),
        (record(("b", "int")), False),
        (record(("a", ["int"])), False),
    ],
)
def test_the_fingerprint_says_how_bytes_lie(text, same):
    assert (parse_avro(text).fingerprint == parse_avro(record(("a", "int"))).fingerprint) is same


NESTED = {"type": "array", "items": "int"}
for _ in range(40):
    NESTED = {"type": "array", "items": NESTED}
CHAIN = [{"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}]
DOUBLED = [*CHAIN]
for number in range(1, 40):
    CHAIN.append({"type": "record", "name": f"R{number}", "fields": [{"name": "x", "type": f"R{number - 1}"}]})
    both = [{"name": name, "type": f"R{number - 1}"} for name in "xy"]
    DOUBLED.append({"type": "record", "name": f"R{number}", "fields": both})
NESTED_LISTS: list[object] = []
for _ in range(200):
    NESTED_LISTS = [NESTED_LISTS]
NAMES = "others than null, boolean, int, long, float, double, bytes, string"


def listed(types):
    return [(f"f{number}", each) for number, each in enumerate(types)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no JSON: Expecting value at line 1, column 1"),
        ("item STRING", "is no JSON: Expecting value at line 1, column 1"),
        ("[" * 100_000, "has too many brackets inside one another; allowed: 200"),
        (record(("a", "int"), doc=NESTED_LISTS), "has too many brackets inside one another; allowed: 200"),
        ("1" * 5000, "has a number with too many digits"),
        ("5", "at its top has the type 5; allowed there: boolean, int, long,"),
        ("{}", "at its top has the type {}; allowed there: boolean, int,"),
        ('"int"', 'at its top is int, no record; allowed there: {"type": "record", "name": "Sale", "fields": [...]}'),
        (json.dumps(ENUM), "at its top is enum E, no record;"),
        (record(), "at its top has the fields []; allowed there: "),
        (record(("a", "int"), fields=None), "at its top has the fields null;"),
        (record(("a", "int"), fields=[5]), "at its top has the field 5; allowed there: such as"),
        (record(("a b", "int")), 'at its top has the field {"name": "a b", "type": "int"}; allowed'),
        (record({"name": "a"}), 'at a has no type; allowed there: "type" with a schema'),
        (
            json.dumps({"type": "record", "fields": [{"name": "a", "type": "int"}]}),
            "at its top has a record without a name",
        ),
        (record(("a", "int"), name="a-b"), 'at its top has the name "a-b"; allowed there'),
        (record(("a", "int"), name="späti"), "at its top has the name "),
        (record(("a", "int"), name="int"), f"at its top has the name int; allowed there: {NAMES}"),
        (record(("a", "int"), namespace="1"), 'at its top has the namespace "1";'),
        (record(("a", "int"), aliases="b"), 'at its top has the aliases "b"; allowed there: a list of names'),
        (record({"name": "a", "type": "int", "aliases": ["x.y"]}), 'at a has the aliases ["x.y"];'),
        (
            record(("a", "intt")),
            'at a has the type "intt"; allowed there: boolean, int, long, float, double, bytes, string',
        ),
        (record(("a", {"type": "intt"})), 'at a has the type "intt";'),
        (record(("a", "F"), ("b", FIXED)), 'at a has the type "F"; allowed there: '),
        (record(("a", FIXED), ("b", FIXED)), "at b defines F again; allowed there: one definition of a name"),
        (
            record(("a", "int"), ("a", "int")),
            "at its top has the fields a and a; allowed there: names that differ in more",
        ),
        (
            record(("a", "int"), ("A", "int")),
            "at its top has the fields a and A; allowed there: names that differ in more",
        ),
        (record(("a", "null")), "at a has the type null alone; allowed there: null in a union with another type"),
        (record(("a", {"type": "array", "items": "null"})), "at a[] has the type null alone;"),
        (record(("a", {"type": "map", "values": {"type": "null"}})), "at a{} has the type null alone;"),
        (
            record(("a", ["null", "int", "string"])),
            "at a has a union of null, int, string; allowed there: a union of null",
        ),
        (record(("a", ["string", "int"])), "at a has a union of string, int;"),
        (record(("a", [])), "at a has a union of nothing;"),
        (record(("a", ["null"])), "at a has a union of null;"),
        (record(("a", ["null", ["int"]])), "at a has a union of null, int;"),
        (
            record(("a", ["null", "Sale"])),
            "at a has the type Sale, which contains itself; allowed there: types that end",
        ),
        (record(("a", {**FIXED, "size": 0})), "at a has the size 0; allowed there: a number of bytes from 1"),
        (record(("a", {**FIXED, "size": True})), "at a has the size true;"),
        (record(("a", {**ENUM, "symbols": []})), "at a has the symbols []; allowed there: a list of different names"),
        (record(("a", {**ENUM, "symbols": ["A", "A"]})), 'at a has the symbols ["A", "A"];'),
        (record(("a", {**ENUM, "symbols": [["A"]]})), 'at a has the symbols [["A"]];'),
        (record(("a", {**ENUM, "default": "C"})), 'at a has the default "C"; allowed there: one of its symbols'),
        (
            record(("a", logical("bytes", "decimal", precision=39))),
            "at a has a decimal of 39 digits; allowed there: up to 38",
        ),
        (record(("a", NESTED)), "lies too deep; allowed there: at most 32 types inside one another"),
        (record(*listed(CHAIN)), "lies too deep; allowed there: at most 32 types inside one another"),
        (record(*listed(DOUBLED)), "has more than 10000 types; allowed there: fewer, where a name counts as all"),
    ],
)
def test_what_is_no_schema_is_refused_in_words(text, fault):
    with pytest.raises(ValueError, match=r".") as refused:
        parse_avro(text)
    assert fault in str(refused.value)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "text",
    [
        record((LONG, "nope")), record((LONG, "int"), (LONG, "int")), record(("a", ["null", LONG]), name=LONG),
        record(("a", {**FIXED, "name": LONG}), ("b", {**FIXED, "name": LONG})),
        record(("a", [{**FIXED, "name": LONG}, "int"])),
    ],
)  # fmt: skip
def test_a_refusal_shows_the_begin_of_a_long_name(text):
    with pytest.raises(ValueError, match=r"x…") as refused:
        parse_avro(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("type", "default", "fits"),
    [
        ("int", 2**31 - 1, True), ("int", 2**31, False), ("int", 1.0, False), ("int", True, False),
        ("int", None, False),
        ("long", 2**63, False), ("double", 1, True), ("double", "1", False), ("float", 10**400, False),
        ("boolean", False, True), ("boolean", 0, False), ("string", "", True), ("string", "\ud800", False),
        ("bytes", "\xff", True), ("bytes", "\u0100", False), (FIXED, "abcd", True), (FIXED, "abc", False),
        (ENUM, "A", True), (ENUM, "C", False), (ENUM, [], False), (["null", "int"], None, True),
        (["null", "int"], 5, True), (["int", "null"], None, True), (["null", "int"], "x", False),
        ({"type": "array", "items": "int"}, [1], True), ({"type": "array", "items": "int"}, [None], False),
        ({"type": "array", "items": "int"}, {}, False), ({"type": "map", "values": "int"}, {"a": 1}, True),
        ({"type": "map", "values": "int"}, {"a": "b"}, False),
        (logical("int", "date"), -719_162, True), (logical("int", "date"), -719_163, False),
        (logical("int", "date"), 2_932_896, True), (logical("int", "date"), 2_932_897, False),
        (logical("long", "timestamp-millis"), 253_402_300_799_999, True),
        (logical("long", "timestamp-millis"), 253_402_300_800_000, False),
        (["null", logical("long", "local-timestamp-micros")], 2**62, False),
        (logical("bytes", "decimal", precision=2), "\x63", True),
        (logical("bytes", "decimal", precision=2), "\x64", False),
        (logical("bytes", "decimal", precision=2), "", False),
        ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}, {"b": 1}, True),
        ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}, {}, False),
        ({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int", "default": 1}]}, {}, True),
    ],
)  # fmt: skip
def test_a_default_fits_its_type(type, default, fits):
    text = record({"name": "a", "type": type, "default": default})
    if fits:
        assert parse_avro(text).type.fields[0].has_default
        return
    with pytest.raises(ValueError, match=r"^at a\S* (has the default|is missing in a default)"):
        parse_avro(text)
