"""`replicas`: the status of a broker's replicas, which it publishes for followers, leaders, readers and people.
[HW-02]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakelog.replication.errors import CorruptRecordException, StaleBrokerEpochException
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.log.log_txns import BROKER_EPOCH
from lakelog.replication.storage.tables.state_table import Row, RowValues, StateTable
from lakelog.schemas import REPLICAS, Table


class ReplicaTable(StateTable[Mapping[TopicIdPartition, ReplicaStatus]]):
    """The replicas table of one broker, as `ReplicaStatus` values."""

    TABLE = REPLICAS

    def __init__(self, log: DeltaLog, table: Table) -> None:
        super().__init__(log, table)
        self._values = RowValues(_replica, _row, lambda replica: replica.topic_id_partition)
        self._broker_epoch = -1
        self._checked = -1  # up to this version no other process has claimed the table

    @property
    def replicas(self) -> Mapping[TopicIdPartition, ReplicaStatus]:
        """The broker's replicas as last read: rows that other threads have read meanwhile are not lost again.

        Raises CorruptRecordException for rows that make no sense.
        """
        return self._value

    def _decode(self, rows: list[Row]) -> Mapping[TopicIdPartition, ReplicaStatus]:
        try:
            return self._values.decode(rows)
        except (TypeError, ValueError) as error:
            raise CorruptRecordException(f"{REPLICAS.name} of version {self.version}: a row: {error}") from error

    def claim(self, broker_epoch: int) -> None:
        """Makes this process the only one that may write: older ones find out at their next publish."""
        self._broker_epoch = broker_epoch

        def change(rows: list[Row]) -> list[Row] | None:
            return None if self._claimed() == broker_epoch else rows

        self.recover()
        self.update({"who": "broker", "why": "claim"}, change, {BROKER_EPOCH: broker_epoch})

    def _claimed(self) -> int:
        """The highest claim. Raises StaleBrokerEpochException if it is a newer process's."""
        claimed = self.transaction_version(BROKER_EPOCH)
        if claimed is not None and claimed > self._broker_epoch >= 0:
            raise StaleBrokerEpochException(
                f"replicas: broker epoch {self._broker_epoch} is fenced: a newer process has claimed the table "
                f"under epoch {claimed}"
            )
        return -1 if claimed is None else claimed

    def publish(self, replicas: Iterable[ReplicaStatus], why: str) -> int | None:
        """Replaces all rows, unless they are the same but for the log version. Returns the version written.

        Raises StaleBrokerEpochException if a newer process has claimed the table.
        """
        wanted = _by_key(self.replicas, list(replicas))

        def change(_: list[Row]) -> list[Row] | None:
            if self.version != self._checked:
                self._claimed()  # another process has written, perhaps a claim
            found = self.replicas
            if found.keys() == wanted.keys() and all(
                found[key] is row or found[key].tells_the_same(row) for key, row in wanted.items()
            ):
                return None
            rows, ordered = self._values.encode(wanted)
            self._decoded = rows, ordered  # if they land they are the table's, and need not be decoded
            return rows

        version = self.update({"who": "broker", "why": why}, change, noop_staleness=LONGEST_SECONDS)
        # Its own version only: the handle may have moved on to a claim that came right after it.
        self._checked = self._checked if version is None else version
        return version


def _by_key(
    known: Mapping[TopicIdPartition, ReplicaStatus], rows: list[ReplicaStatus]
) -> dict[TopicIdPartition, ReplicaStatus]:
    """The rows by partition. Known rows that are in their places have their keys already."""
    if len(rows) != len(known):
        return {row.topic_id_partition: row for row in rows}
    return {
        key if old is row else row.topic_id_partition: row for (key, old), row in zip(known.items(), rows, strict=True)
    }


def _replica(row: Row) -> ReplicaStatus:
    epochs = tuple(EpochEntry(int(e["leader_epoch"]), int(e["start_offset"]), e["chain"]) for e in row["epochs"])
    return ReplicaStatus(**{**row, "epochs": epochs})


def _row(replica: ReplicaStatus) -> Row:
    row = {name: getattr(replica, name) for name in REPLICAS.names}
    row["epochs"] = [entry._asdict() for entry in replica.epochs]
    return row
