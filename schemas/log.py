"""`<broker root>/log`: the records of all replicas that a broker hosts."""

from lakelog.schemas.table import Column, Table

LOG = Table(
    name="log",
    description="The records of all replicas of one broker; columns of the Kafka source of Spark, then two of Lakelog",
    key=("topic_id", "partition", "offset"),
    writers="its broker (as a follower, and for maintenance) and producers (to partitions that it leads)",
    columns=(
        Column("key", "binary", "The key of the record; null where it has none", nullable=True),
        Column("value", "binary", "The value of the record; null is a tombstone", nullable=True),
        Column("topic", "string", "Topic name"),
        Column("partition", "int", "Partition of the topic"),
        Column("offset", "bigint", "Position in the partition, from 0, without gaps"),
        Column("timestamp", "timestamp", "CreateTime as the producer gave it"),
        Column("timestampType", "int", "0 CreateTime, 1 LogAppendTime, as in the Kafka source of Spark"),
        Column("headers", "array<struct<key:string,value:binary>>", "Headers of the record", nullable=True),
        Column("leader_epoch", "int", "The leader epoch that the record was appended under"),
        Column("topic_id", "string", "Id of the topic: a topic that is made again gets another"),
    ),
)
