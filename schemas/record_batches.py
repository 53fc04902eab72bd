"""The header rows that a follower streams: one row a record batch, from the footers of a leader's segments."""

from lakelog.schemas.table import Column, Table

RECORD_BATCHES = Table(
    name="record_batches",
    description="Headers of record batches in the order of the leader's commits; streamed, never stored",
    key=("version", "segment", "topic_id", "partition"),
    writers="nobody: the streaming source reads them from footers",
    columns=(
        Column("version", "bigint", "Version of the leader's log table that added the segment"),
        Column("segment", "string", "Name of the data file; null: commits up to here were not read", nullable=True),
        Column("segment_bytes", "bigint", "Size of the data file in bytes", nullable=True),
        Column("topic", "string", "Topic name", nullable=True),
        Column("topic_id", "string", "Topic id", nullable=True),
        Column("partition", "int", "Partition", nullable=True),
        Column("leader_epoch", "int", "Leader epoch under which the batch was appended", nullable=True),
        Column("base_offset", "bigint", "Offset of the first record", nullable=True),
        Column("last_offset", "bigint", "Offset of the last record", nullable=True),
        Column("bytes", "bigint", "Size of the batch's keys and values in bytes", nullable=True),
        Column("previous", "string", "Chain of the log before the batch", nullable=True),
        Column("chain", "string", "Chain of the log up to the batch's end", nullable=True),
        Column("gap", "string", "Reason why commits or a segment were not read; null for a header", nullable=True),
    ),
)
