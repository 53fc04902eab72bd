"""`<cluster root>/metadata`: the leader, ISR and replicas of each partition."""

from lakelog.schemas.table import Column, Table

METADATA = Table(
    name="metadata",
    description="Leader, epochs, ISR and replicas of each partition; every write is a compare-and-set",
    key=("topic_id", "partition"),
    writers="the active controller; a leader, the ISR of its partitions; a follower, before it drops broken records",
    log_retention="interval 7 days",
    commits_kept=None,
    columns=(
        Column("topic", "string", "Topic name"),
        Column("topic_id", "string", "Topic id"),
        Column("partition", "int", "Partition"),
        Column("replicas", "array<int>", "AR: assigned brokers, the preferred leader first"),
        Column("adding_replicas", "array<int>", "Replicas that a reassignment adds"),
        Column("removing_replicas", "array<int>", "Replicas that a reassignment removes"),
        Column("leader", "int", "Broker that leads; -1: none"),
        Column("leader_epoch", "int", "Rises with each change of leader, ISR or replicas by the controller"),
        Column("isr", "array<int>", "Brokers in sync, including the leader"),
        Column("isr_epochs", "array<bigint>", "Broker epoch of each ISR member when it joined or was elected"),
        Column("partition_epoch", "int", "Rises with each change of this row"),
        Column("controller_epoch", "int", "Epoch of the controller that wrote this row last"),
    ),
)
