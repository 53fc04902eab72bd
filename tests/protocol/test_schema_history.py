"""The Avro schemas that a topic has had: which change of them is allowed, what is kept, and what is refused."""

import json

import pytest

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.schema_history import AvroValues, parse_history, parsed_avro, shown_history
from lakelog.replication.protocol.value_schema import avro_of, check_schema_change, shown, with_history
from tests.protocol.test_avro_schema import ENUM, FIXED, logical, record


def configs(schema=None, **more):
    found = {f"value.schema.{name}": str(value) for name, value in {"type": "AVRO", **more}.items()}
    return found if schema is None else {**found, "value.schema": schema}


def allowing(old, new):
    """The compatibilities that allow a change."""
    found = []
    for level in ("BACKWARD", "FORWARD", "FULL", "NONE"):
        try:
            check_schema_change("sales", configs(old), configs(new, compatibility=level))
            found.append(level[0] + level[1] * (level == "FULL"))
        except InvalidConfigurationException:
            pass
    return " ".join(found)


ALL, BACK, FORTH, NEVER = "B F FU N", "B N", "F N", "N"
MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
DECIMAL = logical("bytes", "decimal", precision=4, scale=2)
NESTED = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}


@pytest.mark.parametrize(
    ("old", "new", "levels"),
    [
        ("int", "int", ALL),
        ("int", "long", BACK),
        ("long", "int", FORTH),
        ("long", "float", BACK),
        ("float", "double", BACK),
        ("double", "float", FORTH),
        ("boolean", "int", NEVER),
        ("string", "bytes", ALL),
        ("string", "int", NEVER),
        ("int", ["null", "int"], BACK),
        (["null", "int"], "int", FORTH),
        (["null", "int"], ["long", "null"], BACK),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, BACK),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, BACK),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, NEVER),
        (ENUM, {**ENUM, "symbols": ["A", "B", "C"]}, BACK),
        (ENUM, {**ENUM, "symbols": ["A"]}, FORTH),
        (ENUM, {**ENUM, "symbols": ["A"], "default": "A"}, ALL),
        (ENUM, {**ENUM, "name": "Other"}, NEVER),
        (ENUM, {**ENUM, "name": "Other", "aliases": ["E"]}, BACK),
        (FIXED, {**FIXED, "size": 5}, NEVER),
        (NESTED, {**NESTED, "name": "other.R"}, ALL),
        (NESTED, {**NESTED, "fields": [{"name": "b", "type": "long"}]}, BACK),
        ("long", MILLIS, ALL),
        (MILLIS, MICROS, NEVER),
        (logical("int", "date"), "long", BACK),
        (DECIMAL, {**DECIMAL, "precision": 5}, BACK),
        (DECIMAL, {**DECIMAL, "precision": 5, "scale": 3}, NEVER),
        ({"type": "array", "items": NESTED}, {"type": "array", "items": {**NESTED, "name": "S"}}, NEVER),
    ],
)
def test_a_change_of_a_type_is_allowed_by_avros_rules(old, new, levels):
    assert allowing(record(("a", old)), record(("a", new))) == levels


OPTIONAL = {"name": "b", "type": ["null", "int"], "default": None}


@pytest.mark.parametrize(
    ("old", "new", "levels"),
    [
        ([("a", "int")], [("a", "int"), OPTIONAL], ALL),
        ([("a", "int")], [("a", "int"), ("b", "int")], FORTH),
        ([("a", "int")], [("a", "int"), ("b", ["null", "int"])], FORTH),  # only a default makes a field optional
        ([("a", "int"), ("b", "int")], [("a", "int")], BACK),
        ([("a", "int"), ("b", "int")], [("b", "int"), ("a", "int")], ALL),
        ([("a", "int")], [{"name": "b", "type": "int", "aliases": ["a"]}], BACK),
        ([("a", "int")], [("b", "int")], NEVER),
    ],
)
def test_a_change_of_fields_is_allowed_by_avros_rules(old, new, levels):
    assert allowing(record(*old), record(*new)) == levels


