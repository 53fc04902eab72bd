"""An object as a file: pyarrow reads parts of it. The errors of obstore become those of a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from lakelog.replication.storage.delta.store_errors import words_of


@contextmanager
def os_errors() -> Iterator[None]:
    """Turns the errors of obstore into OSError, which those who read Parquet expect. A missing file is one already."""
    try:
        yield
    except BaseError as error:
        raise OSError(words_of(error)) from None  # its text repeats itself over many lines


class ObjectFile(io.RawIOBase):
    """The parts of an object of `size` bytes, for pyarrow, which asks for each part that it needs."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        if stop <= self._at:
            return b""
        with os_errors():
            found = self._store.get(self._key, options={"range": (self._at, stop)})
            if found.meta["size"] != self._size:
                raise OSError(f"has {found.meta['size']} bytes, not {self._size}")
            content = bytes(found.bytes())
        self._at = stop
        return content
