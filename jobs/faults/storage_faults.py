"""What goes wrong with a broker's root, done to its files on a local disk."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from lakelog.schemas import LOG, REPLICAS

_ASIDE = ".aside"
_ATTEMPTS = 100
_FIRST_COMMIT = f"{0:020}.json"


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


def forget_since(root: Path, moment: float) -> int:
    """Takes away what a power cut takes from a disk that nobody has synced: the commits and files of the broker's
    tables that were written from a moment on, in seconds since the epoch. Returns how many commits are gone.

    The tables are left: their first commits are from the time when the root was formatted.
    """
    commits = 0
    for path in [path for table in (LOG, REPLICAS) for path in (root / table.name).rglob("*")]:
        if path.is_file() and path.stat().st_mtime >= moment and path.name != _FIRST_COMMIT:
            path.unlink()
            commits += path.suffix == ".json"
    return commits


def empty(root: Path) -> None:
    """Takes away all that a root holds; the folder stays."""
    gone = root.with_name(f"{root.name}.gone")
    root.rename(gone)
    root.mkdir()
    shutil.rmtree(gone)


def rot(file: Path, draw: random.Random) -> None:
    """Flips a bit of a column's pages in a data file, in place, as a disk does it: size and age stay as they were."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    column = group.column(draw.randrange(group.num_columns))
    begins = column.dictionary_page_offset or column.data_page_offset
    place = begins + draw.randrange(column.total_compressed_size)
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(place)
        (byte,) = stream.read(1)
        stream.seek(place)
        stream.write(bytes([byte ^ 1 << draw.randrange(8)]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
