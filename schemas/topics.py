"""`<cluster root>/topics`: the topics, their ids and settings."""

from lakelog.schemas.table import Column, Table

TOPICS = Table(
    name="topics",
    description="A row a topic; it is committed before its partitions appear in metadata",
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
