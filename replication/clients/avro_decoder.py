"""Decodes values in Avro, each by the schema that wrote it.

A value names its schema in front: by Avro's single-object encoding, or by the frame of Confluent's serializers. A value
without a known name is never decoded: bytes of one schema often fit another schema, whose fields would then be wrong.

The decoder is strict, because values may be torn. Before it reads anything, it compares a length or a count with the
number of bytes that are left: each element has at least one byte. Avro: `GenericDatumReader`, `BinaryMessageDecoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any, TypeAlias

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.avro_resolution import (
    MISSING,
    Action,
    Fault,
    ReadItems,
    ReadRecord,
    ReadScalar,
    ReadUnion,
    ReadValues,
    resolve,
    symbol_fault,
)
from lakelog.replication.protocol.avro_schema import (
    AvroArray,
    AvroField,
    AvroMap,
    AvroRecord,
    AvroScalar,
    AvroType,
    AvroUnion,
    columns_of,
    may_be_null,
)
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.value_type import FieldsType, FieldType, KeyedType, ListType, ValueField, ValueMisfit

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]  # decodes the value at a position, and returns its end, too
Convert: TypeAlias = Callable[[Any], Any]

_SINGLE_OBJECT, _SINGLE_OBJECT_BYTES = b"\xc3\x01", 10
_CONFLUENT, _CONFLUENT_BYTES = b"\0", 5
_NO_NAME = (
    "does not name its schema; allowed: Avro's single-object encoding, which begins with C3 01 and the fingerprint, or "
    "Confluent's frame, which begins with 00 and the id"
)
_ADD = "to add it, set value.schema to the schema that wrote the value, and then back"
_UNITS = {"timestamp-millis": 1000, "local-timestamp-millis": 1000, "timestamp-micros": 1, "local-timestamp-micros": 1}
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_EXACT = Context(prec=40)


class AvroDecoder:
    """Decodes the values of a topic. `columns`: the wanted fields, by default those of the topic's schema.

    A stream keeps the columns with which it began. So the reader's schema is the newest one with exactly these columns,
    or else the topic's own. Raises InvalidConfigurationException for columns that this schema does not have.
    """

    def __init__(self, values: AvroValues, columns: FieldsType | None = None) -> None:
        schemas = values.schemas
        same = (each.schema for each in reversed(schemas) if each.schema.columns == columns)
        reader = next(same, schemas[-1].schema)
        self._reader = reader.type if columns in (None, reader.columns) else _narrowed(reader.type, columns, "value")
        self._writers = {_SINGLE_OBJECT + each.schema.fingerprint: each.schema.type for each in schemas} | {
            _CONFLUENT + number.to_bytes(4, "big"): each.schema.type for each in schemas for number in each.ids
        }
        self._read: dict[bytes, Read] = {}

    def __call__(self, value: bytes) -> Mapping[str, Any]:
        """The fields as Arrow takes them. Raises ValueMisfit."""
        at = _CONFLUENT_BYTES if value[:1] == _CONFLUENT else _SINGLE_OBJECT_BYTES
        name = value[:at]
        read = self._read.get(name) or self._reading(name)
        found, end = read(value, at)
        if end != len(value):
            raise ValueMisfit(f"has {len(value) - end} more bytes than its schema has")
        decoded: Mapping[str, Any] = found
        return decoded

    def _reading(self, name: bytes) -> Read:
        writer = self._writers.get(name)
        if writer is None:
            raise _unknown(name)
        self._read[name] = found = _reader_of(resolve(writer, self._reader))
        return found


def _unknown(name: bytes) -> ValueMisfit:
    if not name.startswith((_CONFLUENT, _SINGLE_OBJECT)):
        return ValueMisfit(_NO_NAME)
    if len(name) < (_CONFLUENT_BYTES if name.startswith(_CONFLUENT) else _SINGLE_OBJECT_BYTES):
        return ValueMisfit("ends within the name of its schema")
    if name.startswith(_CONFLUENT):
        number = int.from_bytes(name[1:], "big")
        return ValueMisfit(f"has the schema id {number}, which value.schema.history does not have; {_ADD}")
    return ValueMisfit(f"has the schema fingerprint {name[2:].hex()}, which value.schema.history does not have; {_ADD}")


def _narrowed(type: AvroType, columns: FieldType, place: str) -> AvroType:
    """The part of a reader's schema that a user has chosen by columns."""
    if isinstance(type, AvroUnion):
        wanted = _narrowed(type.type, columns, place)
        return AvroUnion(tuple(wanted if branch == type.type else branch for branch in type.branches))
    if isinstance(type, AvroRecord) and isinstance(columns, FieldsType):
        fields = {each.name: each for each in type.fields}
        return AvroRecord(type.name, tuple(_chosen(fields, each, place) for each in columns.fields), type.aliases)
    if isinstance(type, AvroArray) and isinstance(columns, ListType):
        return AvroArray(_narrowed(type.items, columns.element, f"{place}[]"))
    if isinstance(type, AvroMap) and isinstance(columns, KeyedType):
        return AvroMap(_narrowed(type.values, columns.value, f"{place}{{}}"))
    if columns_of(type) != columns:
        raise InvalidConfigurationException(f"schema: field {place} is {columns}; value.schema has {columns_of(type)}")
    return type


