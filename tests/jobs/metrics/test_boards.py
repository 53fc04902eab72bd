"""Boards and alert rules that others made for Kafka find what they select in a scrape of a running cluster.

The table has, for each board, the metrics and the labels by which its panels, variables and rules select them: Strimzi
of August 2026 (JMX exporter), kafka_exporter 1.9.0 and Awesome Prometheus alerts. A selector finds something if a
sample has its name and its labels. What finds nothing is in a second table with the reason, and on the page about the
exporter too. The labels that Prometheus itself adds are added here.
"""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lakelog.jobs.cli.addresses import Address
from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import TEXT_FORMAT, Labels
from lakelog.jobs.metrics.exposition import page as exposed
from lakelog.jobs.metrics.jvm_figures import JvmReader
from lakelog.jobs.metrics.metric_families import METRICS_SERVED, OF_THE_SCRAPE
from lakelog.jobs.metrics.metrics_server import MetricsServer
from lakelog.jobs.metrics.process_metrics import JVM_UP, PROCESS_METRICS, ProcessScrapes
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config
from lakelog.replication.local_cluster import LocalCluster
from tests.jobs.metrics.scraped import Page
from tests.jobs.metrics.test_monitoring_page import HOUSE, section
from tests.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDED = {
    "namespace": "ns", "strimzi_io_cluster": "lake", "strimzi_io_name": "lake-kafka",
    "kubernetes_pod_name": "lake-{broker}",
}  # fmt: skip
OF_TARGET = {  # labels of a broker's process, in the configuration of Prometheus
    "namespace": "ns", "strimzi_io_name": "lake-kafka", "kubernetes_pod_name": "lake-1", "container": "kafka",
}  # fmt: skip
BY_PROMETHEUS = {"job": "lakelog", "instance": "127.0.0.1:9308"}

_CLUSTER = 'namespace="ns",strimzi_io_cluster="lake"'
_BROKER = f'{_CLUSTER},kubernetes_pod_name=~"lake-(1|2|3)"'
_BROKER_TOPIC = f'{_BROKER},topic=~".*",topic!=""'
_NAME = 'namespace="ns",strimzi_io_name="lake-kafka"'
_TOPIC = 'topic=~"orders",namespace=~"ns"'
_GROUP = f'consumergroup=~"billing",{_TOPIC}'
_INSTANCE = 'instance="127.0.0.1:9308"'
_CONTAINER = 'namespace="ns",pod=~"lake-1",container="kafka"'
_VOLUME = 'namespace="ns",persistentvolumeclaim=~"data(-[0-9]+)?-lake-1"'

