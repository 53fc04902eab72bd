"""The tables of a cluster and of its brokers. `README.md` beside this file lists their writers and readers."""

from lakelog.schemas.table import Column, Table

# `<root>/cluster`: marks a folder as a root of one cluster, in the cluster root and in each broker root.
QUORUM_FORMAT = 6  # that of a cluster with several roots; older versions would write to one of them alone
FORMAT_VERSION = 5
OLDEST_FORMAT = 4  # its tables are the same, but other tools may write them

CLUSTER = Table(
    name="cluster",
    description="One row: the cluster and the broker that a root belongs to, and the format of its tables",
    key=("cluster_id",),
    writers="`lakelog format` or `lakelog recover`, once; `lakelog cluster-roots` if the root gets others",
    columns=(
        Column("cluster_id", "string", "Id of the cluster"),
        Column("broker_id", "int", "Broker that owns the root; -1 for the cluster root"),
        Column("format_version", "int", "Version of the table format; processes refuse one that they do not know"),
        Column("configs", "map<string,string>", "Settings of the whole cluster, such as num.replica.fetchers"),
        Column("generation", "int", "Rises with each recovery of the cluster root; null before the first", True),
    ),
)


# `<cluster root>/topics`: the topics, their ids and settings.
TOPICS = Table(
    name="topics",
    description="One row for each topic, which is committed before the topic's partitions appear in metadata",
    key=("topic",),
    writers="the active controller",
    columns=(
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id; a topic that is created again gets another one"),
        Column("partitions", "int", "Number of partitions at the creation of the topic"),
        Column("configs", "map<string,string>", "Settings of the topic, by Kafka's keys"),
        Column("deleting", "boolean", "Marked for deletion: brokers stop serving it"),
    ),
)


# `<cluster root>/configs`: settings of brokers that can change while they run.
CONFIGS = Table(
    name="configs",
    description="One row for each entity with dynamic settings; the settings of topics are in the table topics",
    key=("entity_type", "entity_name"),
    writers="the active controller",
    columns=(
        Column("entity_type", "string", "Type of the entity: brokers"),
        Column("entity_name", "string", "Broker id; <default>: every broker that does not set the key itself"),
        Column("configs", "map<string,string>", "Settings of the entity, by Kafka's keys"),
    ),
)


# `<cluster root>/metadata`: the leader, ISR and replicas of each partition.
METADATA = Table(
    name="metadata",
    description="One row for each partition: its leader, epochs, ISR and replicas; every write is a compare-and-set",
    key=("topic_id", "partition"),
    writers="the active controller; a leader, the ISR of its partitions; a follower, before it drops broken records",
    log_retention="interval 7 days",
    commits_kept=None,
    columns=(
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("replicas", "array<int>", "AR: assigned brokers, the preferred leader first"),
        Column("adding_replicas", "array<int>", "Replicas that a reassignment adds"),
        Column("removing_replicas", "array<int>", "Replicas that a reassignment removes"),
        Column("leader", "int", "Broker that leads; -1: none"),
        Column("leader_epoch", "int", "Rises with each change of leader, ISR or replicas by the controller"),
        Column("isr", "array<int>", "Brokers in sync, including the leader"),
        Column("isr_epochs", "array<bigint>", "Broker epoch of each ISR member when it joined or was elected"),
        Column("partition_epoch", "int", "Rises with each change of this row"),
        Column("controller_epoch", "int", "Epoch of the controller that wrote this row last"),
    ),
)


# `<cluster root>/brokers/<id>`: the registration and the heartbeat of one broker.
BROKERS = Table(
    name="brokers",
    description="One row: the root of a broker and its state. Each commit is a heartbeat, even if it changes no row",
    key=("broker_id",),
    writers="its broker; the active controller, which unregisters it",
    columns=(
        Column("broker_id", "int", "Broker id"),
        Column("root", "string", "URI of its storage root; empty: the broker is unregistered"),
        Column("rack", "string", "Rack, zone or region; null if not set", nullable=True),
        Column("broker_epoch", "bigint", "Rises with each registration of this broker id"),
        Column("incarnation_id", "string", "Random id of the process that has registered"),
        Column("metadata_version", "bigint", "Version of metadata that the broker has applied; -1: none yet"),
        Column("shutting_down", "boolean", "The broker asks for a controlled shutdown, or has stopped"),
        Column("storage_error", "string", "Fault of the root; null if none", nullable=True),
        Column("log_table_id", "string", "Delta's id of the log table; another id means another log"),
        Column("log_epoch", "bigint", "Broker epoch since which the broker has this log; its earlier log is lost"),
        Column("log_version", "bigint", "Version of the log table; a lower one later means a restored backup"),
        Column("log_commit", "string", "Unique id of that version's commit; another id later means another history"),
        Column("offline_partitions", "array<string>", "Replicas with a broken file, as <topic id>/<partition>", True),
        Column("leader_replication_quota", "bigint", "leader.replication.throttled.rate; null: no limit", True),
        Column("leader_replication_rate", "bigint", "Bytes a second that followers fetch of throttled replicas", True),
        Column("follower_replication_quota", "bigint", "follower.replication.throttled.rate; null: no limit", True),
        Column("follower_replication_rate", "bigint", "Bytes a second that it fetches of throttled replicas", True),
        Column("divergences", "bigint", "Number of logs that differed from their leader's under equal epochs", True),
    ),
)


