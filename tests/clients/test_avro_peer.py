"""Random schemas, changes of them, and values: our decoder reads what fastavro reads."""

import io
import json
import random

import fastavro
import pytest
from fastavro.read import SchemaResolutionError

from lakelog.replication.clients.avro_decoder import AvroDecoder
from lakelog.replication.protocol.avro_resolution import first_fault, resolve
from lakelog.replication.protocol.avro_schema import AvroArray, AvroMap, AvroRecord, AvroUnion
from lakelog.replication.protocol.schema_history import parsed_avro
from lakelog.replication.protocol.value_type import ValueMisfit
from tests.clients.test_avro_decoder import encoded, named, values_of

PRIMITIVES = "boolean int long float double bytes string".split()
WIDER = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
NEW = {"name": "new", "type": "int", "default": 5}


class Chance:
    """Draws schemas and values."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0

    def is_one_of(self, several):
        return self.random.randrange(several) == 0

    def named(self, kind, **parts):
        self.names += 1
        return {"type": kind, "name": f"N{self.names}", **parts}

    def record(self, depth):
        names = self.random.sample("abcdef", self.random.randrange(1, 4))
        return self.named("record", fields=[{"name": name, "type": self.type(depth)} for name in names])

    def type(self, depth):
        draws = [
            lambda: self.named("enum", symbols=self.symbols()),
            lambda: self.named("fixed", size=self.random.randrange(1, 5)),
            lambda: self.optional(self.type(depth)),
            *[lambda: self.random.choice(PRIMITIVES)] * 4,
        ]
        nested = [
            lambda: self.record(depth - 1),
            lambda: {"type": "array", "items": self.type(depth - 1)},
            lambda: {"type": "map", "values": self.type(depth - 1)},
        ]
        return self.random.choice(draws + (nested if depth else []))()

    def symbols(self):
        return self.random.sample("ABCD", self.random.randrange(1, 4))

    def optional(self, type):
        return type if isinstance(type, list) else self.random.sample(["null", type], 2)

    def changed(self, type):
        """A schema that may read what `type` has written."""
        if isinstance(type, list):
            (inner,) = (each for each in type if each != "null")
            found = self.changed(inner)
            return found if self.is_one_of(6) else self.optional(found)
        if isinstance(type, str):
            found = WIDER.get(type, type) if self.is_one_of(6) else type
            return self.random.choice(PRIMITIVES) if self.is_one_of(20) else found
        found = {**type, **self.changed_parts(type)}
        return self.optional(found) if self.is_one_of(10) else found

    def changed_parts(self, type):
        kind = type["type"]
        if kind == "record":
            kept = [each for each in type["fields"] if not self.is_one_of(10)]
            fields = [self.changed_field(each) for each in kept]
            fields += [NEW] if not fields or self.is_one_of(3) else []
            return {"fields": self.random.sample(fields, len(fields))}
        if kind == "enum":
            symbols = self.symbols() if self.is_one_of(3) else type["symbols"]
            return {"symbols": symbols, **({"default": symbols[0]} if self.is_one_of(3) else {})}
        if kind == "fixed":
            return {"size": type["size"] + self.is_one_of(10)}
        part = "items" if kind == "array" else "values"
        return {part: self.changed(type[part])}

    def changed_field(self, each):
        found = {**each, "type": self.changed(each["type"])}
        return {**found, "name": f"{each['name']}x", "aliases": [each["name"]]} if self.is_one_of(10) else found

    def datum(self, type):
        chance = self.random
        if isinstance(type, list):
            return self.datum(chance.choice(type))
        draws = {
            "null": lambda: None,
            "boolean": lambda: self.is_one_of(2),
            "int": lambda: chance.randrange(-(2**31), 2**31),
            "long": lambda: chance.randrange(-(2**63), 2**63),
            "float": lambda: float(chance.randrange(1000)),
            "double": chance.random,
            "bytes": lambda: chance.choice([b"", b"ab", b"x" * 200]),
            "string": lambda: chance.choice(["", "ä", "x" * 300]),
            "enum": lambda: chance.choice(type["symbols"]),
            "fixed": lambda: chance.randbytes(type["size"]),
            "array": lambda: [self.datum(type["items"]) for _ in range(chance.randrange(3))],
            "map": lambda: {str(number): self.datum(type["values"]) for number in range(chance.randrange(3))},
            "record": lambda: {each["name"]: self.datum(each["type"]) for each in type["fields"]},
        }
        return draws[type if isinstance(type, str) else type["type"]]()


def plain(type, value):
    """A value as fastavro has it: a map is a dict."""
    if value is None:
        return None
    if isinstance(type, AvroUnion):
        return plain(type.type, value)
    if isinstance(type, AvroRecord):
        return {each.name: plain(each.type, value[each.name]) for each in type.fields}
    if isinstance(type, AvroMap):
        return {key: plain(type.values, each) for key, each in value}
    return [plain(type.items, each) for each in value] if isinstance(type, AvroArray) else value


@pytest.mark.parametrize("seed", range(10))
def test_what_a_changed_schema_reads_is_what_fastavro_reads(seed):
    """A compatible schema reads every value. fastavro refuses an empty array whose elements do not resolve."""
    chance = Chance(seed)
    read = refused = 0
    for _ in range(30):
        old = chance.record(2)
        new = chance.changed(old)
        new = new if isinstance(new, dict) else next(each for each in new if each != "null")
        texts = [json.dumps(each) for each in (old, new)]
        writer, reader = map(parsed_avro, texts)
        decode = AvroDecoder(values_of(*texts))
        for _ in range(4):
            body = encoded(texts[0], chance.datum(old))
            try:
                found = plain(reader.type, decode(named(texts[0], body)))
            except ValueMisfit:
                refused += 1
                assert first_fault(resolve(writer.type, reader.type)) is not None
                with pytest.raises(SchemaResolutionError):
                    fastavro.schemaless_reader(io.BytesIO(body), old, new)
                continue
            read += 1
            try:
                assert found == fastavro.schemaless_reader(io.BytesIO(body), old, new)
            except SchemaResolutionError:
                assert first_fault(resolve(writer.type, reader.type)) is not None
    assert read > refused > 0
