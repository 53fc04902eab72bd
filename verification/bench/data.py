"""Records for benchmarks: JSON about flights, which compresses about as well as real data."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pyarrow as pa

_WORDS = """
    aircraft airport approach arrival baggage boarding cabin cancelled captain carrier clearance connection crew delay
    departure diverted engine fleet fuel gate ground holding inbound jetway landing maintenance mechanic outbound
    passenger pilot ramp refuelled rerouted runway schedule security standby taxi terminal tower transfer weather wind
""".split()
_AIRPORTS = ("ATL", "BOS", "DFW", "EWR", "IAH", "JFK", "LAX", "LGA", "MIA", "ORD", "SEA", "SFO")
_NOTES = 200_000


@dataclass(frozen=True)
class DataSet:
    """A number of records, and the size of their values in bytes. `is_random`: of random bytes, which no codec makes
    smaller."""

    records: int
    value_bytes: int
    is_random: bool = False

    @property
    def name(self) -> str:
        """The name for people, such as "20,000 records of 1 KB"."""
        size = f"{self.value_bytes // 1000} KB" if self.value_bytes >= 1000 else f"{self.value_bytes} B"
        return f"{self.records:,} records of {size}" + (", random" if self.is_random else "")

    def table(self, seed: int = 0) -> pa.Table:
        """The records with the columns `key` and `value`; the same seed gives the same records."""
        chance = random.Random(seed)
        keys = [f"N{chance.randrange(4000):04d}" for _ in range(self.records)]
        return pa.table({"key": pa.array(keys, pa.binary()), "value": self._values(chance, keys)})

    def _values(self, chance: random.Random, keys: list[str]) -> pa.Array:
        if self.is_random:
            return pa.array((chance.randbytes(self.value_bytes) for _ in keys), pa.binary())
        notes = " ".join(chance.choices(_WORDS, k=_NOTES))
        return pa.array([self._value(chance, key, notes) for key in keys], pa.binary())

    def _value(self, chance: random.Random, key: str, notes: str) -> bytes:
        origin, to = chance.choice(_AIRPORTS), chance.choice(_AIRPORTS)
        head = f'{{"plane":"{key}","from":"{origin}","to":"{to}","delay":{chance.randrange(-30, 600)},"note":"'
        start, length = chance.randrange(len(notes) - self.value_bytes), self.value_bytes - len(head) - 2
        return f'{head}{notes[start : start + length]}"}}'.encode()