# `<broker root>/replicas`: a broker's state of each of its replicas.
REPLICAS = Table(
    name="replicas",
    description="One row for each replica of one broker: its state, which never claims more than the log holds",
    key=("topic_id", "partition"),
    writers="its broker alone",
    columns=(
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("broker_id", "int", "Broker id"),
        Column("broker_epoch", "bigint", "Broker epoch of the process that wrote this row"),
        Column("leader_epoch", "int", "Leader epoch of the replica's role"),
        Column("role", "string", "leader or follower"),
        Column("state", "string", "Fetching, Truncating, Delayed, Offline or Stray; always Fetching for a leader"),
        Column("log_start_offset", "bigint", "First offset of the log"),
        Column("log_end_offset", "bigint", "LEO: the next offset to write"),
        Column("high_watermark", "bigint", "HW: readers see the records below it"),
        Column(
            "epochs",
            "array<struct<leader_epoch:int,start_offset:bigint,chain:string>>",
            "Lineage: the start offset of each leader epoch, and the chain of the log up to there",
        ),
        Column("error", "string", "Reason why the replica is not Fetching; null if none", nullable=True),
        Column("log_version", "bigint", "Version of the log table that this row describes"),
        Column(
            "lag",
            "bigint",
            "Committed records that the replica lacks; null if unknown",
            nullable=True,
        ),
        Column("chain", "string", "Hash of all batches up to the LEO; equal hashes mean equal logs"),
    ),
)


# `<cluster root>/controller`: the active controller and its epoch.
CONTROLLER = Table(
    name="controller",
    description="One row: the active controller and its epoch; no row before the first election. A renewal of the "
    "lease is a commit that changes no row",
    key=("controller_epoch",),
    writers="any controller that stands for election, and the active one",
    columns=(
        Column("controller_id", "string", "Id of the elected controller process"),
        Column("controller_epoch", "int", "Rises with each election; writes of an older controller are refused"),
        Column("resigned", "boolean", "Whether the controller has resigned"),
    ),
)


# `<cluster root>/admin`: the requests to the controller, and their outcomes.
ADMIN = Table(
    name="admin",
    description="One row for each request: a client writes it, the controller decides it; the last decided ones stay",
    key=("request_id",),
    writers="admin clients add and withdraw requests, the active controller decides them",
    columns=(
        Column("request_id", "string", "Id of the request; a topic that it creates gets it as its topic id"),
        Column("kind", "string", "Kind of the request, such as create_topic"),
        Column("arguments", "string", "Arguments of the request, as JSON"),
        Column("validate_only", "boolean", "Decide and answer, but change nothing"),
        Column("requested_by", "string", "Name of the client"),
        Column("metadata_version", "bigint", "Version of metadata when the client wrote the request"),
        Column(
            "outcomes", "string", "JSON, by topic or partition: error (null if none) and message; null: undecided", True
        ),
        Column("controller_epoch", "int", "Epoch of the controller that took the request up; -1: none yet"),
        Column("state", "string", "Pending, Deciding, Applying or Decided; a request at Deciding is not decided again"),
        Column("timeout_ms", "bigint", "Time in ms that the client waits; -1: forever"),
        Column(
            "deadline_ms",
            "bigint",
            "Time until which the client waits, in ms since 1970 by the client's clock; null: not known",
            nullable=True,
        ),  # older versions leave it out
    ),
)


# `<cluster root>/groups`: the committed offsets of consumer groups.
GROUPS = Table(
    name="groups",
    description="One row for each group and partition: the offset that the group has committed",
    key=("group_id", "topic_id", "partition"),
    writers="any consumer with a group; the controller removes rows of deleted topics and those that expire",
    columns=(
        Column("group_id", "string", "Name of the group"),
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id; a topic that is created again starts without committed offsets"),
        Column("partition", "int", "Partition"),
        Column("committed_offset", "bigint", "Next offset to read: one after the last processed record"),
        Column(
            "idle_ms",
            "bigint",
            "Time in ms in which controllers have seen no commit of the offset and no member that reads the topic; "
            "null after a commit, while there is such a member, and after the last such member has left",
            nullable=True,
        ),
    ),
)


# `<cluster root>/members/<group>`: the members of one consumer group. After its deletion `<group>=n1`, then `=n2` …
_PARTITIONS = "array<struct<topic:string,topic_id:string,partition:int>>"