SELECTORS: dict[str, list[tuple[str, str]]] = {
    "Strimzi, Kafka": [
        ("kafka_server_replicamanager_leadercount", ""),
        ("kafka_server_replicamanager_leadercount", 'namespace="ns"'),
        ("kafka_server_replicamanager_leadercount", _CLUSTER),
        ("kafka_server_replicamanager_partitioncount", _CLUSTER),
        ("kafka_server_replicamanager_underreplicatedpartitions", _CLUSTER),
        ("kafka_cluster_partition_replicascount", _BROKER),
        ("kafka_cluster_partition_atminisr", _CLUSTER),
        ("kafka_cluster_partition_underminisr", _CLUSTER),
        ("kafka_controller_kafkacontroller_activecontrollercount", _CLUSTER),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", _CLUSTER),
        ("kafka_controller_controllerstats_uncleanleaderelections_total", _CLUSTER),
        ("kafka_log_log_size", f'{_BROKER},topic=~"orders"'),
        ("kafka_log_log_size", f'{_BROKER},topic=~"orders",partition=~"0"'),
        ("kafka_server_brokertopicmetrics_messagesin_total", _BROKER_TOPIC),
        *((f"kafka_server_brokertopicmetrics_{name}_total", _BROKER_TOPIC) for name in (
            "bytesin", "bytesout", "totalproducerequests", "failedproducerequests", "totalfetchrequests",
            "failedfetchrequests",
        )),
        *((f"kafka_server_kafkaserver_linux_disk_{name}_bytes", _BROKER) for name in ("read", "write")),
        ("kafka_network_socketserver_networkprocessoravgidle_percent", _BROKER),
        ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", _BROKER),
        ("kafka_server_socket_server_metrics_connection_count", _BROKER),
        *((f"jvm_{name}", f'{_NAME},kubernetes_pod_name=~"lake-1"') for name in (
            "memory_used_bytes", "threads_current", "gc_collection_seconds_count", "gc_collection_seconds_sum",
        )),
        ("process_open_fds", 'namespace="ns",kubernetes_pod_name=~"lake-1",container="kafka"'),
        ("container_memory_usage_bytes", _CONTAINER),
        ("container_cpu_usage_seconds_total", _CONTAINER),
        ("kubelet_volume_stats_available_bytes", _VOLUME),
    ],
    "Strimzi, Kafka Exporter": [
        ("kafka_broker_info", ""),
        ("kafka_broker_info", 'namespace="ns"'),
        ("kafka_consumergroup_current_offset", _CLUSTER),
        ("kafka_topic_partition_current_offset", _CLUSTER),
        *((name, _TOPIC) for name in (
            "kafka_topic_partitions", "kafka_topic_partition_current_offset", "kafka_topic_partition_oldest_offset",
            "kafka_topic_partition_in_sync_replica", "kafka_topic_partition_leader_is_preferred",
            "kafka_topic_partition_replicas", "kafka_topic_partition_under_replicated_partition",
            "kafka_cluster_partition_atminisr", "kafka_cluster_partition_underminisr",
        )),
        ("kafka_consumergroup_current_offset", _GROUP),
        ("kafka_consumergroup_lag", _GROUP),
    ],
    "Strimzi, KRaft": [
        *((f"kafka_server_raftmetrics_{name}", _BROKER) for name in (
            "current_leader", "current_epoch", "current_vote", "commit_latency_avg", "append_records_rate",
        )),
        *((f"kafka_server_raftmetrics_{name}", _NAME) for name in (
            "fetch_records_rate", "high_watermark", "log_end_offset",
        )),
        ("kafka_server_raftmetrics_current_state", ""),
        *((f"kafka_server_raftchannelmetrics_{name}_total", _BROKER) for name in (
            "incoming_byte", "outgoing_byte", "request", "response",
        )),
    ],
    "Strimzi, alert rules": [
        ("kafka_server_replicamanager_underreplicatedpartitions", ""),
        ("kafka_controller_kafkacontroller_activecontrollercount", ""),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", ""),
        ("kafka_server_replicamanager_underminisrpartitioncount", ""),
        ("kafka_log_logmanager_offlinelogdirectorycount", ""),
        ("kafka_topic_partition_under_replicated_partition", ""),
        ("kafka_topic_partition_current_offset", ""),
        ("kafka_consumergroup_lag", ""),
        ("kubelet_volume_stats_capacity_bytes", 'persistentvolumeclaim=~"data(-[0-9]+)?-(.+)-kafka-[0-9]+"'),
        ("container_last_seen", 'container="kafka"'),
    ],
    "kafka_exporter": [
        ("kafka_consumergroup_current_offset", 'job=~"lakelog"'),
        ("kafka_topic_partition_current_offset", f'{_INSTANCE},topic!="__consumer_offsets",topic!="--kafka"'),
        ("kafka_topic_partition_current_offset", f'{_INSTANCE},topic=~"orders"'),
        ("kafka_topic_partitions", f'{_INSTANCE},topic=~"orders"'),
        ("kafka_consumergroup_current_offset", f'{_INSTANCE},topic=~"orders"'),
        ("kafka_consumergroup_lag", f'{_INSTANCE},topic=~"orders"'),
    ],
    "Awesome Prometheus alerts": [
        ("kafka_topic_partition_in_sync_replica", ""),
        ("kafka_consumergroup_lag", ""),
    ],
}  # fmt: skip

