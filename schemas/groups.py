"""`<cluster root>/groups`: the committed offsets of consumer groups."""

from lakelog.schemas.table import Column, Table

GROUPS = Table(
    name="groups",
    description="A row a group and partition: the offset that the group has committed",
    key=("group_id", "topic_id", "partition"),
    writers="any consumer with a group; the controller removes rows of deleted topics",
    columns=(
        Column("group_id", "string", "Name of the group"),
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id; a topic that is created again starts without committed offsets"),
        Column("partition", "int", "Partition"),
        Column("committed_offset", "bigint", "Next offset to read: one after the last processed record"),
    ),
)
