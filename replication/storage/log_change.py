"""What one commit on a log is to change, as whoever decides on the log's state answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from replication.storage.log_facts import chain_txns
from replication.storage.log_state import LogState
from replication.storage.segment import Segment


@dataclass(frozen=True)
class LogChange:
    """What one commit is to change: segments in and out, and facts that must last (`txn`).

    Without `data_change` the same batches lie in other segments from then on, and nobody who follows has to know. With
    it, records go with the segments in `removes`, and those in `adds` bring none if there are any removes.
    """

    adds: tuple[Segment, ...] = ()
    removes: tuple[Segment, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    data_change: bool = True


Decision = Callable[[LogState], LogChange | None]


def start_chains(state: LogState, change: LogChange) -> dict[str, int]:
    """The `txn`s by which a log knows the chain of what lay before its first batch, once that is gone."""
    kept = {header for segment in change.adds for header in segment.headers}
    going = {header for segment in change.removes for header in segment.headers} - kept
    txns: dict[str, int] = {}
    for partition in {header.topic_id_partition for header in going}:
        log = state.known(partition)
        chain = log.chain_at(log.log_start_offset)
        if chain is not None and log.batches and log.batches[0].header in going:
            txns.update(chain_txns(partition, chain))
    return txns
