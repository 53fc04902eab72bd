"""Names of data files: their format, and the check whether a name may be used.

Other tools write commits too, and a commit may name any file. So a name is accepted only without a path: such a file is
in the table's own folder. Delta escapes paths as in URLs; names of Lakelog need no escape.
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
    """A new name. It has the leader of that time, so a follower of A skips segments that A got as a follower.

    `leader` is None for batches that were in other segments before: no follower fetches them by this name. The name has
    the digest of the file's bytes, so every commit and checkpoint has it too.
    """
    return _new_name("compacted" if leader is None else f"leader-{leader}", digest)


def snapshot_name(digest: str) -> str:
    """A new name for a file with producer state and no records."""
    return _new_name(_PRODUCERS, digest)


def staged_prefix() -> str:
    """A new prefix of the names of one send's files of `staged_name`."""
    return f"staged-{uuid.uuid4().hex}-"


def staged_name(prefix: str) -> str:
    """A new name for a file of records that no commit has yet: tasks put it beside a log, and segments get them."""
    return f"{prefix}{uuid.uuid4().hex}.parquet"


def foreign_name(digest: str) -> str:
    """A new name for a file with rows that another tool has written, without batch headers."""
    return _new_name("foreign", digest)


def _new_name(kind: str, digest: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}-{digest}.parquet"


def digest_of(content: bytes | memoryview) -> str:
    """The digest of a file's bytes for its name: the first 16 bytes of BLAKE3, as hex."""
    return hex_digest(blake3(content))


def hex_digest(hashed: blake3) -> str:
    """A digest as it is in names."""
    return hashed.hexdigest(length=_DIGEST_BYTES)


def leader_of(name: str) -> int | None:
    """The broker that led when this segment was written; None if the name does not have it."""
    found = _SEGMENT.fullmatch(name)
    return int(found["leader"]) if found and found["leader"] else None


def named_digest(name: str) -> str | None:
    """The digest in a name; None for a file of another tool."""
    found = _SEGMENT.fullmatch(name)
    return found["digest"] if found else None


def is_snapshot(name: str) -> bool:
    """Whether a file of this name has producer state and no records."""
    return name.startswith(f"{_PRODUCERS}-")


def is_data_file(name: str) -> bool:
    """Whether a name in a commit has no path, so that its file is in the table's own folder."""
    return _DATA_FILE.fullmatch(name) is not None


def may_be_deleted(name: str) -> bool:
    """Whether this is the name of a data file or of its temporary file. No other file is ever deleted."""
    return is_data_file(name) or _TEMPORARY.fullmatch(name) is not None
