"""`producers`: names of producers, their ids and epochs. Kafka: `ProducerIdManager`, KIP-98."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from replication.storage.filesystem import StorageRoot
from replication.storage.state_table import Row, StateTable
from schemas import PRODUCERS


class ProducerIdAndEpoch(NamedTuple):
    """Who wrote a batch: the id, and which start under its name."""

    producer_id: int
    producer_epoch: int


def new_producer_id() -> int:
    """An id for a producer without a name: 62 random bits, so nobody needs to be asked."""
    return secrets.randbits(62)


class ProducerTable:
    """The producers table of a cluster."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @classmethod
    def create(cls, cluster: StorageRoot) -> ProducerTable:
        """Makes the table without rows."""
        return cls(StateTable.create(cluster.child(PRODUCERS.name), PRODUCERS))

    @classmethod
    def open(cls, cluster: StorageRoot) -> ProducerTable:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(PRODUCERS.name), PRODUCERS))

    def keep_cheap(self) -> None:
        """Keeps opening cheap; for the active controller, now and then."""
        self._table.refresh()
        self._table.keep_cheap()

    def init_producer(self, name: str, deadline: float | None = None) -> ProducerIdAndEpoch:
        """The id of a named producer, under an epoch above all that were given out before: those are fenced.

        Raises KafkaStorageException, and TimeoutException at the `deadline`.
        """
        given: list[ProducerIdAndEpoch] = []
        new_id = new_producer_id()

        def change(rows: list[Row]) -> list[Row]:
            known = {row["name"]: row for row in rows}
            last = known.get(name)
            mine = ProducerIdAndEpoch(
                last["producer_id"] if last else new_id, last["producer_epoch"] + 1 if last else 0
            )
            given.append(mine)
            known[name] = {"name": name, **mine._asdict()}
            return [known[key] for key in sorted(known)]

        self._table.update({"who": "producer", "why": "start", "name": name}, change, deadline=deadline, once=True)
        return given[-1]
