"""Makes a broker's root unreadable and brings it back, as a disk that fails and is repaired; on a local disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_ASIDE = ".aside"
_ATTEMPTS = 100


def take_away(root: str) -> None:
    """Puts a plain file where the root was: whatever is read or written there fails, also for who is root."""
    path, aside = Path(root), Path(root + _ASIDE)
    path.rename(aside)
    stone = Path(f"{aside}.file")
    stone.write_text("this root has been taken away\n")
    _put(stone, path)


def bring_back(root: str) -> None:
    """Puts the root back as it was; one that has not been taken away is left alone."""
    path, aside = Path(root), Path(root + _ASIDE)
    if aside.is_dir():
        path.unlink(missing_ok=True)
        _put(aside, path)


def is_away(root: str) -> bool:
    """Whether the root has been taken away."""
    return Path(root + _ASIDE).is_dir()


def _put(source: Path, target: Path) -> None:
    """Renames; a folder that a broker makes at `target` in between holds nothing of value."""
    for _ in range(_ATTEMPTS):
        try:
            os.rename(source, target)
            return
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
    raise OSError(f"{target}: is made again and again by somebody else")
