"""`<cluster root>/producers`: names of producers and the ids that stand for them in batch headers."""

from lakelog.schemas.table import Column, Table

PRODUCERS = Table(
    name="producers",
    description="A row a named producer; a producer without a name draws an id of its own",
    key=("name",),
    writers="any producer that starts under a name; the active controller",
    columns=(
        Column("name", "string", "Name that the producer was started with"),
        Column("producer_id", "bigint", "Its id in batch headers"),
        Column("producer_epoch", "int", "Counts the starts and renewals under this name; an older one is fenced"),
        Column("owner", "string", "Unique id of the producer that started last under this name"),
        Column("idle_ms", "bigint", "How long controllers have seen the name unused, in ms; a use sets it to 0"),
    ),
)
