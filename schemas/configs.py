"""`<cluster root>/configs`: settings of brokers that may change while they run."""

from lakelog.schemas.table import Column, Table

CONFIGS = Table(
    name="configs",
    description="A row an entity that has settings of its own; topics keep theirs in topics",
    key=("entity_type", "entity_name"),
    writers="the active controller",
    columns=(
        Column("entity_type", "string", "What it is: brokers"),
        Column("entity_name", "string", "A broker id; <default>: every broker without a setting of its own"),
        Column("configs", "map<string,string>", "Settings of the entity, by the keys of Kafka"),
    ),
)
