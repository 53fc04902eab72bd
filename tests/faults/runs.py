"""One run in a process of its own."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from tests.faults.check import run

_IN_MEMORY = Path("/dev/shm")


def run_one(job: tuple[int, int]) -> tuple[int, str | None]:
    """A run of so many steps under a seed: the seed, and how the run failed."""
    seed, steps = job
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        try:
            run(folder, seed, steps)
        except Exception as error:  # whatever it is, the seed is to be known, and the other runs go on
            return seed, f"{type(error).__name__}: {error}"
    return seed, None
