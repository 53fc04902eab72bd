"""How a reader with one Avro schema reads values of another schema, by Avro's rules of schema resolution.

Compatibility and decoding follow from one tree of actions: a change is compatible if no action fails. Avro: `Resolver`.
Unlike Avro, it never reads one logical type as another, because the same bytes would then be other values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from lakelog.replication.protocol.avro_schema import (
    NULL,
    AvroArray,
    AvroField,
    AvroMap,
    AvroRecord,
    AvroScalar,
    AvroType,
    AvroUnion,
    may_be_null,
)

_WIDER = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
    "string": ("bytes",), "bytes": ("string",),
}  # fmt: skip
_ALLOWED = "the same type, or a wider one as in Avro (int to long to float to double, string to bytes and back)"


@dataclass(frozen=True)
class Fault:
    """Fail: the value cannot be read. `writer` and `reader`: what each schema has here. Avro: `ErrorAction`."""

    writer: str
    reader: str
    allowed: str


@dataclass(frozen=True)
class ReadScalar:
    """Read a value of the writer's type, and convert it to the reader's. `unknown`: symbols of the writer's enum that
    the reader does not take."""

    writer: AvroScalar
    reader: AvroScalar
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadItems:
    """Read an array."""

    items: Action


@dataclass(frozen=True)
class ReadValues:
    """Read a map."""

    values: Action


@dataclass(frozen=True)
class ReadUnion:
    """Read the number of a branch of the writer's union, then a value of that branch."""

    branches: tuple[Action, ...]


@dataclass(frozen=True)
class ReadField:
    """Read a field of the writer. `target`: the reader's field, None to leave it out."""

    name: str
    target: str | None
    action: Action


@dataclass(frozen=True)
class ReadRecord:
    """Read the writer's fields in their order. `defaults`: of the reader's fields that the writer does not have.
    `missing`: those of them that have no default."""

    fields: tuple[ReadField, ...]
    defaults: tuple[tuple[str, AvroType, Any], ...]
    missing: tuple[str, ...]


Action: TypeAlias = Fault | ReadScalar | ReadItems | ReadValues | ReadUnion | ReadRecord


def resolve(writer: AvroType, reader: AvroType) -> Action:
    """The actions by which a reader with one schema reads the bytes of another. Avro: `Resolver.resolve`."""
    return _Resolver().action(writer, reader)


class _Resolver:
    """Resolves each pair of records once, because a name may stand for a large type in many places."""

    def __init__(self) -> None:
        # By the `id`s of two types. It keeps the types, too: otherwise one that `_bare` makes would lose its `id`.
        self._known: dict[tuple[int, int], tuple[AvroRecord, AvroRecord, ReadRecord]] = {}

    def action(self, writer: AvroType, reader: AvroType) -> Action:
        if isinstance(writer, AvroUnion):
            return ReadUnion(tuple(self._branch(branch, writer, reader) for branch in writer.branches))
        if isinstance(reader, AvroUnion):
            reader = reader.type
        if isinstance(writer, AvroRecord) and isinstance(reader, AvroRecord) and _is_named(writer, reader):
            key = id(writer), id(reader)
            if key not in self._known:
                self._known[key] = writer, reader, self._record(writer, reader)
            return self._known[key][2]
        if isinstance(writer, AvroArray) and isinstance(reader, AvroArray):
            return ReadItems(self.action(writer.items, reader.items))
        if isinstance(writer, AvroMap) and isinstance(reader, AvroMap):
            return ReadValues(self.action(writer.values, reader.values))
        if isinstance(writer, AvroScalar) and isinstance(reader, AvroScalar) and _is_read_as(writer, reader):
            known = set(writer.symbols if reader.default else reader.symbols)
            return ReadScalar(writer, reader, tuple(each for each in writer.symbols if each not in known))
        return Fault(str(writer), str(reader), _ALLOWED)

    def _branch(self, branch: AvroType, writer: AvroUnion, reader: AvroType) -> Action:
        if branch != NULL:
            return self.action(branch, reader)
        if may_be_null(reader):
            return ReadScalar(NULL, NULL)
        return Fault(str(writer), str(reader), "a type that may be null")

    def _record(self, writer: AvroRecord, reader: AvroRecord) -> ReadRecord:
        sources = _sources(writer, reader)
        fields = tuple(
            ReadField(each.name, sources[each.name].name, self.action(each.type, sources[each.name].type))
            if each.name in sources
            else ReadField(each.name, None, self.action(each.type, _bare(each.type)))
            for each in writer.fields
        )
        found = {each.name for each in sources.values()}
        others = [each for each in reader.fields if each.name not in found]
        defaults = tuple((each.name, each.type, each.default) for each in others if each.has_default)
        return ReadRecord(fields, defaults, tuple(each.name for each in others if not each.has_default))


