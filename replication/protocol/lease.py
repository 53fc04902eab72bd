"""The lease of the active controller. [CE-02]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """Which controller is active. It raises `lease` as long as it lives."""

    controller_id: str
    controller_epoch: int
    lease: int = 0
    resigned: bool = False
