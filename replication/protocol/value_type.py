"""The types of the values of a topic, written in Spark's DDL: `item STRING NOT NULL, price DECIMAL(10, 2)`.

Brokers, controllers and producers need no Spark, and Spark parses DDL in its JVM alone. So this module parses the types
that values in JSON can have. Spark: `DataType.fromDDL`, `AbstractSqlParser`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from lakelog.replication.errors import one_line

_NAMES = "BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL STRING BINARY DATE TIMESTAMP TIMESTAMP_NTZ".split()
SCALAR_TYPES = {name: name for name in _NAMES} | {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT", "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL", "TIMESTAMP_LTZ": "TIMESTAMP",
}  # fmt: skip
ALLOWED_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<type>, MAP<STRING, type>, STRUCT<name: type, ...>"
)
_DEEPEST = 32  # types inside one another
_DIGITS = 38  # of a DECIMAL, as in Spark
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z0-9_]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\S))", re.S)


@dataclass(frozen=True)
class ScalarType:
    """A type without parts. `name` is Spark's; `precision` and `scale` are those of a DECIMAL."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"DECIMAL({self.precision}, {self.scale})" if self.name == "DECIMAL" else self.name


@dataclass(frozen=True)
class ListType:
    """An array, whose elements may be null."""

    element: FieldType

    def __str__(self) -> str:
        return f"ARRAY<{self.element}>"


@dataclass(frozen=True)
class KeyedType:
    """A map from text to values, which may be null."""

    value: FieldType

    def __str__(self) -> str:
        return f"MAP<STRING, {self.value}>"


@dataclass(frozen=True)
class ValueField:
    """A field. Without `is_required` it may be null, or be missing."""

    name: str
    type: FieldType
    is_required: bool = False

    def __str__(self) -> str:
        return f"{quoted(self.name)}: {self.type}{' NOT NULL' if self.is_required else ''}"


@dataclass(frozen=True)
class FieldsType:
    """Named fields. A closed type has no others."""

    fields: tuple[ValueField, ...]
    is_closed: bool = False

    def __str__(self) -> str:
        return f"STRUCT<{', '.join(map(str, self.fields))}>"


FieldType: TypeAlias = ScalarType | ListType | KeyedType | FieldsType


class ValueMisfit(ValueError):
    """A value that does not fit its schema, in JSON or in Avro. `str()` names the field, what it has, and what is
    allowed."""

    def __init__(self, fault: str, place: str = "") -> None:
        super().__init__(fault)
        self.fault = fault
        self.place = place

    def within(self, place: str) -> ValueMisfit:
        """The same, found in a part of a larger value."""
        dot = "." if self.place and not self.place.startswith(("[", "{")) else ""
        return ValueMisfit(self.fault, f"{place}{dot}{self.place}")

    def __str__(self) -> str:
        # JSON can hold half of a surrogate pair, which Arrow's text cannot
        return one_line(f"{f'field {self.place}' if self.place else 'the value'} {self.fault}")


def quoted(name: str) -> str:
    """A name between backticks, as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def parse_ddl(text: str) -> FieldsType:
    """The fields in a DDL text, with or without `STRUCT<…>` around them. Raises ValueError, in words that follow the
    name of the setting."""
    parser = _Parser(text)
    if re.match(r"\s*STRUCT\s*<", text, re.I):
        found = parser.type(0)
        assert isinstance(found, FieldsType), "it begins with STRUCT"
    else:
        found = parser.fields(0, lambda token: token == "")
    parser.expect("", "a comma or the end")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [(found.start(found.lastindex or 0), found[0].strip()) for found in _TOKEN.finditer(text)]
        self._end = len(text)
        self._at = 0

    @property
    def _token(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._token
        self._at += 1
        return token

    def _fail(self, allowed: str) -> NoReturn:
        place = self._tokens[self._at][0] if self._at < len(self._tokens) else self._end
        found = f"has {self._token[:40]!r} at character {place + 1}" if self._token else "ends too early"
        raise ValueError(f"{found}; allowed there: {allowed}")

    def expect(self, token: str, words: str = "") -> None:
        """Takes one token. An empty one is the end of the text."""
        if self._token.upper() != token:
            self._fail(words or repr(token))
        self._at += 1

    def fields(self, depth: int, is_end: Callable[[str], bool]) -> FieldsType:
        """`name type, name type`, up to a token that ends them."""
        found: dict[str, ValueField] = {}
        while True:
            if is_end(self._token) or not (self._token[:1] == "`" or _WORD.fullmatch(self._token)):
                self._fail("the name of a field")
            place = self._at
            name = self._name()
            if self._token == ":":
                self._at += 1
            field = ValueField(name, self.type(depth + 1), self._is_required())
            if found.setdefault(name.lower(), field) is not field:
                self._at = place
                self._fail(f"a name that is not there yet ({found[name.lower()].name} is, in any case)")
            if self._token != ",":
                return FieldsType(tuple(found.values()))
            self._at += 1

    def _name(self) -> str:
        token = self._next()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _is_required(self) -> bool:
        is_required = self._token.upper() == "NOT"
        if is_required:
            self._at += 1
            self.expect("NULL")
        if self._token.upper() == "COMMENT":
            self._at += 1
            if self._token[:1] not in ("'", '"') or len(self._token) < 2:
                self._fail("a comment between quotes")
            self._at += 1
        return is_required

    def type(self, depth: int) -> FieldType:
        """One type."""
        if depth > _DEEPEST:
            self._fail(f"at most {_DEEPEST} types inside one another")
        name = self._token.upper()
        if name in SCALAR_TYPES:
            self._at += 1
            return self._decimal() if SCALAR_TYPES[name] == "DECIMAL" else ScalarType(SCALAR_TYPES[name])
        if name not in ("ARRAY", "MAP", "STRUCT"):
            self._fail(ALLOWED_TYPES)
        self._at += 1
        self.expect("<")
        found = self._parts(name, depth)
        self.expect(">", "a comma or '>'" if name == "STRUCT" else "'>'")
        return found

    def _parts(self, name: str, depth: int) -> FieldType:
        if name == "ARRAY":
            return ListType(self.type(depth + 1))
        if name == "STRUCT":
            return self.fields(depth, lambda token: token == ">")
        self.expect("STRING", "STRING: the keys of an object are texts")
        self.expect(",")
        return KeyedType(self.type(depth + 1))

    def _decimal(self) -> ScalarType:
        precision, scale = 10, 0
        if self._token == "(":
            self._at += 1
            precision = self._digits(1, _DIGITS)
            if self._token == ",":
                self._at += 1
                scale = self._digits(0, precision)
            self.expect(")")
        return ScalarType("DECIMAL", precision, scale)

    def _digits(self, low: int, high: int) -> int:
        token = self._token
        if not (token.isascii() and token.isdigit()) or len(token) > 2 or not low <= int(token) <= high:
            self._fail(f"a number from {low} to {high}")
        self._at += 1
        return int(token)
