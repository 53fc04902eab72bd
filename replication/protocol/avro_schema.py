"""Avro's schemas of values: their types, their canonical form, and the fingerprint that names a schema.

Bytes of Avro mean nothing without the schema that wrote them, and a value names that schema only by its fingerprint. So
this module follows the specification to the letter. Avro: `Schema.Parser`, `SchemaNormalization`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from lakelog.replication.protocol.value_json_schema import load_json, refuse_at
from lakelog.replication.protocol.value_type import FieldsType, FieldType, KeyedType, ListType, ScalarType, ValueField

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_COMPLEX = ("record", "enum", "fixed", "array", "map")
_NAMED = ("record", "enum", "fixed")
_LOGICAL = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos",
        "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos",
    ),
}  # fmt: skip
_COLUMNS = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BINARY",
    "string": "STRING", "enum": "STRING", "fixed": "BINARY", "date": "DATE",
    "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ", "local-timestamp-micros": "TIMESTAMP_NTZ",
}  # fmt: skip
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897  # in days since 1970
_PER_DAY = {
    "date": 1, "timestamp-millis": 86_400_000, "timestamp-micros": 86_400_000_000,
    "local-timestamp-millis": 86_400_000, "local-timestamp-micros": 86_400_000_000,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")
_DEEPEST = 32
_MOST_TYPES = 10_000  # a named type counts wherever it is used
_MOST_DIGITS = 38  # of a DECIMAL in Spark
_EMPTY = 0xC15D213AA4D7A795  # CRC-64-AVRO of no bytes


@dataclass(frozen=True)
class AvroScalar:
    """A primitive type, an enum or a fixed: `kind`. `name` is the full name of an enum or a fixed, `logical` a logical
    type that says what the value means, `default` the symbol of an enum that stands for unknown ones."""

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    name: str = ""
    aliases: tuple[str, ...] = ()
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None

    def __str__(self) -> str:
        if self.logical:
            return f"decimal({self.precision}, {self.scale})" if self.precision else f"{self.kind} as {self.logical}"
        size = f" of {self.size} bytes" if self.kind == "fixed" else ""
        return f"{self.kind} {self.name}{size}" if self.name else self.kind

    @property
    def column(self) -> ScalarType:
        """Its type in Spark."""
        if self.logical == "decimal":
            return ScalarType("DECIMAL", self.precision, self.scale)
        return ScalarType(_COLUMNS.get(self.logical) or _COLUMNS[self.kind])

    @property
    def numbers(self) -> range | None:
        """The numbers that its logical type can have in Spark; None if all are allowed."""
        if self.logical == "decimal":
            return range(1 - 10**self.precision, 10**self.precision)
        per_day = _PER_DAY.get(self.logical)
        return range(_YEAR_1 * per_day, _YEAR_10000 * per_day) if per_day else None


@dataclass(frozen=True)
class AvroArray:
    """An array."""

    items: AvroType

    def __str__(self) -> str:
        return f"array of {self.items}"


@dataclass(frozen=True)
class AvroMap:
    """A map from text to values."""

    values: AvroType

    def __str__(self) -> str:
        return f"map of {self.values}"


@dataclass(frozen=True)
class AvroUnion:
    """A union: one type, or one and null."""

    branches: tuple[AvroType, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.branches))

    @property
    def type(self) -> AvroType:
        """The type that is not null."""
        return next(branch for branch in self.branches if branch != NULL)


@dataclass(frozen=True)
class AvroField:
    """A field of a record. `default`: only with `has_default`, the value as a decoder reads it before it converts the
    logical type."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class AvroRecord:
    """A record. `name` is its full name."""

    name: str
    fields: tuple[AvroField, ...]
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"record {self.name}"


AvroType: TypeAlias = AvroScalar | AvroArray | AvroMap | AvroUnion | AvroRecord
NULL = AvroScalar("null")


@dataclass(frozen=True)
class AvroSchema:
    """A schema of records. `columns`: its fields in Spark. `fingerprint`: eight bytes, as values have them. `text`: the
    schema as it was given, without blanks."""

    type: AvroRecord
    columns: FieldsType = field(repr=False)
    canonical: str = field(repr=False)
    fingerprint: bytes
    text: str = field(repr=False)


def parse_avro(text: str) -> AvroSchema:
    """Parses a schema in JSON. Raises ValueError, whose text continues a sentence after the name of the setting."""
    given = load_json(text)
    found = _Parser().type(given, "", "", 0)
    if not isinstance(found.type, AvroRecord):
        refuse_at("", f"is {found.type}, no record", '{"type": "record", "name": "Sale", "fields": [...]}')
    canonical = json.dumps(found.form, separators=(",", ":"))
    columns = columns_of(found.type)
    assert isinstance(columns, FieldsType), "it is a record"
    compact = json.dumps(given, separators=(",", ":"))
    return AvroSchema(found.type, columns, canonical, fingerprint(canonical.encode()), compact)


