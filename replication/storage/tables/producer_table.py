"""`producers`: names of producers, their ids and epochs. Kafka: `ProducerIdManager`, KIP-98."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from blake3 import blake3

from lakelog.replication.errors import ProducerFencedException
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch
from lakelog.replication.storage.tables.state_table import ClientTable, Row
from lakelog.schemas import PRODUCERS


def new_producer_id() -> int:
    """An id for a producer without a name: 62 random bits, so it is unique without a table."""
    return secrets.randbits(62)


def producer_id_of(name: str) -> int:
    """The id of a producer whose name no table has: 62 bits of a digest, so it is unique, too."""
    return int.from_bytes(blake3(name.encode()).digest(length=8), "big") >> 2


class ProducerTable(ClientTable[dict[str, Row]]):
    """The producers table of a cluster."""

    TABLE = PRODUCERS

    def init_producer(self, name: str, owner: str, deadline: float | None = None) -> ProducerIdAndEpoch:
        """The id of a named producer, under an epoch above all that were given out before: those are fenced.

        `owner` is unique to the producer, which has the name from now on. Raises KafkaStorageException, and
        TimeoutException at the `deadline`.
        """
        return self._give(name, owner, "start", lambda _: None, deadline)

    def renew(self, name: str, owner: str, deadline: float | None = None) -> ProducerIdAndEpoch:
        """The next epoch for the producer that has the name; another id if the name has expired meanwhile.

        Raises ProducerFencedException if another producer has the name, and what `init_producer` raises. KIP-360.
        """

        def check(last: Row) -> None:
            if last["owner"] != owner:
                raise ProducerFencedException(f"another producer has been started under the name {name}")

        return self._give(name, owner, "renewal", check, deadline)

    def _give(
        self, name: str, owner: str, why: str, check: Callable[[Row], None], deadline: float | None
    ) -> ProducerIdAndEpoch:
        given: list[ProducerIdAndEpoch] = []
        new_id = new_producer_id()

        def change(rows: list[Row]) -> list[Row]:
            known = self._decode(rows)
            last = known.get(name)
            if last:
                check(last)
            mine = ProducerIdAndEpoch(
                last["producer_id"] if last else new_id, last["producer_epoch"] + 1 if last else 0
            )
            given.append(mine)
            known[name] = {"name": name, **mine._asdict(), "owner": owner, "idle_ms": 0}
            return [known[key] for key in sorted(known)]

        self._table.update({"who": "producer", "why": why, "name": name}, change, deadline=deadline, once=True)
        return given[-1]

    def expire(
        self, seen: Mapping[str, Row], passed_ms: int, expiration_ms: int, cause: Mapping[str, Any]
    ) -> Mapping[str, Row]:
        """Removes the names that have been unused for `expiration_ms`; returns the rows that are left.

        `seen` are the rows that the caller saw `passed_ms` ago. A row that is still the same was not used in that time,
        which is added to what other callers have seen. So no clock of one machine is compared with that of another.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            aged = [{**r, "idle_ms": r["idle_ms"] + passed_ms} if seen.get(r["name"]) == r else r for r in rows]
            kept = [row for row in aged if row["idle_ms"] < expiration_ms]
            return None if kept == rows else kept

        self._table.update(cause, change)
        return self._value

    def _decode(self, rows: list[Row]) -> dict[str, Row]:
        return {row["name"]: row for row in rows}
