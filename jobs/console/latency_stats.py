"""Counts the records of a producer's performance test, with their latencies. Kafka: `ProducerPerformance.Stats`."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

_MB = 1024 * 1024
_WINDOW_SECONDS = 5.0
_SAMPLES = 500_000  # latencies that are kept for the percentiles


@dataclass
class _Window:
    """Records since a time, in seconds of the monotonic clock; bytes of their values; latencies in ms."""

    start: float
    records: int = 0
    bytes: int = 0
    latency: int = 0
    max_latency: int = 0

    def add(self, latency: int, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        self.latency += latency * records
        self.max_latency = max(self.max_latency, latency)

    def rates(self, now: float) -> tuple[float, float]:
        """Records and MB (2^20 bytes) a second."""
        seconds = max(now - self.start, 0.001)
        return self.records / seconds, self.bytes / seconds / _MB

    @property
    def average(self) -> float:
        return self.latency / max(1, self.records)


class LatencyStats:
    """The statistics of a test of `records` records. It prints a line every 5 seconds."""

    def __init__(self, records: int) -> None:
        now = time.monotonic()
        self._all, self._window = _Window(now), _Window(now)
        self._every = max(1, records // _SAMPLES)
        self._latencies = array("l")

    def add(self, sent_at: float, done_at: float, size: int, records: int = 1) -> None:
        """So many records, of `size` bytes in all, were acknowledged. The times are in seconds of the monotonic
        clock."""
        latency = int((done_at - sent_at) * 1000)
        before = self._all.records // self._every
        self._all.add(latency, records, size)
        self._latencies.extend([latency] * (self._all.records // self._every - before))
        self._window.add(latency, records, size)
        if done_at - self._window.start >= _WINDOW_SECONDS:
            print(self._window_line(done_at), flush=True)
            self._window = _Window(done_at)

    def _window_line(self, now: float) -> str:
        records, mb = self._window.rates(now)
        return (
            f"{self._window.records} records sent, {records:.1f} records/sec ({mb:.2f} MB/sec), "
            f"{self._window.average:.1f} ms avg latency, {self._window.max_latency:.1f} ms max latency."
        )

    def total_line(self) -> str:
        """The line for all records."""
        records, mb = self._all.rates(time.monotonic())
        half, most, nearly_all, all_but_one = self._percentiles()
        return (
            f"{self._all.records} records sent, {records:.6f} records/sec ({mb:.2f} MB/sec), "
            f"{self._all.average:.2f} ms avg latency, {self._all.max_latency:.2f} ms max latency, "
            f"{half} ms 50th, {most} ms 95th, {nearly_all} ms 99th, {all_but_one} ms 99.9th."
        )

    def _percentiles(self) -> list[int]:
        ordered = sorted(self._latencies) or [0]
        return [ordered[int(part * len(ordered))] for part in (0.5, 0.95, 0.99, 0.999)]
