"""The rows that start a follower's micro-batch: one row each time that its leader's log has gained segments."""

from lakelog.schemas.table import Column, Table

NEW_SEGMENTS = Table(
    name="new_segments",
    description="News of a leader's log; streamed, never stored",
    key=("version",),
    writers="nobody: the follower's own thread tells its stream",
    columns=(Column("version", "bigint", "Version of the leader's log table up to which there are new segments"),),
)
