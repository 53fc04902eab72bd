"""A hundred values that somebody may give to a public call: of the wrong type, at an edge, or without sense."""

import datetime as dt
import decimal
import fractions
import io
import math
import pathlib
import types
import uuid
from collections import OrderedDict, deque
from zoneinfo import ZoneInfo

NESTED: list = []
NESTED.append(NESTED)

# fmt: off
NUMBERS = [
    True, False, 0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0,
    0.5, 5.5, 1e300, -1e300, 5e-324, math.nan, math.inf, -math.inf, 1j, decimal.Decimal("1.5"), decimal.Decimal("nan"),
    fractions.Fraction(1, 3),
]
TEXTS = [
    "", " ", "a", "A" * 300, "0", "1", "-1", "1.5", "1e3", "true", "None", "null", "nan", "\0", "a\nb", "a b", "\t",
    "../x", "/", "..", "a/b", "a:b", "a,b", "^a.*", "*", "%s", "{}", "$x", "`", "'; --", "\\", "\N{PILE OF POO}", "é",
    "e\u0301", "\u202e", "\ud800", "earliest", "all",
]
BYTES = [b"", b"a", b"\xff", bytearray(b"a"), memoryview(b"a")]
COLLECTIONS = [
    [], [None], [[]], [1], ["a"], ["a", "a"], [("a", 0)], [("a", -1)], [{}], NESTED, (), (1,), ("a", 0), {},
    {None: None}, {"a": 1}, {"a": None}, {"a": {}}, {"a": {0: 1}}, {0: None}, {0: 1}, {0: [1]}, {1.5: 1}, {True: 1},
    {("a", 0): None}, {("a", 0): 1}, {("a",): 1}, {"\ud800": "\ud800"}, set(), {1}, frozenset({"a"}), deque(["a"]),
    OrderedDict(a=1), range(3), types.MappingProxyType({"a": 1}),
]
TIMES = [
    dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime.min, dt.datetime.max,
    dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
    dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))),
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.date(2026, 1, 1), dt.time(1), dt.timedelta(1), dt.timedelta.max,
]
OBJECTS = [
    None, ..., object(), int, lambda: None, len, math, ValueError("a"), io.StringIO("a"),
    pathlib.Path("a"), uuid.UUID(int=0), slice(1), (each for each in "a"), iter([]),
]
# fmt: on
VALUES = [*NUMBERS, *TEXTS, *BYTES, *COLLECTIONS, *TIMES, *OBJECTS]
