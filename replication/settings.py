"""All settings with their types and defaults. Keys are Kafka's.

`conf/server.properties` explains each. A field of `Settings` defines a key: `broker_id` is `broker.id`. Some keys have
another name for a topic, such as `retention.ms` for `log.retention.ms`; the field names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lakelog.replication.properties import (
    Boolean,
    Choice,
    Integer,
    IntegerOrDefault,
    OptionalText,
    ThrottledReplicas,
    ValueType,
)

# `dynamic`: a broker's setting that can change while the broker runs.
Scope = Literal["broker", "cluster", "topic", "dynamic"]


@dataclass(frozen=True)
class ConfigKey:
    """A key: its type, its parsed default, its scopes, and the field of `Settings` that holds it."""

    name: str
    type: ValueType
    default: Any
    scopes: tuple[Scope, ...]
    field: str


def key(default: Any, type: ValueType, *scopes: Scope, topic_name: str | None = None) -> Any:
    """A field of `Settings`, by default of scope `broker`. `topic_name`: the key's other name for a topic."""
    where = (*(scopes or ("broker",)), *(("topic",) if topic_name else ()))
    metadata = {"type": type, "scopes": where, "topic_name": topic_name}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process, typed: `config.replica_fetch_backoff_ms`. Times are in ms unless the name says
    otherwise, sizes in bytes. Topic settings are here too, as defaults for topics without their own."""

    broker_id: int = key(-1, Integer(-1))
    broker_rack: str | None = key(None, OptionalText())
    num_partitions: int = key(1, Integer(1))
    default_replication_factor: int = key(1, Integer(1, 32767))
    min_insync_replicas: int = key(1, Integer(1), "broker", "topic")
    unclean_leader_election_enable: bool = key(False, Boolean(), "broker", "topic")
    replica_lag_time_max_ms: int = key(10000, Integer(1))
    num_replica_fetchers: int = key(1, Integer(1), "cluster")
    replica_fetch_wait_max_ms: int = key(500, Integer(0))
    replica_fetch_backoff_ms: int = key(1000, Integer(0))
    replica_fetch_max_bytes: int = key(268435456, Integer(1))
    replica_fetch_response_max_bytes: int = key(268435456, Integer(1))
    lakelog_executor_copy_bytes: int = key(134217728, Integer(1))
    broker_heartbeat_interval_ms: int = key(-1, IntegerOrDefault(1))
    broker_session_timeout_ms: int = key(-1, IntegerOrDefault(3))
    controller_session_timeout_ms: int = key(-1, IntegerOrDefault(1))
    controlled_shutdown_max_retries: int = key(3, Integer(0))
    controlled_shutdown_retry_backoff_ms: int = key(5000, Integer(1))
    controlled_shutdown_enable: bool = key(True, Boolean())
    auto_leader_rebalance_enable: bool = key(True, Boolean())
    leader_imbalance_check_interval_seconds: int = key(300, Integer(1))
    leader_imbalance_per_broker_percentage: int = key(10, Integer(0))
    delete_topic_enable: bool = key(True, Boolean())
    request_timeout_ms: int = key(30000, Integer(1))
    lakelog_max_partitions_per_topic: int = key(10000, Integer(1))
    lakelog_max_partitions_per_request: int = key(10000, Integer(1))
    offsets_retention_check_interval_ms: int = key(600000, Integer(1))
    lakelog_admin_requests_kept: int = key(200, Integer(1))
    lakelog_poll_interval_ms: int = key(50, Integer(1))
    log_segment_bytes: int = key(33554432, Integer(1024))
    message_max_bytes: int = key(1048588, Integer(0), "broker", "dynamic", topic_name="max.message.bytes")
    storage_fsync: bool = key(False, Boolean())
    lakelog_storage_timeout_ms: int = key(10000, Integer(1000))
    log_retention_ms: int = key(604800000, Integer(-1, 2**63 - 1), "broker", topic_name="retention.ms")
    log_retention_bytes: int = key(-1, Integer(-1, 2**63 - 1), "broker", topic_name="retention.bytes")
    log_cleanup_policy: str = key("delete", Choice("delete", "none"), "broker", topic_name="cleanup.policy")
    log_retention_check_interval_ms: int = key(300000, Integer(1))
    log_cleaner_enable: bool = key(True, Boolean())
    log_cleaner_backoff_ms: int = key(2000, Integer(1))
    log_cleaner_min_files: int = key(64, Integer(2))
    log_cleaner_max_bytes: int = key(268435456, Integer(1))
    log_cleaner_io_max_bytes_per_second: int = key(2**63 - 1, Integer(1, 2**63 - 1))
    lakelog_scrub_bytes_per_second: int = key(4194304, Integer(0))
    lakelog_scrub_interval_ms: int = key(-1, Integer(-1))
    log_segment_delete_delay_ms: int = key(3600000, Integer(0))
    producer_id_expiration_ms: int = key(86400000, Integer(1))
    transactional_id_expiration_ms: int = key(604800000, Integer(1), "cluster")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(3600000, Integer(1))
    leader_replication_throttled_rate: int = key(2**63 - 1, Integer(0, 2**63 - 1), "broker", "dynamic")
    follower_replication_throttled_rate: int = key(2**63 - 1, Integer(0, 2**63 - 1), "broker", "dynamic")
    leader_replication_throttled_replicas: str = key("", ThrottledReplicas(), "topic")
    follower_replication_throttled_replicas: str = key("", ThrottledReplicas(), "topic")
