"""The figures of the JVM of a driver: its MXBeans, and the progress of its streaming queries.

Only one thread asks the JVM, which is the JVM's own partner for it. A JVM that hangs or collects garbage for long holds
up that thread, and nobody else.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.error_log import ErrorLog

logger = logging.getLogger(__name__)

_PATIENCE = 2.0  # s for which a scrape waits
_AREAS = {"heap": "getHeapMemoryUsage", "nonheap": "getNonHeapMemoryUsage"}
_SIZES = {"used": "getUsed", "committed": "getCommitted", "max": "getMax"}


class QueryFigures(NamedTuple):
    """`batches`: the micro-batches that have ended since the process began. `rows` and `seconds` by phase: of the last
    one."""

    batches: int
    rows: int
    seconds: Mapping[str, float]


class JvmFigures(NamedTuple):
    """`memory`: bytes by area, and by `used`, `committed` and `max` (-1: no limit). `collections`: number and seconds
    by collector. `queries`: the streaming queries that have ended a micro-batch, by name."""

    pid: int
    memory: Mapping[str, Mapping[str, int]]
    collections: Mapping[str, tuple[int, float]]
    threads: int
    queries: Mapping[str, QueryFigures]


class _Beans:
    """The MXBeans of a JVM, looked up once: each name on the way to one is a call of the JVM."""

    def __init__(self, jvm: Any) -> None:
        factory = jvm.java.lang.management.ManagementFactory
        self.pid = int(factory.getRuntimeMXBean().getPid())
        self.memory, self.threads = factory.getMemoryMXBean(), factory.getThreadMXBean()
        self.collectors = {bean.getName(): bean for bean in factory.getGarbageCollectorMXBeans()}


class JvmReader:
    """Reads the figures on a thread of its own. `queries` returns the streaming queries that are running."""

    def __init__(self, spark: SparkSession, queries: Callable[[], Sequence[StreamingQuery]] = list) -> None:
        self.queries = queries
        self._jvm: Any = spark.sparkContext._jvm
        self._beans: _Beans | None = None
        self._errors = ErrorLog(logger, "metrics of the JVM")
        self._runs: dict[str, tuple[str, int]] = {}  # by query: its run, and the micro-batches of those before
        self._last: dict[str, QueryFigures] = {}
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._found: JvmFigures | None = None
        threading.Thread(target=self._run, name="metrics-jvm", daemon=True).start()

    def read(self) -> JvmFigures | None:
        """The figures as they are now; None if the JVM does not answer within two seconds, or with an error."""
        with self._changed:
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= number, _PATIENCE)
            return self._found if self._answered >= number else None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered)
                number = self._asked
            found = self._try()
            with self._changed:
                self._answered, self._found = number, found
                self._changed.notify_all()

    def _try(self) -> JvmFigures | None:
        try:
            found = self._figures()
        except Exception as error:  # of py4j or of Spark, which end before this thread
            self._errors.failed(error)
            return None
        self._errors.worked()
        return found

    def _figures(self) -> JvmFigures:
        beans = self._beans = self._beans or _Beans(self._jvm)
        usages = {area: getattr(beans.memory, name)() for area, name in _AREAS.items()}
        for query in self.queries():
            self._observe(query)
        return JvmFigures(
            pid=beans.pid,
            memory={area: {n: int(getattr(u, get)()) for n, get in _SIZES.items()} for area, u in usages.items()},
            collections={
                name: (int(bean.getCollectionCount()), int(bean.getCollectionTime()) / 1000)
                for name, bean in beans.collectors.items()
            },
            threads=int(beans.threads.getThreadCount()),
            queries=dict(self._last),
        )

    def _observe(self, query: StreamingQuery) -> None:
        """Each start of a query is a run, whose micro-batches are numbered from 0 on: see `FollowerQuery.start`."""
        progress = query._jsq.lastProgress()
        if progress is None:
            return
        last = json.loads(progress.json())
        name, known = last["name"], self._last.get(last["name"])
        run, before = self._runs.get(name, (last["runId"], 0))
        if run != last["runId"] and known is not None:
            before = known.batches
        self._runs[name] = last["runId"], before
        seconds = {phase: ms / 1000 for phase, ms in last["durationMs"].items()}
        self._last[name] = QueryFigures(before + last["batchId"] + 1, last["numInputRows"], seconds)
