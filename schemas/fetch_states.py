"""The rows that a follower's micro-batch joins its stream with: how far the fetcher has come."""

from lakelog.schemas.table import Column, Table

FETCH_STATES = Table(
    name="fetch_states",
    description="How far a fetcher has come in each of its partitions; in memory, never stored",
    key=("topic_id", "partition"),
    writers="nobody: the rows are made for one micro-batch",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("leader_epoch", "int", "Leader epoch under which the partition is fetched"),
        Column("state", "string", "Truncating, Fetching or Delayed"),
        Column("log_end_offset", "bigint", "End of the follower's log: the next offset to append"),
        Column("chain", "string", "Chain of the follower's log before that offset"),
    ),
)
