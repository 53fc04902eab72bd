"""What the benchmarks have in common: a folder for tables, records that compress like real data, CPU time of a tree of
processes, and the micro-batches of a query."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_PROC = Path("/proc")
_WORDS = """
    aircraft airport approach arrival baggage boarding cabin cancelled captain carrier clearance connection crew delay
    departure diverted engine fleet fuel gate ground holding inbound jetway landing maintenance mechanic outbound
    passenger pilot ramp refuelled rerouted runway schedule security standby taxi terminal tower transfer weather wind
""".split()
_AIRPORTS = ("ATL", "BOS", "DFW", "EWR", "IAH", "JFK", "LAX", "LGA", "MIA", "ORD", "SEA", "SFO")
_NOTES = 200_000


def cpu_seconds() -> float:
    """The CPU time in seconds of this process, its descendants, and those of them that have ended."""
    return sum(process_tree().values())


def cores_while_idle(seconds: float) -> float:
    """The cores that this process and its descendants use while it waits: for `seconds`, after as many without a count,
    because what was just started or used is still busy. A process that ends meanwhile does not count: its time appears
    only once its parent waits for it."""
    pause = threading.Event()
    pause.wait(seconds)
    started, before = time.perf_counter(), _own_seconds()
    pause.wait(seconds)
    used = sum(own - before.get(pid, 0.0) for pid, own in _own_seconds().items())
    return used / (time.perf_counter() - started)


def process_tree() -> dict[int, float]:
    """The CPU time in seconds of this process and of each descendant, with that of its children that have ended."""
    return {pid: own + ended for pid, (own, ended) in _tree().items()}


def _own_seconds() -> dict[int, float]:
    return {pid: own for pid, (own, _) in _tree().items()}


def _tree() -> dict[int, tuple[float, float]]:
    """The CPU time in seconds of this process and of each descendant: its own, and that of its children that have
    ended."""
    found = dict(filter(None, (_process(folder) for folder in _PROC.glob("[0-9]*"))))
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: (found[pid][1] / tick, found[pid][2] / tick) for pid in _with_descendants(os.getpid(), found)}


def _process(folder: Path) -> tuple[int, tuple[int, int, int]] | None:
    """A process's id, its parent, its clock ticks, and those of its children that have ended; None if it has ended."""
    try:
        text = (folder / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before ")" may have spaces, and any bytes
    ticks = [int(field) for field in fields[11:15]]
    return int(folder.name), (int(fields[1]), sum(ticks[:2]), sum(ticks[2:]))


def _with_descendants(pid: int, processes: dict[int, tuple[int, int, int]]) -> list[int]:
    children = [child for child, (parent, _, _) in processes.items() if parent == pid]
    return [pid, *(each for child in children for each in _with_descendants(child, processes))]


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


@contextmanager
def bench_folder() -> Iterator[Path]:
    """A new folder, deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def running(writer: DataStreamWriter) -> Iterator[StreamingQuery]:
    """The started query. It ends with the block."""
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def micro_batches(query: StreamingQuery, seen: set[int]) -> tuple[float, int]:
    """Waits until all is read. The seconds and the records of the micro-batches that are not among those `seen`, which
    get them."""
    query.processAllAvailable()
    found = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] not in seen]
    seen |= {each["batchId"] for each in found}
    seconds = sum(each["durationMs"]["triggerExecution"] for each in found) / 1000
    return seconds, sum(each["numInputRows"] for each in found)
