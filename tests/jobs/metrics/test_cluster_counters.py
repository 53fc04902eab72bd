"""The counters: each change is counted once, also one that is undone before the next scrape, and none goes back."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import Labels
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.jobs.metrics.scraped import LONG, Page, fall_silent, scrape
from tests.storage.logs import P0, TOPIC, fill, lead

SHRINKS, EXPANDS = "kafka_server_replicamanager_isrshrinks_total", "kafka_server_replicamanager_isrexpands_total"
UNCLEAN = "kafka_controller_controllerstats_uncleanleaderelections_total"
MESSAGES = "kafka_server_brokertopicmetrics_messagesin_total"
COUNTERS = (SHRINKS, EXPANDS, UNCLEAN, MESSAGES)


def counts(page: Page) -> tuple[float, ...]:
    """Shrinks and expands of broker 1, unclean elections, and messages that came in at broker 1."""
    return (
        *page.of(SHRINKS, broker=1), *page.of(EXPANDS, broker=1), *page.of(UNCLEAN),
        *page.of(MESSAGES, topic=TOPIC, broker=1),
    )  # fmt: skip


def shrink(world: World, epoch: int) -> None:
    world.change(P0, isr=(1,), partition_epoch=epoch)


def expand(world: World, epoch: int) -> None:
    world.change(P0, isr=(1, 2), partition_epoch=epoch)


def test_counters_begin_at_0_for_all_brokers(scrapes: ClusterScrapes) -> None:
    page = scrape(scrapes)
    assert counts(page) == (0, 0, 0, 0)
    assert page.of(SHRINKS) == page.of(EXPANDS) == page.of(MESSAGES, topic=TOPIC) == [0, 0]


def test_a_shrink_and_an_expand_between_two_scrapes_both_count(world: World, scrapes: ClusterScrapes) -> None:
    for epoch in (1, 3):
        shrink(world, epoch)
        expand(world, epoch + 1)
    assert counts(scrape(scrapes))[:2] == (2, 2)
    shrink(world, 5)
    assert counts(scrape(scrapes))[:2] == (3, 2)
    assert counts(scrape(scrapes))[:2] == (3, 2)


def test_a_version_that_was_cleaned_up_is_left_out(world: World, scrapes: ClusterScrapes) -> None:
    """The rows of the first of two changes are gone, so only the sum of both can be seen."""
    files = set(Path(world.uri, "metadata").glob("*.parquet"))
    shrink(world, 1)
    (first,) = set(Path(world.uri, "metadata").glob("*.parquet")) - files
    expand(world, 2)
    first.unlink()
    assert counts(scrape(scrapes))[:2] == (0, 0)
    shrink(world, 3)
    assert counts(scrape(scrapes))[:2] == (1, 0)


def test_a_shrink_that_leaves_no_leader_counts_at_the_leader_before(world: World, scrapes: ClusterScrapes) -> None:
    world.change(P0, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
    assert counts(scrape(scrapes))[0] == 1


def _lost_its_log(world: World) -> None:
    table = BrokerTable.open(world.cluster.root, 2)
    table.heartbeat(1, "heartbeat", log_epoch=2)
    world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)


@pytest.mark.parametrize(
    ("elects", "count"),
    [
        (lambda world: world.change(P0, leader=2, leader_epoch=1, partition_epoch=1), 0),
        (lambda world: (shrink(world, 1), world.change(P0, leader=2, isr=(2,), leader_epoch=1, partition_epoch=2)), 1),
        (_lost_its_log, 1),
    ],
    ids=["in sync", "out of sync", "has lost its log"],
)
def test_only_an_election_that_may_lose_records_is_unclean(
    world: World, scrapes: ClusterScrapes, elects: Callable[[World], object], count: int
) -> None:
    elects(world)
    assert counts(scrape(scrapes))[2] == count


def test_records_count_at_the_broker_that_leads(world: World, scrapes: ClusterScrapes) -> None:
    fill(world.logs[1], P0, 4)
    world.say(7)
    assert counts(scrape(scrapes))[3] == 4
    world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)
    assert scrape(scrapes).of(MESSAGES, topic=TOPIC, broker=1) == [4]
    lead(world.logs[2], P0, epoch=1)
    fill(world.logs[2], P0, 2, epoch=1)
    world.say(5, P0, broker=2)
    page = scrape(scrapes)
    assert (page.of(MESSAGES, broker=1), page.of(MESSAGES, broker=2)) == ([4], [0])


def test_a_topic_that_is_made_again_counts_on(world: World, scrapes: ClusterScrapes) -> None:
    fill(world.logs[1], P0, 4)
    world.say(7)
    assert counts(scrape(scrapes))[3] == 4
    world.make_again(5, 1)
    assert counts(scrape(scrapes))[3] == 4 + 6


def test_a_partition_whose_end_was_not_known_at_first_counts_from_where_it_is(world: World) -> None:
    world.change(P0, leader_epoch=1, partition_epoch=1)
    scrapes = ClusterScrapes(world.uri, LONG, Labels({}))
    lead(world.logs[1], P0, epoch=1)
    world.say(3)
    assert counts(scrape(scrapes))[3] == 0
    fill(world.logs[1], P0, 2, epoch=1)
    world.say(5)
    assert counts(scrape(scrapes))[3] == 2


def test_counters_go_on_after_the_cluster_root_was_away(world: World, scrapes: ClusterScrapes) -> None:
    shrink(world, 1)
    assert counts(scrape(scrapes))[:2] == (1, 0)
    expand(world, 2)
    shutil.move(world.uri, f"{world.uri}-away")
    assert scrape(scrapes).of("lakelog_up") == [0]
    shutil.move(f"{world.uri}-away", world.uri)
    assert counts(scrape(scrapes))[:2] == (1, 1)


def test_no_counter_goes_back(world: World, scrapes: ClusterScrapes) -> None:
    """Also where the HW does, after an unclean election."""
    fill(world.logs[1], P0, 4)
    world.say(7)
    before = scrape(scrapes)
    shrink(world, 1)
    world.change(P0, leader=2, isr=(2,), leader_epoch=1, partition_epoch=2)
    lead(world.logs[2], P0, epoch=1)
    world.say(3, P0, broker=2)
    page = scrape(scrapes)
    assert page.of("kafka_topic_partition_current_offset", partition=0) == [3]
    for name in COUNTERS:
        assert all(now >= then for now, then in zip(page.of(name), before.of(name), strict=True)), name
    fill(world.logs[2], P0, 2, epoch=1)
    world.say(5, P0, broker=2)
    assert scrape(scrapes).of(MESSAGES, broker=2) == [2]
    fall_silent(world, "brokers/2")
    assert scrape(scrapes).of(SHRINKS, broker=2) == []
