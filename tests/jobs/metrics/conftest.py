"""For tests of the exporter: a cluster of tables without processes, and scrapes of it."""

from pathlib import Path

import pytest

from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import Labels
from tests.clients.world import World
from tests.jobs.metrics.scraped import LONG, live_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return live_world(str(tmp_path))


@pytest.fixture
def scrapes(world: World) -> ClusterScrapes:
    return ClusterScrapes(world.uri, LONG, Labels({}))
