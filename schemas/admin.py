"""`<cluster root>/admin`: the requests to the controller, and their outcomes."""

from lakelog.schemas.table import Column, Table

ADMIN = Table(
    name="admin",
    description="A row a request: a client writes it, the controller decides it; the last decided requests stay",
    key=("request_id",),
    writers="admin clients add and withdraw requests, the active controller decides them",
    columns=(
        Column("request_id", "string", "Id of the request; a topic that it creates gets it as its topic id"),
        Column("kind", "string", "Kind of the request, such as create_topic"),
        Column("arguments", "string", "Arguments of the request, as JSON"),
        Column("validate_only", "boolean", "Decide and answer, but change nothing"),
        Column("requested_by", "string", "Name of the client"),
        Column("metadata_version", "bigint", "Version of metadata when the client wrote the request"),
        Column(
            "outcomes", "string", "JSON, by topic or partition: error (null if none) and message; null: undecided", True
        ),
        Column("controller_epoch", "int", "Epoch of the controller that took the request up; -1: none yet"),
        Column("state", "string", "Pending, Deciding, Applying or Decided; one left at Deciding is not decided again"),
        Column("timeout_ms", "bigint", "Time in ms that the client waits; -1: forever"),
        Column(
            "deadline_ms", "bigint", "Until when it waits, in ms since 1970 by its clock; null: not known", True
        ),  # older versions leave it out
    ),
)
