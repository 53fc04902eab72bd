"""`metadata`: leader, ISR and replicas of each partition, now and version by version. [IS-05, LE-06]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrChange, IsrOutcomes, alter_partition, fence_isr_changes
from lakelog.replication.protocol.partition_registration import NO_EPOCH, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import ControlledTable, Row, RowValues
from lakelog.schemas import METADATA, Table

Partitions: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]

_COLUMNS = tuple(column.name for column in METADATA.columns)
_EPOCHS = ("leader_epoch", "partition_epoch")
# In the cause of a commit of the controller: brokers that have changed, partitions, and who has asked for it.
BROKER_CHANGES, UNCLEAN_ELECTIONS, REQUESTED_BY = "brokers", "unclean", "requested_by"
_LISTS = ("replicas", "isr", "adding_replicas", "removing_replicas")


class MetadataTable(ControlledTable[Partitions]):
    """The metadata table of a cluster, as `PartitionRegistration` values."""

    TABLE = METADATA

    def __init__(self, log: DeltaLog, table: Table) -> None:
        super().__init__(log, table)
        self._values = RowValues(registration_of, row_of, lambda registration: registration.topic_id_partition)

    def _check_rows(self, before: list[Row], after: list[Row]) -> None:
        """No epoch of a partition ever goes back, unless a person has restored older rows of the table. [LE-06]"""
        known = {(row["topic_id"], row["partition"]): row for row in before}
        for row in after:
            seen = known.get((row["topic_id"], row["partition"]), row)
            for name in _EPOCHS if seen is not row else ():
                if row[name] < seen[name]:
                    raise KafkaStorageException(
                        f"{self.uri}: {row['topic']}-{row['partition']} has {name.replace('_', ' ')} "
                        f"{row[name]}, and {seen[name]} was seen: somebody has restored older rows, which are not used"
                    )

    @property
    def partitions(self) -> Mapping[TopicIdPartition, PartitionRegistration]:
        """Every partition of the cluster as last read."""
        return self._value

    def _decode(self, rows: list[Row]) -> Partitions:
        return self._values.decode(rows)

    def put(self, changed: Iterable[PartitionRegistration], cause: Mapping[str, Any]) -> int | None:
        """Adds or replaces partitions in one compare-and-set. Returns the version written."""
        wanted = {registration.topic_id_partition: registration for registration in changed}
        return self.change(lambda _: wanted, cause)

    def change(
        self,
        decide: Callable[[Partitions], Mapping[TopicIdPartition, PartitionRegistration | None]],
        cause: Mapping[str, Any],
        controller_epoch: int | None = None,
    ) -> int | None:
        """Writes the changes that `decide` returns for the newest partitions: new values, and None for those to remove.

        Returns the version written, None if there was nothing to change. Raises what `decide` raises, and
        ControllerMovedException if a controller with an epoch above `controller_epoch` has claimed the table.
        """

        def change(_: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            found = self.partitions
            changed = decide(found)
            merged = {partition: r for partition, r in {**found, **changed}.items() if r is not None}
            return None if merged == found else self._encode(merged)

        return self.update(cause, change)

    def alter_partitions(
        self, changes: Iterable[IsrChange], broker_epochs: Callable[[], Mapping[int, int]], cause: Mapping[str, Any]
    ) -> IsrOutcomes:
        """Writes a leader's changes of ISRs in one compare-and-set. Returns the outcome of each, and the present state.

        `broker_epochs` are looked up anew at each attempt. Raises KafkaStorageException where the outcome stays
        unknown: the changes may have been written or not, and the same ones sent again find out. [IS-05]
        """
        wanted = list(changes)
        outcomes: dict[TopicIdPartition, tuple[AlterIsrOutcome, PartitionRegistration | None]] = {}

        def change(_: list[Row]) -> list[Row] | None:
            found = self.partitions
            epochs = broker_epochs()
            outcomes.update(
                {c.topic_id_partition: alter_partition(found.get(c.topic_id_partition), c, epochs) for c in wanted}
            )
            applied = {p: r for p, (outcome, r) in outcomes.items() if r and outcome is AlterIsrOutcome.APPLIED}
            return self._encode({**found, **applied}) if applied else None

        self.update(cause, change)
        return outcomes

    def fence_isr_changes(
        self, partitions: Iterable[TopicIdPartition], broker_id: int, cause: Mapping[str, Any]
    ) -> set[TopicIdPartition]:
        """Fails, in one compare-and-set, the changes of ISRs that leaders have decided and not written yet. Returns the
        partitions that others lead and whose ISR is without the broker: it stays so until a row of its lets it in.

        Raises KafkaStorageException where the outcome stays unknown. [OL-01]
        """
        wanted, fenced = list(partitions), set[TopicIdPartition]()

        def change(_: list[Row]) -> list[Row] | None:
            found = self.partitions
            after = {p: r for p in wanted if (r := fence_isr_changes(found.get(p), broker_id)) is not None}
            fenced.clear()
            fenced.update(after)
            return self._encode({**found, **after}) if after else None

        self.update(cause, change)
        return fenced

    def _encode(self, partitions: Partitions) -> list[Row]:
        """The rows to write. If they land they are the table's, and need not be decoded."""
        rows, ordered = self._values.encode(partitions)
        self._decoded = rows, ordered
        return rows


def registration_of(row: Row) -> PartitionRegistration:
    """The registration that a row of the table means."""
    epochs = {
        member: epoch
        for member, epoch in zip(row["isr"], row.get("isr_epochs") or (), strict=False)
        if epoch != NO_EPOCH
    }
    return PartitionRegistration(**{**row, **{name: tuple(row[name]) for name in _LISTS}, "isr_epochs": epochs})


def row_of(registration: PartitionRegistration) -> Row:
    """The row of the table for a registration."""
    row = {name: getattr(registration, name) for name in _COLUMNS}
    epochs = [registration.isr_epoch(member) for member in registration.isr]
    return {**row, **{name: list(row[name]) for name in _LISTS}, "isr_epochs": epochs}


def requests_carried_out(cluster: StorageRoot, since: int) -> dict[str, dict[str, Outcome]]:
    """Outcomes of the admin requests that commits after version `since` have carried out, by request id. [FO-04]

    A controller writes them into the commit itself: the next controller finds them if this one dies in between.
    """
    root = cluster.child(METADATA.name)
    found: dict[str, dict[str, Outcome]] = {}
    for version in range(max(0, since + 1), last_version(root) + 1):
        try:
            requests = read_commit(root, version).info.get("requests", {})
        except FileNotFoundError:  # it has been cleaned up
            continue
        # A newer version may have added to an outcome.
        found |= {r: {name: Outcome(*fields[:2]) for name, fields in names.items()} for r, names in requests.items()}
    return found
