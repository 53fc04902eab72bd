"""What a broker says of one of its replicas: a row of its `replicas` table."""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.record_batch import OfPartition

LEADER_ROLE, FOLLOWER_ROLE = "leader", "follower"


@dataclass(frozen=True, slots=True)
class Replica(OfPartition):
    """A row: one replica as its broker last published it. It never claims more than the log held at that time.

    `chain` is that of the log up to its end: two replicas with one chain have the same records.
    """

    topic: str
    topic_id: str
    partition: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    role: str
    state: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    error: str | None
    log_version: int
    lag: int | None = None
    chain: str = ""

    @property
    def log_start_chain(self) -> str:
        """The chain of all that lies before the log start: the lineage begins there. Without one the log is empty."""
        return self.epochs[0].chain if self.epochs else self.chain
