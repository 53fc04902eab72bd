"""The folder of a benchmark's tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bench_folder() -> Iterator[Path]:
    """A new folder, deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
