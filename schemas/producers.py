"""`<cluster root>/producers`: named producers and their ids in batch headers."""

from lakelog.schemas.table import Column, Table

PRODUCERS = Table(
    name="producers",
    description="A row a named producer; a producer without a name draws a random id",
    key=("name",),
    writers="any named producer that starts; the active controller",
    columns=(
        Column("name", "string", "Name of the producer"),
        Column("producer_id", "bigint", "Producer id in batch headers"),
        Column("producer_epoch", "int", "Rises with each start and renewal under this name; older epochs are fenced"),
        Column("owner", "string", "Unique id of the producer that started last under this name"),
        Column("idle_ms", "bigint", "Time in ms that controllers have seen the name unused; a use sets it to 0"),
    ),
)
