"""`<cluster root>/members/<group>`: the members of one consumer group."""

from lakelog.schemas.table import Column, Table

_PARTITIONS = "array<struct<topic:string,topic_id:string,partition:int>>"

MEMBERS = Table(
    name="members",
    description="A row a consumer that has subscribed, as a member of the group. A heartbeat is a commit that changes "
    "no row and moves the txn heartbeat/<slot>. The txn generation is the generation of the group",
    key=("group_id", "member_id"),
    writers="the members of the group, and whoever removes dead ones",
    columns=(
        Column("group_id", "string", "Name of the group"),
        Column("member_id", "string", "Id of the member: its client id and a random part"),
        Column("client_id", "string", "client.id of the consumer; empty if not set"),
        Column("host", "string", "Name of its machine"),
        Column("slot", "int", "Number of its heartbeat counter: the lowest that was free"),
        Column("session_timeout_ms", "int", "Time without a heartbeat after which others take it for dead"),
        Column("topics", "array<string>", "Topics that it has subscribed to"),
        Column("assignors", "array<string>", "Assignors that it knows, the best one first"),
        Column("assigned", _PARTITIONS, "Partitions that it is to own"),
        Column("owned", _PARTITIONS, "Partitions that it owns: nobody else reads them"),
    ),
)
