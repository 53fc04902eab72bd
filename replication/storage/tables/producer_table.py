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
    """An id that follows from a name, for a producer in no table: 62 bits of a digest, so it is unique, too."""
    return int.from_bytes(blake3(name.encode()).digest(length=8), "big") >> 2


class ProducerTable(ClientTable[dict[str, Row]]):
    """The names of a cluster's producers, with the id, the epoch and the owner of each."""

    TABLE = PRODUCERS

    def init_producer(self, name: str, owner: str, deadline: float | None = None) -> ProducerIdAndEpoch:
        """The id of a named producer, with a higher epoch than any producer of that name had before: those are fenced.

        `owner` is unique to the producer, which owns the name from now on. Raises KafkaStorageException, and
        TimeoutException at the `deadline`.
        """
        return self._next_identity(name, owner, "start", lambda _: None, deadline)

    def renew(self, name: str, owner: str, deadline: float | None = None) -> ProducerIdAndEpoch:
        """The next epoch for the producer that owns the name; another id if the name has expired meanwhile.

        Raises ProducerFencedException if another producer owns the name, and what `init_producer` raises. KIP-360.
        """

        def check(last: Row) -> None:
            if last["owner"] != owner:
                raise ProducerFencedException(f"another producer has been started under the name {name}")

        return self._next_identity(name, owner, "renewal", check, deadline)

    def _next_identity(
        self, name: str, owner: str, why: str, check: Callable[[Row], None], deadline: float | None
    ) -> ProducerIdAndEpoch:
        chosen: list[ProducerIdAndEpoch] = []
        new_id = new_producer_id()

        def change(rows: list[Row]) -> list[Row]:
            known = self._decode(rows)
            last = known.get(name)
            if last:
                check(last)
            identity = ProducerIdAndEpoch(
                last["producer_id"] if last else new_id, last["producer_epoch"] + 1 if last else 0
            )
            chosen.append(identity)
            known[name] = {"name": name, **identity._asdict(), "owner": owner, "idle_ms": 0}
            return [known[key] for key in sorted(known)]

        self.update({"who": "producer", "why": why, "name": name}, change, deadline=deadline, once=True)
        return chosen[-1]

    def expire(
        self, seen: Mapping[str, Row], passed_ms: int, expiration_ms: int, cause: Mapping[str, Any]
    ) -> Mapping[str, Row]:
        """Removes the names that have been unused for `expiration_ms`; returns the rows that are left.

        `seen` are the rows that the caller saw `passed_ms` ago. If a row is still the same, its name was not used in
        that time, which is added to the row's `idle_ms`. So the times of several controllers add up, and their clocks
        are never compared.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            aged = [{**r, "idle_ms": r["idle_ms"] + passed_ms} if seen.get(r["name"]) == r else r for r in rows]
            kept = [row for row in aged if row["idle_ms"] < expiration_ms]
            return None if kept == rows else kept

        self.update(cause, change)
        return self._value

    def _decode(self, rows: list[Row]) -> dict[str, Row]:
        return {row["name"]: row for row in rows}
