"""`<cluster root>/admin`: what was asked of the controller, and what has become of it."""

from lakelog.schemas.table import Column, Table

ADMIN = Table(
    name="admin",
    description="A row a request: written by a client, decided by the controller; the last decided ones stay",
    key=("request_id",),
    writers="admin clients add and withdraw, the active controller decides",
    columns=(
        Column("request_id", "string", "Id of the request; a topic that it makes gets it as its topic id"),
        Column("kind", "string", "What is asked for, such as create_topic"),
        Column("arguments", "string", "What it is asked with, as JSON"),
        Column("validate_only", "boolean", "Decide, and say what would be, but change nothing"),
        Column("requested_by", "string", "Who has asked"),
        Column("metadata_version", "bigint", "Version of metadata when it was asked"),
        Column(
            "outcomes", "string", "As JSON, by topic or partition: error, or null, and a message; null: undecided", True
        ),
        Column("controller_epoch", "int", "Epoch of the controller that has taken it up; -1 none yet"),
        Column("state", "string", "Pending, Deciding, Applying or Decided; one left at Deciding is not decided again"),
        Column("timeout_ms", "bigint", "How long its client waits; -1 for ever"),
    ),
)
