"""Kafka's state metrics, and the columns of the views that have their values."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """A metric under Kafka's name: its MBean, the view and column with its value, and how to take it from there.
    `column` is None for a metric of something that Lakelog does not have."""

    mbean: str
    name: str
    column: str | None
    note: str = ""


_MANAGER, _CONTROLLER = "kafka.server:ReplicaManager", "kafka.controller:KafkaController"
_PARTITION, _LOG = "kafka.cluster:Partition", "kafka.log:Log"

METRICS = (
    Metric(_MANAGER, "LeaderCount", "brokers.leader_count"),
    Metric(_MANAGER, "PartitionCount", "brokers.partition_count"),
    Metric(_MANAGER, "OfflineReplicaCount", "brokers.offline_replica_count"),
    Metric(_MANAGER, "UnderReplicatedPartitions", "brokers.under_replicated_partitions"),
    Metric(_MANAGER, "UnderMinIsrPartitionCount", "brokers.under_min_isr_partition_count"),
    Metric(_MANAGER, "AtMinIsrPartitionCount", "brokers.at_min_isr_partition_count"),
    Metric(_MANAGER, "ReassigningPartitions", "brokers.reassigning_partitions"),
    Metric(_MANAGER, "IsrShrinksPerSec", "isr_history.is_shrink", "count the rows of a span of time"),
    Metric(_MANAGER, "IsrExpandsPerSec", "isr_history.is_expand", "count the rows of a span of time"),
    Metric(_MANAGER, "ProducerIdCount", "log_files.producer_ids", "distinct ids of a partition"),
    Metric(_MANAGER, "FailedIsrUpdatesPerSec", None, "a change that loses leaves no row"),
    Metric(_MANAGER, "PartitionsWithLateTransactionsCount", None, "there are no transactions"),
    Metric(_CONTROLLER, "ActiveControllerCount", "controller.active_controller_count"),
    Metric(_CONTROLLER, "ControllerState", "controller.controller_state", "the kind of request, not a number"),
    Metric(_CONTROLLER, "ActiveBrokerCount", "controller.active_broker_count"),
    Metric(_CONTROLLER, "FencedBrokerCount", "controller.fenced_broker_count"),
    Metric(_CONTROLLER, "GlobalTopicCount", "controller.global_topic_count"),
    Metric(_CONTROLLER, "GlobalPartitionCount", "controller.global_partition_count"),
    Metric(_CONTROLLER, "OfflinePartitionsCount", "controller.offline_partitions_count"),
    Metric(_CONTROLLER, "PreferredReplicaImbalanceCount", "controller.preferred_replica_imbalance_count"),
    Metric(_CONTROLLER, "TopicsToDeleteCount", "controller.topics_to_delete_count"),
    Metric(_CONTROLLER, "ReplicasToDeleteCount", "controller.replicas_to_delete_count"),
    Metric(_CONTROLLER, "TopicsIneligibleToDeleteCount", "controller.topics_ineligible_to_delete_count"),
    Metric(_CONTROLLER, "ReplicasIneligibleToDeleteCount", "controller.replicas_ineligible_to_delete_count"),
    Metric("kafka.server:FetcherLagMetrics", "ConsumerLag", "lag.lag", "rows of kind follower"),
    Metric("kafka.server:ReplicaFetcherManager", "MaxLag", "brokers.max_lag"),
    Metric("kafka.server:ReplicaFetcherManager", "FailedPartitionsCount", "brokers.failed_partitions_count"),
    Metric(_PARTITION, "UnderReplicated", "partitions.under_replicated"),
    Metric(_PARTITION, "UnderMinIsr", "partitions.under_min_isr"),
    Metric(_PARTITION, "AtMinIsr", "partitions.at_min_isr"),
    Metric(_PARTITION, "InSyncReplicasCount", "partitions.in_sync_replicas_count"),
    Metric(_PARTITION, "ReplicasCount", "partitions.replicas_count"),
    Metric(_PARTITION, "LastStableOffsetLag", "partitions.last_stable_offset_lag"),
    Metric(_LOG, "LogStartOffset", "replicas.log_start_offset"),
    Metric(_LOG, "LogEndOffset", "replicas.log_end_offset"),
    Metric(_LOG, "Size", "log_files.bytes", "sum of a broker and partition; keys and values"),
    Metric(_LOG, "NumLogSegments", "log_files.file", "number of a broker and partition"),
)