_REQUESTS = "a broker gets no requests: clients read and write the tables themselves"
_DISK = "of the host: its exporter has it"
_HOST = "of Kubernetes or of the host: their exporters have it"
_NO_RAFT = "cluster roots elect no leader and keep no log of their own: see the metrics `lakelog_cluster_root_…`"
NOT_SERVED = {
    "kafka_server_brokertopicmetrics_bytesin_total": "the bytes of new records are in the footers of files only",
    "kafka_server_brokertopicmetrics_bytesout_total": "a read leaves no trace in a table",
    "kafka_server_brokertopicmetrics_totalproducerequests_total": _REQUESTS,
    "kafka_server_brokertopicmetrics_failedproducerequests_total": _REQUESTS,
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": _REQUESTS,
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": _REQUESTS,
    "kafka_network_socketserver_networkprocessoravgidle_percent": _REQUESTS,
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": _REQUESTS,
    "kafka_server_socket_server_metrics_connection_count": _REQUESTS,
    "kafka_server_kafkaserver_linux_disk_read_bytes": _DISK,
    "kafka_server_kafkaserver_linux_disk_write_bytes": _DISK,
    "container_memory_usage_bytes": _HOST,
    "container_cpu_usage_seconds_total": _HOST,
    "container_last_seen": _HOST,
    "kubelet_volume_stats_available_bytes": _HOST,
    "kubelet_volume_stats_capacity_bytes": _HOST,
    **{name: _NO_RAFT for name, _ in SELECTORS["Strimzi, KRaft"]},
}


