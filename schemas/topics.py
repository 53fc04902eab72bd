"""`<cluster root>/topics`: the topics, their ids and settings."""

from lakelog.schemas.table import Column, Table

TOPICS = Table(
    name="topics",
    description="A row a topic; committed before its partitions appear in metadata",
    key=("topic",),
    writers="the active controller",
    columns=(
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Id; a topic that is deleted and made again gets another"),
        Column("partitions", "int", "Number of partitions that the topic was made with"),
        Column("configs", "map<string,string>", "Settings of the topic, by the keys of Kafka"),
        Column("deleting", "boolean", "Marked for deletion: brokers stop to serve it"),
    ),
)
