"""Brings disk and memory to the same state before each measurement, whatever was measured before."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_PIECE_BYTES, _PROBE_BYTES, _PROBE_SECONDS = 1 << 20, 64 << 20, 2.0


def settle_memory(size: int) -> None:
    """Waits until earlier files are on disk, because the kernel would write them during the measurement. Then it uses
    memory of twice `size` bytes, if so much is free, and frees it.

    The next files get that memory. A virtual machine may have given other free memory back to its host: with such
    memory a copy of 504 MB took 1.2 s instead of 0.12 s.
    """
    os.sync()
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    length = min(2 * size, free * 3 // 4)
    if length:
        with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            for page in range(0, length, mmap.PAGESIZE):
                memory[page] = 1


def write_speed(folder: Path) -> float:
    """The bytes a second that the disk of a folder takes: those of a file of 64 MB, or of two seconds."""
    os.sync()
    probe, piece, size = folder / "probe", os.urandom(_PIECE_BYTES), 0
    started = time.perf_counter()
    try:
        with probe.open("wb") as file:
            while size < _PROBE_BYTES and time.perf_counter() - started < _PROBE_SECONDS:
                size += file.write(piece)
                os.fsync(file.fileno())
        return size / (time.perf_counter() - started)
    finally:
        probe.unlink(missing_ok=True)
