"""The scrapes of a cluster: each reads the cluster anew. While it cannot be read, they have `lakelog_up 0`, and no
metric of an earlier scrape."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain

from lakelog.jobs.metrics.cluster_counters import ClusterCounters
from lakelog.jobs.metrics.exposition import Family, Labels
from lakelog.jobs.metrics.metric_families import metric_families, scrape_families
from lakelog.jobs.metrics.scrape_reader import Scrape, ScrapeReader
from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import LakelogException

logger = logging.getLogger(__name__)


class ClusterScrapes:
    """The scrapes of one cluster. They come one after another, whoever asks."""

    def __init__(self, uri: str, config: Config, labels: Labels, has_sizes: bool = False) -> None:
        """Reads the cluster once, so that counters begin here. `has_sizes`: see `ScrapeReader`. Raises as
        `Cluster.open` and `ScrapeReader.read`."""
        self._open, self._labels = partial(ScrapeReader, uri, config, has_sizes), labels
        self._lock = threading.Lock()
        self._counters = ClusterCounters()
        self._errors = ErrorLog(logger, "scrape")
        self._reader: ScrapeReader | None = self._open()
        self._counters.observe(self._reader.read())

    def scrape(self) -> Iterator[Family]:
        """Reads the cluster, and returns its metrics as they are now. Several threads read it one after another."""
        with self._lock:
            started = time.monotonic()
            found = self._read()
            counts = None if found is None else self._counters.observe(found)
            seconds = time.monotonic() - started
        of_scrape = scrape_families(found is not None, seconds, self._labels)
        if found is None or counts is None:
            return of_scrape
        return chain(of_scrape, metric_families(found, counts, self._labels))

    def _read(self) -> Scrape | None:
        """None if the cluster root cannot be read. Then the next scrape opens it anew."""
        try:
            self._reader = self._reader or self._open()
            found = self._reader.read()
        except (LakelogException, OSError) as error:
            self._reader = None
            self._errors.failed(error)
            return None
        self._errors.worked()
        return found
