"""Streaming queries of benchmarks, and the time of their micro-batches as Spark measures it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


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
