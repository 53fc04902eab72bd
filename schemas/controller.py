"""`<cluster root>/controller`: the active controller and its epoch."""

from lakelog.schemas.table import Column, Table

CONTROLLER = Table(
    name="controller",
    description="One row: the active controller, its epoch and its lease; no row before the first election",
    key=("controller_epoch",),
    writers="any controller that stands for election, and the active one",
    columns=(
        Column("controller_id", "string", "Id of the elected controller process"),
        Column("controller_epoch", "int", "Rises with each election; writes of an older controller are refused"),
        Column("lease", "bigint", "Counter that rises while the controller is alive; observers compare no clocks"),
        Column("resigned", "boolean", "Whether the controller has resigned"),
    ),
)
