"""Temporary files beside the files that they become, so that no reader ever sees a part of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa


@contextmanager
def temporary_file(root: str, name: str, content: bytes | pa.Buffer | Iterable[memoryview]) -> Iterator[str]:
    """The name of a temporary file with this content, whole or in pieces, beside the file `name`; both are relative to
    the folder `root`.

    The file is removed at the end, unless it has been renamed. Its dot hides it from readers of tables.
    """
    folder, base = os.path.split(name)
    temporary = os.path.join(folder, f".{base}.{uuid.uuid4().hex}.tmp")
    try:
        with open(os.path.join(root, temporary), "wb") as file:
            file.writelines([content] if isinstance(content, bytes | pa.Buffer) else content)
        yield temporary
    finally:
        with suppress(OSError):  # an error of the block says why the write failed
            os.remove(os.path.join(root, temporary))
