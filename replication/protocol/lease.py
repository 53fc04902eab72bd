"""Who controls the cluster. [CE-02]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The row: `lease` moves as long as the controller lives."""

    controller_id: str
    controller_epoch: int
    lease: int = 0
    resigned: bool = False