JSON = json.dumps({"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (
            configs(record(("a", "int"))), configs(record(("a", "string"))),
            "field a is int in the old schema and string in the new one; allowed: the same type, or a wider one as in",
        ),
        (
            configs(record(("a", NESTED))), configs(record(("a", NESTED), ("b", "R")), compatibility="BACKWARD"),
            "field b is missing in the old schema and without a default in the new one; allowed: a field with a def",
        ),
        (
            configs(record(("a", "int"))), configs(record(("a", "long")), compatibility="FULL"),
            "is not FULL compatible with the one that stands: field a is long in the new schema and int in the old",
        ),
        (
            configs(record(("a", "int"))), configs(record(("a", "int")).replace("Sale", "Other")),
            "the value is record Sale in the old schema and record Other in the new one;",
        ),
        (
            configs(JSON, type="JSON"), configs(record(("a", "string"))),
            "value.schema.type is JSON there and AVRO here, whose values differ; allowed: to keep it; value.schema.c",
        ),
        (configs(record(("a", "string"))), configs("a STRING", type="DDL"), "type is AVRO there and DDL here, whose"),
        ({}, configs(record(("a", "int"), doc="x" * 1_000_000)), "characters; allowed: up to 65536"),
        ({}, configs("a INT"), "topic sales: value.schema is no JSON: Expecting value at line 1, column 1"),
    ],
)  # fmt: skip
def test_a_refused_change_names_the_field_and_what_is_allowed(before, after, fault):
    with pytest.raises(InvalidConfigurationException) as refused:
        check_schema_change("sales", before, after)
    assert fault in str(refused.value)


ADDED = {"name": "b", "type": "int", "default": 0}


