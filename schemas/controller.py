"""`<cluster root>/controller`: the active controller and its epoch."""

from lakelog.schemas.table import Column, Table

CONTROLLER = Table(
    name="controller",
    description="One row: the active controller and its epoch, none before the first election. A renewal of the lease "
    "is a commit that changes no row",
    key=("controller_epoch",),
    writers="any controller that stands for election, and the active one",
    columns=(
        Column("controller_id", "string", "Id of the elected controller process"),
        Column("controller_epoch", "int", "Rises with each election; writes of an older controller are refused"),
        Column("resigned", "boolean", "Whether the controller has resigned"),
    ),
)
