"""The rows of a follower's stream: the headers of the record batches that its leader's log has gained."""

from lakelog.schemas.table import Column, Table

BATCH_HEADERS = Table(
    name="batch_headers",
    description="The record batches of a leader's log that a follower has appended or lacks; streamed, never stored",
    key=("topic_id", "partition", "base_offset", "segment"),
    writers="nobody: the driver makes the rows when the micro-batch before this one ends",
    columns=(
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("base_offset", "bigint", "First offset of the batch"),
        Column("last_offset", "bigint", "Last offset of the batch, inclusive"),
        Column("leader_epoch", "int", "Leader epoch under which the batch was written"),
        Column("segment", "string", "Name of the data file in the leader's log"),
        Column("segment_bytes", "bigint", "Size of that file"),
        Column("bytes", "bigint", "Size of the batch's keys and values"),
        Column("previous", "string", "Chain of the log before the batch"),
        Column("chain", "string", "Chain of the log after the batch"),
        Column(
            "is_behind",
            "boolean",
            "The follower lacked the batch when the row was made; else it had appended it",
        ),
    ),
)
