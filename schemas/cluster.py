"""`<root>/cluster`: marks a folder as a root of one cluster, in the cluster root and in each broker root."""

from lakelog.schemas.table import Column, Table

FORMAT_VERSION = 5
OLDEST_FORMAT = 4  # its tables are the same, but other tools may write them

CLUSTER = Table(
    name="cluster",
    description="One row: the cluster and the broker that a root belongs to, and the format of its tables",
    key=("cluster_id",),
    writers="`lakelog format`, once",
    columns=(
        Column("cluster_id", "string", "Id of the cluster"),
        Column("broker_id", "int", "Broker that owns the root; -1 for the cluster root"),
        Column("format_version", "int", "Version of the table format; processes refuse one that they do not know"),
        Column("configs", "map<string,string>", "Settings of the whole cluster, such as num.replica.fetchers"),
    ),
)
