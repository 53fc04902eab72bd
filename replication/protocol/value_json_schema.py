"""The types of the values of a topic, written in JSON Schema.

It understands the part of JSON Schema that defines fields, and `connect.type`, by which Confluent's converter names
Kafka Connect's types. It refuses words that would check more, such as `pattern`: users would rely on a check that
nobody does. Confluent: `JsonSchemaData`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from lakelog.replication.errors import one_line
from lakelog.replication.protocol.value_type import FieldsType, FieldType, KeyedType, ListType, ScalarType, ValueField

_COMMENTS = frozenset(
    """
    $comment $id $schema connect.default connect.doc connect.index connect.name connect.version default deprecated
    description examples readOnly title writeOnly
    """.split()
)
_WORDS = {
    "string": ("format", "contentEncoding"),
    "integer": ("connect.type", "format"),
    "number": ("connect.type", "format"),
    "boolean": (),
    "array": ("items",),
    "object": ("properties", "required", "additionalProperties"),
}
_NULL = "null"
_FORMATS = {"date": "DATE", "date-time": "TIMESTAMP"}  # others of text say nothing about its type
_INTEGERS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT"}
_FLOATS = {"float32": "FLOAT", "float64": "DOUBLE", "float": "FLOAT", "double": "DOUBLE"}
_DEEPEST = 32
_MOST_BRACKETS = 200  # types inside one another, with all that is around each
_LONGEST_PLACE = 200  # characters of it that are shown
_MOST_DIGITS = 4300  # Python reads no longer whole number, because that takes quadratic time


class _Found(NamedTuple):
    type: FieldType
    may_be_null: bool


def parse_json_schema(text: str) -> FieldsType:
    """The fields of a JSON Schema of an object. Raises ValueError, whose text continues a sentence after the name of
    the setting."""
    found = _type_of(load_json(text), "", 0)
    if not isinstance(found.type, FieldsType):
        refuse_at("", "is no object with properties", '{"type": "object", "properties": {"item": {"type": "string"}}}')
    return found.type


def load_json(text: str, around: int = 0) -> Any:
    """Parses JSON. `around`: how many brackets may be around a schema. Raises ValueError, as `parse_json_schema`.

    It limits the depth of brackets itself. Python's own limit depends on its caller, but all processes must be able to
    read a schema that one client accepts.
    """
    most = _MOST_BRACKETS + around
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        found, height = None, most + 1
    except ValueError:
        raise ValueError(f"has a number with too many digits; allowed: up to {_MOST_DIGITS}") from None
    else:
        height = _height(found, most)
    if height > most:
        raise ValueError(f"has too many brackets inside one another; allowed: {most}")
    return found


def _height(given: Any, most: int) -> int:
    """How deep brackets are nested. It stops counting at `most` + 1."""
    height, level = 0, [given]
    while height <= most and (level := [each for each in level if isinstance(each, dict | list)]):
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
        height += 1
    return height


def refuse_at(place: str, has: str, allowed: str) -> NoReturn:
    """Raises ValueError for a place in a schema, with a text as that of `parse_json_schema`."""
    where = place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…"
    raise ValueError(f"{f'at {where}' if place else 'at its top'} {has}; allowed there: {allowed}")


def _type_of(given: Any, place: str, depth: int) -> _Found:
    if not isinstance(given, Mapping):
        refuse_at(place, "is no object", 'a schema such as {"type": "string"}')
    if depth > _DEEPEST:
        refuse_at(place, "lies too deep", f"at most {_DEEPEST} types inside one another")
    for word in ("oneOf", "anyOf"):
        if word in given:
            return _with_null(given, word, place, depth)
    names = given.get("type")
    types = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    others = [name for name in types if name != _NULL]
    if len(others) != 1 or not isinstance(others[0], str) or others[0] not in _WORDS:
        refuse_at(
            place, f"has the type {json.dumps(names)[:60]}", f"one of {', '.join(_WORDS)}, or one of them and null"
        )
    (name,) = others
    _check_words(given, place, ("type", *_WORDS[name]))
    return _Found(_typed(name, given, place, depth), len(types) > 1)


def _with_null(given: Mapping[str, Any], word: str, place: str, depth: int) -> _Found:
    """A type that may be null, as Confluent's converter writes it."""
    _check_words(given, place, (word,))
    choices = given[word] if isinstance(given[word], list) else []
    others = [each for each in choices if each != {"type": _NULL}]
    if len(choices) != 2 or len(others) != 1:
        refuse_at(place, f"has {word} of other types", f'{word} of {{"type": "null"}} and one schema')
    return _Found(_type_of(others[0], place, depth + 1).type, True)