MEMBERS = Table(
    name="members",
    description="One row for each member of the group: a consumer that has subscribed. A heartbeat is a commit that "
    "changes no row and moves the txn heartbeat/<slot>. The txn generation is the generation of the group",
    key=("group_id", "member_id"),
    writers="the members of the group, and whoever removes dead ones",
    columns=(
        Column("group_id", "string", "Name of the group"),
        Column("member_id", "string", "Id of the member: its client id and a random part"),
        Column("client_id", "string", "client.id of the consumer; empty if not set"),
        Column("host", "string", "Name of its machine"),
        Column("slot", "int", "Number of its heartbeat counter: the lowest that was free"),
        Column("session_timeout_ms", "int", "Time without a heartbeat after which others consider it dead"),
        Column("topics", "array<string>", "Topics that it has subscribed to"),
        Column("assignors", "array<string>", "Assignors that it knows, the best one first"),
        Column("assigned", _PARTITIONS, "Partitions that it is to own"),
        Column("owned", _PARTITIONS, "Partitions that it owns: nobody else reads them"),
        Column("instance_id", "string", "group.instance.id of a static member; null of others", nullable=True),
    ),
)


# `<cluster root>/producers`: named producers and their ids in batch headers.
PRODUCERS = Table(
    name="producers",
    description="One row for each named producer; a producer without a name draws a random id",
    key=("name",),
    writers="any named producer that starts; the active controller",
    columns=(
        Column("name", "string", "Name of the producer"),
        Column("producer_id", "bigint", "Producer id in batch headers"),
        Column("producer_epoch", "int", "Rises with each start and renewal under this name; older epochs are fenced"),
        Column("owner", "string", "Unique id of the producer that started last under this name"),
        Column("idle_ms", "bigint", "Time in ms that controllers have seen the name unused; a use sets it to 0"),
    ),
)


# `<broker root>/log`: the records of all replicas that a broker hosts.
LOG = Table(
    name="log",
    description="The records of all replicas of one broker; columns of Spark's Kafka source, then two of Lakelog",
    key=("topic_id", "partition", "offset"),
    writers="its broker (as a follower, and for maintenance) and producers (to partitions that it leads); `lakelog "
    "verify --repair`, a note of wrong records",
    transaction_retention="interval 7 days",  # of deleted topics, which would stay in every checkpoint
    columns=(
        Column("key", "binary", "Key of the record; null if it has none", nullable=True),
        Column("value", "binary", "Value of the record; null is a tombstone", nullable=True),
        Column("topic", "string", "Topic name"),
        Column("partition", "int", "Partition of the topic"),
        Column("offset", "bigint", "Position in the partition, from 0, without gaps"),
        Column("timestamp", "timestamp", "CreateTime from the producer"),
        Column("timestampType", "int", "0 CreateTime, 1 LogAppendTime, as in Spark's Kafka source"),
        Column("headers", "array<struct<key:string,value:binary>>", "Headers of the record", nullable=True),
        Column("leader_epoch", "int", "Leader epoch under which the record was appended"),
        Column("topic_id", "string", "Topic id; a topic that is created again gets another one"),
    ),
)


# The rows of a follower's stream: the headers of the record batches that its leader's log has gained.
BATCH_HEADERS = Table(
    name="batch_headers",
    description="The record batches of a leader's log that a follower has appended or lacks; streamed, never stored",
    key=("topic_id", "partition", "base_offset", "segment"),
    writers="nobody: the driver makes the rows when the micro-batch before this one ends",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("base_offset", "bigint", "First offset of the batch"),
        Column("last_offset", "bigint", "Last offset of the batch, inclusive"),
        Column("leader_epoch", "int", "Leader epoch under which the batch was written"),
        Column("segment", "string", "Name of the data file in the leader's log"),
        Column("segment_bytes", "bigint", "Size of that file"),
        Column("bytes", "bigint", "Size of the batch's keys and values"),
        Column("previous", "string", "Chain of the log before the batch"),
        Column("chain", "string", "Chain of the log after the batch"),
        Column(
            "is_behind",
            "boolean",
            "The follower lacked the batch when the row was made; else it had appended it",
        ),
    ),
)


# The rows that a follower's micro-batch joins its stream with: how far the fetcher has come.
FETCH_STATES = Table(
    name="fetch_states",
    description="How far a fetcher has come in each of its partitions; in memory, never stored",
    key=("topic_id", "partition"),
    writers="nobody: the rows are made for one micro-batch",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("leader_epoch", "int", "Leader epoch under which the partition is fetched"),
        Column("state", "string", "Truncating, Fetching or Delayed"),
        Column("log_end_offset", "bigint", "End of the follower's log: the next offset to append"),
        Column("chain", "string", "Chain of the follower's log before that offset"),
    ),
)