def _is_named(writer: AvroRecord | AvroScalar, reader: AvroRecord | AvroScalar) -> bool:
    """Names match without their namespaces, or by an alias of the reader's type."""
    return writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _is_read_as(writer: AvroScalar, reader: AvroScalar) -> bool:
    if writer.kind == reader.kind:
        is_kind = not writer.name or (_is_named(writer, reader) and writer.size == reader.size)
    else:
        is_kind = reader.kind in _WIDER.get(writer.kind, ()) and reader.logical != "decimal"
    return is_kind and _logical_types_match(writer, reader)


def _logical_types_match(writer: AvroScalar, reader: AvroScalar) -> bool:
    """A logical type may be added or removed, but not replaced by another one."""
    if not (writer.logical and reader.logical):
        return True
    return (writer.logical, writer.scale) == (reader.logical, reader.scale) and writer.precision <= reader.precision


def _bare(type: AvroType) -> AvroType:
    """A type without its logical types. A field that the reader leaves out need not be a valid date, for example."""
    if isinstance(type, AvroScalar):
        return replace(type, logical="", precision=0, scale=0)
    if isinstance(type, AvroRecord):
        return replace(type, fields=tuple(replace(each, type=_bare(each.type)) for each in type.fields))
    if isinstance(type, AvroArray):
        return AvroArray(_bare(type.items))
    return AvroMap(_bare(type.values)) if isinstance(type, AvroMap) else AvroUnion(tuple(map(_bare, type.branches)))


def _sources(writer: AvroRecord, reader: AvroRecord) -> dict[str, AvroField]:
    """The reader's field for each field of the writer: that of the same name, otherwise one with such an alias."""
    names = {each.name for each in writer.fields}
    found = {each.name: each for each in reader.fields if each.name in names}
    for each in reader.fields:
        alias = next((alias for alias in each.aliases if alias in names - found.keys()), None)
        if each.name not in names and alias is not None:
            found[alias] = each
    return found


def first_fault(action: Action) -> tuple[str, Fault] | None:
    """The first place where values of the writer may not be read, and why; None if all can be."""
    return _first_fault(action, "", set())


def _first_fault(action: Action, place: str, sound: set[int]) -> tuple[str, Fault] | None:
    """`sound`: the `id`s of records that were checked and have no fault."""
    if isinstance(action, Fault):
        return place, action
    if isinstance(action, ReadScalar):
        return (place, symbol_fault(action)) if action.unknown else None
    if isinstance(action, ReadItems):
        return _first_fault(action.items, f"{place}[]", sound)
    if isinstance(action, ReadValues):
        return _first_fault(action.values, f"{place}{{}}", sound)
    if isinstance(action, ReadUnion):
        return next(filter(None, (_first_fault(branch, place, sound) for branch in action.branches)), None)
    if id(action) in sound:
        return None
    dot = f"{place}." if place else ""
    if action.missing:
        return f"{dot}{action.missing[0]}", MISSING
    of_fields = (_first_fault(each.action, f"{dot}{each.target or each.name}", sound) for each in action.fields)
    found = next(filter(None, of_fields), None)
    if found is None:
        sound.add(id(action))
    return found


MISSING = Fault("missing", "without a default", "a field with a default")


def symbol_fault(action: ReadScalar) -> Fault:
    """Why a reader does not take some symbols of an enum."""
    return Fault(
        f"an enum with the symbol {action.unknown[0]}",
        "an enum without it",
        "to keep the symbol, or an enum with a default",
    )
