"""What holds after each step: a row of `replicas` claims no more than its log has, and epochs only go up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replication.protocol.fetch_state import ReplicaState
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.simulation.events import Violation
from replication.simulation.stack.processes import Process, StackBroker
from replication.storage.replica_table import ReplicaTable

Partitions = Mapping[TopicIdPartition, PartitionRegistration]
_NO_CLAIM = ReplicaState.TRUNCATING, ReplicaState.OFFLINE


def checked(publish: Callable[..., Any], actor: Callable[[], Process | None]) -> Callable[..., Any]:
    """`publish`, which raises Violation for a row that a broker writes of a log with another end or lineage."""

    def published(table: ReplicaTable, rows: Iterable[Replica], why: str) -> Any:
        who, told = actor(), list(rows)
        session = who.broker.session if isinstance(who, StackBroker) and who.broker is not None else None
        if who is not None and session is not None:
            for row in told:
                log = session.replica_manager._log.current().known(row.topic_id_partition)
                is_true = log.chain_at(row.log_end_offset) == row.chain and row.epochs == log.lineage
                if row.state not in _NO_CLAIM and not is_true:
                    text = f"{who.name} tells {row} of a log that ends at {log.log_end}, {log.lineage}"
                    raise Violation("rows_tell_what_the_log_has", text)
        return publish(table, told, why)

    return published


def check_epochs(before: Partitions, after: Partitions) -> None:
    """Raises Violation unless what has changed has a higher partition epoch, and no lower leader epoch."""
    for partition, then in before.items():
        now = after[partition]
        if now != then and not (now.partition_epoch > then.partition_epoch and now.leader_epoch >= then.leader_epoch):
            raise Violation("epochs_only_go_up", f"{now} came after {then}")
