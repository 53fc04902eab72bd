"""`<cluster root>/controller`: who controls the cluster, and since which epoch."""

from lakelog.schemas.table import Column, Table

CONTROLLER = Table(
    name="controller",
    description="One row: the controller, its epoch and its lease; no row as long as nobody was elected",
    key=("controller_epoch",),
    writers="any controller that stands for election, and the one elected",
    columns=(
        Column("controller_id", "string", "Name of the process that was elected"),
        Column("controller_epoch", "int", "Counts the elections; what an older controller writes is refused"),
        Column("lease", "bigint", "Moves as long as the controller lives; no clock is read"),
        Column("resigned", "boolean", "Whether it has given the office up"),
    ),
)
