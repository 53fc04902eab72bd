"""What a follower wants of one leader: joined with the headers that it streams."""

from lakelog.schemas.table import Column, Table

FETCH_STATES = Table(
    name="fetch_states",
    description="What a follower fetches from one leader: metadata joined with its own log; never stored",
    key=("topic_id", "partition"),
    writers="nobody: the fetcher makes it for each micro-batch",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("fetch_offset", "bigint", "The follower's own LEO"),
    ),
)
