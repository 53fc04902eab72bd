"""Names of data files: what they tell, and which of them are taken at all.

A commit may name any file, and others write commits too. So a name is trusted only if it is a bare one: such a file
lies in the table's own folder. Delta writes paths in URLs' escapes; a name that needs one is none of ours.
"""

from __future__ import annotations

import re
import uuid

from blake3 import blake3

_HEX = "[0-9a-f]{32}"
_DATA_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.parquet")
_TEMPORARY = re.compile(rf"\.{_DATA_FILE.pattern}\.{_HEX}\.tmp")
_SEGMENT = re.compile(rf"(?:leader-(?P<leader>[0-9]{{1,10}})|compacted|producers)-{_HEX}-(?P<digest>{_HEX})\.parquet")
_PRODUCERS = "producers"
_DIGEST_BYTES = 16


def segment_name(leader: int | None, digest: str) -> str:
    """A new name. It tells who led when the segment was written: a follower of A skips what A only followed.

    None is for batches that lay in other segments before: nobody has to fetch them by this one. The digest of the
    file's bytes stands in the name, so in every commit that names the file, and outlives them in checkpoints.
    """
    return _new_name("compacted" if leader is None else f"leader-{leader}", digest)


def snapshot_name(digest: str) -> str:
    """A new name for a file that tells of producers and has no records."""
    return _new_name(_PRODUCERS, digest)


def _new_name(kind: str, digest: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}-{digest}.parquet"


def digest_of(content: bytes | memoryview) -> str:
    """The digest of a file's bytes, as it stands in names: BLAKE3, the first 16 bytes."""
    return blake3(content).hexdigest(length=_DIGEST_BYTES)


def leader_of(name: str) -> int | None:
    """The broker that led when the segment of this name was written; None for a file that does not tell."""
    found = _SEGMENT.fullmatch(name)
    return int(found["leader"]) if found and found["leader"] else None


def named_digest(name: str) -> str | None:
    """The digest that a name tells of; None for a file of another tool."""
    found = _SEGMENT.fullmatch(name)
    return found["digest"] if found else None


def is_snapshot(name: str) -> bool:
    """Whether a file of this name tells of producers and has no records."""
    return name.startswith(f"{_PRODUCERS}-")


def is_data_file(name: str) -> bool:
    """Whether a name that a commit gives is a bare one: a file of the table's own folder, and of no other."""
    return _DATA_FILE.fullmatch(name) is not None


def may_be_deleted(name: str) -> bool:
    """Whether a file of this name is a data file, or one that is still being written: no other is ever deleted."""
    return is_data_file(name) or _TEMPORARY.fullmatch(name) is not None
