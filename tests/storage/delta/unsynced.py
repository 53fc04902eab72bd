"""A model of a disk that loses its power: only what was synced is there afterwards.

It knows the calls of fsync of this process. A file that was not synced after it was last written is empty, as ext4
leaves it. A name that was not synced with its folder is gone. delta-rs and pyarrow write without fsync, and the model
sees that in the same way.
"""

import os
import shutil
from pathlib import Path

import pytest

from lakelog.replication.storage.delta.local_root import LocalRoot

Written = tuple[int, int]  # size in bytes, time of writing in ns


class UnsyncedDisk:
    """The files below a folder of this machine, and what of them is durable."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._contents: dict[int, Written] = {}  # by inode
        self._names: dict[int, dict[str, int]] = {}  # of the folders by inode: the inodes of their entries
        self.syncs = 0
        sync = os.fsync

        def noted(descriptor: int) -> None:
            sync(descriptor)
            found, path = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
            self.syncs += 1
            if os.path.isdir(path):
                self._names[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                self._contents[found.st_ino] = found.st_size, found.st_mtime_ns

        monkeypatch.setattr(os, "fsync", noted)

    def after_power_cut(self, target: Path) -> Path:
        """A copy of the folder as a loss of power now would leave it."""
        shutil.rmtree(target, ignore_errors=True)
        self._copy(self._folder, target)
        return target

    def _copy(self, folder: Path, target: Path) -> None:
        target.mkdir()
        durable = self._names.get(folder.stat().st_ino, {})
        for entry in folder.iterdir():
            found = entry.stat()
            if durable.get(entry.name) != found.st_ino:
                continue
            if entry.is_dir():
                self._copy(entry, target / entry.name)
            elif self._contents.get(found.st_ino) == (found.st_size, found.st_mtime_ns):
                shutil.copy2(entry, target / entry.name)
            else:
                (target / entry.name).touch()


def at_folder_syncs(happens):
    """`LocalRoot.sync`, but calls `happens` in the place of each sync of a folder."""
    sync = LocalRoot.sync
    return lambda root, name="": happens() if name in ("", "_delta_log") else sync(root, name)
