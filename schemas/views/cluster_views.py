"""The views: the state of a cluster, its offsets, histories and files."""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.schemas.table import Column
from lakelog.schemas.views.readings import EVENTS


@dataclass(frozen=True)
class View:
    """A view over the tables of a cluster.

    It `needs` the rows of some tables: without their history there is no such view of an earlier time. Columns that it
    takes from the tables that it `uses` besides are null where their history does not reach back so far.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)


_TOPIC = (Column("topic", "string", "Topic name"), Column("topic_id", "string", "Topic id"))
_PARTITION = (*_TOPIC, Column("partition", "int", "Partition"))

PARTITIONS = View(
    name="partitions",
    description="One row for each partition: its registration, and the offsets that its leader has published",
    needs=("metadata",),
    uses=("topics", "replicas"),
    columns=(
        *_PARTITION,
        Column("leader", "int", "Broker that leads; null: none", True),
        Column("leader_epoch", "int", "Rises with each change of leader, ISR or replicas by the controller"),
        Column("partition_epoch", "int", "Rises with each change of the registration"),
        Column("controller_epoch", "int", "Epoch of the controller that wrote the registration last"),
        Column("replicas", "array<int>", "Assigned brokers, the preferred leader first"),
        Column("isr", "array<int>", "Brokers in sync, including the leader"),
        Column("adding_replicas", "array<int>", "Replicas that a reassignment adds"),
        Column("removing_replicas", "array<int>", "Replicas that a reassignment removes"),
        Column("replicas_count", "int", "Replicas without those that a reassignment adds"),
        Column("in_sync_replicas_count", "int", "Members of the ISR"),
        Column("min_insync_replicas", "int", "min.insync.replicas, at most replicas_count; null: not known", True),
        Column("under_replicated", "boolean", "It has a leader, and a replica is not in the ISR"),
        Column("under_min_isr", "boolean", "It has a leader, and the ISR is too small for acks=all", True),
        Column("at_min_isr", "boolean", "It has a leader, and the ISR is as small as acks=all allows", True),
        Column("is_offline", "boolean", "It has no leader"),
        Column("is_reassigning", "boolean", "A reassignment adds or removes replicas"),
        Column("is_preferred_leader", "boolean", "The first replica leads"),
        Column("is_deleting", "boolean", "Its topic is being deleted"),
        Column("log_start_offset", "bigint", "First offset; null as long as no leader has published its row", True),
        Column("log_end_offset", "bigint", "LEO of the leader", True),
        Column("high_watermark", "bigint", "HW: readers see the records below it", True),
        Column("last_stable_offset", "bigint", "The HW, as there are no transactions", True),
        Column("last_stable_offset_lag", "bigint", "HW less last stable offset: 0, as there are no transactions", True),
        Column("one_replica_from", "bigint", "Offset from which committed records are on the leader only", True),
        Column("one_replica_records", "bigint", "Number of committed records that are on the leader only", True),
    ),
)

REPLICA_STATES = View(
    name="replicas",
    description="One row for each assigned replica, with its last published state; null: its broker has published none",
    needs=("metadata", "replicas"),
    uses=("brokers",),
    columns=(
        *_PARTITION,
        Column("broker_id", "int", "Broker of the replica"),
        Column("is_leader", "boolean", "The broker leads the partition"),
        Column("in_sync", "boolean", "The broker is in the ISR"),
        Column("is_offline", "boolean", "Its broker is not alive, or a file of the replica is broken"),
        Column("role", "string", "leader or follower", True),
        Column(
            "state", "string", "Fetching, Truncating, Delayed, Offline or Stray; always Fetching for a leader", True
        ),
        Column("leader_epoch", "int", "Leader epoch of the replica's role", True),
        Column("is_current", "boolean", "Its leader epoch is the present one of the partition", True),
        Column("log_start_offset", "bigint", "First offset of the log", True),
        Column("log_end_offset", "bigint", "LEO: the next offset to write", True),
        Column("high_watermark", "bigint", "HW that the replica knows", True),
        Column("lag", "bigint", "Committed records that it lacks: HW of the leader less LEO, at least 0", True),
        Column("log_end_offset_lag", "bigint", "Records of the leader's log that it lacks", True),
        Column("matching_end_offset", "bigint", "Below it the replica has the leader's records, by the epochs", True),
        Column("has_leaders_records", "boolean", "LEO and chain are the leader's: both have the same records", True),
        Column("published_at", "timestamp", "Time at which its broker wrote its replica rows last", True),
        Column("error", "string", "Why it is not Fetching, or why its broker's root cannot be read", True),
    ),
)

BROKER_STATES = View(
    name="brokers",
    description="One row for each broker that has registered",
    needs=("brokers", "metadata"),
    uses=("topics", "replicas"),
    columns=(
        Column("broker_id", "int", "Broker id"),
        Column("root", "string", "URI of its storage root"),
        Column("rack", "string", "Rack, zone or region; null if not set", True),
        Column("broker_epoch", "bigint", "Rises with each registration of this broker id"),
        Column("state", "string", "alive, dead, stopping, stopped or storage error"),
        Column("last_heartbeat", "timestamp", "Time of its last heartbeat, by the clock of the store"),
        Column("heartbeat_age_ms", "bigint", "Age of its last heartbeat"),
        Column("leader_count", "int", "Partitions that it leads"),
        Column("partition_count", "int", "Partitions that are assigned to it"),
        Column("under_replicated_partitions", "int", "Partitions that it leads and that are under-replicated"),
        Column("under_min_isr_partition_count", "int", "Partitions that it leads and that are under min ISR"),
        Column("at_min_isr_partition_count", "int", "Partitions that it leads and that are at min ISR"),
        Column("reassigning_partitions", "int", "Partitions that it leads and that are reassigned"),
        Column("offline_replica_count", "int", "Its replicas with a broken file"),
        Column("failed_partitions_count", "int", "Its replicas that report an error", True),
        Column("max_lag", "bigint", "The largest lag of its followers in committed records; null: not known", True),
        Column("total_lag", "bigint", "Sum of the lags of its followers in committed records", True),
        Column("divergences", "bigint", "Number of logs that differed from their leader's under equal epochs", True),
        Column("metadata_version", "bigint", "Version of metadata that the broker has applied; -1: none yet"),
        Column("leader_replication_rate", "bigint", "Bytes a second that followers fetch of throttled replicas", True),
        Column("follower_replication_rate", "bigint", "Bytes a second that it fetches of throttled replicas", True),
        Column("storage_error", "string", "Fault of the root, as its broker says; null if none", True),
        Column("root_error", "string", "Why its root cannot be read by Spark; null if it can", True),
    ),
)

TOPIC_STATES = View(
    name="topics",
    description="One row for each topic",
    needs=("topics", "metadata"),
    uses=("replicas", "brokers"),
    columns=(
        *_TOPIC,
        Column("partitions", "int", "Number of partitions"),
        Column("replication_factor", "int", "Replicas of the first partition, without those that are being added"),
        Column("min_insync_replicas", "int", "min.insync.replicas of the topic, or the default"),
        Column("configs", "map<string,string>", "Settings of the topic, by Kafka's keys"),
        Column("offline_partitions", "int", "Partitions without a leader"),
        Column("under_replicated_partitions", "int", "Partitions with a leader and a replica that is not in the ISR"),
        Column("is_deleting", "boolean", "Marked for deletion"),
        Column("is_ineligible_to_delete", "boolean", "Its deletion waits for a dead broker or a reassignment"),
        Column("replicas_to_delete", "int", "Replicas of a deleted topic that are not deleted yet"),
        Column("replicas_ineligible_to_delete", "int", "Those replicas to delete whose broker is not alive"),
    ),
)

CONTROLLER_STATE = View(
    name="controller",
    description="One row: the controller that was elected last, and totals of the cluster",
    needs=("metadata", "topics", "brokers"),
    uses=("controller", "admin", "replicas"),
    columns=(
        Column("controller_id", "string", "Id of the controller that was elected last; null: none was elected", True),
        Column("controller_epoch", "int", "Rises with each election", True),
        Column("last_renewal", "timestamp", "Time of the last renewal of its lease, by the clock of the store", True),
        Column("active_controller_count", "int", "1 if a controller is active, else 0"),
        Column("controller_state", "string", "Kind of the admin request that it carries out; Idle: none"),
        Column("active_broker_count", "int", "Brokers that are alive"),
        Column("fenced_broker_count", "int", "Registered brokers that are not alive"),
        Column("global_topic_count", "int", "Topics, also those that are being deleted"),
        Column("global_partition_count", "int", "Partitions, also those that are being deleted"),
        Column("offline_partitions_count", "int", "Partitions without a leader that are not being deleted"),
        Column("preferred_replica_imbalance_count", "int", "Partitions that a replica other than the first leads"),
        Column("topics_to_delete_count", "int", "Topics that are being deleted"),
        Column("replicas_to_delete_count", "int", "Replicas of those topics that are not deleted yet"),
        Column("topics_ineligible_to_delete_count", "int", "Topics whose deletion waits"),
        Column("replicas_ineligible_to_delete_count", "int", "Replicas whose deletion waits for their broker"),
    ),
)

ISR_HISTORY = View(
    name="isr_history",
    description="One row for each change of a partition's leader, ISR or replicas, as far back as metadata reaches",
    needs=("metadata_changes",),
    columns=(
        *_PARTITION,
        Column("version", "bigint", "Version of metadata with the change"),
        Column("since", "timestamp", "Time of the change, by the clock of the store"),
        Column("until", "timestamp", "Time of the next change; null: it still holds", True),
        Column("leader", "int", "Broker that leads; null: none", True),
        Column("leader_epoch", "int", "Leader epoch"),
        Column("partition_epoch", "int", "Partition epoch"),
        Column("controller_epoch", "int", "Epoch of the controller that wrote the row"),
        Column("replicas", "array<int>", "Assigned brokers, the preferred leader first"),
        Column("isr", "array<int>", "Brokers in sync, including the leader"),
        Column("left_isr", "array<int>", "Brokers that left the ISR; null in the oldest known row", True),
        Column("joined_isr", "array<int>", "Brokers that joined the ISR; null in the oldest known row", True),
        Column("is_shrink", "boolean", "A broker left the ISR"),
        Column("is_expand", "boolean", "A broker joined the ISR"),
        Column("who", "string", "Writer of the change: controller, or the leader's broker", True),
        Column("why", "string", "Reason of the change", True),
    ),
)

EVENT_HISTORY = View(
    name="events",
    description="One row for each event: broker lost, leader elected, ISR shrunk, partition offline, topic created",
    needs=(EVENTS.name,),
    columns=EVENTS.columns,
)

LEADER_EPOCHS = View(
    name="leader_epochs",
    description="One row for each leader epoch of a partition: who led under it, since when, and its offsets",
    needs=("metadata_changes",),
    uses=("replicas",),
    columns=(
        *_PARTITION,
        Column("leader_epoch", "int", "Leader epoch"),
        Column("leader", "int", "Broker that led; null: none, or older than the history of metadata", True),
        Column("elected_at", "timestamp", "Time of the change; null: older than the history of metadata", True),
        Column("start_offset", "bigint", "First offset of the epoch; null: the log has no record of it", True),
        Column("end_offset", "bigint", "Offset after the last one of the epoch", True),
        Column("chain", "string", "Hash of all batches before the first offset", True),
    ),
)

_LAG = (
    Column("high_watermark", "bigint", "HW of the leader; null: no leader has published its row", True),
    Column("lag", "bigint", "Committed records that are missing", True),
)

LAG = View(
    name="lag",
    description="One row for each follower and each consumer group of a partition: how far it is behind the HW",
    needs=("metadata", "replicas"),
    uses=("batches", "groups"),
    columns=(
        Column("kind", "string", "follower or group"),
        Column("broker_id", "int", "Broker of the follower; null for a group", True),
        Column("group_id", "string", "Consumer group; null for a follower", True),
        *_PARTITION,
        Column("leader", "int", "Broker that leads; null: none", True),
        Column(
            "fetch_offset", "bigint", "Next offset to read: LEO of the follower, committed offset of the group", True
        ),
        *_LAG,
        Column("lag_ms", "bigint", "Age of the newest record in the first batch that it lacks; 0 without a lag", True),
        Column("lag_bytes", "bigint", "Bytes of keys and values that it lacks; a batch counts in proportion", True),
    ),
)

CONSUMER_GROUPS = View(
    name="consumer_groups",
    description="One row for each consumer group and partition",
    needs=("groups",),
    uses=("metadata", "replicas"),
    columns=(
        Column("group_id", "string", "Name of the group"),
        *_PARTITION,
        Column("committed_offset", "bigint", "Next offset to read: one after the last processed record"),
        Column("log_start_offset", "bigint", "First offset of the partition", True),
        *_LAG,
    ),
)

LOG_FILES = View(
    name="log_files",
    description="One row for each partition in each data file of a broker's log, and for each file that cannot be read",
    needs=("batches",),
    columns=(
        Column("broker_id", "int", "Broker whose log has the file"),
        Column("file", "string", "Name of the file in the folder log of the broker's root"),
        Column("file_bytes", "bigint", "Size of the whole file"),
        Column("topic", "string", "Topic name; null: the file has no records, or cannot be read", True),
        Column("topic_id", "string", "Topic id", True),
        Column("partition", "int", "Partition", True),
        Column("base_offset", "bigint", "First offset of the partition in the file", True),
        Column("last_offset", "bigint", "Last offset of the partition in the file", True),
        Column("records", "bigint", "Number of its records"),
        Column("batches", "bigint", "Number of its record batches"),
        Column("bytes", "bigint", "Size of its keys and values"),
        Column("max_timestamp", "timestamp", "Newest timestamp of its records", True),
        Column("leader_epochs", "array<int>", "Leader epochs of its batches"),
        Column("producer_ids", "array<bigint>", "Idempotent producers of its batches"),
        Column("error", "string", "Why the file cannot be read; null if it can", True),
    ),
)
