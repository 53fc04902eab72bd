"""`<broker root>/replicas`: what a broker says of the replicas that it hosts."""

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
        Column("broker_id", "int", "The broker"),
        Column("broker_epoch", "bigint", "Epoch of the registration under which this was written"),
        Column("leader_epoch", "int", "Leader epoch that this replica has taken its role under"),
        Column("role", "string", "leader or follower"),
        Column("state", "string", "Fetching, Truncating, Delayed or Offline; of a leader always Fetching"),
        Column("log_start_offset", "bigint", "First offset that is kept"),
        Column("log_end_offset", "bigint", "LEO: the next offset to be written"),
        Column("high_watermark", "bigint", "HW: readers see what lies below it"),
        Column(
            "epochs",
            "array<struct<leader_epoch:int,start_offset:bigint,chain:string>>",
            "Lineage: which epoch wrote from which offset on, and the chain of the log up to there",
        ),
        Column("error", "string", "Why the replica is not Fetching; null if all is well", nullable=True),
        Column("log_version", "bigint", "Version of the log table that this was true at"),
        Column(
            "lag",
            "bigint",
            "Committed records that are not here; null if that is not known",
            nullable=True,
        ),
        Column("chain", "string", "Hash of all batches up to the LEO: equal ones are equal logs"),
    ),
)
