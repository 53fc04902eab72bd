"""The metrics that the exporter serves: name, kind, labels and meaning of each, and where its value comes from.

The names are those of kafka_exporter, those that the JMX exporter gives to Kafka's MBeans under Strimzi's rules, and
our own, which begin with `lakelog_`. A metric of a broker is served while the broker is alive: boards count brokers by
it. Where a value is not known, there is no sample: a partition without a leader has no high watermark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import Partition
from lakelog.jobs.admin.group_offsets import record_lag
from lakelog.jobs.admin.heartbeats import ACTIVE, ALIVE, SILENT, STOPPING, STORAGE_ERROR
from lakelog.jobs.metrics.cluster_counters import Counts
from lakelog.jobs.metrics.exposition import COUNTER, GAUGE, Family, Labels, Sample
from lakelog.jobs.metrics.log_sizes import ReplicaSizes
from lakelog.jobs.metrics.scrape_reader import Scrape, is_readable, live_brokers
from lakelog.replication.protocol.delayed_operation import known_high_watermark
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, ReplicaStatus

_FOLLOWER_CLIENT = "Replica"  # the client id of Kafka's `ReplicaFetcherManager`
_FETCHER = "ReplicaFetcherThread-0-{}"  # the number of the fetcher is in no table


class _Led(NamedTuple):
    """A partition as most metrics need it: its own labels as text, the same with those that are added to all, and with
    those of its leader, its registration as it is judged, its HW if that is known, and its leader's row."""

    own: str
    text: str
    of_leader: str
    judged: Partition
    end: int | None
    row: ReplicaStatus | None


class MetricSources:
    """The results of one scrape, in the forms that the metrics share."""

    def __init__(self, found: Scrape, counts: Counts, labels: Labels) -> None:
        self.found, self.counts, self.labels = found, counts, labels
        self.state = found.state
        self.live = [seen.registration.broker_id for seen in live_brokers(found.state)]

    @property
    def active(self) -> int:
        """The number of brokers that are alive and whose storage works, as the view `controller` counts them."""
        return sum(seen.state in (ALIVE, STOPPING) for seen in self.state.brokers.values())

    @cached_property
    def led(self) -> dict[TopicIdPartition, _Led]:
        """The partitions, by name."""
        added = {broker: self.labels.of_broker(broker) for broker in (*self.state.brokers, -1)}
        fixed, found = self.labels.text(), dict[TopicIdPartition, _Led]()
        for partition in self.state.partitions:
            registration = partition.registration
            key = registration.topic_id_partition
            own, seen = _own(registration.topic, registration.partition), self.found.leaderships[key]
            leader = added.get(registration.leader, fixed) if registration.leader >= 0 else fixed
            end = known_high_watermark(seen)
            found[key] = _Led(own, _joined(own, fixed), _joined(own, leader), partition, end, seen.leader_row)
        return found

    @cached_property
    def replicas(self) -> dict[int, list[tuple[ReplicaStatus, _Led]]]:
        """The assigned replicas of each broker whose rows were read, with their partitions."""
        found = dict[int, list[tuple[ReplicaStatus, _Led]]]()
        for broker, rows in self.state.rows.items():
            if isinstance(rows, str):
                continue
            pairs = ((row, led) for key, row in rows.items() if (led := self.led.get(key)) is not None)
            found[broker] = [(row, led) for row, led in pairs if broker in led.judged.registration.replicas]
        return found

    @cached_property
    def lags(self) -> list[tuple[str, str, int, int]]:
        """Group, topic, partition and lag of each offset that a group has committed, where the HW is known."""
        return [
            (row.group_id, row.topic, row.partition, record_lag(led.end, row.committed_offset))
            for row in self.found.offsets
            if (led := self.led.get(row.key[1])) is not None and led.end is not None
        ]

    def of_live_brokers(self, values: Mapping[int, float]) -> Iterator[Sample]:
        """A sample a live broker, 0 where it has no value."""
        return ((self.labels.of_broker(broker), values.get(broker, 0)) for broker in self.live)

    def leaders_of(self, is_counted: Callable[[Partition], bool]) -> Iterator[Sample]:
        """How many such partitions each live broker leads."""
        counted = Counter(p.registration.leader for p in self.state.partitions if is_counted(p))
        return self.of_live_brokers(counted)

    def of_partitions(self, value: Callable[[Partition], int]) -> Iterator[Sample]:
        """A sample a partition."""
        return ((led.text, value(led.judged)) for led in self.led.values())

    def of_leaders(self, value: Callable[[Partition], int]) -> Iterator[Sample]:
        """A sample a partition with the labels of its leader; without these if it has none."""
        return ((led.of_leader, value(led.judged)) for led in self.led.values())

    def of_replicas(self, value: Callable[[ReplicaStatus], int]) -> Iterator[Sample]:
        """A sample a replica whose row was read."""
        for broker, replicas in self.replicas.items():
            added = self.labels.of_broker(broker)
            yield from ((_joined(led.own, added), value(row)) for row, led in replicas)

    def of_cluster(self, value: float) -> list[Sample]:
        """One sample."""
        return [(self.labels.text(), value)]


