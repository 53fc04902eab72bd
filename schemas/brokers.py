"""`<cluster root>/brokers/<id>`: the registration and the heartbeat of one broker."""

from lakelog.schemas.table import Column, Table

BROKERS = Table(
    name="brokers",
    description="One row: the root of a broker and its state. Each commit is a heartbeat, also one that changes no row",
    key=("broker_id",),
    writers="its broker alone",
    columns=(
        Column("broker_id", "int", "Broker id"),
        Column("root", "string", "URI of its storage root"),
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