def columns_of(type: AvroType) -> FieldType:
    """The type in Spark, as Spark's `from_avro` has it."""
    if isinstance(type, AvroRecord):
        return FieldsType(
            tuple(ValueField(each.name, columns_of(each.type), not may_be_null(each.type)) for each in type.fields)
        )
    if isinstance(type, AvroArray):
        return ListType(columns_of(type.items))
    if isinstance(type, AvroMap):
        return KeyedType(columns_of(type.values))
    return columns_of(type.type) if isinstance(type, AvroUnion) else type.column


def may_be_null(type: AvroType) -> bool:
    """Whether a value of the type may be null."""
    return isinstance(type, AvroUnion) and NULL in type.branches


def fingerprint(content: bytes) -> bytes:
    """CRC-64-AVRO, in the order of bytes of Avro's single-object encoding. Avro: `SchemaNormalization.fingerprint64`"""
    found = _EMPTY
    for byte in content:
        found = (found >> 8) ^ _TABLE[(found ^ byte) & 0xFF]
    return found.to_bytes(8, "little")


def _entry(number: int) -> int:
    for _ in range(8):
        number = (number >> 1) ^ (_EMPTY & -(number & 1))
    return number


_TABLE = tuple(map(_entry, range(256)))


class _Found(NamedTuple):
    """A type, and its canonical form."""

    type: AvroType
    form: Any


class _Known(NamedTuple):
    """A type with a name. `weight`: the number of types in it. `height`: how deep they are nested."""

    type: AvroType
    weight: int
    height: int


def _shown(given: object) -> str:
    return _begin_of(json.dumps(given))


