"""`metadata`: leader, ISR and replicas of each partition. [IS-05, LE-06]"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from replication.protocol.isr import IsrChange, Outcome, alter_partition
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.controller_claim import check_claim, claim
from replication.storage.filesystem import StorageRoot
from replication.storage.state_table import Row, StateTable
from schemas import METADATA

Partitions: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]

_LISTS = ("replicas", "isr", "adding_replicas", "removing_replicas")


class MetadataTable:
    """The metadata table of a cluster, as `PartitionRegistration` values."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._partitions = self._decode()

    @classmethod
    def create(cls, cluster: StorageRoot) -> MetadataTable:
        """Makes the table without rows."""
        return cls(StateTable.create(cluster.child(METADATA.name), METADATA))

    @classmethod
    def open(cls, cluster: StorageRoot) -> MetadataTable:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(METADATA.name), METADATA))

    @property
    def version(self) -> int:
        """Version of the table that `partitions` is from."""
        return self._table.version

    @property
    def partitions(self) -> Mapping[TopicIdPartition, PartitionRegistration]:
        """Every partition of the cluster as last read."""
        return self._partitions

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        moved = self._table.refresh()
        if moved:
            self._partitions = self._decode()
        return moved

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
        """Writes what `decide` makes of the newest partitions: those that are to change, and None for those that go.

        Returns the version written, None if there was nothing to change. Raises what `decide` raises, and
        ControllerMovedException if a controller with an epoch above `controller_epoch` has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            check_claim(self._table, METADATA.name, controller_epoch)
            found = {r.topic_id_partition: r for r in map(_registration, rows)}
            changed = decide(found)
            merged = {partition: r for partition, r in {**found, **changed}.items() if r is not None}
            return None if merged == found else [_row(merged[key]) for key in sorted(merged)]

        version = self._table.update(cause, change)
        self._partitions = self._decode()
        return version

    def claim(self, controller_epoch: int) -> None:
        """Makes a controller the only one that may elect here: an older one's next write is refused. [CE-04, CE-05]"""
        claim(self._table, METADATA.name, controller_epoch)
        self._partitions = self._decode()

    def alter_partitions(
        self, changes: Iterable[IsrChange], broker_epochs: Callable[[], Mapping[int, int]], cause: Mapping[str, Any]
    ) -> dict[TopicIdPartition, tuple[Outcome, PartitionRegistration | None]]:
        """Writes a leader's changes of ISRs in one compare-and-set; tells what became of each, and what holds now.

        `broker_epochs` are looked up anew at each attempt. Raises KafkaStorageException where the outcome stays
        unknown: the changes may have been written or not, and the same ones sent again find out. [IS-05]
        """
        wanted = list(changes)
        outcomes: dict[TopicIdPartition, tuple[Outcome, PartitionRegistration | None]] = {}

        def change(rows: list[Row]) -> list[Row] | None:
            found = {r.topic_id_partition: r for r in map(_registration, rows)}
            epochs = broker_epochs()
            outcomes.update({c.partition: alter_partition(found.get(c.partition), c, epochs) for c in wanted})
            applied = {p: r for p, (outcome, r) in outcomes.items() if r and outcome is Outcome.APPLIED}
            merged = {**found, **applied}
            return [_row(merged[key]) for key in sorted(merged)] if applied else None

        self._table.update(cause, change)
        self._partitions = self._decode()
        return outcomes

    def _decode(self) -> dict[TopicIdPartition, PartitionRegistration]:
        return {r.topic_id_partition: r for r in map(_registration, self._table.rows)}


def _registration(row: Row) -> PartitionRegistration:
    return PartitionRegistration(**{**row, **{name: tuple(row[name]) for name in _LISTS}})


def _row(registration: PartitionRegistration) -> Row:
    return {**dataclasses.asdict(registration), **{name: list(getattr(registration, name)) for name in _LISTS}}
