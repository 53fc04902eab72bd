"""What the exporter says of a cluster: its metrics, before and after something has happened."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.jobs import log_dirs
from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import OPEN_METRICS, TEXT_FORMAT, Labels
from lakelog.jobs.metrics.metric_families import METRICS_SERVED, OF_THE_SCRAPE
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from tests.clients.world import RARELY, World
from tests.jobs.conftest import Run
from tests.jobs.metrics.scraped import LONG, Page, beat, fall_silent, scrape
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill, lead, truncate

_Expected = tuple[str, dict[str, object], list[float]]

IN_P0 = {"topic": TOPIC, "partition": 0}
HEALTHY: list[_Expected] = [
    ("lakelog_up", {}, [1]),
    ("kafka_brokers", {}, [2]),
    ("kafka_broker_info", {"id": 1, "broker": 1}, [1]),
    ("kafka_topic_partitions", {"topic": TOPIC}, [2]),
    ("kafka_topic_partition_current_offset", IN_P0, [3]),
    ("kafka_topic_partition_oldest_offset", IN_P0, [0]),
    ("kafka_topic_partition_leader", IN_P0, [1]),
    ("kafka_topic_partition_leader_is_preferred", IN_P0, [1]),
    ("kafka_topic_partition_replicas", IN_P0, [2]),
    ("kafka_topic_partition_in_sync_replica", IN_P0, [2]),
    ("kafka_topic_partition_under_replicated_partition", IN_P0, [0]),
    ("kafka_server_replicamanager_leadercount", {"broker": 1}, [2]),
    ("kafka_server_replicamanager_leadercount", {"broker": 2}, [0]),
    ("kafka_server_replicamanager_partitioncount", {}, [2, 2]),
    ("kafka_server_replicamanager_underreplicatedpartitions", {}, [0, 0]),
    ("kafka_server_replicamanager_underminisrpartitioncount", {}, [0, 0]),
    ("kafka_server_replicamanager_atminisrpartitioncount", {}, [0, 0]),
    ("kafka_server_replicamanager_offlinereplicacount", {}, [0, 0]),
    ("kafka_server_replicamanager_reassigningpartitions", {}, [0, 0]),
    ("kafka_controller_kafkacontroller_activecontrollercount", {}, [1]),
    ("kafka_controller_kafkacontroller_activebrokercount", {}, [2]),
    ("kafka_controller_kafkacontroller_fencedbrokercount", {}, [0]),
    ("kafka_controller_kafkacontroller_globaltopiccount", {}, [1]),
    ("kafka_controller_kafkacontroller_globalpartitioncount", {}, [2]),
    ("kafka_controller_kafkacontroller_offlinepartitionscount", {}, [0]),
    ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", {}, [0]),
    ("kafka_cluster_partition_replicascount", {**IN_P0, "broker": 1}, [2]),
    ("kafka_cluster_partition_insyncreplicascount", {**IN_P0, "broker": 1}, [2]),
    ("kafka_cluster_partition_underreplicated", {**IN_P0, "broker": 1}, [0]),
    ("kafka_cluster_partition_underminisr", {**IN_P0, "broker": 1}, [0]),
    ("kafka_cluster_partition_atminisr", {**IN_P0, "broker": 1}, [0]),
    ("kafka_log_log_logstartoffset", IN_P0, [0, 0]),
    ("kafka_log_log_logendoffset", IN_P0, [3, 3]),
    ("kafka_log_logmanager_offlinelogdirectorycount", {}, [0, 0]),
    ("kafka_server_fetcherlagmetrics_consumerlag", {**IN_P0, "clientId": "ReplicaFetcherThread-0-1"}, [0]),
    ("kafka_server_replicafetchermanager_maxlag", {"clientId": "Replica", "broker": 2}, [0]),
    ("lakelog_broker_alive", {}, [1, 1]),
    ("lakelog_broker_root_error", {}, [0, 0]),
    ("lakelog_broker_failed_replicas", {}, [0, 0]),
    ("lakelog_controller_epoch", {}, [1]),
    ("lakelog_replica_chain_equal", {**IN_P0, "broker": 2}, [1]),
]  # fmt: skip


def wrong(page: Page, expected: list[_Expected]) -> list[object]:
    return [(*case, page.of(case[0], **case[1])) for case in expected if page.of(case[0], **case[1]) != case[2]]


@pytest.mark.parametrize("form", [TEXT_FORMAT, OPEN_METRICS])
def test_a_healthy_cluster_has_these_metrics(scrapes: ClusterScrapes, form: str) -> None:
    assert wrong(scrape(scrapes, form), HEALTHY) == []


def test_metrics_have_the_kinds_labels_and_words_of_the_catalogue(scrapes: ClusterScrapes) -> None:
    families = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in scrape(scrapes).families}
    served = {metric.name: metric for metric in METRICS_SERVED}
    assert families.keys() <= {*served, *OF_THE_SCRAPE}
    for name, metric in served.items():
        if (family := families.get(name)) is not None:
            assert (family.type, family.documentation) == (metric.kind, metric.help), name
            assert {label for sample in family.samples for label in sample.labels} <= set(metric.labels), name


def _broker_2_died(world: World) -> None:
    fall_silent(world, "brokers/2")
    world.change(P0, isr=(1,), partition_epoch=1)


def _no_leader(world: World) -> None:
    world.change(P0, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)


def _another_leader_that_has_not_begun(world: World) -> None:
    world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)


def _another_leader_below_its_epoch(world: World) -> None:
    """Its HW is behind its log: it does not know yet how much is committed. KIP-207."""
    world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)
    lead(world.logs[2], P0, epoch=1)
    world.say(2, P0, broker=2)


def _another_leader(world: World) -> None:
    world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)
    lead(world.logs[2], P0, epoch=1)
    world.say(3, P0, broker=2)


def _behind(world: World) -> None:
    world.say(1, P1, broker=2, lag=2, log_end_offset=0, state="Delayed", error="OSError: away")


def _diverged(world: World) -> None:
    world.say(2, P1, broker=2, lag=0, chain="another")


def _broken_file(world: World) -> None:
    world.say(2, P1, broker=2, state="Offline", error="CorruptRecordException: a file")


def _root_away(world: World) -> None:
    shutil.rmtree(world.roots[2].uri)


def _moving(world: World) -> None:
    world.change(P0, replicas=(1, 2, 3), adding_replicas=(3,), partition_epoch=1)


def _resigned(world: World) -> None:
    lease = world.cluster.lease.read()
    assert lease is not None
    world.cluster.lease.resign(lease)


def _deleting(world: World) -> None:
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {}, True)], (), {"who": "test"})


def _committed(world: World) -> None:
    old = CommittedOffset("billing", TOPIC, "an older topic", 1, 7)
    world.cluster.groups.commit([CommittedOffset("billing", TOPIC, TOPIC_ID, 0, 1), old])
    world.cluster.groups.commit([CommittedOffset("billing", TOPIC, TOPIC_ID, 1, 2)])


GROUP_P0 = {"consumergroup": "billing", **IN_P0}
CHANGES: list[tuple[Callable[[World], None], list[_Expected]]] = [
    (_broker_2_died, [
        ("lakelog_broker_alive", {"broker": 2}, [0]),
        ("kafka_brokers", {}, [1]),
        ("kafka_broker_info", {"id": 2}, []),
        ("kafka_controller_kafkacontroller_fencedbrokercount", {}, [1]),
        ("kafka_server_replicamanager_leadercount", {}, [2]),
        ("kafka_server_replicamanager_underreplicatedpartitions", {"broker": 1}, [1]),
        ("kafka_server_replicamanager_atminisrpartitioncount", {"broker": 1}, [1]),
        ("kafka_topic_partition_under_replicated_partition", IN_P0, [1]),
        ("kafka_topic_partition_in_sync_replica", IN_P0, [1]),
        ("kafka_cluster_partition_underreplicated", {**IN_P0, "broker": 1}, [1]),
        ("kafka_cluster_partition_atminisr", IN_P0, [1]),
        ("kafka_log_log_logendoffset", {"broker": 2}, []),
        ("lakelog_replica_chain_equal", {}, []),
    ]),
    (_no_leader, [
        ("kafka_controller_kafkacontroller_offlinepartitionscount", {}, [1]),
        ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", {}, [1]),
        ("kafka_topic_partition_leader", IN_P0, [-1]),
        ("kafka_topic_partition_under_replicated_partition", IN_P0, [1]),
        ("kafka_topic_partition_current_offset", {}, [2]),
        ("kafka_topic_partition_oldest_offset", {}, [0]),
        ("kafka_server_replicamanager_underreplicatedpartitions", {}, [0, 0]),
        ("kafka_cluster_partition_replicascount", IN_P0, [2]),
        ("kafka_cluster_partition_replicascount", {**IN_P0, "broker": 1}, []),
    ]),
    (_another_leader_that_has_not_begun, [
        ("kafka_topic_partition_current_offset", {}, [2]),
        ("kafka_topic_partition_leader_is_preferred", IN_P0, [0]),
        ("kafka_server_replicamanager_leadercount", {"broker": 2}, [1]),
    ]),
    (_another_leader_below_its_epoch, [
        ("kafka_topic_partition_current_offset", IN_P0, []),
        ("kafka_topic_partition_oldest_offset", IN_P0, [0]),
    ]),
    (_another_leader, [
        ("kafka_topic_partition_current_offset", IN_P0, [3]),
        ("kafka_topic_partition_leader", IN_P0, [2]),
        ("kafka_cluster_partition_replicascount", {**IN_P0, "broker": 2}, [2]),
    ]),
    (_behind, [
        ("kafka_server_replicafetchermanager_maxlag", {"broker": 2}, [2]),
        ("kafka_server_fetcherlagmetrics_consumerlag", {"partition": 1}, [2]),
        ("kafka_log_log_logendoffset", {"partition": 1, "broker": 2}, [0]),
        ("lakelog_broker_failed_replicas", {"broker": 2}, [1]),
        ("lakelog_replica_chain_equal", {"partition": 1}, []),
    ]),
    (_diverged, [("lakelog_replica_chain_equal", {"partition": 1}, [0])]),
    (_broken_file, [("kafka_server_replicamanager_offlinereplicacount", {"broker": 2}, [1])]),
    (_root_away, [
        ("lakelog_up", {}, [1]),
        ("lakelog_broker_alive", {"broker": 2}, [1]),
        ("lakelog_broker_root_error", {"broker": 2}, [1]),
        ("kafka_log_logmanager_offlinelogdirectorycount", {"broker": 2}, [1]),
        ("kafka_log_log_logendoffset", {"broker": 2}, []),
        ("kafka_topic_partition_current_offset", IN_P0, [3]),
    ]),
    (lambda world: beat(world, 2, storage_error="disk full"), [
        ("kafka_log_logmanager_offlinelogdirectorycount", {"broker": 2}, [1]),
        ("kafka_brokers", {}, [1]),
        ("lakelog_broker_alive", {"broker": 2}, [1]),
    ]),
    (_moving, [
        ("kafka_server_replicamanager_reassigningpartitions", {"broker": 1}, [1]),
        ("kafka_topic_partition_replicas", IN_P0, [2]),
        ("kafka_topic_partition_under_replicated_partition", IN_P0, [0]),
    ]),
    (lambda world: fall_silent(world, "controller"), [
        ("kafka_controller_kafkacontroller_activecontrollercount", {}, [0]),
    ]),
    (_resigned, [
        ("kafka_controller_kafkacontroller_activecontrollercount", {}, [0]),
        ("lakelog_controller_lease_age_seconds", {}, []),
    ]),
    (_deleting, [
        ("kafka_topic_partitions", {}, []),
        ("kafka_controller_kafkacontroller_globaltopiccount", {}, [1]),
        ("kafka_controller_kafkacontroller_globalpartitioncount", {}, [2]),
    ]),
    (_committed, [
        ("kafka_consumergroup_current_offset", GROUP_P0, [1]),
        ("kafka_consumergroup_current_offset_sum", {"consumergroup": "billing", "topic": TOPIC}, [3]),
        ("kafka_consumergroup_lag", GROUP_P0, [2]),
        ("kafka_consumergroup_lag_sum", {"consumergroup": "billing", "topic": TOPIC}, [2]),
        ("kafka_consumergroup_members", {"consumergroup": "billing"}, [0]),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("happens", "expected"), CHANGES)
def test_a_change_shows_in_the_next_scrape(
    world: World, scrapes: ClusterScrapes, happens: Callable[[World], None], expected: list[_Expected]
) -> None:
    before = scrape(scrapes)
    happens(world)
    assert wrong(scrape(scrapes), expected) == []
    assert wrong(before, expected) != [], "a change that would not show proves nothing"


def test_members_count_until_the_last_one_is_dead(world: World, scrapes: ClusterScrapes) -> None:
    with Consumer(world.uri, "group é", **RARELY) as member:
        member.subscribe([TOPIC])
        member.poll(0)
        assert scrape(scrapes).of("kafka_consumergroup_members", consumergroup="group é") == [1]
        (folder,) = Path(world.uri, "members").iterdir()
        fall_silent(world, f"members/{folder.name}")
        assert scrape(scrapes).of("kafka_consumergroup_members", consumergroup="group é") in ([0], [])


@pytest.mark.parametrize("labels", [{}, {"namespace": "lake"}, {"pod": "lake-{broker}", "env": 'a"b\\c'}])
def test_labels_are_added_to_all_samples_or_to_those_of_a_broker(world: World, labels: dict[str, str]) -> None:
    own = {metric.name: set(metric.labels) for metric in METRICS_SERVED}
    fixed = {name: value for name, value in labels.items() if "{broker}" not in value}
    for sample in scrape(ClusterScrapes(world.uri, LONG, Labels(labels))).samples:
        broker = sample.labels.get("broker")
        of_broker = {} if broker is None or "pod" not in labels else {"pod": f"lake-{broker}"}
        added = {name: value for name, value in sample.labels.items() if name not in own.get(sample.name, ())}
        assert added == {**fixed, **of_broker}, sample


def test_sizes_are_those_of_log_dirs_and_follow_the_log(world: World, lakelog: Run) -> None:
    scrapes = ClusterScrapes(world.uri, LONG, Labels({}), has_sizes=True)

    def sizes(page: Page) -> dict[tuple[int, int], tuple[float, float]]:
        names = ("kafka_log_log_size", "kafka_log_log_numlogsegments")
        found = {(b, p): [page.of(name, broker=b, partition=p) for name in names] for b in (1, 2) for p in (0, 1)}
        return {replica: (size, files) for replica, ((size,), (files,)) in found.items()}

    def described() -> dict[tuple[int, int], tuple[float, float]]:
        _, out, _ = lakelog(log_dirs, "--cluster", world.uri, "--describe", "-o", "json")
        return {(row["broker"], row["partition"]): (row["size"], row["files"]) for row in json.loads(out)}

    assert sizes(scrape(scrapes)) == described()
    fill(world.logs[1], P0, 4)
    fill(world.logs[1], P1, 1)
    assert sizes(scrape(scrapes)) == described()
    truncate(world.logs[1], {P0: 3})
    after = sizes(scrape(scrapes))
    assert after == described()
    assert after[1, 0] == sizes(scrape(ClusterScrapes(world.uri, LONG, Labels({}), has_sizes=True)))[1, 0]


def test_without_the_flag_no_log_is_read(world: World, scrapes: ClusterScrapes) -> None:
    shutil.rmtree(f"{world.roots[1].uri}/log")
    page = scrape(scrapes)
    assert (page.of("lakelog_broker_root_error"), page.of("kafka_log_log_size")) == ([0, 0], [])
    page = scrape(ClusterScrapes(world.uri, LONG, Labels({}), has_sizes=True))
    assert (page.of("lakelog_broker_root_error"), len(page.of("kafka_log_log_size"))) == ([1, 0], 2)


def test_the_error_of_a_broker_s_root_is_logged_once(
    world: World, scrapes: ClusterScrapes, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.move(world.roots[2].uri, f"{world.roots[2].uri}-away")
    assert [scrape(scrapes).of("lakelog_broker_root_error", broker=2) for _ in range(3)] == [[1]] * 3
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage().startswith("the root of broker 2 cannot be read: ")
    shutil.move(f"{world.roots[2].uri}-away", world.roots[2].uri)
    assert scrape(scrapes).of("lakelog_broker_root_error", broker=2) == [0]
