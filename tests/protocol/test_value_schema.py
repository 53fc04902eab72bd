"""Which changes of a topic's schema its compatibility allows."""

import json

import pytest

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.value_schema import check_schema_change, one_schema, schema_of
from lakelog.replication.protocol.value_type import parse_ddl


def configs(schema=None, **more):
    found = {f"value.schema.{name}": value for name, value in more.items()}
    return {**({} if schema is None else {"value.schema": schema}), **found}


def allowing(old, new, **more):
    """The compatibilities that allow a change."""
    found = []
    for level in ("BACKWARD", "FORWARD", "FULL", "NONE"):
        try:
            check_schema_change("sales", configs(old, **more), configs(new, compatibility=level, **more))
            found.append(level[0] + level[1] * (level == "FULL"))
        except InvalidConfigurationException:
            pass
    return " ".join(found)


ALL, BACK, FORTH, NEVER = "B F FU N", "B N", "F N", "N"


@pytest.mark.parametrize(
    ("old", "new", "levels"),
    [
        ("a INT", "a INT", ALL),
        ("a INT", "a INT COMMENT 'x'", ALL),
        ("a INT, b INT", "b INT, a INT", ALL),
        ("a INT", "a INT, b INT", ALL),
        ("a INT, b INT", "a INT", ALL),
        ("a INT", "a INT, b INT NOT NULL", FORTH),
        ("a INT, b INT NOT NULL", "a INT", BACK),
        ("a INT", "a INT NOT NULL", FORTH),
        ("a INT NOT NULL", "a INT", BACK),
        ("a INT", "a BIGINT", BACK),
        ("a BIGINT", "a INT", FORTH),
        ("a TINYINT", "a DOUBLE", BACK),
        ("a BIGINT", "a DOUBLE", NEVER),
        ("a FLOAT", "a DOUBLE", BACK),
        ("a INT", "a FLOAT", NEVER),
        ("a INT", "a DECIMAL(10, 0)", BACK),
        ("a INT", "a DECIMAL(10, 2)", NEVER),
        ("a BIGINT", "a DECIMAL(22, 2)", BACK),
        ("a DECIMAL(10, 2)", "a DECIMAL(12, 4)", BACK),
        ("a DECIMAL(10, 2)", "a DECIMAL(12, 5)", NEVER),
        ("a DECIMAL(10, 2)", "a DOUBLE", NEVER),
        ("a STRING", "a INT", NEVER),
        ("a INT", "a STRING", NEVER),
        ("a DATE", "a TIMESTAMP_NTZ", NEVER),
        ("a INT", "a ARRAY<INT>", NEVER),
        ("a ARRAY<INT>", "a ARRAY<BIGINT>", BACK),
        ("a MAP<STRING, INT>", "a MAP<STRING, BIGINT>", BACK),
        ("a MAP<STRING, INT>", "a STRUCT<b: INT>", NEVER),
        ("a STRUCT<b: INT>", "a STRUCT<b: INT, c: INT NOT NULL>", FORTH),
        ("a INT", "A INT", ALL),
        (None, "a INT NOT NULL", ALL),
        ("a INT", None, ALL),
    ],
)
def test_a_change_of_a_schema_is_allowed_by_its_compatibility(old, new, levels):
    assert allowing(old, new) == levels


def text(is_closed, *names):
    properties = {name: {"type": "string"} for name in names}
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": not is_closed})


@pytest.mark.parametrize(
    ("old", "new", "levels"),
    [
        (text(False, "a"), text(False, "a", "b"), ALL),
        (text(True, "a"), text(True, "a", "b"), BACK),
        (text(True, "a", "b"), text(True, "a"), FORTH),
        (text(False, "a"), text(True, "a"), FORTH),
        (text(True, "a"), text(False, "a"), BACK),
    ],
)
def test_a_schema_without_other_fields_reads_no_value_that_has_some(old, new, levels):
    assert allowing(old, new, type="JSON") == levels


def test_a_schema_can_be_written_anew_in_another_language():
    check_schema_change("sales", configs("a STRING"), configs(text(False, "a"), type="JSON"))
    with pytest.raises(InvalidConfigurationException, match="field a is INT there and STRING here"):
        check_schema_change("sales", configs("a INT"), configs(text(False, "a"), type="JSON"))


WIDER = "the same type, or a wider one as in Delta (INT to BIGINT, FLOAT to DOUBLE, DECIMAL to more digits)"
OUT = "; value.schema.compatibility=NONE allows any change"


