"""Lives of a partition of a compacted topic, and what a real Kafka has left of each: `kafka_cleanings.json`.

`tests/long/test_cleanings_of_kafka.py` writes that file with `LAKELOG_RECORD_KAFKA=1`, and otherwise checks it.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MINUTE = 60_000  # ms
_FILE = Path(__file__).with_suffix(".json").with_name("kafka_cleanings.json")


class KeyAndValue(NamedTuple):
    """A record of a life."""

    key: bytes | None
    value: bytes | None


Batch = list[KeyAndValue]


@dataclass(frozen=True)
class Life:
    """Rounds of batches; after each one the cleaner runs. The records of a round are a minute younger than those of
    the one before, and those of the last one are `youngest` ms old.

    A round ends with a record of a key of its own. Kafka never cleans the active segment, which has that record alone.
    `plain_rounds`: the first rounds, in which the topic has `cleanup.policy=delete`. `lag`: `min.compaction.lag.ms`.
    """

    rounds: list[list[Batch]]
    retention: int = 0  # delete.retention.ms
    lag: int = 0
    plain_rounds: int = 0
    youngest: int = 10 * MINUTE

    def batches(self, number: int) -> list[Batch]:
        """The batches of a round, with the last record."""
        return [*self.rounds[number], [KeyAndValue(b"~%d" % number, b"")]]

    def age(self, number: int) -> int:
        """How old the records of a round are, in ms."""
        return self.youngest + (len(self.rounds) - 1 - number) * MINUTE

    def stop(self, number: int) -> int:
        """The offset of the last record of a round: what is before it can be cleaned."""
        return sum(len(batch) for each in range(number + 1) for batch in self.batches(each)) - 1

    def cleanable(self, number: int) -> int:
        """Up to which offset the cleaner may go after a round."""
        old = [each for each in range(number + 1) if self.age(each) > self.lag]
        return self.stop(old[-1]) if old and number >= self.plain_rounds else 0


def batch(*words: str) -> Batch:
    """A batch of words such as `a=1`, or `a` for a tombstone, `=1` for a record without a key."""
    pairs = (word.partition("=") for word in words)
    return [KeyAndValue(key.encode() or None, value.encode() if sign else None) for key, sign, value in pairs]


def rounds(*texts: str) -> list[list[Batch]]:
    """Rounds of batches: `a=1 b=1 | a=2` has two batches."""
    return [[batch(*part.split()) for part in text.split("|")] for text in texts]


def random_life(seed: int) -> Life:
    """Six rounds of some batches of few keys, of which many are tombstones."""
    chance = random.Random(seed)

    def record() -> KeyAndValue:
        value = None if chance.random() < 0.3 else b"%d" % chance.randrange(1000)
        return KeyAndValue(b"k%d" % chance.randrange(6), value)

    def one_round() -> list[Batch]:
        return [[record() for _ in range(chance.randint(1, 5))] for _ in range(chance.randint(1, 6))]

    return Life([one_round() for _ in range(6)], retention=chance.choice([0, 0, 1000 * MINUTE]))


HOURS = 60 * MINUTE
LIVES = {
    "the newest record of each key stays at its offset": Life(rounds("a=1 b=1 a=2 | c=1 b=2 | a=3", "b=3 | d=1")),
    "the newest of one batch": Life(rounds("a=1 a=2 a=3 b=1 a=4")),
    "a tombstone stays for delete.retention.ms": Life(rounds("a=1 b=1 | a", "b=2", "c=1"), retention=1000 * MINUTE),
    "a tombstone goes with the next cleaning": Life(rounds("a=1 b=1 | a", "b=2", "c=1")),
    "a tombstone of a key that nobody has": Life(rounds("a | b=1", "b=2")),
    "a key that comes back after its tombstone": Life(rounds("a=1 | a | a=2", "a", "a=3", "b=1")),
    "several tombstones of a key": Life(rounds("a=1 | a | a", "a", "b=1")),
    "a tombstone and the value before it in one batch": Life(rounds("a=1 a b=1", "b", "c=1", "d=1")),
    "an empty value is no tombstone": Life(rounds("a=1 | a=", "b=1", "c=1")),
    "all records of a batch go": Life(rounds("a=1 b=1 | a=2 b=2 | a=3 b=3", "c=1")),
    "records without a key go, once a topic is compacted": Life(
        rounds("a=1 =1 =2 a=2", "=3 b=1", "b=2"), plain_rounds=2
    ),
    "younger records wait for min.compaction.lag.ms": Life(
        rounds("a=1 b=1 a=2", "a=3 a=4 b=2"), lag=10 * MINUTE + 30_000
    ),
    "records that wait keep no older ones": Life(rounds("a=1 a=2 | b=1", "a=3", "a=4 a=5"), lag=11 * MINUTE + 30_000),
    **{f"life {seed}": random_life(seed) for seed in range(8)},
}

Row = tuple[int, str | None, str | None]  # offset, key, value


@dataclass
class Kept:
    """What a cluster has left after each round of each life, and its version."""

    version: str
    rows: dict[str, list[list[Row]]] = field(default_factory=dict)

    @staticmethod
    def read() -> "Kept":
        """What Kafka has left."""
        found = json.loads(_FILE.read_text())
        lives = {name: [[tuple(row) for row in each] for each in found["lives"][name]] for name in found["lives"]}
        return Kept(found["kafka"], lives)

    def write(self) -> None:
        """Writes the file."""
        lives = ",\n".join(
            f"  {json.dumps(name)}: [\n" + ",\n".join(f"   {json.dumps(each)}" for each in found) + "\n  ]"
            for name, found in self.rows.items()
        )
        _FILE.write_text(f'{{\n "kafka": {json.dumps(self.version)},\n "lives": {{\n{lives}\n }}\n}}\n')
