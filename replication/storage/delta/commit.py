"""A commit of a Delta table, and the data files that it adds or removes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A file's size in bytes, and its time of writing in ns or its ETag: they tell it from another file of that name.
Stamp = tuple[int, int | str]


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file of a commit: name relative to the table, size in bytes, Delta's statistics as JSON.

    `data_change` of an added file: whether it brings rows that the table did not have. Of a removed file: whether rows
    go with it. Both are false in a compaction. A rewritten segment brings no new rows. `content`: that of a small file,
    which its commit has too, so that readers need not ask the store for the file.
    """

    name: str
    size: int
    stats: str = field(default="{}", repr=False, compare=False)
    data_change: bool = field(default=True, compare=False)
    content: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def light(self) -> AddedFile:
        """The file without its content, which its owner need not keep in memory."""
        return self if self.content is None else dataclasses.replace(self, content=None)


@dataclass(frozen=True)
class Commit:
    """The changes that one version of a table made. `is_plain`: whether table, columns and protocol stay as they were.
    `stamp` tells the commit from another one of its version."""

    version: int
    adds: tuple[AddedFile, ...] = ()
    removes: tuple[AddedFile, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = True
    stamp: Stamp | None = field(default=None, compare=False)