@pytest.mark.parametrize(
    ("old", "new", "level", "fault"),
    [
        ("a INT", "a STRING", None, f"BACKWARD {{}}: field a is INT there and STRING here; allowed: {WIDER}"),
        ("a BIGINT, b INT", "a BIGINT", "FORWARD", None),
        (
            "a INT", "a BIGINT", "FULL",
            f"FULL {{}}: field a is INT there and BIGINT here; allowed: {WIDER}, from the new to the old",
        ),
        (
            "a ARRAY<STRUCT<b: MAP<STRING, STRUCT<c: INT>>>>", "a ARRAY<STRUCT<b: MAP<STRING, STRUCT<c: DATE>>>>",
            "BACKWARD", f"BACKWARD {{}}: field a[].b{{{{}}}}.c is INT there and DATE here; allowed: {WIDER}",
        ),
        (
            "a INT", "a INT, b INT NOT NULL", "BACKWARD",
            "BACKWARD {}: field b is new and is NOT NULL here; allowed: a field that may be null",
        ),
        (
            "a INT", "a INT NOT NULL", "BACKWARD",
            "BACKWARD {}: field a may be null there and is NOT NULL here; allowed: a field that may be null",
        ),
        (
            "a INT NOT NULL", "b INT", "FORWARD",
            "FORWARD {}: field a is NOT NULL there and is missing here; allowed: to keep it NOT NULL",
        ),
        (
            "a INT NOT NULL", "a INT", "FORWARD",
            "FORWARD {}: field a is NOT NULL there and may be null here; allowed: to keep it NOT NULL",
        ),
    ],
)  # fmt: skip
def test_a_refused_change_names_the_field_and_what_is_allowed(old, new, level, fault):
    after = configs(new) if level is None else configs(new, compatibility=level)
    if fault is None:
        check_schema_change("sales", configs(old), after)
        return
    with pytest.raises(InvalidConfigurationException) as refused:
        check_schema_change("sales", configs(old), after)
    words = "compatible with the one that stands"
    assert str(refused.value) == f"topic sales: value.schema is not {fault.format(words)}{OUT}"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (
            configs(text(True, "a", "b"), type="JSON"), configs(text(True, "a"), type="JSON"),
            "the new schema takes no field b; allowed: to keep it, or additionalProperties true in both;",
        ),
        (
            configs(text(False, "a"), type="JSON"), configs(text(True, "a"), type="JSON"),
            "the value takes other fields only in the old schema; allowed: both or none;",
        ),
        ({}, configs("{", type="JSON"), "topic sales: value.schema is no JSON: Expecting property name"),
        ({}, configs("a INTT"), "topic sales: value.schema has 'INTT' at character 3; allowed there: BOOLEAN,"),
        ({}, configs(validation="true"), "topic sales: value.schema.validation is true, it needs a value.schema"),
        (
            configs("a INT", validation="true"), configs(validation="true"),
            "topic sales: value.schema.validation is true, it needs a value.schema",
        ),
        ({}, configs(f"a INT COMMENT '{'x' * 65536}'"), "has 65552 characters; allowed: up to 65536"),
        (configs("x", type="PROTOBUF"), configs("a INT"), "type is 'PROTOBUF'; this version knows DDL, JSON"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(before, after, fault):
    with pytest.raises(InvalidConfigurationException) as refused:
        check_schema_change("sales", before, after)
    assert fault in str(refused.value)


def test_other_settings_change_beside_a_schema_that_this_version_does_not_know():
    theirs = configs("x", type="PROTOBUF")
    check_schema_change("sales", theirs, {**theirs, "retention.ms": "5"})
    check_schema_change("sales", theirs, {})


def test_a_schema_is_that_of_the_settings():
    assert schema_of("sales", {}) is schema_of("sales", {"value.schema": ""}) is None
    assert schema_of("sales", configs("a INT")) == parse_ddl("a INT")


def test_several_topics_are_read_by_one_schema():
    schema, other = parse_ddl("a INT"), parse_ddl("b INT")
    assert one_schema({"sales": schema, "old": parse_ddl("a int")}) == schema
    for given, fault in (
        ({}, "there is no topic"),
        ({"sales": schema, "old": None}, r"^topic old has no value.schema; to set it: configs --alter .*-name old "),
        ({"sales": schema, "old": other}, "^topics sales and old have different schemas of values"),
    ):
        with pytest.raises(InvalidConfigurationException, match=fault):
            one_schema(given)
