"""`<broker root>/log`: the records of all replicas that a broker hosts."""

from lakelog.schemas.table import Column, Table

LOG = Table(
    name="log",
    description="The records of all replicas of one broker; columns of Spark's Kafka source, then two of Lakelog",
    key=("topic_id", "partition", "offset"),
    writers="its broker (as a follower, and for maintenance) and producers (to partitions that it leads)",
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
