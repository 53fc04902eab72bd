"""The views of offsets, histories and files."""

from lakelog.schemas.table import Column
from lakelog.schemas.views.readings import EVENTS
from lakelog.schemas.views.view import View

_PARTITION = (
    Column("topic", "string", "Topic name"),
    Column("topic_id", "string", "Topic id"),
    Column("partition", "int", "Partition"),
)

ISR_HISTORY = View(
    name="isr_history",
    description="A row each time that leader, ISR or replicas of a partition changed, as far back as metadata reaches",
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
    description="A row an event: brokers lost, leaders elected, ISRs shrunk, partitions offline, topics created",
    needs=(EVENTS.name,),
    columns=EVENTS.columns,
)

LEADER_EPOCHS = View(
    name="leader_epochs",
    description="A row a leader epoch of a partition: who led under it, since when, and which offsets are of it",
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
    description="A row a follower, and a row a consumer group, of a partition: how far it is behind the HW",
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
        Column("lag_bytes", "bigint", "Keys and values that it lacks; a batch counts in proportion", True),
    ),
)

CONSUMER_GROUPS = View(
    name="consumer_groups",
    description="A row a consumer group and partition",
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
    description="A row a data file of a broker's log and partition in it, and a row a file that cannot be read",
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
