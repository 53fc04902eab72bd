"""What a scrape costs in an object store: requests are counted, and none is for a single partition."""

from collections.abc import Iterator

import pytest

from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import Labels
from lakelog.replication.config import Config
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from lakelog.verification.bench.scale import ScaleCluster
from tests.jobs.metrics.scraped import scrape
from tests.jobs.request_counts import Count, counted_requests, let_no_earlier_poll_answer

# In a cluster of three brokers, while nothing happens: a GET for each table, of the commit that would follow. Brokers
# and the controller are polled twice, which costs nothing if a poll of the same second may answer, as it may not here.
# A listing of the commits of a broker's table tells how old its heartbeat is, and one more finds groups.
IDLE = {"GET": 14, "LIST": 4}


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Count]:
    with counted_requests(tmp_path_factory.mktemp("store"), "counted") as count:
        yield count


@pytest.fixture(autouse=True)
def later_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    let_no_earlier_poll_answer(monkeypatch)


def exporter_of(cluster: ScaleCluster) -> ClusterScrapes:
    """With views of the stores of its own, as in a process of its own."""
    owners = ("cluster", 1, 2, 3)
    agents = {f"storage.{owner}.user_agent": "exporter" for owner in owners}
    given = {**agents, "broker.session.timeout.ms": "3600000", "broker.heartbeat.interval.ms": "1"}
    return ClusterScrapes(cluster.uri, Config.from_properties(given), Labels({}))


def with_rows(cluster: ScaleCluster) -> ScaleCluster:
    brokers = [cluster.broker(number) for number in (1, 2, 3)]
    for broker in brokers:
        broker.take_up_roles()
        broker.manager.publish("test")
    return cluster


@pytest.mark.parametrize("partitions", [3, 60])
def test_a_scrape_costs_the_same_for_any_number_of_partitions(requests: Count, partitions: int) -> None:
    cluster = with_rows(ScaleCluster(f"s3://counted/lake-{partitions}", partitions))
    scrapes = exporter_of(cluster)
    requests()
    page = scrape(scrapes)
    assert len(page.of("kafka_topic_partition_leader")) == partitions
    assert page.of("lakelog_broker_root_error") == [0, 0, 0]
    requests()
    scrape(scrapes)
    assert requests() == IDLE
    cluster.change_all_rows(7)
    cluster.cluster.groups.commit([CommittedOffset("g", "bench-0", "bench-id-0", p, 0) for p in range(partitions)])
    requests()
    page = scrape(scrapes)
    assert len(page.of("kafka_consumergroup_current_offset")) == partitions
    assert page.of("kafka_server_replicafetchermanager_maxlag", broker=2) == [7]
    changed = requests()
    assert changed.total() <= sum(IDLE.values()) + 3 * 4, "three tables of rows and one of groups have moved"
