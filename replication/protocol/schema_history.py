"""The Avro schemas that a topic has had. A value names the schema that wrote it, by its fingerprint or by the id that a
registry of Confluent has given to it. So each schema must stay known as long as there may be values of it.

The history is a setting of the topic, `value.schema.history`. So the commit that changes the schema changes it, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lakelog.replication.protocol.avro_schema import (
    AvroArray,
    AvroMap,
    AvroRecord,
    AvroScalar,
    AvroSchema,
    AvroType,
    AvroUnion,
    parse_avro,
)
from lakelog.replication.protocol.value_json_schema import load_json

_MOST_SCHEMAS = 100
_LONGEST = 262_144  # characters: the topics table is read whole, and each task of a read gets the history
_WAY_OUT = "delete value.schema.history once the log has no values of earlier schemas"
_LIKE = '[{"schema": {"type": "record", ...}, "ids": [7]}]'
_IDS = 2**31


@dataclass(frozen=True)
class KnownSchema:
    """A schema that a topic has had, and its ids in a registry."""

    schema: AvroSchema
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class AvroValues:
    """The Avro schemas by which the values of a topic are decoded. `history`: the setting, whose last schema is the
    topic's own. It stays text, which is cheap to compare and to send to a task."""

    history: str

    @property
    def schemas(self) -> tuple[KnownSchema, ...]:
        """The schemas, the oldest first."""
        return parse_history(self.history)


@lru_cache(maxsize=1000)
def parsed_avro(text: str) -> AvroSchema:
    """As `parse_avro`, but parses each text once in a process."""
    return parse_avro(text)


@lru_cache(maxsize=100)
def parse_history(text: str) -> tuple[KnownSchema, ...]:
    """The schemas in a history, the oldest first. Raises ValueError, in words that follow the name of the setting."""
    given = load_json(text, around=2) if text else []
    if not isinstance(given, list):
        raise ValueError(f"is no list; allowed: {_LIKE}")
    found: tuple[KnownSchema, ...] = ()
    for number, each in enumerate(given):
        try:
            found = with_schema(found, *_entry(each))
        except ValueError as error:
            raise ValueError(f"at [{number}] {error}") from None
    return found


def _entry(given: Any) -> tuple[AvroSchema, tuple[int, ...]]:
    schema = given.get("schema") if isinstance(given, dict) else None
    ids = given.get("ids", []) if isinstance(given, dict) else None
    if (
        not isinstance(schema, dict)
        or not isinstance(ids, list)
        or not given.keys() <= {"fingerprint", "ids", "schema"}
    ):
        raise ValueError(f"is no schema with its ids; allowed: {_LIKE}")
    if not all(each.__class__ is int and 0 <= each < _IDS for each in ids):
        raise ValueError(f"has the ids {json.dumps(ids)[:60]}; allowed: numbers from 0 to {_IDS - 1}")
    found = parsed_avro(json.dumps(schema, separators=(",", ":")))
    named = given.get("fingerprint", found.fingerprint.hex())
    if named != found.fingerprint.hex():
        raise ValueError(
            f"has the fingerprint {json.dumps(named)[:40]}; that of its schema is {found.fingerprint.hex()}"
        )
    return found, tuple(dict.fromkeys(ids))


def with_schema(history: tuple[KnownSchema, ...], schema: AvroSchema, ids: tuple[int, ...]) -> tuple[KnownSchema, ...]:
    """The history with a schema at its end. A schema that is there already moves to the end, and keeps its ids.

    Raises ValueError, in words that follow the name of the setting: for a schema with the fingerprint or an id of
    another one, for too many schemas, and for too long a history.
    """
    for each in history:
        if each.schema.fingerprint == schema.fingerprint:
            _check_means_the_same(each.schema, schema)
            ids = tuple(dict.fromkeys([*each.ids, *ids]))
        else:
            taken = sorted(set(ids).intersection(each.ids))
            if taken:
                raise ValueError(
                    f"has the id {taken[0]} of the schema with the fingerprint {each.schema.fingerprint.hex()}; "
                    "allowed: the id that the registry gives to this schema"
                )
    others = [each for each in history if each.schema.fingerprint != schema.fingerprint]
    found = (*others, KnownSchema(schema, ids))
    if len(found) > _MOST_SCHEMAS:
        raise ValueError(f"would be schema {len(found)} of the topic; allowed: {_MOST_SCHEMAS}; {_WAY_OUT}")
    length = len(history_text(found))
    if length > _LONGEST:
        raise ValueError(f"would make a history of {length} characters; allowed: {_LONGEST}; {_WAY_OUT}")
    return found


def _check_means_the_same(old: AvroSchema, new: AvroSchema) -> None:
    """The canonical form leaves out logical types. So two schemas can have one fingerprint and different values."""
    if old.canonical != new.canonical:
        raise ValueError(
            f"has the fingerprint of another schema, {old.fingerprint.hex()}; allowed: to rename its record"
        )
    if list(_meanings(old.type)) != list(_meanings(new.type)):
        raise ValueError(
            "differs from an earlier schema in logical types alone, and values name both alike, by the fingerprint "
            f"{old.fingerprint.hex()}; allowed: to rename its record, too; or {_WAY_OUT}"
        )


def _meanings(type: AvroType) -> Iterator[tuple[str, int, int]]:
    """The logical types of a schema, in its order."""
    if isinstance(type, AvroRecord):
        for each in type.fields:
            yield from _meanings(each.type)
    elif isinstance(type, AvroScalar):
        yield type.logical, type.precision, type.scale
    else:
        parts = {AvroArray: "items", AvroMap: "values", AvroUnion: "type"}
        yield from _meanings(getattr(type, parts[type.__class__]))


def history_text(history: tuple[KnownSchema, ...]) -> str:
    """A history as the setting has it."""
    parts = (
        f'{{"fingerprint":"{each.schema.fingerprint.hex()}","ids":{json.dumps(list(each.ids), separators=(",", ":"))},'
        f'"schema":{each.schema.text}}}'
        for each in history
    )
    return f"[{','.join(parts)}]"


def shown_history(text: str) -> str:
    """A history in words: `2 schemas: 7da660ef710786ce id 7; f8f9749bed2a2eb6`."""
    try:
        found = parse_history(text)
    except ValueError as error:
        return f"a history that {error}"
    names = [each.schema.fingerprint.hex() + "".join(f" id {number}" for number in each.ids) for each in found]
    return f"{len(names)} schema{'s' * (len(names) != 1)}: {'; '.join(names)}"
