"""`<broker root>/replicas`: a broker's state of each of its replicas."""

from lakelog.schemas.table import Column, Table

REPLICAS = Table(
    name="replicas",
    description="The state of each replica of one broker; never claims more than its log holds",
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