def _chosen(fields: Mapping[str, AvroField], wanted: ValueField, place: str) -> AvroField:
    where = f"{place}.{wanted.name}"
    each = fields.get(wanted.name)
    if each is None:
        raise InvalidConfigurationException(f"schema: value.schema has no field {where}; allowed: {', '.join(fields)}")
    if wanted.is_required and may_be_null(each.type):
        raise InvalidConfigurationException(f"schema: field {where} is NOT NULL; by value.schema it may be null")
    return replace(each, type=_narrowed(each.type, wanted.type, where))


def _reader_of(action: Action) -> Read:
    if isinstance(action, Fault):
        return _failing(action)
    if isinstance(action, ReadScalar):
        return _scalar_reader(action)
    if isinstance(action, ReadItems):
        return _items_reader(_reader_of(action.items))
    if isinstance(action, ReadValues):
        return _map_reader(_items_reader(_pair_reader(_reader_of(action.values))))
    if isinstance(action, ReadUnion):
        return _union_reader(tuple(map(_reader_of, action.branches)))
    return _record_reader(action)


def _failing(fault: Fault, name: str = "") -> Read:
    def fail(_data: bytes, _at: int) -> tuple[Any, int]:
        raise _misfit(fault, name)

    return fail


def _misfit(fault: Fault, name: str = "") -> ValueMisfit:
    return ValueMisfit(
        f"is {fault.writer} in the schema that wrote the value and {fault.reader} in the reader's; allowed: "
        f"{fault.allowed}",
        name,
    )


def _record_reader(action: ReadRecord) -> Read:
    if action.missing:
        return _failing(MISSING, action.missing[0])
    parts = [(each.name, each.target, _reader_of(each.action)) for each in action.fields]
    defaults = {name: _converted(type, default) for name, type, default in action.defaults}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found = defaults.copy()
        place = ""
        try:
            for place, target, read_field in parts:  # noqa: B007 (errors name it)
                value, at = read_field(data, at)
                if target is not None:
                    found[target] = value
        except (IndexError, struct.error):
            raise ValueMisfit("ends too early", place) from None
        except ValueMisfit as error:
            raise error.within(place) from None
        return found, at

    return read


def _items_reader(read_item: Read) -> Read:
    """An array is a list of blocks: a count, and that many elements. After a negative count comes the block's size."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found = list[Any]()
        count, at = _long(data, at)
        while count:
            if count < 0:
                size, at = _long(data, at)
                if not 0 <= size <= len(data) - at:
                    raise ValueMisfit(f"has a block of {size} bytes, of which {len(data) - at} are there")
                count = -count
            if count > len(data) - at:
                raise ValueMisfit(f"has a block of {count} elements in {len(data) - at} bytes")
            for _ in range(count):
                try:
                    item, at = read_item(data, at)
                except ValueMisfit as error:
                    raise error.within(f"[{len(found)}]") from None
                found.append(item)
            count, at = _long(data, at)
        return found, at

    return read


def _map_reader(read_pairs: Read) -> Read:
    """Of two values of one key the later one counts: Spark's maps have no key twice."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        pairs, at = read_pairs(data, at)
        return list(dict(pairs).items()), at

    return read


