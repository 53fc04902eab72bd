"""The schema of a topic's values, and which changes of it are allowed.

The levels of compatibility are those of Confluent's Schema Registry: `SchemaProvider`, `CompatibilityLevel`. As there,
a new schema is compared with the latest one, or with all earlier ones. Delta's type widening defines which types are
wider; for Avro its own rules of schema resolution do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.avro_resolution import first_fault, resolve
from lakelog.replication.protocol.avro_schema import AvroSchema
from lakelog.replication.protocol.schema_history import (
    AvroValues,
    history_text,
    parse_history,
    parsed_avro,
    shown_history,
    with_schema,
)
from lakelog.replication.protocol.value_json_schema import parse_json_schema
from lakelog.replication.protocol.value_type import (
    FieldsType,
    FieldType,
    KeyedType,
    ListType,
    ScalarType,
    parse_ddl,
)

SCHEMA, TYPE = "value.schema", "value.schema.type"
COMPATIBILITY, VALIDATION = "value.schema.compatibility", "value.schema.validation"
ID, HISTORY = "value.schema.id", "value.schema.history"
DDL, JSON, AVRO = "DDL", "JSON", "AVRO"
NONE, BACKWARD, FORWARD, FULL, TRANSITIVE = "NONE", "BACKWARD", "FORWARD", "FULL", "_TRANSITIVE"
_PARSERS: Mapping[str, Callable[[str], FieldsType]] = {
    DDL: parse_ddl, JSON: parse_json_schema, AVRO: lambda text: parsed_avro(text).columns,
}  # fmt: skip
_KEYS = (SCHEMA, TYPE, COMPATIBILITY, VALIDATION)
_LONGEST = 65_536  # characters of a schema: the topics table is read whole

_WIDER = {  # Delta's type widening, as far as the text in JSON stays the same
    "TINYINT": ("SMALLINT", "INT", "BIGINT", "DOUBLE"),
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
}
_DIGITS = {"TINYINT": 10, "SMALLINT": 10, "INT": 10, "BIGINT": 20}  # before the point of a DECIMAL that is wider
_ALLOWED = "the same type, or a wider one as in Delta (INT to BIGINT, FLOAT to DOUBLE, DECIMAL to more digits)"


def schema_of(topic: str, configs: Mapping[str, str]) -> FieldsType | None:
    """The schema in a topic's settings, None if it has none. Raises InvalidConfigurationException, which names the
    topic, for one that this version does not understand."""
    text, kind = configs.get(SCHEMA), configs.get(TYPE, DDL)
    if not text:
        return None
    if kind not in _PARSERS:
        known = ", ".join(_PARSERS)
        raise InvalidConfigurationException(f"topic {topic}: {TYPE} is {kind[:80]!r}; this version knows {known}")
    if len(text) > _LONGEST:
        raise InvalidConfigurationException(
            f"topic {topic}: {SCHEMA} has {len(text)} characters; allowed: up to {_LONGEST}"
        )
    try:
        return _parsed(kind, text)
    except ValueError as error:
        raise InvalidConfigurationException(f"topic {topic}: {SCHEMA} {error}") from None


def avro_of(topic: str, configs: Mapping[str, str]) -> AvroValues | None:
    """The Avro schemas by which the values of a topic are decoded, those of its history also after its schema is
    removed; None if its settings have none of Avro. Raises as `schema_of`."""
    if configs.get(TYPE) != AVRO or (schema_of(topic, configs) is None and not configs.get(HISTORY)):
        return None
    try:
        return _avro_values(*_parts(configs))
    except ValueError as error:
        raise InvalidConfigurationException(f"topic {topic}: {error}") from None


def _parts(configs: Mapping[str, str]) -> tuple[str, str, tuple[int, ...]]:
    """The history, the schema and the id in a topic's settings, as far as they are those of Avro."""
    is_avro = configs.get(TYPE) == AVRO
    return configs.get(HISTORY, ""), configs.get(SCHEMA, "") if is_avro else "", _ids(configs)


@lru_cache(maxsize=1000)
def _avro_values(history: str, schema: str, ids: tuple[int, ...]) -> AvroValues:
    """A history with a schema at its end. Raises ValueError, which names the setting."""
    name = HISTORY
    try:
        found = parse_history(history)
        if schema:
            name = SCHEMA
            found = with_schema(found, parsed_avro(schema), ids)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    return AvroValues(history_text(found) if found else "")


def _ids(configs: Mapping[str, str]) -> tuple[int, ...]:
    found = configs.get(ID, "")
    return (int(found),) if found.isdecimal() else ()


