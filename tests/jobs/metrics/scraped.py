"""Pages of the exporter as Prometheus reads them, and a cluster of tables that has heartbeats."""

import os
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import OPEN_METRICS, TEXT_FORMAT, page
from lakelog.replication.config import Config
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.storage.logs import P0, P1, fill, replicate

LONG = Config(broker_session_timeout_ms=3_600_000, controller_session_timeout_ms=3_600_000)
LONG_AGO = 1_000_000_000.0  # s since 1970


class Page:
    """The samples of a page."""

    def __init__(self, text: str, form: str = TEXT_FORMAT) -> None:
        self.families = list((parse_open_metrics if form == OPEN_METRICS else parse_text)(text))
        self.samples: list[Sample] = [sample for family in self.families for sample in family.samples]

    def of(self, name: str, **labels: object) -> list[float]:
        """The values of the samples with this name and, among others, these labels."""
        wanted = {key: str(value) for key, value in labels.items()}
        return [s.value for s in self.samples if s.name == name and wanted.items() <= s.labels.items()]

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def scrape(scrapes: ClusterScrapes, form: str = TEXT_FORMAT) -> Page:
    return Page(b"".join(page(scrapes.scrape(), form)).decode(), form)


def live_world(folder: str) -> World:
    """Two brokers that are alive and in sync, and an active controller; 3 committed records in P0, 2 in P1."""
    world = World(folder)
    fill(world.logs[1], P0, 3)
    fill(world.logs[1], P1, 2)
    for partition, end in ((P0, 3), (P1, 2)):
        replicate(world.logs[1], world.logs[2], partition)
        world.say(end, partition)
        world.say(end, partition, broker=2, lag=0)
    world.cluster.lease.elect("c", None)
    return world


def beat(world: World, broker: int, **fields: object) -> None:
    """Commits a heartbeat of a broker now."""
    BrokerTable.open(StorageRoot.of(world.uri), broker).heartbeat(1, "heartbeat", **fields)


def fall_silent(world: World, table: str) -> None:
    """Makes the newest commit of a table old, as if its owner had died long ago."""
    os.utime(max(Path(world.uri, table, "_delta_log").glob("*.json")), (LONG_AGO, LONG_AGO))