def _pair_reader(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        key, at = _text(data, at)
        value, at = read_value(data, at)
        return (key, value), at

    return read


def _union_reader(branches: tuple[Read, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(branches):
            raise ValueMisfit(f"has branch {number} of a union of {len(branches)}")
        return branches[number](data, at)

    return read


def _scalar_reader(action: ReadScalar) -> Read:
    writer, reader = action.writer, action.reader
    if writer.kind == "enum":
        return _enum_reader(action)
    read = _fixed_reader(writer.size) if writer.kind == "fixed" else _READERS[writer.kind]
    convert = _conversion(writer, reader)
    if convert is None:
        return read

    def read_converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return convert(value), at

    return read_converted


def _conversion(writer: AvroScalar, reader: AvroScalar) -> Convert | None:
    """The function that converts a value of the writer's type to the reader's, as Arrow takes it; None if the value
    stays as it is."""
    if reader.logical in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[reader.logical](reader)
    return _PROMOTIONS.get(reader.kind) if reader.kind != writer.kind else None


def _converted(type: AvroType, default: Any) -> Any:
    """A default, as Arrow takes it."""
    if isinstance(type, AvroUnion):
        return None if default is None else _converted(type.type, default)
    if isinstance(type, AvroRecord):
        return {each.name: _converted(each.type, default[each.name]) for each in type.fields}
    if isinstance(type, AvroArray):
        return [_converted(type.items, each) for each in default]
    if isinstance(type, AvroMap):
        return [(key, _converted(type.values, each)) for key, each in default]
    convert = _conversion(type, type)
    return default if convert is None else convert(default)


def _enum_reader(action: ReadScalar) -> Read:
    known, default = set(action.reader.symbols), action.reader.default
    symbols: Sequence[str | None] = action.writer.symbols
    if not known.issuperset(symbols):
        symbols = [each if each in known else default for each in symbols]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(symbols):
            raise ValueMisfit(f"has symbol {number} of an enum of {len(symbols)}")
        symbol = symbols[number]
        if symbol is None:
            raise _misfit(symbol_fault(action))
        return symbol, at

    return read


def _fixed_reader(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def _null(_: bytes, at: int) -> tuple[Any, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[Any, int]:
    byte = data[at]
    if byte > 1:
        raise ValueMisfit(f"is the byte {byte}, it must be 0 or 1")
    return byte == 1, at + 1


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 127, 7
    while byte > 127:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if shift > 70 or number >> 64:
            raise ValueMisfit("is a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _int(data: bytes, at: int) -> tuple[int, int]:
    found, at = _long(data, at)
    if not -0x80000000 <= found <= 0x7FFFFFFF:
        raise ValueMisfit(f"is {found}, it must be int")
    return found, at


def _float(data: bytes, at: int) -> tuple[Any, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[Any, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    end = at + size
    if not at <= end <= len(data):
        raise ValueMisfit(f"has a length of {size} bytes, of which {len(data) - at} are there")
    return data[at:end], end


def _text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return _decoded(found), at


def _decoded(found: bytes) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise ValueMisfit(f"is no text in UTF-8: byte {error.start + 1} cannot be read") from None


_READERS: Mapping[str, Read] = {
    "null": _null, "boolean": _boolean, "int": _int, "long": _long, "float": _float, "double": _double,
    "bytes": _bytes, "string": _text,
}  # fmt: skip


def _decimal(type: AvroScalar) -> Convert:
    numbers, scale = _numbers(type), -type.scale

    def convert(found: bytes) -> Decimal:
        number = int.from_bytes(found, "big", signed=True)
        if not found or number not in numbers:
            raise ValueMisfit(f"has {len(found)} bytes, which are no {type}")
        return _EXACT.scaleb(Decimal(number), scale)

    return convert


def _date(type: AvroScalar) -> Convert:
    numbers = _numbers(type)

    def convert(days: int) -> int:
        if days not in numbers:
            raise ValueMisfit(f"is day {days} since 1970, it must be a DATE of the years 1 to 9999")
        return days

    return convert


def _timestamp(type: AvroScalar) -> Convert:
    unit, numbers = _UNITS[type.logical], _numbers(type)

    def convert(number: int) -> int:
        if number not in numbers:
            raise ValueMisfit(f"is {number} as {type.logical}, it must be a TIMESTAMP of the years 1 to 9999")
        return number * unit

    return convert


def _numbers(type: AvroScalar) -> range:
    found = type.numbers
    assert found is not None, "each of these logical types has them"
    return found


_PROMOTIONS: Mapping[str, Convert] = {
    "double": float, "float": float, "string": _decoded, "bytes": str.encode,
}  # fmt: skip
_LOGICAL_TYPES: Mapping[str, Callable[[AvroScalar], Convert]] = {
    "decimal": _decimal, "date": _date, **dict.fromkeys(_UNITS, _timestamp),
}  # fmt: skip
