"""Roots that a process formats once, and then copies for each test: to make their tables takes longer than to use them
in most tests."""

import itertools
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

from lakelog.replication.storage.delta.storage_root import StorageRoot

_names = map(str, itertools.count())


def copied(make: Callable[..., Any], root: StorageRoot, *arguments: Any) -> Any:
    """Does what `make(root, *arguments)` does to a root that is not there yet, and returns what that returns. All
    copies have the same ids, so a test that needs two roots of one kind makes one of them itself. A root in memory or
    in an object store is no copy."""
    if "://" in root.uri:
        return make(root, *arguments)
    template, result = _template(make, *arguments)
    shutil.copytree(template, root.uri, dirs_exist_ok=True)
    return result


@cache
def _template(make: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    made = StorageRoot.of(_folder().name).child(next(_names))
    return made.uri, make(made, *arguments)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lakelog-copied-roots-")
