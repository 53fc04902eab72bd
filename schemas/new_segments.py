"""The rows that start a follower's micro-batch: one row a segment that its leader's log has gained."""

from lakelog.schemas.table import Column, Table

NEW_SEGMENTS = Table(
    name="new_segments",
    description="Segments in the order of the leader's commits; streamed, never stored",
    key=("version", "segment"),
    writers="nobody: the streaming source reads the leader's commits",
    columns=(
        Column("version", "bigint", "Version of the leader's log table that added the segment"),
        Column("segment", "string", "Name of the data file; null: commits up to here were not read", nullable=True),
        Column("gap", "string", "Reason why commits were not read; null for a segment", nullable=True),
    ),
)
