"""Typed values of the source: instead of its bytes a record has the fields that its topic's schema names.

Executors decode the values. So they are the same in batch, in streams, in SQL and over Spark Connect, and need no JVM.
Spark: `from_json` with the modes of `ParseMode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from lakelog.replication.clients.avro_decoder import AvroDecoder
from lakelog.replication.clients.value_decoder import Decode, decoder_of
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.value_type import (
    ALLOWED_TYPES,
    SCALAR_TYPES,
    FieldsType,
    FieldType,
    KeyedType,
    ListType,
    ScalarType,
    ValueField,
    ValueMisfit,
)
from lakelog.schemas import LOG

VALUE_ERROR = "value_error"
_WAY_OUT = "mode=PERMISSIVE gives null instead"
_PLACE = ("topic", "partition", "offset")


def spark_values(schema: StructType) -> FieldsType:
    """The schema of the values in the columns of a read. Raises InvalidConfigurationException for columns or types that
    typed values do not have."""
    types = {each.name: each.dataType for each in schema.fields}
    value, error = types.get("value"), types.get(VALUE_ERROR, StringType())
    if not isinstance(value, StructType) or not isinstance(error, StringType):
        wrong, type = ("value", value) if not isinstance(value, StructType) else (VALUE_ERROR, error)
        has = f"column {wrong} is {type.simpleString()}" if type is not None else f"there is no column {wrong}"
        raise InvalidConfigurationException(
            f"schema: {has}; allowed with typedValues: value STRUCT<name: type, ...>, {VALUE_ERROR} STRING"
        )
    found = _type_of(value, "value")
    assert isinstance(found, FieldsType), "it is a struct"
    return found


def _type_of(type: DataType, place: str) -> FieldType:
    if isinstance(type, StructType) and type.fields:
        types = ((each, _type_of(each.dataType, f"{place}.{each.name}")) for each in type.fields)
        return FieldsType(tuple(ValueField(each.name, found, not each.nullable) for each, found in types))
    if isinstance(type, ArrayType):
        return ListType(_type_of(type.elementType, f"{place}[]"))
    if isinstance(type, MapType) and isinstance(type.keyType, StringType):
        return KeyedType(_type_of(type.valueType, f"{place}{{}}"))
    if isinstance(type, DecimalType):
        return ScalarType("DECIMAL", type.precision, type.scale)
    name = type.simpleString().upper()
    if name not in SCALAR_TYPES:
        raise InvalidConfigurationException(f"schema: field {place} is {name}; allowed: {ALLOWED_TYPES}")
    return ScalarType(name)


def avro_decoders(schema: StructType, avro: Mapping[str, AvroValues]) -> dict[str, Decode]:
    """The decoders of topics with values in Avro. Raises InvalidConfigurationException for columns that the schema of
    a topic does not have."""
    return {topic: AvroDecoder(values, spark_values(schema)) for topic, values in avro.items()}


class TypedValues:
    """Turns a batch of records as the log has them into one of the wanted columns, with values decoded.

    `avro`: the schemas of the topics that have values in Avro; all others have values in JSON. `stored`: the columns
    that it needs. With `fails_fast` a value that does not fit raises InvalidRecordException, which names its record;
    otherwise it is null, and the column `value_error` says why. A tombstone is null without an error.
    """

    def __init__(
        self, schema: StructType, wanted: pa.Schema, fails_fast: bool, avro: Mapping[str, AvroValues] = {}
    ) -> None:  # fmt: skip
        self._wanted, self._fails_fast = wanted, fails_fast
        self._json = decoder_of(spark_values(schema))
        self._avro = avro_decoders(schema, avro)
        self._type = wanted.field("value").type
        names = (name for name in wanted.names if name not in ("value", VALUE_ERROR, *_PLACE))
        self.stored = pa.schema(
            [*(LOG.arrow.field(name) for name in ("value", *_PLACE)), *(wanted.field(name) for name in names)]
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the wanted columns. Raises InvalidRecordException, as the class says."""
        rows = list[Mapping[str, Any] | None]()
        faults = list[str | None]()
        decode = self._decoder(batch)
        for number, value in enumerate(batch.column("value")):
            fault = None
            try:
                rows.append(None if not value.is_valid else decode(value.as_py()))
            except ValueMisfit as error:
                fault = str(error)
                if self._fails_fast:
                    raise InvalidRecordException(f"{_place(batch, number)}: {fault}; {_WAY_OUT}") from None
                rows.append(None)
            faults.append(fault)
        made = {"value": self._structs(rows), VALUE_ERROR: pa.array(faults, pa.string())}
        columns = [made[name] if name in made else batch.column(name) for name in self._wanted.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _decoder(self, batch: pa.RecordBatch) -> Decode:
        """The decoder of a batch's topic: all records of a batch are of one topic."""
        if not self._avro or not batch.num_rows:
            return self._json
        return self._avro.get(batch.column("topic")[0].as_py(), self._json)

    def _structs(self, rows: Sequence[Mapping[str, Any] | None]) -> pa.StructArray:
        """Arrow makes columns of lists five times as fast as of dicts."""
        fields = list(self._type)
        columns = [
            pa.array([None if row is None else row.get(each.name) for row in rows], each.type) for each in fields
        ]
        mask = pa.array([row is None for row in rows])
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _place(batch: pa.RecordBatch, number: int) -> str:
    topic, partition, offset = (batch.column(name)[number].as_py() for name in _PLACE)
    return f"{topic}-{partition}, record at offset {offset}"
