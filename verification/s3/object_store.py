"""The objects of a small object store: files below a folder, with keys as paths. A put stores the whole object or
nothing.

It supports the part of S3 that delta-rs and obstore use. A soak damages its files from outside.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UPLOADS = ".uploads"


class NoSuchKey(Exception):
    """No object has this key."""


class PreconditionFailed(Exception):
    """The request requires that no object has this key, but one exists."""


@dataclass(frozen=True)
class Stored:
    """An object in a listing. Without a size, it is a group of keys with a common prefix."""

    key: str
    size: int | None = None
    modified: float = 0.0
    etag: str = ""


class ObjectStore:
    """The objects below a folder. Any number of threads may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads = folder / _UPLOADS
        self._uploads.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, content: bytes, only_new: bool) -> Stored:
        """Writes an object. With `only_new`, only the first writer of a key succeeds. Raises PreconditionFailed."""
        path, draft = self._path(key), self._uploads / uuid.uuid4().hex
        draft.write_bytes(content)
        try:
            self._publish(draft, path, only_new)
        finally:
            draft.unlink(missing_ok=True)
        return self.head(key)

    def _publish(self, draft: Path, path: Path, only_new: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not only_new:
            draft.replace(path)
            return
        try:
            os.link(draft, path)
        except FileExistsError:
            raise PreconditionFailed(path) from None

    def get(self, key: str) -> bytes:
        """The content of an object. Raises NoSuchKey."""
        try:
            return self._path(key).read_bytes()
        except OSError:
            raise NoSuchKey(key) from None

    def head(self, key: str) -> Stored:
        """The size (bytes) and the time of an object. Raises NoSuchKey."""
        path = self._path(key)
        if not path.is_file():
            raise NoSuchKey(key)
        return _stored(key, path)

    def delete(self, key: str) -> None:
        """Deletes an object. A missing object is no error, nor is a folder, because S3 has no folders."""
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):
            self._path(key).unlink(missing_ok=True)

    def list(self, prefix: str, delimiter: str, after: str) -> list[Stored]:
        """The objects whose keys begin with `prefix` and come after `after`, in order. Keys with the delimiter after
        the prefix are grouped by their common prefix."""
        parent, _, _ = prefix.rpartition("/")
        found = self._below(parent + "/" if parent else "", prefix, delimiter)
        return sorted((stored for stored in found if stored.key > after), key=lambda stored: stored.key)

    def _below(self, parent: str, prefix: str, delimiter: str) -> Iterator[Stored]:
        try:
            entries = list(os.scandir(self._folder / parent))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = parent + entry.name
            if entry.name == _UPLOADS or not (key + "/").startswith(prefix):
                continue
            if not entry.is_dir():
                yield from self._listed(key, prefix)
            elif not delimiter:
                yield from self._below(key + "/", prefix, delimiter)
            elif any(files for _, _, files in os.walk(self._folder / key)):
                yield Stored(key + "/")

    def _listed(self, key: str, prefix: str) -> Iterator[Stored]:
        try:
            if key.startswith(prefix):
                yield _stored(key, self._folder / key)
        except FileNotFoundError:
            return  # it has just been deleted

    def begin_upload(self) -> str:
        """Begins an upload in parts and returns its id."""
        upload = uuid.uuid4().hex
        (self._uploads / upload).mkdir()
        return upload

    def put_part(self, upload: str, number: int, content: bytes) -> None:
        """Stores a part."""
        (self._uploads / upload / f"{number:05}").write_bytes(content)

    def complete_upload(self, upload: str, key: str, only_new: bool) -> Stored:
        """Joins the parts to an object. Raises PreconditionFailed."""
        parts = sorted((self._uploads / upload).iterdir())
        stored = self.put(key, b"".join(part.read_bytes() for part in parts), only_new)
        self.abort_upload(upload)
        return stored

    def abort_upload(self, upload: str) -> None:
        """Deletes the parts."""
        for part in (self._uploads / upload).iterdir():
            part.unlink()
        (self._uploads / upload).rmdir()

    def _path(self, key: str) -> Path:
        if ".." in key.split("/") or key.startswith("/"):
            raise NoSuchKey(key)
        return self._folder / key


def _stored(key: str, path: Path) -> Stored:
    found = path.stat()
    return Stored(key, found.st_size, found.st_mtime, f'"{found.st_mtime_ns:x}-{found.st_size:x}"')