def _own(topic: str, partition: int) -> str:
    return f'topic="{topic}",partition="{partition}"'  # the name of a topic has no character that needs an escape


def _joined(own: str, added: str) -> str:
    return f"{own},{added}" if added else own


class ServedMetric(NamedTuple):
    """A metric. `labels`: those that its samples may have, besides those that an operator adds."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[MetricSources], Iterable[Sample]]


def _gauge(
    name: str, labels: str, words: str, samples: Callable[[MetricSources], Iterable[Sample]]
) -> ServedMetric:  # fmt: skip
    return ServedMetric(name, GAUGE, tuple(labels.split()), words, samples)


def _counter(
    name: str, labels: str, words: str, samples: Callable[[MetricSources], Iterable[Sample]]
) -> ServedMetric:  # fmt: skip
    return ServedMetric(name, COUNTER, tuple(labels.split()), words, samples)


def _is_under_replicated(partition: Partition) -> bool:
    return not partition.is_offline and bool(partition.out_of_sync)


def _is_preferred(partition: Partition) -> bool:
    registration = partition.registration
    return bool(registration.replicas) and registration.leader == registration.replicas[0]


def _broker_info(of: MetricSources) -> Iterator[Sample]:
    for broker in of.live:
        yield of.labels.of_broker(broker, id=broker, address=of.state.brokers[broker].registration.root), 1


def _topic_partitions(of: MetricSources) -> Iterator[Sample]:
    counts = Counter(partition.registration.topic for partition in of.state.partitions)
    return ((of.labels.text(topic=topic), count) for topic, count in counts.items())


def _current_offsets(of: MetricSources) -> Iterator[Sample]:
    return ((led.text, led.end) for led in of.led.values() if led.end is not None)


def _oldest_offsets(of: MetricSources) -> Iterator[Sample]:
    return ((led.text, led.row.log_start_offset) for led in of.led.values() if led.row is not None)


def _group_offsets(of: MetricSources) -> Iterator[Sample]:
    for row in of.found.offsets:
        yield of.labels.text(consumergroup=row.group_id, topic=row.topic, partition=row.partition), row.committed_offset


def _group_offset_sums(of: MetricSources) -> Iterator[Sample]:
    sums = Counter[tuple[str, str]]()
    for row in of.found.offsets:
        sums[row.group_id, row.topic] += row.committed_offset
    return ((of.labels.text(consumergroup=group, topic=topic), value) for (group, topic), value in sums.items())


def _group_lags(of: MetricSources) -> Iterator[Sample]:
    for group, topic, partition, lag in of.lags:
        yield of.labels.text(consumergroup=group, topic=topic, partition=partition), lag


def _group_lag_sums(of: MetricSources) -> Iterator[Sample]:
    sums = Counter[tuple[str, str]]()
    for group, topic, _, lag in of.lags:
        sums[group, topic] += lag
    return ((of.labels.text(consumergroup=group, topic=topic), value) for (group, topic), value in sums.items())


def _group_members(of: MetricSources) -> Iterator[Sample]:
    for name, group in of.found.groups.items():
        yield of.labels.text(consumergroup=name), len(group.members)


def _partition_counts(of: MetricSources) -> Iterator[Sample]:
    return of.of_live_brokers(Counter(b for p in of.state.partitions for b in p.registration.replicas))


def _of_rows(of: MetricSources, is_counted: Callable[[ReplicaStatus], bool]) -> Iterator[Sample]:
    """How many such replicas each broker has whose rows were read."""
    for broker, replicas in of.replicas.items():
        yield of.labels.of_broker(broker), sum(is_counted(row) for row, _ in replicas)


def _of_sizes(of: MetricSources, values: Callable[[ReplicaSizes], Mapping[TopicIdPartition, int]]) -> Iterator[Sample]:
    """A sample a replica of each broker whose log was read; 0 for one without records."""
    for broker, found in of.found.sizes.items():
        if not isinstance(found, str):
            counts, added = values(found), of.labels.of_broker(broker)
            for row, led in of.replicas.get(broker, ()):
                yield _joined(led.own, added), counts.get(row.topic_id_partition, 0)


def _max_lags(of: MetricSources) -> Iterator[Sample]:
    for broker, replicas in of.replicas.items():
        lags = [row.lag for row, _ in replicas if row.role == FOLLOWER_ROLE and row.lag is not None]
        yield of.labels.of_broker(broker, clientId=_FOLLOWER_CLIENT), max(lags, default=0)


def _follower_lags(of: MetricSources) -> Iterator[Sample]:
    for broker, replicas in of.replicas.items():
        sources = {led.judged.registration.leader for _, led in replicas} - {NO_LEADER}
        added = {source: of.labels.of_broker(broker, clientId=_FETCHER.format(source)) for source in sources}
        for row, led in replicas:
            source = led.judged.registration.leader
            if row.role == FOLLOWER_ROLE and row.lag is not None and source in added:
                yield _joined(led.own, added[source]), row.lag


def _offline_log_directories(of: MetricSources) -> Iterator[Sample]:
    for broker in of.live:
        has_failed = of.state.brokers[broker].state == STORAGE_ERROR or not is_readable(of.found, broker)
        yield of.labels.of_broker(broker), int(has_failed)


def _messages_in(of: MetricSources) -> Iterator[Sample]:
    for (topic, broker), count in of.counts.messages.items():
        yield of.labels.of_broker(broker, topic=topic), count


def _heartbeat_ages(of: MetricSources) -> Iterator[Sample]:
    return ((of.labels.of_broker(broker), round(seen.age, 3)) for broker, seen in of.state.brokers.items())


def _lives(of: MetricSources) -> Iterator[Sample]:
    for broker, seen in of.state.brokers.items():
        yield of.labels.of_broker(broker), int(seen.state not in SILENT)


def _root_errors(of: MetricSources) -> Iterator[Sample]:
    return ((of.labels.of_broker(broker), int(not is_readable(of.found, broker))) for broker in of.live)


def _lease_age(of: MetricSources) -> Iterable[Sample]:
    seen = of.state.controller
    return () if seen.lease is None or seen.lease.resigned else of.of_cluster(round(seen.age, 3))


def _controller_epoch(of: MetricSources) -> Iterable[Sample]:
    lease = of.state.controller.lease
    return () if lease is None else of.of_cluster(lease.controller_epoch)


def _equal_chains(of: MetricSources) -> Iterator[Sample]:
    """Chains can be compared where the LEOs are the same, as the column `has_leaders_records` of the views does."""
    for broker, replicas in of.replicas.items():
        added = of.labels.of_broker(broker)
        for row, led in replicas:
            leader = led.row
            if leader is not None and leader is not row and row.log_end_offset == leader.log_end_offset:
                yield _joined(led.own, added), int(row.chain == leader.chain)


def _roots(of: MetricSources, value: Callable[..., int | None]) -> Iterator[Sample]:
    for root in of.state.roots:
        found = value(root)
        if found is not None:
            yield of.labels.text(root=root.uri), found


_PARTITION, _GROUP = "topic partition", "consumergroup topic partition"
_OF_BROKER, _OF_LEADER = "broker", "topic partition broker"
_MANAGER, _CONTROLLER = "kafka_server_replicamanager", "kafka_controller_kafkacontroller"

METRICS_SERVED: tuple[ServedMetric, ...] = (
    _gauge("kafka_brokers", "", "Brokers that are alive", lambda of: of.of_cluster(of.active)),
    _gauge("kafka_broker_info", "id address broker", "1 for each broker that is alive", _broker_info),
    _gauge("kafka_topic_partitions", "topic", "Partitions of a topic", _topic_partitions),
    _gauge("kafka_topic_partition_current_offset", _PARTITION, "High watermark", _current_offsets),
    _gauge("kafka_topic_partition_oldest_offset", _PARTITION, "Log start offset of the leader", _oldest_offsets),
    _gauge(
        "kafka_topic_partition_leader", _PARTITION, "Broker that leads; -1: none",
        lambda of: of.of_partitions(lambda p: p.registration.leader),
    ),
    _gauge(
        "kafka_topic_partition_leader_is_preferred", _PARTITION, "1 if the first replica leads",
        lambda of: of.of_partitions(lambda p: int(_is_preferred(p))),
    ),
    _gauge(
        "kafka_topic_partition_replicas", _PARTITION, "Replicas, without those that a reassignment adds",
        lambda of: of.of_partitions(lambda p: len(p.replicas)),
    ),
    _gauge(
        "kafka_topic_partition_in_sync_replica", _PARTITION, "Replicas in the ISR",
        lambda of: of.of_partitions(lambda p: len(p.registration.isr)),
    ),
    _gauge(
        "kafka_topic_partition_under_replicated_partition", _PARTITION,
        "1 if a replica is not in the ISR, also if the partition has no leader",
        lambda of: of.of_partitions(lambda p: int(bool(p.out_of_sync))),
    ),
    _gauge("kafka_consumergroup_current_offset", _GROUP, "Offset that the group has committed", _group_offsets),
    _gauge(
        "kafka_consumergroup_current_offset_sum", "consumergroup topic", "Sum of the committed offsets of a topic",
        _group_offset_sums,
    ),
    _gauge("kafka_consumergroup_lag", _GROUP, "High watermark less committed offset", _group_lags),
    _gauge("kafka_consumergroup_lag_sum", "consumergroup topic", "Sum of the lags of a topic", _group_lag_sums),
    _gauge("kafka_consumergroup_members", "consumergroup", "Members of the group; 0 if all are dead", _group_members),
    _gauge(
        f"{_MANAGER}_leadercount", _OF_BROKER, "Partitions that the broker leads",
        lambda of: of.leaders_of(lambda _: True),
    ),
    _gauge(f"{_MANAGER}_partitioncount", _OF_BROKER, "Replicas that are assigned to the broker", _partition_counts),
    _gauge(
        f"{_MANAGER}_underreplicatedpartitions", _OF_BROKER,
        "Partitions that the broker leads and that have a replica that is not in the ISR",
        lambda of: of.leaders_of(_is_under_replicated),
    ),
    _gauge(
        f"{_MANAGER}_underminisrpartitioncount", _OF_BROKER,
        "Partitions that the broker leads and whose ISR is too small for acks=all",
        lambda of: of.leaders_of(lambda p: p.is_under_min_isr),
    ),
    _gauge(
        f"{_MANAGER}_atminisrpartitioncount", _OF_BROKER,
        "Partitions that the broker leads and whose ISR is as small as acks=all allows",
        lambda of: of.leaders_of(lambda p: p.is_at_min_isr),
    ),
    _gauge(
        f"{_MANAGER}_offlinereplicacount", _OF_BROKER, "Replicas of the broker with a broken file",
        lambda of: _of_rows(of, lambda row: row.state == FollowerState.OFFLINE),
    ),
    _gauge(
        f"{_MANAGER}_reassigningpartitions", _OF_BROKER, "Partitions that the broker leads and that are reassigned",
        lambda of: of.leaders_of(lambda p: is_reassigning(p.registration)),
    ),
    _counter(
        f"{_MANAGER}_isrshrinks_total", _OF_BROKER, "Changes by which a replica left the ISR",
        lambda of: of.of_live_brokers(of.counts.isr_shrinks),
    ),
    _counter(
        f"{_MANAGER}_isrexpands_total", _OF_BROKER, "Changes by which a replica joined the ISR",
        lambda of: of.of_live_brokers(of.counts.isr_expands),
    ),
    _gauge(
        f"{_CONTROLLER}_activecontrollercount", "", "1 if a controller is active",
        lambda of: of.of_cluster(int(of.state.controller.state == ACTIVE)),
    ),
    _gauge(
        f"{_CONTROLLER}_activebrokercount", "", "Brokers that are alive", lambda of: of.of_cluster(of.active)
    ),
    _gauge(
        f"{_CONTROLLER}_fencedbrokercount", "", "Registered brokers that are not alive",
        lambda of: of.of_cluster(len(of.state.brokers) - of.active),
    ),
    _gauge(
        f"{_CONTROLLER}_globaltopiccount", "", "Topics, also those that are being deleted",
        lambda of: of.of_cluster(of.found.topics),
    ),
    _gauge(
        f"{_CONTROLLER}_globalpartitioncount", "", "Partitions, also those that are being deleted",
        lambda of: of.of_cluster(of.found.partitions),
    ),
    _gauge(
        f"{_CONTROLLER}_offlinepartitionscount", "", "Partitions without a leader",
        lambda of: of.of_cluster(sum(p.is_offline for p in of.state.partitions)),
    ),
    _gauge(
        f"{_CONTROLLER}_preferredreplicaimbalancecount", "", "Partitions that another than the first replica leads",
        lambda of: of.of_cluster(sum(not _is_preferred(p) for p in of.state.partitions)),
    ),
    _counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total", "",
        "Elections of a leader that may lack committed records",
        lambda of: of.of_cluster(of.counts.unclean_elections),
    ),
    _gauge(
        "kafka_cluster_partition_replicascount", _OF_LEADER, "Replicas, without those that a reassignment adds",
        lambda of: of.of_leaders(lambda p: len(p.replicas)),
    ),
    _gauge(
        "kafka_cluster_partition_insyncreplicascount", _OF_LEADER, "Replicas in the ISR",
        lambda of: of.of_leaders(lambda p: len(p.registration.isr)),
    ),
    _gauge(
        "kafka_cluster_partition_underreplicated", _OF_LEADER, "1 if it has a leader, and a replica is not in the ISR",
        lambda of: of.of_leaders(lambda p: int(_is_under_replicated(p))),
    ),
    _gauge(
        "kafka_cluster_partition_underminisr", _OF_LEADER, "1 if its ISR is too small for acks=all",
        lambda of: of.of_leaders(lambda p: int(p.is_under_min_isr)),
    ),
    _gauge(
        "kafka_cluster_partition_atminisr", _OF_LEADER, "1 if its ISR is as small as acks=all allows",
        lambda of: of.of_leaders(lambda p: int(p.is_at_min_isr)),
    ),
    _gauge(
        "kafka_log_log_logstartoffset", _OF_LEADER, "First offset of the replica's log",
        lambda of: of.of_replicas(lambda row: row.log_start_offset),
    ),
    _gauge(
        "kafka_log_log_logendoffset", _OF_LEADER, "LEO of the replica",
        lambda of: of.of_replicas(lambda row: row.log_end_offset),
    ),
    _gauge(
        "kafka_log_log_size", _OF_LEADER, "Bytes of the replica's files; only with --log-sizes",
        lambda of: _of_sizes(of, lambda found: found.sizes),
    ),
    _gauge(
        "kafka_log_log_numlogsegments", _OF_LEADER, "Files with records of the replica; only with --log-sizes",
        lambda of: _of_sizes(of, lambda found: found.segments),
    ),
    _gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", _OF_BROKER,
        "1 if the broker reports an error of its root, or if the exporter cannot read the root",
        _offline_log_directories,
    ),
    _counter(
        "kafka_server_brokertopicmetrics_messagesin_total", "topic broker",
        "Records that became committed while the broker led", _messages_in,
    ),
    _gauge(
        "kafka_server_fetcherlagmetrics_consumerlag", "topic partition broker clientId",
        "Committed records that the follower lacks", _follower_lags,
    ),
    _gauge(
        "kafka_server_replicafetchermanager_maxlag", "broker clientId",
        "The largest lag of the broker's followers, in committed records", _max_lags,
    ),
    _gauge("lakelog_broker_alive", _OF_BROKER, "1 if the broker sends heartbeats, 0 if it has stopped", _lives),
    _gauge(
        "lakelog_broker_heartbeat_age_seconds", _OF_BROKER, "Age of the last heartbeat, by the clock of the store",
        _heartbeat_ages,
    ),
    _gauge("lakelog_broker_root_error", _OF_BROKER, "1 if the exporter cannot read the broker's root", _root_errors),
    _gauge(
        "lakelog_broker_failed_replicas", _OF_BROKER, "Replicas of the broker that report an error",
        lambda of: _of_rows(of, lambda row: row.error is not None),
    ),
    _gauge("lakelog_controller_epoch", "", "Rises with each election of a controller", _controller_epoch),
    _gauge(
        "lakelog_controller_lease_age_seconds", "", "Time since the controller renewed its lease", _lease_age
    ),
    _gauge(
        "lakelog_replica_chain_equal", _OF_LEADER,
        "1 if a follower with the leader's LEO has the leader's records, 0 if their chains differ", _equal_chains,
    ),
    _gauge(
        "lakelog_cluster_root_error", "root", "1 if the cluster root does not answer, or must be replaced",
        lambda of: _roots(of, lambda root: int(bool(root.error))),
    ),
    _gauge(
        "lakelog_cluster_root_votes", "root", "1 if the cluster root votes",
        lambda of: _roots(of, lambda root: int(root.has_vote)),
    ),
    _gauge(
        "lakelog_cluster_root_commits_behind", "root", "Commits that another cluster root has and this one lacks",
        lambda of: _roots(of, lambda root: root.behind),
    ),
)  # fmt: skip

# The metrics of the exporter itself, which it also serves while the cluster cannot be read.
UP, DURATION = "lakelog_up", "lakelog_scrape_duration_seconds"
OF_THE_SCRAPE = {
    UP: "1 if the cluster could be read; 0: no other metric of the cluster is served",
    DURATION: "Time that the exporter needed to read the cluster",
}
LABEL_NAMES = frozenset(label for metric in METRICS_SERVED for label in metric.labels)


def metric_families(found: Scrape, counts: Counts, labels: Labels) -> Iterator[Family]:
    """All metrics of a cluster, one by one."""
    of = MetricSources(found, counts, labels)
    return (Family(metric.name, metric.kind, metric.help, metric.samples(of)) for metric in METRICS_SERVED)


def scrape_families(is_up: bool, seconds: float, labels: Labels) -> Iterator[Family]:
    """The metrics of the scrape itself."""
    values = {UP: int(is_up), DURATION: round(seconds, 4)}
    return (Family(name, GAUGE, words, [(labels.text(), values[name])]) for name, words in OF_THE_SCRAPE.items())
