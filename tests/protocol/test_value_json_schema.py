"""Schemas of values in JSON Schema: what is understood, and where a text is wrong."""

import json

import pytest

from lakelog.replication.protocol.value_json_schema import parse_json_schema


def field(schema):
    """The type of a field with this schema."""
    (found,) = parse_json_schema(json.dumps({"type": "object", "properties": {"a": schema}})).fields
    return str(found.type)


@pytest.mark.parametrize(
    ("schema", "type"),
    [
        ({"type": "string"}, "STRING"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "uuid"}, "STRING"),
        ({"type": "string", "contentEncoding": "base64"}, "BINARY"),
        ({"type": "integer"}, "BIGINT"),
        ({"type": "integer", "connect.type": "int8"}, "TINYINT"),
        ({"type": "integer", "connect.type": "int32", "title": "Gate", "connect.index": 1}, "INT"),
        ({"type": "integer", "format": "int64"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "number", "connect.type": "float32"}, "FLOAT"),
        ({"type": "number", "format": "double"}, "DOUBLE"),
        ({"type": ["null", "boolean"]}, "BOOLEAN"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}], "description": "x"}, "STRING"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "BIGINT"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "ARRAY<BIGINT>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
        (
            {"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": ["string", "null"]}},
             "required": ["b", "c"], "additionalProperties": False},
            "STRUCT<`b`: STRING NOT NULL, `c`: STRING>",
        ),
    ],
)  # fmt: skip
def test_json_schema_names_the_fields(schema, type):
    assert field(schema) == type


@pytest.mark.parametrize(("more", "is_closed"), [({}, False), ({"additionalProperties": False}, True)])
def test_a_schema_says_whether_there_are_other_fields(more, is_closed):
    text = json.dumps({"$schema": "x", "type": "object", "properties": {"a": {"type": "string"}}, **more})
    assert parse_json_schema(text).is_closed is is_closed


TYPES = "one of string, integer, number, boolean, array, object, or one of them and null"
OBJECT = '{"type": "object", "properties": '


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is no JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ("[" * 100_000, "has too many brackets inside one another; allowed: 200"),
        ("[]", 'at its top is no object; allowed there: a schema such as {"type": "string"}'),
        ('{"type": "string"}', 'at its top is no object with properties; allowed there: {"type": "object", "prop'),
        ('{"type": "object"}', "at its top has no properties; allowed there: properties, or additionalProperties with"),
        ('{"type": "object", "properties": {}}', "at its top has no properties"),
        (OBJECT + '{"a": {}}}', f"at a has the type null; allowed there: {TYPES}"),
        (OBJECT + '{"a": true}}', "at a is no object; allowed there: a schema such as"),
        (OBJECT + '{"a": {"type": "text"}}}', f'at a has the type "text"; allowed there: {TYPES}'),
        (OBJECT + '{"a": {"type": ["string", "integer"]}}}', 'at a has the type ["string", "integer"]'),
        (
            OBJECT + '{"a": {"type": "string", "pattern": "x"}}}',
            'at a has the word "pattern"; allowed there: contentEncoding, format, type, and comments such as',
        ),
        (OBJECT + '{"a": {"type": [{}]}}}', f"at a has the type [{{}}]; allowed there: {TYPES}"),
        (OBJECT + '{"a": {"type": [["string"], "null"]}}}', 'at a has the type [["string"], "null"]; allowed'),
        ('{"default": ' + "1" * 5000 + "}", "has a number with too many digits; allowed: up to 4300"),
        (
            OBJECT + '{"\\ud800": {"type": "string"}}}',
            "at \\ud800 has half of a surrogate pair; allowed there: text that",
        ),
        (OBJECT + '{"a": {"$ref": "#/x", "type": "string"}}}', 'at a has the word "$ref"'),
        (OBJECT + '{"a": {"type": "array", "items": [{}]}}}', "at a[] is no object"),
        (
            OBJECT + '{"a": {"type": "integer", "format": "int16k"}}}',
            'has format "int16k"; allowed there: int8, int16,',
        ),
        (
            OBJECT + '{"a": {"type": "number", "format": ["x"]}}}',
            'at a has format ["x"]; allowed there: float',
        ),
        (OBJECT + '{"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}', "has oneOf of other types; allowed"),
        (
            OBJECT + '{"a": {"oneOf": "x"}}}',
            'has oneOf of other types; allowed there: oneOf of {"type": "null"} and one',
        ),
        (
            OBJECT + '{"a": {"type": "string"}}, "required": ["b"]}',
            'has required ["b"]; allowed there: a list of names',
        ),
        (OBJECT + '{"a": {"type": "string"}}, "additionalProperties": {}}', "additionalProperties true or false"),
        (
            OBJECT + '{"a": {"type": "object", "properties": {"b": {"type": "string"}, "B": {"type": "string"}}}}}',
            "at a has the properties b and B; allowed there: names that differ in more than capitals",
        ),
        (
            OBJECT + '{"a": ' + '{"type": "array", "items": ' * 40 + '{"type": "string"}' + "}" * 42,
            "lies too deep; allowed there: at most 32 types inside one another",
        ),
    ],
)
def test_a_text_that_is_not_understood_is_refused_with_place_and_what_is_allowed(text, fault):
    with pytest.raises(ValueError, match=r"^(has|is|at) ") as refused:
        parse_json_schema(text)
    assert fault in str(refused.value)
