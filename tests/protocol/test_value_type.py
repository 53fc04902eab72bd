"""Schemas of values in Spark's DDL: what is understood, and where a text is wrong."""

import pytest

from lakelog.replication.protocol.value_type import FieldsType, ScalarType, ValueField, parse_ddl

DEEP = "ARRAY<" * 31 + "INT" + ">" * 31
LONG_NAMES = "a BYTE, b SHORT, c INTEGER, d LONG, e REAL, f DEC(5), g NUMERIC, h TIMESTAMP_LTZ"


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("item STRING, price INT", "STRUCT<`item`: STRING, `price`: INT>"),
        ("item: string,price:decimal( 10 ,2 )", "STRUCT<`item`: STRING, `price`: DECIMAL(10, 2)>"),
        ("STRUCT<a: INT, b: DATE>", "STRUCT<`a`: INT, `b`: DATE>"),
        ("struct STRING", "STRUCT<`struct`: STRING>"),
        ("`a b` INT, `c``d` INT, _e1 INT", "STRUCT<`a b`: INT, `c``d`: INT, `_e1`: INT>"),
        ("a INT COMMENT 'one, (two) isn\\'t', b INT COMMENT \"NOT NULL\"", "STRUCT<`a`: INT, `b`: INT>"),
        (
            "a ARRAY<STRUCT<b: MAP<STRING, BIGINT>>>, c ARRAY<ARRAY<DOUBLE>>",
            "STRUCT<`a`: ARRAY<STRUCT<`b`: MAP<STRING, BIGINT>>>, `c`: ARRAY<ARRAY<DOUBLE>>>",
        ),
        (
            LONG_NAMES,
            "STRUCT<`a`: TINYINT, `b`: SMALLINT, `c`: INT, `d`: BIGINT, `e`: FLOAT, `f`: DECIMAL(5, 0), "
            "`g`: DECIMAL(10, 0), `h`: TIMESTAMP>",
        ),
        ("a BOOLEAN,\n  b BINARY,\n  c TIMESTAMP_NTZ", "STRUCT<`a`: BOOLEAN, `b`: BINARY, `c`: TIMESTAMP_NTZ>"),
        (f"a {DEEP}", f"STRUCT<`a`: {DEEP}>"),
    ],
)
def test_ddl_is_understood_as_by_spark(text, type):
    assert str(parse_ddl(text)) == type
    assert str(parse_ddl(type)) == type


def test_a_field_that_is_not_null_is_required():
    found = parse_ddl("a INT NOT NULL, b STRUCT<c: INT not null COMMENT 'x'> COMMENT 'y'")
    inner = FieldsType((ValueField("c", ScalarType("INT"), True),))
    assert str(found) == "STRUCT<`a`: INT NOT NULL, `b`: STRUCT<`c`: INT NOT NULL>>"
    assert found.fields == (ValueField("a", ScalarType("INT"), True), ValueField("b", inner))


TYPES = "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "ends too early; allowed there: the name of a field"),
        ("a", f"ends too early; allowed there: {TYPES}"),
        ("a INT,", "ends too early; allowed there: the name of a field"),
        ("a TEXT", f"has 'TEXT' at character 3; allowed there: {TYPES}"),
        ("a INT b INT", "has 'b' at character 7; allowed there: a comma or the end"),
        ("a INT, A INT", "has 'A' at character 8; allowed there: a name that is not there yet (a is, in any case)"),
        ("1a INT", "has '1a' at character 1; allowed there: the name of a field"),
        ("a ARRAY<INT", "ends too early; allowed there: '>'"),
        ("a ARRAY INT", "has 'INT' at character 9; allowed there: '<'"),
        ("a STRUCT<>", "has '>' at character 10; allowed there: the name of a field"),
        ("a STRUCT<b INT", "ends too early; allowed there: a comma or '>'"),
        ("a MAP<INT, INT>", "has 'INT' at character 7; allowed there: STRING: the keys of an object are texts"),
        ("a DECIMAL(39)", "has '39' at character 11; allowed there: a number from 1 to 38"),
        ("a DECIMAL(5, 6)", "has '6' at character 14; allowed there: a number from 0 to 5"),
        ("a DECIMAL(5, ٣)", "has '٣' at character 14; allowed there: a number from 0 to 5"),
        ("a INT NOT", "ends too early; allowed there: 'NULL'"),
        ("a INT COMMENT x", "has 'x' at character 15; allowed there: a comment between quotes"),
        ("STRUCT<a: INT> b", "has 'b' at character 16; allowed there: a comma or the end"),
        ("a INTERVAL DAY", "has 'INTERVAL' at character 3; allowed there: BOOLEAN"),
        (f"a ARRAY<{DEEP}>", "allowed there: at most 32 types inside one another"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_with_place_and_what_is_allowed(text, fault):
    with pytest.raises(ValueError, match=r"^(has|ends)") as refused:
        parse_ddl(text)
    assert fault in str(refused.value)
