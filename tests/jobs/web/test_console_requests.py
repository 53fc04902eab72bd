"""What a page costs in an object store: as many requests for any number of partitions, and none while a reading
counts."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.web import shared_readings
from lakelog.jobs.web.page_kit import Console
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.jobs.web.web_app import web_app
from lakelog.replication.config import Config
from lakelog.verification.bench.scale import ScaleCluster
from tests.jobs.request_counts import Count, counted_requests, let_no_earlier_poll_answer
from tests.jobs.web.conftest import opened

# As a scrape of the exporter: a GET for each table of three brokers, and listings for heartbeats and groups.
READING = {"GET": 14, "LIST": 4}
PAGES = ("/brokers", "/topics", "/topics/bench-0", "/groups", "/reassignments", "/what-if")


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Count]:
    with counted_requests(tmp_path_factory.mktemp("store"), "console") as count:
        yield count


@pytest.fixture(autouse=True)
def later_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    let_no_earlier_poll_answer(monkeypatch)


def client_of_store(cluster: ScaleCluster, seconds: float) -> TestClient:
    """With views of the stores of its own, as in a process of its own."""
    agents = {f"storage.{owner}.user_agent": "console" for owner in ("cluster", 1, 2, 3)}
    given = {**agents, "broker.session.timeout.ms": "3600000", "broker.heartbeat.interval.ms": "1"}
    readings = ConsoleReadings(cluster.uri, Config.from_properties(given), seconds)
    return TestClient(web_app(Console(readings, Invocation("lakelog", cluster.uri))), base_url="http://127.0.0.1")


def with_rows(cluster: ScaleCluster) -> ScaleCluster:
    brokers = [cluster.broker(number) for number in (1, 2, 3)]
    for broker in brokers:
        broker.take_up_roles()
        broker.manager.publish("test")
    return cluster


@pytest.mark.parametrize("partitions", [3, 60])
def test_a_page_costs_the_same_for_any_number_of_partitions(
    requests: Count, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_rows(ScaleCluster(f"s3://console/lake-{partitions}", partitions))
    monkeypatch.setattr(ConsoleReadings, "sizes", lambda _: {})  # they are read in the background, at times
    with client_of_store(cluster, 0.0) as client:
        opened(client, "/brokers")
        for page in PAGES:
            requests()
            opened(client, page)
            assert requests() == READING, page


def test_pages_cost_nothing_while_a_reading_counts(requests: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_rows(ScaleCluster("s3://console/shared", 3))
    monkeypatch.setattr(shared_readings, "_SIZES_PATIENCE", 60.0)
    pages = ("/", *PAGES, "/events", "/history", "/topics/bench-0/history", "/topics/bench-0/settings")
    with client_of_store(cluster, 3600.0) as client:
        for page in pages:
            opened(client, page)
        requests()
        for page in pages * 3:
            opened(client, page)
        assert requests() == {}
