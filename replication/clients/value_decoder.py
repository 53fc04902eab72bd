"""Decodes the values of a topic by its schema: for readers, and for producers that check what they send.

A value fits as a whole or not at all. Spark's `from_json` makes text of a number, and null of a field that does not
fit. Here one rule holds for those who write and those who read, so a value that was checked is not null to a reader.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from lakelog.replication.clients.avro_decoder import AvroDecoder
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.value_type import FieldsType, FieldType, KeyedType, ListType, ScalarType, ValueMisfit

Convert: TypeAlias = Callable[[Any], Any]

_INTEGERS = {name: 2**bits for name, bits in (("TINYINT", 7), ("SMALLINT", 15), ("INT", 31), ("BIGINT", 63))}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.A)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.A)
_FRAME = 5  # bytes in front of a value. Confluent: `AbstractKafkaSchemaSerDe`
_SHOWN = 40  # characters of a value in an error


class JsonDecoder:
    """Decodes values that are objects in JSON, in UTF-8. Confluent's serializers put a zero and the four bytes of the
    schema's id in front, which no JSON begins with: they are skipped, and the id is not looked up."""

    def __init__(self, type: FieldsType) -> None:
        self._convert = _converter(type)
        parse_float = Decimal if _has_decimals(type) else float
        self._parse = json.JSONDecoder(parse_float=parse_float, parse_constant=_no_constant).decode

    def __call__(self, value: bytes) -> Mapping[str, Any]:
        """The fields as Arrow takes them, without those that the schema does not name. Raises ValueMisfit."""
        try:
            found = self._parse((value[_FRAME:] if value[:1] == b"\0" else value).decode())
        except UnicodeDecodeError as error:
            raise ValueMisfit(f"is no text in UTF-8: byte {error.start + 1} cannot be read") from None
        except json.JSONDecodeError as error:
            raise ValueMisfit(f"is no JSON: {error.msg} at character {error.pos + 1}") from None
        except ValueMisfit:
            raise
        except RecursionError:
            raise ValueMisfit("is no JSON that can be read: it has too many brackets inside one another") from None
        except InvalidOperation:
            raise ValueMisfit("is no JSON that can be read: a number has too large an exponent") from None
        except ValueError as error:  # a number of more than 4,300 digits
            raise ValueMisfit(f"is no JSON that can be read: {str(error).partition(';')[0]}") from None
        decoded: Mapping[str, Any] = self._convert(found)
        return decoded


Decode: TypeAlias = Callable[[bytes], Mapping[str, Any]]


@lru_cache(maxsize=100)
def decoder_of(values: FieldsType | AvroValues) -> Decode:
    """The decoder of a schema. It is made once, as making it costs more than a value."""
    return AvroDecoder(values) if isinstance(values, AvroValues) else JsonDecoder(values)


def misfit_of(values: FieldsType | AvroValues, value: bytes) -> str | None:
    """Why a value does not fit a schema, None if it fits."""
    try:
        decoder_of(values)(value)
    except ValueMisfit as error:
        return str(error)
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueMisfit(f"is no JSON: {name} is no number there")


def _has_decimals(type: FieldType) -> bool:
    if isinstance(type, FieldsType):
        return any(_has_decimals(field.type) for field in type.fields)
    if isinstance(type, ListType):
        return _has_decimals(type.element)
    return _has_decimals(type.value) if isinstance(type, KeyedType) else type.name == "DECIMAL"


def _misfit(value: object, type: object) -> ValueMisfit:
    shown = {dict: "an object", list: "an array", Decimal: str(value)}.get(value.__class__)
    shown = json.dumps(value, ensure_ascii=False) if shown is None else shown
    return ValueMisfit(f"is {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}…'}, it must be {type}")


def _converter(type: FieldType) -> Convert:
    if isinstance(type, FieldsType):
        return _fields_converter(type)
    if isinstance(type, ListType):
        return _list_converter(type)
    if isinstance(type, KeyedType):
        return _keyed_converter(type)
    if type.name in _INTEGERS:
        return _integer_converter(type)
    if type.name == "DECIMAL":
        return _decimal_converter(type)
    return _SCALARS[type.name]


def _fields_converter(type: FieldsType) -> Convert:
    names = {field.name for field in type.fields} if type.is_closed else None
    parts = [(field.name, _converter(field.type), field.is_required) for field in type.fields]

    def convert(value: Any) -> Any:
        if value.__class__ is not dict:
            raise _misfit(value, "an object")
        if names is not None and not value.keys() <= names:
            raise ValueMisfit("is not in the schema, which takes no others", min(value.keys() - names)[:_SHOWN])
        found = {}
        for name, convert_field, is_required in parts:
            given = value.get(name)
            if given is not None:
                try:
                    found[name] = convert_field(given)
                except ValueMisfit as error:
                    raise error.within(name) from None
            elif is_required:
                words = "is null" if name in value else "is missing"
                raise ValueMisfit(f"{words}, and it is NOT NULL", name)
        return found

    return convert


