"""`<cluster root>/brokers/<id>`: the registration and the heartbeat of one broker."""

from lakelog.schemas.table import Column, Table

BROKERS = Table(
    name="brokers",
    description="One row: where a broker keeps its log, and the counter that shows that it lives",
    key=("broker_id",),
    writers="its broker alone",
    columns=(
        Column("broker_id", "int", "The broker"),
        Column("root", "string", "URI of its storage root"),
        Column("rack", "string", "Rack, zone or region; null if not told", nullable=True),
        Column("broker_epoch", "bigint", "Counts the registrations of this id"),
        Column("heartbeat", "bigint", "Counter; observers measure on their own clock how long it has stood still"),
        Column("metadata_version", "bigint", "Version of metadata that the broker has carried out; -1 none yet"),
        Column("shutting_down", "boolean", "Asked for a controlled shutdown, or has stopped"),
        Column("storage_error", "string", "What is wrong with the root; null if nothing", nullable=True),
        Column("log_table_id", "string", "Delta's id of its log table: another id is another log"),
        Column("log_epoch", "bigint", "Broker epoch since which it has this log: what it had in sync before is lost"),
        Column("log_version", "bigint", "Version of its log table: one that went back is a restored backup"),
        Column("log_commit", "string", "Unique id of the commit of that version: another id is another history"),
        Column("offline_partitions", "array<string>", "Replicas with a broken file, as <topic id>/<partition>", True),
        Column("leader_replication_quota", "bigint", "leader.replication.throttled.rate; null: no limit", True),
        Column("leader_replication_rate", "bigint", "Bytes a second that followers fetch of what is throttled", True),
        Column("follower_replication_quota", "bigint", "follower.replication.throttled.rate; null: no limit", True),
        Column("follower_replication_rate", "bigint", "Bytes a second that it fetches of what is throttled", True),
        Column("divergences", "bigint", "How often a log here was not its leader's under the same epochs", True),
    ),
)