def with_history(
    topic: str, before: Mapping[str, str], after: Mapping[str, str], put: Collection[str]
) -> dict[str, str]:
    """The settings `after` a change, with the history of the topic's Avro schemas brought up to date.

    `put`: the keys that the change sets. An id that the change does not set is removed with the schema that had it.
    Raises InvalidConfigurationException for a schema or an id whose name in values is also that of an earlier schema,
    an id without a schema of Avro, too many schemas, and a history that cannot be parsed.
    """
    found = dict(after)
    is_avro = bool(found.get(SCHEMA)) and found.get(TYPE) == AVRO
    if ID in found and ID not in put and any(found.get(key) != before.get(key) for key in (SCHEMA, TYPE)):
        del found[ID]
    if ID in put and _ids(found) and not is_avro:
        raise InvalidConfigurationException(f"topic {topic}: {ID} is {found[ID]}, it needs a {SCHEMA} of {TYPE}={AVRO}")
    if not is_avro and HISTORY not in found:
        return found
    try:
        history = _avro_values(*_parts(found)).history
    except ValueError as error:
        raise InvalidConfigurationException(f"topic {topic}: {error}") from None
    return {**found, HISTORY: history} if history else {key: found[key] for key in found if key != HISTORY}


def shown(key: str, value: str) -> str:
    """The value of a topic's setting as people read it: for `value.schema.history` the names of its schemas."""
    return shown_history(value) if key == HISTORY else value


@lru_cache(maxsize=1000)
def _parsed(kind: str, text: str) -> FieldsType:
    return _PARSERS[kind](text)


