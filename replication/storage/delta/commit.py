"""A commit of a Delta table, and the data files that it adds or removes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A file's size in bytes, and its time of writing in ns or its ETag: they tell it from another file of that name.
Stamp = tuple[int, int | str]

# In the metadata of a commit: its unique id, and that of the commit before it.
NONCE, FOLLOWS = "lakelog.commit", "lakelog.follows"
ROOTS = "lakelog.roots"  # in the metadata: the identities of the cluster roots that vote on the next version
SESSION = "lakelog.session"  # in the metadata: who proposed it to a majority; none if a root has decided alone

CHANGE_ROOTS = {"who": "operator", "why": "change cluster roots"}  # the cause of a commit that changes them


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
    `stamp` differs from that of another commit with its version."""

    version: int
    adds: tuple[AddedFile, ...] = ()
    removes: tuple[AddedFile, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = True
    stamp: Stamp | None = field(default=None, compare=False)
    table_id: str | None = None  # of the table that it makes or changes

    @property
    def unique_id(self) -> str | None:
        """The unique id of the commit; that of the table for its first one; None for one of another tool."""
        found = self.info.get(NONCE, self.table_id)
        return None if found is None else str(found)

    @property
    def is_foreign(self) -> bool:
        """Whether another tool has written the commit."""
        return NONCE not in self.info

    def follows(self, unique_id: str | None) -> bool:
        """Whether the commit was written after the one with this id, which has the version before its own. A commit of
        another history of the table was not: the table was made again, or has lost commits. Commits of other tools do
        not tell."""
        expected = self.info.get(FOLLOWS)
        return expected is None or unique_id in (None, expected)
