"""The partitions that a follower fetches from one leader, to join with the headers that it streams."""

from lakelog.schemas.table import Column, Table

FETCH_STATES = Table(
    name="fetch_states",
    description="The partitions that a follower fetches from one leader, with its fetch offsets; never stored",
    key=("topic_id", "partition"),
    writers="nobody: the fetcher builds it for each micro-batch",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("fetch_offset", "bigint", "The follower's own LEO"),
    ),
)
