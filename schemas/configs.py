"""`<cluster root>/configs`: settings of brokers that can change while they run."""

from lakelog.schemas.table import Column, Table

CONFIGS = Table(
    name="configs",
    description="A row an entity with dynamic settings; settings of topics are in topics",
    key=("entity_type", "entity_name"),
    writers="the active controller",
    columns=(
        Column("entity_type", "string", "Type of the entity: brokers"),
        Column("entity_name", "string", "Broker id; <default>: every broker that does not set the key itself"),
        Column("configs", "map<string,string>", "Settings of the entity, by Kafka's keys"),
    ),
)