@pytest.mark.parametrize(
    ("earlier", "new", "level", "fault"),
    [
        # The schema that stands has no field b, and the one before it has a text there.
        ([("a", "int"), ("b", "string")], [("a", "int"), ADDED], "BACKWARD", None),
        (
            [("a", "int"), ("b", "string")], [("a", "int"), ADDED], "BACKWARD_TRANSITIVE",
            ": field b is string in the old schema and int in the new one; ",
        ),
        (
            [("a", "int"), ("b", "string")], [("a", "int"), ADDED], "FULL_TRANSITIVE",
            ": field b is string in the old schema and int in the new one; ",
        ),
        ([("a", "int"), ("b", "string")], [("a", "int"), ("c", "int")], "FORWARD", None),
        (
            [("a", "int"), ("b", "string")], [("a", "int"), ("c", "int")], "FORWARD_TRANSITIVE",
            ": field b is missing in the new schema and without a default in the old one; ",
        ),
        ([("a", "int"), ADDED], [("a", "int"), ADDED], "FULL_TRANSITIVE", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stands", [True, False])
def test_a_transitive_compatibility_compares_every_earlier_schema(earlier, new, level, fault, stands):
    before = Settings().alter(value_schema=record(*earlier), value_schema_type="AVRO")
    name = parsed_avro(record(*earlier)).fingerprint.hex()
    before.alter(**avro("a"))
    if not stands:
        before.alter(delete=["value.schema"])
    after = {**before.now, "value.schema": record(*new), "value.schema.compatibility": level}
    if fault is None:
        check_schema_change("sales", before.now, after)
        return
    with pytest.raises(InvalidConfigurationException) as refused:
        check_schema_change("sales", before.now, after)
    assert f"is not {level} compatible with the one with the fingerprint {name}{fault}" in str(refused.value)


def test_a_transitive_compatibility_needs_a_history():
    text = "^topic sales: value.schema.compatibility is FULL_TRANSITIVE, it needs value.schema.type=AVRO, of which all"
    with pytest.raises(InvalidConfigurationException, match=text):
        check_schema_change("sales", {}, {"value.schema": "a INT", "value.schema.compatibility": "FULL_TRANSITIVE"})


def test_compatibility_none_allows_any_change():
    check_schema_change("sales", configs(JSON, type="JSON"), configs(record(("a", "int")), compatibility="NONE"))


class Settings:
    """The settings of a topic, which are put and deleted as the controller does it."""

    def __init__(self):
        self.now = {}

    def alter(self, delete=(), **put):
        texts = {key.replace("_", "."): str(value) for key, value in put.items()}
        kept = {key: value for key, value in self.now.items() if key not in delete}
        self.now = with_history("sales", self.now, {**kept, **texts}, texts)
        return self

    @property
    def known(self):
        return [
            (each.schema.columns.fields[-1].name, *each.ids)
            for each in parse_history(self.now.get("value.schema.history", ""))
        ]


def avro(*names, **more):
    return {"value_schema": record(*((name, "int") for name in names), **more), "value_schema_type": "AVRO"}


HISTORY, ID, TYPE = "value.schema.history", "value.schema.id", "value.schema.type"


def test_each_schema_is_kept_with_its_ids_and_the_topics_own_is_the_last():
    topic = Settings().alter(**avro("a"), value_schema_id=7)
    assert (topic.known, topic.now[ID]) == ([("a", 7)], "7")
    topic.alter(**avro("a", "b"))
    assert (topic.known, ID in topic.now) == ([("a", 7), ("b",)], False)
    topic.alter(value_schema_id=9)
    assert topic.known == [("a", 7), ("b", 9)]
    topic.alter(value_schema_id=10, retention_ms=5)
    assert topic.known == [("a", 7), ("b", 9, 10)]
    topic.alter(**avro("a"))
    assert topic.known == [("b", 9, 10), ("a", 7)]
    topic.alter(retention_ms=6)
    assert topic.known == [("b", 9, 10), ("a", 7)]


def test_an_id_is_that_of_the_schema_that_is_set_with_it():
    assert Settings().alter(**avro("a")).alter(**avro("b"), value_schema_id=7).known == [("a",), ("b", 7)]


def test_the_history_outlives_the_schema_until_it_is_deleted():
    topic = Settings().alter(**avro("a"), value_schema_id=0).alter(**avro("a", "b"))
    topic.alter(delete=["value.schema"])
    assert topic.known == [("a", 0), ("b",)]
    topic.alter(value_schema="c INT", value_schema_type="DDL")
    assert topic.known == [("a", 0), ("b",)]
    topic.alter(**avro("c"))
    assert topic.known == [("a", 0), ("b",), ("c",)]
    topic.alter(delete=[HISTORY])
    assert topic.known == [("c",)]
    topic.alter(delete=[HISTORY, "value.schema"])
    assert HISTORY not in topic.now


def test_comments_and_defaults_change_without_a_new_entry():
    topic = Settings().alter(**avro("a"), value_schema_id=1).alter(**avro("a", doc="x"))
    assert topic.known == [("a", 1)]
    (known,) = parse_history(topic.now[HISTORY])
    assert '"doc":"x"' in known.schema.text


def test_a_history_can_be_given_as_that_of_another_topic():
    first = Settings().alter(**avro("a"), value_schema_id=7).alter(**avro("a", "b"))
    second = Settings().alter(**{key.replace(".", "_"): value for key, value in first.now.items()})
    assert second.now == first.now
    text = json.dumps([{"schema": json.loads(avro("a")["value_schema"]), "ids": [7]}])
    assert Settings().alter(value_schema_history=text, **avro("a", "b")).now[HISTORY] == first.now[HISTORY]


def test_an_id_that_a_history_has_twice_is_kept_once():
    text = json.dumps([{"schema": json.loads(avro("a")["value_schema"]), "ids": [7, 7]}])
    assert Settings().alter(value_schema_history=text).known == [("a", 7)]


def test_a_schema_with_as_many_brackets_as_are_allowed_has_a_history():
    lists: list[object] = []
    for _ in range(198):  # and one around them, and that of the record
        lists = [lists]
    assert Settings().alter(**avro("a", doc=lists)).known == [("a",)]


def test_a_history_is_shown_by_the_names_of_its_schemas():
    topic = Settings().alter(**avro("a"), value_schema_id=7).alter(**avro("b"))
    first, second = (parsed_avro(avro(name)["value_schema"]).fingerprint.hex() for name in "ab")
    assert shown(HISTORY, topic.now[HISTORY]) == f"2 schemas: {first} id 7; {second}"
    assert shown("retention.ms", "5") == "5"
    assert shown_history("x").startswith("a history that is no JSON")


@pytest.mark.parametrize(
    ("before", "put", "fault"),
    [
        (
            {**avro("a"), "value_schema_id": 7}, {**avro("b"), "value_schema_id": 7},
            "value.schema has the id 7 of the schema with the fingerprint ",
        ),
        (
            {**avro("a"), "value_schema": record(("a", MILLIS))}, {"value_schema": record(("a", MICROS))},
            "value.schema differs from an earlier schema in logical types alone, and values name both alike, by the",
        ),
        (
            {**avro("a"), "value_schema": record(("a", "long"))}, {"value_schema": record(("a", MICROS))},
            "value.schema differs from an earlier schema in logical types alone",
        ),
        ({}, {"value_schema_id": 7}, "value.schema.id is 7, it needs a value.schema of value.schema.type=AVRO"),
        (
            {}, {"value_schema": "a INT", "value_schema_id": 7},
            "value.schema.id is 7, it needs a value.schema of value.schema.type=AVRO",
        ),
        ({}, {"value_schema_history": "x"}, "value.schema.history is no JSON: Expecting value at line 1, column 1"),
        ({}, {"value_schema_history": "{}"}, "value.schema.history is no list; allowed: "),
        ({}, {"value_schema_history": "[5]"}, "value.schema.history at [0] is no schema with its ids; allowed: "),
        ({}, {"value_schema_history": '[{"schema": {}}]'}, 'value.schema.history at [0] at its top has the type {}; '),
        (
            {}, {"value_schema_history": f'[{{"schema": {avro("a")["value_schema"]}, "ids": ["7"]}}]'},
            'value.schema.history at [0] has the ids ["7"]; allowed: numbers from 0 to 2147483647',
        ),
        (
            {}, {"value_schema_history": f'[{{"schema": {avro("a")["value_schema"]}, "fingerprint": "00"}}]'},
            'value.schema.history at [0] has the fingerprint "00"; that of its schema is ',
        ),
    ],
)  # fmt: skip
def test_a_history_or_a_name_that_could_mean_another_schema_is_refused(before, put, fault):
    topic = Settings().alter(**before)
    with pytest.raises(InvalidConfigurationException) as refused:
        topic.alter(**put)
    assert str(refused.value).startswith(f"topic sales: {fault}")


def test_a_renamed_record_or_a_deleted_history_ends_the_refusal_of_a_fingerprint():
    topic = Settings().alter(value_schema=record(("a", MILLIS)), value_schema_type="AVRO")
    other = record(("a", MICROS))
    assert topic.alter(value_schema=other.replace("Sale", "Sale2")).known == [("a",), ("a",)]
    assert topic.alter(value_schema=other, delete=[HISTORY]).known == [("a",)]


def test_the_history_has_a_limit():
    topic = Settings()
    for number in range(100):
        topic.alter(**avro(f"f{number}"))
    text = "^topic sales: value.schema would be schema 101 of the topic; allowed: 100; delete value.schema.history once"
    with pytest.raises(InvalidConfigurationException, match=text):
        topic.alter(**avro("f100"))
    assert topic.alter(**avro("f0")).known[-1] == ("f0",)
    assert topic.alter(**avro("f100"), delete=[HISTORY]).known == [("f100",)]


def test_the_history_has_a_limit_of_characters():
    topic = Settings()
    for number in range(5):
        topic.alter(**avro(f"f{number}", doc="x" * 50_000))
    with pytest.raises(InvalidConfigurationException, match=r"make a history of 30.... characters; allowed: 262144;"):
        topic.alter(**avro("f5", doc="x" * 50_000))


def test_values_are_decoded_by_what_the_settings_have():
    """A row that another process has written may have a schema without a history."""
    plain = {"value.schema": avro("a")["value_schema"], TYPE: "AVRO"}
    assert avro_of("sales", plain) == AvroValues(Settings().alter(**avro("a")).now[HISTORY])
    assert avro_of("sales", {}) is avro_of("sales", {"value.schema": "a INT"}) is None
    with pytest.raises(InvalidConfigurationException, match=r"^topic sales: value.schema.history is no JSON"):
        avro_of("sales", {**plain, HISTORY: "x"})


def test_values_are_decoded_by_the_history_after_the_schema_is_removed():
    topic = Settings().alter(**avro("a")).alter(**avro("a", "b"))
    before = avro_of("sales", topic.now)
    topic.alter(delete=["value.schema"])
    assert avro_of("sales", topic.now) == before
    topic.alter(value_schema_type="DDL")
    assert avro_of("sales", topic.now) is None


def test_other_settings_change_beside_an_id_that_this_version_does_not_know():
    for number in ("7", "of another kind"):
        theirs = {ID: number, TYPE: "PROTOBUF", "value.schema": "x"}
        after = {**theirs, "retention.ms": "5"}
        assert with_history("sales", theirs, after, ["retention.ms"]) == after