def _list_converter(type: ListType) -> Convert:
    convert_element = _converter(type.element)

    def convert(value: Any) -> Any:
        if value.__class__ is not list:
            raise _misfit(value, "an array")
        found = []
        for number, each in enumerate(value):
            try:
                found.append(None if each is None else convert_element(each))
            except ValueMisfit as error:
                raise error.within(f"[{number}]") from None
        return found

    return convert


def _keyed_converter(type: KeyedType) -> Convert:
    convert_value = _converter(type.value)

    def convert(value: Any) -> Any:
        if value.__class__ is not dict:
            raise _misfit(value, "an object")
        found = []
        for name, each in value.items():
            try:
                found.append((_text(name), None if each is None else convert_value(each)))
            except ValueMisfit as error:
                raise error.within(f"{{{name[:_SHOWN]}}}") from None
        return found

    return convert


def _integer_converter(type: ScalarType) -> Convert:
    bound = _INTEGERS[type.name]

    def convert(value: Any) -> Any:
        if value.__class__ is not int or not -bound <= value < bound:
            raise _misfit(value, type)
        return value

    return convert


def _decimal_converter(type: ScalarType) -> Convert:
    before_the_point, scale = type.precision - type.scale, type.scale

    def convert(value: Any) -> Any:
        if value.__class__ not in (int, Decimal):
            raise _misfit(value, type)
        number = Decimal(value)
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "JSON has no infinite number"
        kept = bytes(digits).rstrip(b"\0")
        if not kept:
            return Decimal(0)
        zeros = len(digits) - len(kept)
        if -exponent - zeros > scale or len(digits) + exponent > before_the_point:
            raise _misfit(value, type)
        if exponent < 0 < zeros:  # Arrow refuses a number with many zeros after the point, or makes another one of it
            return Decimal((sign, tuple(kept), exponent + zeros))
        return number

    return convert


def _boolean(value: Any) -> Any:
    if value.__class__ is not bool:
        raise _misfit(value, "BOOLEAN")
    return value


def _double(value: Any) -> Any:
    return _floating(value, "DOUBLE")


def _float(value: Any) -> Any:
    found = _floating(value, "FLOAT")
    try:
        struct.pack("<f", found)
    except OverflowError:
        raise _misfit(value, "FLOAT") from None
    return found


def _floating(value: Any, type: str) -> float:
    if value.__class__ not in (float, int, Decimal):
        raise _misfit(value, type)
    try:
        found = float(value)
    except OverflowError:
        raise _misfit(value, type) from None
    if not math.isfinite(found):
        raise ValueMisfit(f"is too large for {type}")
    return found


def _text(value: Any) -> Any:
    if value.__class__ is not str:
        raise _misfit(value, "STRING")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueMisfit("is half of a surrogate pair, it must be text that UTF-8 can hold") from None
    return value


def _binary(value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if value.__class__ is str else _refuse_binary(value)
    except (binascii.Error, ValueError):
        _refuse_binary(value)


def _refuse_binary(value: Any) -> NoReturn:
    raise _misfit(value, "BINARY, as text in Base64") from None


def _date(value: Any) -> Any:
    try:
        if value.__class__ is str and _DATE.fullmatch(value):
            return dt.date.fromisoformat(value)
    except ValueError:
        pass
    raise _misfit(value, "DATE, such as 2026-11-30")


def _timestamp(value: Any) -> Any:
    found = _time(value)
    if found is None or found.tzinfo is None:
        raise _misfit(value, "TIMESTAMP, such as 2026-11-30T12:03:00.5Z")
    try:
        return found.astimezone(dt.UTC)
    except OverflowError:
        raise _misfit(value, "TIMESTAMP of the years 1 to 9999") from None


def _timestamp_ntz(value: Any) -> Any:
    found = _time(value)
    if found is None or found.tzinfo is not None:
        raise _misfit(value, "TIMESTAMP_NTZ, such as 2026-11-30T12:03:00.5, without a time zone")
    return found


def _time(value: Any) -> dt.datetime | None:
    try:
        if value.__class__ is str and _TIMESTAMP.fullmatch(value):
            return dt.datetime.fromisoformat(value)
    except ValueError:
        pass
    return None


_SCALARS: Mapping[str, Convert] = {
    "BOOLEAN": _boolean, "FLOAT": _float, "DOUBLE": _double, "STRING": _text, "BINARY": _binary, "DATE": _date,
    "TIMESTAMP": _timestamp, "TIMESTAMP_NTZ": _timestamp_ntz,
}  # fmt: skip
