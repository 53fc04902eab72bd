"""Reads and writes the structs of a Parquet footer, without knowing their fields. Thrift: `TCompactProtocol`.

A struct is a dict from the number of a field to its type and its value. A list is its element type and its elements.
So a footer that is read and written again keeps the fields that this code does not know.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _, STRUCT = range(1, 13)
Struct: TypeAlias = dict[int, tuple[int, Any]]

_INTEGERS = (I16, I32, I64)
_LONG = 15  # in four bits: the size of the list, or the step to the next field's number, follows


def read_struct(content: bytes | memoryview) -> Struct:
    """The struct with which `content` begins. Raises ValueError if there is none."""
    try:
        return _struct(io.BytesIO(content))
    except (IndexError, MemoryError, OverflowError, RecursionError) as error:
        raise ValueError(f"no struct of Thrift's compact protocol: {error!r}") from error


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def _struct(reader: io.BytesIO) -> Struct:
    found: Struct = {}
    number = 0
    while header := reader.read(1)[0]:
        kind, step = header & _LONG, header >> 4
        number = number + step if step else _integer(reader)
        found[number] = kind, _value(reader, kind) if kind > FALSE else kind == TRUE
    return found


def _value(reader: io.BytesIO, kind: int) -> Any:
    if kind in _INTEGERS:
        return _integer(reader)
    if kind == BINARY:
        return _exactly(reader, _varint(reader))
    if kind == STRUCT:
        return _struct(reader)
    if kind in (LIST, SET):
        return _list(reader)
    if kind in (TRUE, FALSE, BYTE):  # an element of a list, or a byte
        return reader.read(1)[0]
    if kind == DOUBLE:
        return _exactly(reader, 8)
    raise ValueError(f"a value of type {kind}, which no Parquet footer has")


def _list(reader: io.BytesIO) -> tuple[int, list[Any]]:
    header = reader.read(1)[0]
    kind, size = header & _LONG, header >> 4
    return kind, [_value(reader, kind) for _ in range(_varint(reader) if size == _LONG else size)]


def _exactly(reader: io.BytesIO, size: int) -> bytes:
    found = reader.read(size)
    if len(found) < size:
        raise ValueError(f"{size} bytes should follow, {len(found)} do")
    return found


def _varint(reader: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = reader.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def _integer(reader: io.BytesIO) -> int:
    value = _varint(reader)
    return (value >> 1) ^ -(value & 1)


def _put_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in struct.items():
        kind = kind if kind > FALSE else TRUE if value else FALSE
        if 0 < number - before <= _LONG:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _put_integer(out, number)
        if kind > FALSE:
            _put(out, kind, value)
        before = number
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _put_integer(out, value)
    elif kind == BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (LIST, SET):
        _put_list(out, *value)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _put_list(out: bytearray, kind: int, values: Sequence[Any]) -> None:
    out.append(min(len(values), _LONG) << 4 | kind)
    if len(values) >= _LONG:
        _put_varint(out, len(values))
    for value in values:
        _put(out, kind, value)


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_integer(out: bytearray, value: int) -> None:
    _put_varint(out, (value << 1) ^ (value >> 63))
