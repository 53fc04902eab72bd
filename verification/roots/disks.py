"""Disks that really lose their power: each root on an ext4 file system of its own, in an image that is mounted.

EXT4_IOC_SHUTDOWN lets the file system write nothing more, not even its journal. The image then has only what has
reached the disk, as after a power cut: contents and names that were not synced are missing, and files may be empty. Its
journal is replayed when it is mounted again. A copy made while the kernel still writes would have older and newer
blocks side by side, which no power cut leaves and no journal repairs.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakelog.jobs.cli.root_names import root_name
from lakelog.replication.config import Owner
from lakelog.replication.errors import KafkaStorageException

_BYTES = 1 << 30  # of a disk; the image takes only what is written
_SECONDS = 60.0
_SHUT_DOWN, _WITHOUT_THE_JOURNAL = 0x8004587D, struct.pack("I", 2)  # Linux: EXT4_IOC_SHUTDOWN, ..._NOLOGFLUSH


class Disks:
    """The disks of some owners of roots, in one folder. The constructor makes none."""

    def __init__(self, folder: Path, owners: Iterable[Owner]) -> None:
        self._folder = folder
        self.owners = tuple(owners)

    def root(self, owner: Owner) -> Path:
        """The folder of an owner's root."""
        return self._mount(owner) / root_name(owner)

    def _mount(self, owner: Owner) -> Path:
        return self._folder / f"disk-{owner}"

    def _image(self, owner: Owner) -> Path:
        return self._folder / f"disk-{owner}.image"

    @contextmanager
    def running(self) -> Iterator[Disks]:
        """Makes and mounts the disks during the block. Raises KafkaStorageException if this user must not."""
        with ExitStack() as ending:
            for owner in self.owners:
                with self._image(owner).open("wb") as image:
                    image.truncate(_BYTES)
                _run("mkfs.ext4", "-q", str(self._image(owner)))
                self._mount(owner).mkdir()
                self._attach(owner)
                ending.callback(self._detach, owner)
            yield self

    def lose_power(self, owners: Iterable[Owner]) -> None:
        """Takes from disks, all at once, what has not reached them. The processes that use them must be dead, because
        they would go on with what is lost."""
        lost = list(owners)
        for owner in lost:
            cut_power(self._mount(owner))
        for owner in lost:
            _run("cp", "--sparse=always", str(self._image(owner)), str(self._image(owner).with_suffix(".copy")))
        for owner in lost:
            self._detach(owner)
            self._image(owner).with_suffix(".copy").replace(self._image(owner))
            self._attach(owner)

    def _attach(self, owner: Owner) -> None:
        _run("mount", "-o", "loop", str(self._image(owner)), str(self._mount(owner)))

    def _detach(self, owner: Owner) -> None:
        _run("umount", "--lazy", str(self._mount(owner)))  # a client may have a file open


def cut_power(mounted: Path) -> None:
    """From now on nothing reaches the disk of this ext4 file system, and nothing can be read there until it is mounted
    anew. Raises KafkaStorageException if this user must not."""
    try:
        folder = os.open(mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUT_DOWN, _WITHOUT_THE_JOURNAL)
        finally:
            os.close(folder)
    except OSError as error:
        raise KafkaStorageException(f"{mounted}: its disk cannot lose its power: {error}") from error


def _run(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise KafkaStorageException(f"{' '.join(words)}: {str(said).strip()}") from error
