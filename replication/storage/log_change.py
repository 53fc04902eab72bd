"""What one commit on a log is to change, as whoever decides on the log's state answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from replication.storage.log_state import LogState
from replication.storage.segment import Segment


@dataclass(frozen=True)
class LogChange:
    """What one commit is to change: segments in and out, and facts that must last (`txn`).

    Without `data_change` the same batches lie in other segments from then on, and nobody who follows has to know.
    """

    adds: tuple[Segment, ...] = ()
    removes: tuple[Segment, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    data_change: bool = True


Decision = Callable[[LogState], LogChange | None]