def _begin_of(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


class _Parser:
    """Parses one schema. `space`: the namespace that encloses a type. `place`: the field that has the type."""

    def __init__(self) -> None:
        self._known: dict[str, _Known | None] = {}  # None for a type that is being parsed
        self._weight = 0
        self._deepest = 0

    def type(self, given: Any, space: str, place: str, depth: int) -> _Found:
        self._count(1, depth, place)
        if isinstance(given, str):
            return self._by_name(given, space, place, depth)
        if isinstance(given, list):
            return self._union(given, space, place, depth)
        kind = given.get("type") if isinstance(given, dict) else None
        if not isinstance(kind, str):
            allowed = f"{', '.join(_PRIMITIVES[1:])}, an object with such a type, or with {', '.join(_COMPLEX)}"
            refuse_at(place, f"has the type {_shown(given)}", allowed)
        if kind in _NAMED:
            return self._named(kind, given, space, place, depth)
        if kind == "array":
            items = self.type(given.get("items"), space, f"{place}[]", depth + 1)
            return _Found(AvroArray(self._not_null(items.type, f"{place}[]")), {"type": kind, "items": items.form})
        if kind == "map":
            values = self.type(given.get("values"), space, f"{place}{{}}", depth + 1)
            return _Found(AvroMap(self._not_null(values.type, f"{place}{{}}")), {"type": kind, "values": values.form})
        if kind in _PRIMITIVES:
            return _Found(AvroScalar(kind, *_logical(kind, given, place)), kind)
        return self._by_name(kind, space, place, depth)

    def _count(self, weight: int, depth: int, place: str) -> None:
        self._weight += weight
        self._deepest = max(self._deepest, depth)
        if depth > _DEEPEST:
            refuse_at(place, "lies too deep", f"at most {_DEEPEST} types inside one another")
        if self._weight > _MOST_TYPES:
            refuse_at(
                place, f"has more than {_MOST_TYPES} types", "fewer, where a name counts as all that it stands for"
            )

    @staticmethod
    def _not_null(found: AvroType, place: str) -> AvroType:
        """Null takes no bytes. So an array of it could have any length, and Spark has no such column."""
        if found == NULL:
            refuse_at(place, "has the type null alone", "null in a union with another type")
        return found

    def _by_name(self, name: str, space: str, place: str, depth: int) -> _Found:
        if name in _PRIMITIVES:
            return _Found(AvroScalar(name), name)
        own = f"{space}.{name}" if space and "." not in name else name
        full = own if own in self._known else name
        if full not in self._known:
            allowed = f"{', '.join(_PRIMITIVES[1:])}, or a name that is defined before it"
            refuse_at(place, f"has the type {_shown(name)}", allowed)
        known = self._known[full]
        if known is None:
            refuse_at(
                place,
                f"has the type {_begin_of(full)}, which contains itself",
                "types that end: Spark has no such columns",
            )
        self._count(known.weight - 1, depth + known.height, place)
        return _Found(known.type, full)

    def _union(self, given: list[Any], space: str, place: str, depth: int) -> _Found:
        found = [self.type(each, space, place, depth + 1) for each in given]
        branches = tuple(each.type for each in found)
        others = [branch for branch in branches if branch != NULL]
        if len(others) != 1 or len(branches) > 2 or isinstance(others[0], AvroUnion):
            shown = ", ".join(_short(branch) for branch in branches[:4]) or "nothing"
            refuse_at(place, f"has a union of {shown}", "a union of null and one type")
        return _Found(AvroUnion(branches), [each.form for each in found])

    def _named(self, kind: str, given: Mapping[str, Any], space: str, place: str, depth: int) -> _Found:
        name = _full_name(given, space, place)
        if name in self._known:
            refuse_at(place, f"defines {_begin_of(name)} again", "one definition of a name; later ones only name it")
        aliases = _aliases(given, place, name.rpartition(".")[0])
        before, self._known[name] = (self._weight, self._deepest), None
        self._deepest = depth
        if kind == "record":
            found = self._record(given, name, aliases, place, depth)
        else:
            found = (_enum if kind == "enum" else _fixed)(given, name, aliases, place)
        self._known[name] = _Known(found.type, self._weight - before[0] + 1, self._deepest - depth)
        self._deepest = max(self._deepest, before[1])
        return found

    def _record(self, given: Mapping[str, Any], name: str, aliases: tuple[str, ...], place: str, depth: int) -> _Found:
        space = name.rpartition(".")[0]
        parts = given.get("fields")
        if not isinstance(parts, list) or not parts:
            refuse_at(place, f"has the fields {_shown(parts)}", '[{"name": "item", "type": "string"}]')
        fields, forms = list[AvroField](), list[Any]()
        names = dict[str, str]()
        for part in parts:
            found, form = self._field(part, space, place, depth)
            first = names.setdefault(found.name.lower(), found.name)
            if len(names) == len(fields):
                refuse_at(
                    place,
                    f"has the fields {_begin_of(first)} and {_begin_of(found.name)}",
                    "names that differ in more than capitals",
                )
            fields.append(found)
            forms.append(form)
        type = AvroRecord(name, tuple(fields), aliases)
        return _Found(type, {"name": name, "type": "record", "fields": forms})

    def _field(self, given: Any, space: str, place: str, depth: int) -> tuple[AvroField, Any]:
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = 'such as {"name": "item", "type": "string"}; names have letters, digits and _'
            refuse_at(place, f"has the field {_shown(given)}", allowed)
        where = f"{place}.{name}" if place else name
        if "type" not in given:
            refuse_at(where, "has no type", '"type" with a schema')
        found = self.type(given["type"], space, where, depth + 1)
        type = self._not_null(found.type, where)
        aliases = _aliases(given, where)
        has_default = "default" in given
        default = _default(type, given["default"], where) if has_default else None
        return AvroField(name, type, aliases, has_default, default), {"name": name, "type": found.form}


def _short(type: AvroType) -> str:
    return _begin_of(str(type))


def _full_name(given: Mapping[str, Any], space: str, place: str) -> str:
    name, own = given.get("name"), given.get("namespace", space)
    if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
        has = f"has the name {_shown(name)}" if "name" in given else f"has a {given['type']} without a name"
        refuse_at(place, has, '"name" of letters, digits and _, with points between the parts')
    if not isinstance(own, str) or (own and not _FULL_NAME.fullmatch(own)):
        refuse_at(place, f"has the namespace {_shown(own)}", "letters, digits and _, with points between the parts")
    found = f"{own}.{name}" if own and "." not in name else name
    if found in _PRIMITIVES:
        refuse_at(place, f"has the name {found}", f"others than {', '.join(_PRIMITIVES)}")
    return found


def _aliases(given: Mapping[str, Any], place: str, space: str | None = None) -> tuple[str, ...]:
    """Other names. Those of a type, which has a namespace, are full names; those of a field have no points."""
    found = given.get("aliases", [])
    pattern = _NAME if space is None else _FULL_NAME
    if not isinstance(found, list) or not all(isinstance(each, str) and pattern.fullmatch(each) for each in found):
        refuse_at(place, f"has the aliases {_shown(found)}", "a list of names")
    return tuple(f"{space}.{each}" if space and "." not in each else each for each in found)


def _enum(given: Mapping[str, Any], name: str, aliases: tuple[str, ...], place: str) -> _Found:
    symbols, default = given.get("symbols"), given.get("default")
    is_list = isinstance(symbols, list) and all(isinstance(each, str) and _NAME.fullmatch(each) for each in symbols)
    if not is_list or not symbols or len({*symbols}) != len(symbols):
        refuse_at(place, f"has the symbols {_shown(symbols)}", "a list of different names")
    if default is not None and default not in symbols:
        refuse_at(place, f"has the default {_shown(default)}", "one of its symbols")
    type = AvroScalar("enum", name=name, aliases=aliases, symbols=tuple(symbols), default=default)
    return _Found(type, {"name": name, "type": "enum", "symbols": symbols})


def _fixed(given: Mapping[str, Any], name: str, aliases: tuple[str, ...], place: str) -> _Found:
    size = given.get("size")
    if size.__class__ is not int or not 0 < size < 2**31:
        refuse_at(place, f"has the size {_shown(size)}", "a number of bytes from 1")
    type = AvroScalar("fixed", *_logical("fixed", given, place), name=name, aliases=aliases, size=size)
    return _Found(type, {"name": name, "type": "fixed", "size": size})


def _logical(kind: str, given: Mapping[str, Any], place: str) -> tuple[str, int, int]:
    """The logical type of a type, its precision and its scale. Avro ignores an invalid logical type, and so does
    this."""
    name = given.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = given.get("precision"), given.get("scale", 0)
        if precision.__class__ is not int or scale.__class__ is not int or not 0 <= scale <= precision or not precision:
            return "", 0, 0
        if precision > _MOST_DIGITS:
            refuse_at(place, f"has a decimal of {_shown(precision)} digits", f"up to {_MOST_DIGITS}, as in Spark")
        return "decimal", precision, scale
    return (str(name), 0, 0) if name in _LOGICAL.get(kind, ()) else ("", 0, 0)


def _default(type: AvroType, given: Any, place: str) -> Any:
    """A default, as a decoder reads values. That of a union may be of any of its types, as since Avro 1.12."""
    if isinstance(type, AvroUnion):
        if given is None and NULL in type.branches:
            return None
        return _default(type.type, given, place)
    if isinstance(type, AvroScalar):
        return _scalar_default(type, given, place)
    if isinstance(type, AvroArray) and isinstance(given, list):
        return [_default(type.items, each, f"{place}[]") for each in given]
    if isinstance(type, AvroMap) and isinstance(given, dict):
        return [(key, _default(type.values, each, f"{place}{{}}")) for key, each in given.items()]
    if isinstance(type, AvroRecord) and isinstance(given, dict):
        return {each.name: _field_default(each, given, f"{place}.{each.name}") for each in type.fields}
    return refuse_at(place, f"has the default {_shown(given)}", f"a default that is {type}")


def _field_default(each: AvroField, given: Mapping[str, Any], place: str) -> Any:
    if each.name in given:
        return _default(each.type, given[each.name], place)
    return (
        each.default
        if each.has_default
        else refuse_at(place, "is missing in a default", f"a value that is {each.type}")
    )


def _scalar_default(type: AvroScalar, given: Any, place: str) -> Any:
    found = _CHECKS[type.kind](type, given)
    if found is None or not _fits_logical_type(type, found):
        years = " of the years 1 to 9999" if type.logical in _PER_DAY else ""
        refuse_at(place, f"has the default {_shown(given)}", f"a default that is {type}{years}")
    return found


def _fits_logical_type(type: AvroScalar, found: Any) -> bool:
    """Whether a value is valid for its logical type."""
    numbers = type.numbers
    if numbers is None or found == b"":
        return numbers is None
    return (int.from_bytes(found, "big", signed=True) if isinstance(found, bytes) else found) in numbers


def _integer(bits: int) -> Callable[[AvroScalar, Any], Any]:
    return lambda _, given: given if given.__class__ is int and -(2**bits) <= given < 2**bits else None


def _number(_: AvroScalar, given: Any) -> Any:
    try:
        return float(given) if given.__class__ in (int, float) else None
    except OverflowError:
        return None


def _text(_: AvroScalar, given: Any) -> Any:
    return given if isinstance(given, str) and not any("\ud800" <= letter <= "\udfff" for letter in given) else None


def _bytes(type: AvroScalar, given: Any) -> Any:
    """In JSON, bytes are text with one letter for each byte."""
    try:
        found = given.encode("latin-1") if isinstance(given, str) else None
    except UnicodeEncodeError:
        return None
    return found if found is None or type.kind == "bytes" or len(found) == type.size else None


_CHECKS: Mapping[str, Callable[[AvroScalar, Any], Any]] = {
    "boolean": lambda _, given: given if given.__class__ is bool else None,
    "int": _integer(31), "long": _integer(63), "float": _number, "double": _number, "bytes": _bytes, "fixed": _bytes,
    "string": _text, "enum": lambda type, given: given if given in type.symbols else None,
}  # fmt: skip
