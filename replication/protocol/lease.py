"""The lease of the active controller. [CE-02]"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The row of the active controller, and `lease`, the version of its table, which rises as long as the controller is
    alive."""

    controller_id: str
    controller_epoch: int
    lease: int = 0
    resigned: bool = False
