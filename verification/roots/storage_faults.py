"""Faults of a root, made in its files on a local disk."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from lakelog.schemas import LOG, REPLICAS

_ASIDE = ".aside"
_ATTEMPTS = 100
_FATES = "lost", "lost", "empty", "half", "whole"  # of a file that was not synced
_FIRST_COMMIT = f"{0:020}.json"


def take_away(root: str) -> None:
    """Replaces the root by a plain file, so each read and write fails, even for the user root."""
    path, aside = Path(root), Path(root + _ASIDE)
    path.rename(aside)
    stone = Path(f"{aside}.file")
    stone.write_text("this root has been taken away\n")
    _put(stone, path)


def replace(root: str, other: str | None) -> None:
    """Puts the root aside, and moves another folder to its place. Without one, nothing is there."""
    path = Path(root)
    path.rename(Path(root + _ASIDE))
    if other is not None:
        _put(Path(other), path)


def copy(root: str, target: str) -> None:
    """Copies a root that processes are writing to, as a backup does. Files that go meanwhile are left out."""
    shutil.rmtree(target, ignore_errors=True)
    for folder, _, names in os.walk(root):
        made = Path(target, Path(folder).relative_to(root))
        made.mkdir()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(Path(folder, name), made / name)


def bring_back(root: str) -> None:
    """Puts the root back. Does nothing if it was neither taken away nor replaced."""
    path, aside = Path(root), Path(root + _ASIDE)
    if aside.is_dir():
        wrong = Path(f"{aside}.wrong")
        with contextlib.suppress(FileNotFoundError):
            path.rename(wrong)
        _put(aside, path)
        wrong.unlink() if wrong.is_file() else shutil.rmtree(wrong, ignore_errors=True)


def delete(root: str) -> None:
    """Deletes a root, which may have been put aside, and what lies in its place."""
    for path in (Path(root + _ASIDE), Path(root)):
        gone = path.with_name(f"{path.name}.gone")
        with contextlib.suppress(FileNotFoundError):
            path.rename(gone)  # at once, as others may write to it
            gone.unlink() if gone.is_file() else shutil.rmtree(gone)


def is_away(root: str) -> bool:
    """Whether the root was taken away or replaced."""
    return Path(root + _ASIDE).is_dir()


def _put(source: Path, target: Path) -> None:
    """Renames `source` to `target`. It deletes a folder that a broker has just created at `target`, which is
    worthless."""
    for _ in range(_ATTEMPTS):
        try:
            os.rename(source, target)
            return
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
    raise OSError(f"{target}: another process creates it again and again")


def forget_since(root: Path, moment: float, draw: random.Random | None = None) -> int:
    """Harms files as a power cut does on a disk without fsync: the commits and data files of the broker's tables that
    were written since `moment` (seconds since the epoch) are lost. With `draw` some of them are only empty or a half,
    and some are whole. Returns the number of harmed commits.

    The tables stay, because their first commits are kept.
    """
    commits = 0
    for path in [path for table in (LOG, REPLICAS) for path in (root / table.name).rglob("*")]:
        if path.is_file() and path.stat().st_mtime >= moment and path.name != _FIRST_COMMIT:
            fate = draw.choice(_FATES) if draw else "lost"
            if fate == "lost":
                path.unlink()
            elif fate != "whole":
                os.truncate(path, path.stat().st_size // 2 if fate == "half" else 0)
            commits += path.suffix == ".json" and fate != "whole"
    return commits


def empty(root: Path) -> None:
    """Deletes everything in a root; the folder stays."""
    old = root.with_name(f"{root.name}.old")
    root.rename(old)
    root.mkdir()
    shutil.rmtree(old)


def rot(file: Path, draw: random.Random) -> None:
    """Flips a bit in a column's pages of a data file in place, as a bad disk does: size and age stay the same."""
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
