"""Brings disk and memory to the same state before each measurement, whatever was measured before."""

from __future__ import annotations

import os
from pathlib import Path

_PIECE = bytes(1 << 20)


def settle_memory(folder: Path, size: int) -> None:
    """Waits until earlier files are on disk, because the kernel would write them during the measurement. Then it writes
    a file of twice `size` bytes into `folder`, and deletes it.

    The next files get the memory of that file. A virtual machine may have given other free memory back to its host:
    with such memory a copy of 504 MB took 1.2 s instead of 0.12 s.
    """
    os.sync()
    used = folder / "settled"
    try:
        with used.open("wb") as file:
            for _ in range(0, 2 * size, len(_PIECE)):
                file.write(_PIECE)
    finally:
        used.unlink(missing_ok=True)
