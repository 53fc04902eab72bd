"""`<cluster root>/groups`: how far groups of consumers have come."""

from lakelog.schemas.table import Column, Table

GROUPS = Table(
    name="groups",
    description="A row a group and partition: the offset that its consumers have committed",
    key=("group_id", "topic_id", "partition"),
    writers="any consumer that has a group; the controller removes rows of deleted topics",
    columns=(
        Column("group_id", "string", "Name of the group"),
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id: a topic that is made again begins without committed offsets"),
        Column("partition", "int", "Partition"),
        Column("committed_offset", "bigint", "The next offset to read: that after the last record dealt with"),
    ),
)