def check_schema_change(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Checks the settings of a topic `after` a change against those `before` it, by the level of compatibility in
    `after`.

    Raises InvalidConfigurationException for a schema that cannot be parsed, a schema that is not compatible with that
    in `before`, and a validation without a schema.
    """
    if all(before.get(key) == after.get(key) for key in _KEYS):
        return
    new = schema_of(topic, after)
    if new is None and after.get(VALIDATION) == "true":
        raise InvalidConfigurationException(f"topic {topic}: {VALIDATION} is true, it needs a {SCHEMA}")
    level = after.get(COMPATIBILITY, BACKWARD)
    if new is None or level == NONE:
        return
    if level.endswith(TRANSITIVE) and after.get(TYPE) != AVRO:
        raise InvalidConfigurationException(
            f"topic {topic}: {COMPATIBILITY} is {level}, it needs {TYPE}={AVRO}, of which all schemas are kept"
        )
    which, fault = _incompatibility(topic, level, before, after, new)
    if fault:
        raise InvalidConfigurationException(
            f"topic {topic}: {SCHEMA} is not {level} compatible with the one {which}: {fault}; "
            f"{COMPATIBILITY}={NONE} allows any change"
        )


def _incompatibility(
    topic: str, level: str, before: Mapping[str, str], after: Mapping[str, str], new: FieldsType
) -> tuple[str, str | None]:
    """Words that name an earlier schema, and why the level does not allow the new schema after that one; None if it
    does.

    BACKWARD: readers with the new schema read values of the old one; FORWARD: the reverse; FULL: both. The transitive
    levels compare all earlier schemas, the others only the current one. Confluent: `CompatibilityChecker`.
    """
    name = level.removesuffix(TRANSITIVE)
    sides = [each for each, levels in (("new", (BACKWARD, FULL)), ("old", (FORWARD, FULL))) if name in levels]
    old, types = schema_of(topic, before), [each.get(TYPE, DDL) for each in (before, after)]
    which = "that stands"
    if old is not None and AVRO in types and types != [AVRO, AVRO]:
        return which, f"{TYPE} is {types[0]} there and {types[1]} here, whose values differ; allowed: to keep it"
    if types[1] == AVRO:
        kept = after.get(HISTORY, "") if level.endswith(TRANSITIVE) else ""
        for which, earlier in _earlier(before.get(SCHEMA), kept):
            for side in sides:
                fault = _unreadable_avro(earlier, parsed_avro(after[SCHEMA]), side)
                if fault:
                    return which, fault
    elif old is not None and old != new:
        readers = {"new": (new, old), "old": (old, new)}
        return which, next(filter(None, (unreadable(*readers[side], side) for side in sides)), None)
    return which, None


def _earlier(schema: str | None, history: str) -> Iterator[tuple[str, AvroSchema]]:
    """The Avro schemas that a new one is compared with, the newest first, each after the words that name it."""
    if schema:
        yield "that stands", parsed_avro(schema)
    with suppress(ValueError):  # `with_history` refuses such a history, and names the fault
        for each in reversed(parse_history(history)):
            yield f"with the fingerprint {each.schema.fingerprint.hex()}", each.schema


def _unreadable_avro(old: AvroSchema, new: AvroSchema, which: str) -> str | None:
    writer, reader, whose = (old, new, "old") if which == "new" else (new, old, "new")
    found = first_fault(resolve(writer.type, reader.type))
    if found is None:
        return None
    place, fault = found
    where = f"field {place}" if place else "the value"
    return (
        f"{where} is {_short(fault.writer)} in the {whose} schema and {_short(fault.reader)} in the {which} one; "
        f"allowed: {fault.allowed}"
    )


def unreadable(reader: FieldType, writer: FieldType, which: str, place: str = "") -> str | None:
    """Why a reader with one type cannot read all values of another type; None if it can. For the text: `which` schema
    the reader has, "new" or "old", and the `place` of the field."""
    if isinstance(reader, FieldsType) and isinstance(writer, FieldsType):
        return _unreadable_fields(reader, writer, which, place)
    if isinstance(reader, ListType) and isinstance(writer, ListType):
        return unreadable(reader.element, writer.element, which, f"{place}[]")
    if isinstance(reader, KeyedType) and isinstance(writer, KeyedType):
        return unreadable(reader.value, writer.value, which, f"{place}{{}}")
    if isinstance(reader, ScalarType) and isinstance(writer, ScalarType) and _is_wider(reader, writer):
        return None
    old, new = (writer, reader) if which == "new" else (reader, writer)
    allowed = _ALLOWED if which == "new" else f"{_ALLOWED}, from the new to the old"
    return f"field {place} is {_short(old)} there and {_short(new)} here; allowed: {allowed}"


def _unreadable_fields(reader: FieldsType, writer: FieldsType, which: str, place: str) -> str | None:
    """A reader leaves out the fields that it does not have. If its type is closed, it refuses them."""
    written = {field.name: field for field in writer.fields}
    fault = _unreadable_others(reader, writer, which, place)
    if fault:
        return fault
    for field in reader.fields:
        where = f"{place}.{field.name}" if place else field.name
        theirs = written.get(field.name)
        if field.is_required and (theirs is None or not theirs.is_required):
            words = "is new" if theirs is None else "may be null there"
            old = "is missing here" if theirs is None else "may be null here"
            return (
                f"field {where} {words} and is NOT NULL here; allowed: a field that may be null"
                if which == "new"
                else f"field {where} is NOT NULL there and {old}; allowed: to keep it NOT NULL"
            )
        fault = unreadable(field.type, theirs.type, which, where) if theirs else None
        if fault:
            return fault
    return None


def _unreadable_others(reader: FieldsType, writer: FieldsType, which: str, place: str) -> str | None:
    """Why a reader with a closed type cannot read other fields of the writer; None if it can."""
    if not reader.is_closed:
        return None
    where = f"field {place}" if place else "the value"
    if not writer.is_closed:
        return (
            f"{where} takes other fields only in the {'old' if which == 'new' else 'new'} schema; allowed: both or none"
        )
    own = {field.name for field in reader.fields}
    for field in writer.fields:
        if field.name not in own:
            name = f"{place}.{field.name}" if place else field.name
            return (
                f"the {which} schema takes no field {name}; allowed: to keep it, or additionalProperties true in both"
            )
    return None


def _is_wider(reader: ScalarType, writer: ScalarType) -> bool:
    """Whether each value of the writer's type is one of the reader's."""
    if reader == writer or reader.name in _WIDER.get(writer.name, ()):
        return True
    if reader.name != "DECIMAL":
        return False
    if writer.name == "DECIMAL":
        before_the_point = reader.precision - reader.scale >= writer.precision - writer.scale
        return reader.scale >= writer.scale and before_the_point
    return writer.name in _DIGITS and reader.precision - reader.scale >= _DIGITS[writer.name]


def _short(found: FieldType | str) -> str:
    text = str(found)
    return text if len(text) <= 60 else f"{text[:60]}…"


def one_schema(schemas: Mapping[str, FieldsType | None]) -> FieldsType:
    """The schema that all of these topics have. Raises InvalidConfigurationException, which names a topic that has none
    or another one."""
    first = next(iter(schemas), None)
    if first is None:
        raise InvalidConfigurationException("there is no topic, and so no schema of values")
    for topic, found in schemas.items():
        if found is None:
            raise InvalidConfigurationException(f"topic {topic} has no {SCHEMA}; to set it: {_how(topic)}")
        if found != schemas[first]:
            raise InvalidConfigurationException(
                f"topics {first} and {topic} have different schemas of values ({SCHEMA}); read them one by one"
            )
    found = schemas[first]
    assert found is not None, "it was checked above"
    return found


def _how(topic: str) -> str:
    return (
        f"configs --alter --entity-type topics --entity-name {topic} --add-config "
        f"{SCHEMA}=[item STRING, price DECIMAL(10, 2)]"
    )
