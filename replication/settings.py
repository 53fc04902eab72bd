"""The settings that there are, under Kafka's keys: what each may be, what it is if it is not told, what it is for.

The fields of `Settings` are the table: `broker_id` is the key `broker.id`. Where a topic's key is spelled otherwise, as
`retention.ms` is for `log.retention.ms`, the field says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lakelog.replication.properties import Boolean, Choice, Integer, OptionalText, ThrottledReplicas, ValueType, text_of

# `dynamic`: of a broker, and may be changed while it runs.
Scope = Literal["broker", "cluster", "topic", "dynamic"]


@dataclass(frozen=True)
class ConfigKey:
    """A key: its type, its default (parsed), what it is for, where it may be set, and the field that holds it."""

    name: str
    type: ValueType
    default: Any
    doc: str
    scopes: tuple[Scope, ...]
    field: str

    @property
    def default_text(self) -> str:
        """The default as it stands in a properties file."""
        return text_of(self.default)


def key(default: Any, type: ValueType, doc: str, *scopes: Scope, topic_name: str | None = None) -> Any:
    """A field of `Settings`. `topic_name`: its key for a topic."""
    where = (*(scopes or ("broker",)), *(("topic",) if topic_name else ()))
    metadata = {"type": type, "doc": doc, "scopes": where, "topic_name": topic_name}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process, typed: `config.replica_fetch_backoff_ms`. Times are in ms, sizes in bytes.

    Those of a topic are here too, as what holds where a topic does not have its own.
    """

    broker_id: int = key(-1, Integer(-1), "Id of this broker; -1: told on the command line.")
    broker_rack: str | None = key(None, OptionalText(), "Rack, zone or region; replicas are spread over them.")
    num_partitions: int = key(1, Integer(1), "Partitions of a topic that is made without a number.")
    default_replication_factor: int = key(
        1, Integer(1, 32767), "Replicas of a partition of a topic that is made without a number."
    )
    min_insync_replicas: int = key(
        1, Integer(1), "In-sync replicas without which acks=all is refused and the HW stands.", "broker", "topic"
    )
    unclean_leader_election_enable: bool = key(
        False,
        Boolean(),
        "A replica out of sync may lead if none else lives; records are lost.",
        "broker",
        "topic",
    )
    replica_lag_time_max_ms: int = key(
        10000, Integer(1), "A follower that was last caught up longer ago than this leaves the ISR."
    )
    num_replica_fetchers: int = key(
        1, Integer(1), "Fetchers for one source broker; segments are cut by it, so it is one for all.", "cluster"
    )
    replica_fetch_wait_max_ms: int = key(
        500, Integer(0), "How long a new HW alone waits for records to go with; it is a micro-batch of its own."
    )
    replica_fetch_backoff_ms: int = key(1000, Integer(0), "How long a partition in error waits before it is fetched.")
    replica_fetch_max_bytes: int = key(
        268435456, Integer(1), "Bytes of one partition in a micro-batch; its first batch is taken whatever its size."
    )
    replica_fetch_response_max_bytes: int = key(
        268435456, Integer(1), "Bytes of a micro-batch; far above Kafka's 10 MiB, as files are copied and not held."
    )
    lakelog_executor_copy_bytes: int = key(
        134217728, Integer(1), "From how many bytes on a micro-batch is copied by executors, not by the driver."
    )
    broker_heartbeat_interval_ms: int = key(2000, Integer(1), "How often a broker shows that it lives.")
    broker_session_timeout_ms: int = key(6000, Integer(1), "A broker whose heartbeat stands still this long is dead.")
    controller_session_timeout_ms: int = key(
        6000, Integer(1), "A controller whose lease stands still this long is replaced by one that stands by."
    )
    controlled_shutdown_max_retries: int = key(
        3, Integer(0), "How often a broker that stops looks whether its leaderships have been taken over."
    )
    controlled_shutdown_retry_backoff_ms: int = key(5000, Integer(1), "How long it waits each time.")
    controlled_shutdown_enable: bool = key(True, Boolean(), "A broker that stops gives away what it leads first.")
    auto_leader_rebalance_enable: bool = key(True, Boolean(), "Preferred leaders lead again by and by.")
    leader_imbalance_check_interval_seconds: int = key(300, Integer(1), "How often the balance is looked at.")
    leader_imbalance_per_broker_percentage: int = key(
        10, Integer(0), "How much of what a broker is preferred for may be led elsewhere before it is given back."
    )
    delete_topic_enable: bool = key(True, Boolean(), "Topics may be deleted.")
    request_timeout_ms: int = key(
        30000, Integer(1), "How long an admin client waits for the controller; then its request is withdrawn."
    )
    lakelog_max_partitions_per_topic: int = key(10000, Integer(1), "Most partitions that a topic may have.")
    lakelog_max_partitions_per_request: int = key(
        10000,
        Integer(1),
        "Most partitions that one request may make, move or elect leaders of; Kafka has no key for it.",
    )
    offsets_retention_check_interval_ms: int = key(
        600000, Integer(1), "How often the controller removes what groups have committed of topics that are gone."
    )
    lakelog_admin_requests_kept: int = key(
        200, Integer(1), "Decided requests that stay in the admin table, at most; the oldest go first."
    )
    lakelog_poll_interval_ms: int = key(
        50, Integer(1), "How often tables are polled; each poll of an object store is a request that is paid for."
    )
    log_segment_bytes: int = key(33554432, Integer(1024), "Largest data file that a producer writes.")
    storage_fsync: bool = key(False, Boolean(), "Sync files on local disks; replication is the guard, as in Kafka.")
    lakelog_storage_timeout_ms: int = key(
        10000, Integer(1000), "How long an operation on an object store may take, with all its attempts."
    )
    log_retention_ms: int = key(
        604800000, Integer(-1, 2**63 - 1), "How long records are kept, by their timestamps; -1: for ever.",
        "broker", topic_name="retention.ms",
    )  # fmt: skip
    log_retention_bytes: int = key(
        -1, Integer(-1, 2**63 - 1), "Keys and values of a partition that are kept, in bytes; -1: all.",
        "broker", topic_name="retention.bytes",
    )  # fmt: skip
    log_cleanup_policy: str = key(
        "delete", Choice("delete", "none"), "Whether retention and `delete-records` may delete anything.",
        "broker", topic_name="cleanup.policy",
    )  # fmt: skip
    log_retention_check_interval_ms: int = key(300000, Integer(1), "How often retention is looked at.")
    log_cleaner_enable: bool = key(True, Boolean(), "Whether small files are compacted into larger ones.")
    log_cleaner_backoff_ms: int = key(2000, Integer(1), "How long maintenance of the log rests each time.")
    log_cleaner_min_files: int = key(
        64, Integer(2), "Small files that are worth a compaction; they cost every reader time to open."
    )
    log_cleaner_max_bytes: int = key(
        268435456, Integer(1), "Bytes of files that one compaction reads at most: its memory and its time."
    )
    lakelog_scrub_bytes_per_second: int = key(
        4194304, Integer(0), "Bytes a second of the log that are read again to find rot; 0: none are."
    )
    log_segment_delete_delay_ms: int = key(
        3600000, Integer(0), "How long files outlive their removal from the log, for readers of older versions."
    )
    producer_id_expiration_ms: int = key(
        86400000, Integer(1), "How long producers are remembered whose records have been deleted."
    )
    transactional_id_expiration_ms: int = key(
        604800000,
        Integer(1),
        "How long the name of a producer is remembered that nobody uses; producers and controllers go by it.",
        "cluster",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(
        3600000, Integer(1), "How often the controller removes names of producers that nobody uses."
    )
    leader_replication_throttled_rate: int = key(
        2**63 - 1, Integer(0, 2**63 - 1), "Bytes a second that all followers together fetch of throttled replicas.",
        "broker", "dynamic",
    )  # fmt: skip
    follower_replication_throttled_rate: int = key(
        2**63 - 1, Integer(0, 2**63 - 1), "Bytes a second that this broker fetches of throttled replicas.",
        "broker", "dynamic",
    )  # fmt: skip
    leader_replication_throttled_replicas: str = key(
        "", ThrottledReplicas(), "Replicas throttled at their leader.", "topic"
    )
    follower_replication_throttled_replicas: str = key(
        "", ThrottledReplicas(), "Replicas throttled at their follower.", "topic"
    )
