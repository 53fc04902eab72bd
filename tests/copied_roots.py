"""Roots that a process formats once, and then copies for each test: to make their tables takes longer than to use them
in most tests."""

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

from lakelog.replication.storage.delta.storage_root import StorageRoot


def copied(make: Callable[..., Any], root: StorageRoot, *arguments: Any) -> Any:
    """Does what `make(root, *arguments)` does to a root on the local disk that is not there yet, and returns what that
    returns. Ids are the same in all copies, so a test that needs two roots of one kind makes one of them itself."""
    template, result = _template(make, *arguments)
    shutil.copytree(template, root.uri, dirs_exist_ok=True)
    return result


@cache
def _template(make: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    folder = StorageRoot.of(_folder().name).child(f"{len(_made)}")
    _made.append(folder)
    return folder.uri, make(folder, *arguments)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lakelog-copied-roots-")


_made: list[StorageRoot] = []