def _check_words(given: Mapping[str, Any], place: str, known: tuple[str, ...]) -> None:
    for word in given:
        if word not in known and word not in _COMMENTS:
            words = ", ".join(sorted({*known, "type"}))
            refuse_at(place, f"has the word {json.dumps(word[:40])}", f"{words}, and comments such as description")


def _typed(name: str, given: Mapping[str, Any], place: str, depth: int) -> FieldType:
    if name == "object":
        return _object_type(given, place, depth)
    if name == "array":
        return ListType(_type_of(given.get("items"), f"{place}[]", depth + 1).type)
    if name == "boolean":
        return ScalarType("BOOLEAN")
    if name == "string":
        return _text_type(given, place)
    sizes, usual = (_INTEGERS, "BIGINT") if name == "integer" else (_FLOATS, "DOUBLE")
    for word in ("connect.type", "format"):
        if word in given:
            return ScalarType(_one_of(given, word, sizes, place))
    return ScalarType(usual)


def _text_type(given: Mapping[str, Any], place: str) -> ScalarType:
    if "contentEncoding" in given:
        return ScalarType(_one_of(given, "contentEncoding", {"base64": "BINARY"}, place))
    found = given.get("format")
    return ScalarType(_FORMATS.get(found, "STRING") if isinstance(found, str) else "STRING")


def _one_of(given: Mapping[str, Any], word: str, known: Mapping[str, str], place: str) -> str:
    found = given[word]
    if not isinstance(found, str) or found not in known:
        refuse_at(place, f"has {word} {json.dumps(found)[:40]}", ", ".join(known))
    return known[found]


def _object_type(given: Mapping[str, Any], place: str, depth: int) -> FieldType:
    more, properties = given.get("additionalProperties", True), given.get("properties")
    if properties is None and isinstance(more, Mapping) and "required" not in given:
        return KeyedType(_type_of(more, f"{place}{{}}", depth + 1).type)
    if not isinstance(properties, Mapping) or not properties:
        refuse_at(place, "has no properties", "properties, or additionalProperties with a schema")
    if not isinstance(more, bool):
        refuse_at(place, "has properties, and a schema for others", "additionalProperties true or false")
    required = given.get("required", [])
    if not isinstance(required, list) or any(not isinstance(each, str) or each not in properties for each in required):
        refuse_at(place, f"has required {json.dumps(required)[:60]}", "a list of names that are in properties")
    fields = list[ValueField]()
    for name, each in properties.items():
        where = f"{place}.{name}" if place else name
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            refuse_at(one_line(where), "has half of a surrogate pair", "text that UTF-8 can hold")
        found = _type_of(each, where, depth + 1)
        fields.append(ValueField(name, found.type, name in required and not found.may_be_null))
    _check_capitals(fields, place)
    return FieldsType(tuple(fields), is_closed=not more)


def _check_capitals(fields: list[ValueField], place: str) -> None:
    """Spark takes names that differ only in capitals for the same name."""
    names = dict[str, str]()
    for field in fields:
        first = names.setdefault(field.name.lower(), field.name)
        if first != field.name:
            refuse_at(place, f"has the properties {first} and {field.name}", "names that differ in more than capitals")
