"""`<root>/cluster`: what makes a folder a root of one cluster. Both kinds of root have it."""

from lakelog.schemas.table import Column, Table

FORMAT_VERSION = 3

CLUSTER = Table(
    name="cluster",
    description="One row: which cluster and which broker a root belongs to, and the format of its tables",
    key=("cluster_id",),
    writers="`lakelog format`, once",
    columns=(
        Column("cluster_id", "string", "Id of the cluster"),
        Column("broker_id", "int", "Broker that owns the root; -1 for the cluster root"),
        Column("format_version", "int", "Version of the tables: another one is refused"),
        Column("configs", "map<string,string>", "Settings of the whole cluster, such as num.replica.fetchers"),
    ),
)