@pytest.fixture(scope="module")
def page(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A scrape over HTTP of three brokers with a topic, records and a group, and the metrics of their process."""
    with LocalCluster(spark, str(tmp_path_factory.mktemp("boards")), brokers=3) as cluster:
        cluster.admin().create_topic("orders", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        records = [{"partition": number, "value": "a record"} for number in range(3)]
        raise_first_error(Producer(cluster.cluster_uri, acks="all").send("orders", records))
        cluster.consumer(group="billing").commit({"orders": {0: 1}})
        scrapes = ClusterScrapes(cluster.cluster_uri, Config(), Labels(ADDED), has_sizes=True)
        server = MetricsServer(Address("127.0.0.1", 0), scrapes, cluster.cluster_uri)
        with server.in_background():
            found = wait_until(lambda: _whole(server.address.port), "all HWs and all followers are at the end")
        process = ProcessScrapes()
        process.jvm = JvmReader(spark, cluster.brokers[1].queries).read
        own = Page(b"".join(exposed(process.scrape(), TEXT_FORMAT)).decode())
        found.samples += [each._replace(labels={**each.labels, **OF_TARGET}) for each in own.samples]
        yield found


def _whole(port: int) -> Page | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    page = Page(connection.getresponse().read().decode())
    ends = page.of("kafka_topic_partition_current_offset"), page.of("kafka_log_log_logendoffset")
    return page if ends == ([1] * 3, [1] * 9) else None


def finds(page: Page, name: str, matchers: str) -> bool:
    """Whether a sample has this name, and labels that match. A label that a sample lacks is empty."""
    given = re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers)
    assert ",".join(f'{label}{how}"{value}"' for label, how, value in given) == matchers, "each part is understood"
    return any(
        all(_matches({**BY_PROMETHEUS, **sample.labels}.get(label, ""), how, value) for label, how, value in given)
        for sample in page.samples
        if sample.name == name
    )


def _matches(found: str, how: str, value: str) -> bool:
    is_equal = bool(re.fullmatch(value, found)) if "~" in how else found == value
    return is_equal != how.startswith("!")


@pytest.mark.parametrize("board", SELECTORS)
def test_a_board_finds_all_but_what_no_table_has(page: Page, board: str) -> None:
    found = {(name, matchers): finds(page, name, matchers) for name, matchers in SELECTORS[board]}
    nothing = sorted(selector for selector, is_there in found.items() if not is_there)
    assert nothing == sorted(selector for selector in found if selector[0] in NOT_SERVED)


def test_a_selector_that_does_not_match_finds_nothing(page: Page) -> None:
    assert finds(page, "kafka_topic_partitions", 'topic="orders"')
    for matchers in ('topic="order"', 'topic=~"order"', 'topic!="orders"', 'topic!~"ord.*"', 'pod="x"'):
        assert not finds(page, "kafka_topic_partitions", matchers), matchers


def test_boards_count_and_sum_as_they_do_for_kafka(page: Page) -> None:
    """The panels whose value depends on how many samples there are."""
    assert page.of("kafka_server_replicamanager_leadercount", namespace="ns") == [1, 1, 1]
    assert page.of("kafka_controller_kafkacontroller_activecontrollercount") == [1], "the alert sums it"
    assert page.of("kafka_cluster_partition_replicascount", topic="orders") == [3, 3, 3]
    pods = {sample.labels["kubernetes_pod_name"] for sample in page.samples if sample.name == "kafka_log_log_size"}
    assert pods == {"lake-1", "lake-2", "lake-3"}


def test_every_metric_but_those_of_several_cluster_roots_is_in_a_scrape(page: Page) -> None:
    missing = {metric.name for metric in METRICS_SERVED} - page.names()
    assert missing == {name for name in missing if name.startswith("lakelog_cluster_root_")}


def test_the_page_has_what_is_not_served_and_why() -> None:
    rows = "".join(f"| `{name}` | {why} |\n" for name, why in NOT_SERVED.items())
    assert section("not served") == "| metric | why it is not served |\n|---|---|\n" + rows


ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((HOUSE / "conf" / "lakelog-alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
BOARD = json.loads((HOUSE / "conf" / "lakelog-dashboard.json").read_text("utf-8"))
OF_CLUSTER = {metric.name: set(metric.labels) for metric in METRICS_SERVED} | {n: set[str]() for n in OF_THE_SCRAPE}
OF_PROCESS = {metric.name: {*metric.labels, "instance"} for metric in PROCESS_METRICS} | {JVM_UP: {"instance"}}
LABELS = OF_CLUSTER | OF_PROCESS


def metrics_in(expression: str) -> list[str]:
    return re.findall(r"\b(?:kafka|lakelog|process|jvm)_\w+", expression)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_names_metrics_and_labels_that_are_served(rule: dict[str, Any]) -> None:
    named = metrics_in(rule["expr"])
    assert named
    assert set(named) <= LABELS.keys()
    texts = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= set.union(*(LABELS[name] for name in named))
    assert rule["annotations"].keys() == {"summary", "description"}
    is_of_partition = {"topic", "partition"} <= set.intersection(*(LABELS[name] for name in named))
    is_named = "{{ $labels.topic }}-{{ $labels.partition }}" in texts
    assert is_named == (is_of_partition and "by (" not in rule["expr"]), "it names the partition if there is one"
    assert rule["expr"].startswith("increase(") or rule["for"] in ("1m", "3m", "5m")


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names)) >= 20


def test_the_board_shows_metrics_that_are_served() -> None:
    panels = BOARD["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for expression in expressions for name in metrics_in(expression)}
    assert all(metrics_in(expression) for expression in expressions)
    assert named <= LABELS.keys()
    own = {name for name in OF_CLUSTER if name.startswith("lakelog_")}
    assert own <= named, "what only Lakelog has is on its board"
    assert {"lakelog_store_requests_total", "lakelog_store_dollars_total"} <= named
    for panel in panels:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= set.union(*(LABELS[name] for name in metrics_in(target["expr"])))


def test_the_panels_of_the_board_do_not_overlap() -> None:
    cells: list[tuple[int, int]] = []
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_alerts_and_the_board_are_shipped() -> None:
    """`conf/*` is installed, see pyproject.toml; the page says where."""
    page = Path(HOUSE, "docs", "monitoring.md").read_text("utf-8")
    for name in ("lakelog-alerts.yml", "lakelog-dashboard.json"):
        assert f"conf/{name}" in page
