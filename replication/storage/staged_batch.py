"""A staged batch: what a streaming query writes before it sends a batch, and the names of the objects of its stage.

A stage is a folder of the cluster root. The roots of the brokers have copies of the newest staged batch, for `lakelog
recover`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.encoded_batches import EncodedBatch
from lakelog.replication.storage.log.new_batches import RecordsSummary

PART = "part-"  # what the name of a part begins with
_BATCH, _DONE, _END = "batch-", "done-", ".arrow"
_ANY_KEY = b"lakelog.staged_batch.v"
_BATCH_KEY = _ANY_KEY + b"1"
_STAGES = "sinks"

Sequences = Mapping[str, Mapping[int, int]]  # of each partition of a topic
Origin = Mapping[int, tuple[int, int]]  # of each partition of a source: from which offset to before which one


@dataclass(frozen=True)
class Part:
    """Records of a task: in an object of the stage, or as `content`. `size`: bytes of the records in memory. The name
    begins with the id of the batch, so that a late clean-up removes no part of a later batch. `batches`: the encoded
    batches; none for a part in Arrow's format. `digest`: of the bytes; empty if an older version has staged them."""

    name: str
    size: int
    counts: Sequences
    content: bytes = b""
    batches: tuple[EncodedBatch, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class StagedBatch:
    """A batch on the stage. `producer_id`: that of the query since its stage was empty. `bases`: the sequence of the
    first record in each partition. `following`: the sequence after the last record in each partition that the query
    has ever written to. `origin`: of a copy of a topic, the offsets that the batch covers there; a query of Spark keeps
    its own in its checkpoint."""

    batch_id: int
    producer_id: int
    parts: tuple[Part, ...]
    bases: Sequences
    following: Sequences
    origin: Origin = field(default_factory=dict)


@dataclass(frozen=True)
class Staged:
    """The content of a stage. `batches`: the ids of batches that are staged. `finished`: those of batches that are
    committed. `parts`: names of parts, by the id of their batch."""

    batches: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def done(self) -> int:
        """The last batch that is committed, -1 for none."""
        return max(self.finished, default=-1)


def stages_of(root: StorageRoot, generation: int) -> StorageRoot:
    """The folder of the stages of all queries in a cluster root, or of their copies in the root of a broker. Each
    generation of the cluster root has its own: a driver or a recovery of an older one changes nothing there."""
    return root.folder_of_files(f"{_STAGES}-{generation}" if generation else _STAGES)


def generation_of_stages(name: str) -> int | None:
    """The opposite of `stages_of` for the name of a folder; None for another folder."""
    found = re.fullmatch(rf"{_STAGES}(?:-(\d+))?", name)
    return None if found is None else int(found[1] or 0)


def batch_name(batch_id: int) -> str:
    """The name of the object of a staged batch."""
    return f"{_BATCH}{batch_id}{_END}"


def done_name(batch_id: int) -> str:
    """The name of the empty object that says that a batch is committed."""
    return f"{_DONE}{batch_id}"


def staged(names: Collection[str]) -> Staged:
    """The content of a stage with these objects."""
    batches = (int(name[len(_BATCH) : -len(_END)]) for name in names if name.startswith(_BATCH))
    finished = (int(name[len(_DONE) :]) for name in names if name.startswith(_DONE))
    parts = ((int(name[len(PART) :].partition("-")[0]), name) for name in names if name.startswith(PART))
    return Staged(tuple(sorted(batches)), tuple(sorted(finished)), tuple(parts))


def older_marks(found: Staged, batch_id: int) -> list[str]:
    """The names of the staged batches and of the marks of committed ones that come before a batch."""
    batches = [batch_name(each) for each in found.batches if each < batch_id]
    return batches + [done_name(each) for each in found.finished if each < batch_id]


def batch_bytes(batch: StagedBatch) -> bytes:
    """JSON, and after it the content of the parts that have theirs with them."""
    parts = [{**asdict(part), "content": len(part.content), "batches": part.batches} for part in batch.parts]
    described = {
        "batch_id": batch.batch_id, "producer_id": batch.producer_id, "parts": parts, "bases": batch.bases,
        "following": batch.following, "origin": batch.origin,
    }  # fmt: skip
    head = json.dumps(described).encode()
    return b"".join((_BATCH_KEY, len(head).to_bytes(8, "big"), head, *(part.content for part in batch.parts)))


def batch_of(content: bytes) -> StagedBatch:
    """The opposite of `batch_bytes`. Raises InconsistentClusterIdException if a newer version has staged the batch, and
    ValueError, KeyError or TypeError if it is torn."""
    if len(content) >= len(_BATCH_KEY) and content.startswith(_ANY_KEY) and not content.startswith(_BATCH_KEY):
        staged_as = content[: len(_BATCH_KEY)].decode("ascii", "replace")
        raise InconsistentClusterIdException(
            f"the stage of the query has a batch in format {staged_as!r}, this version of Lakelog knows "
            f"{_BATCH_KEY.decode()!r}: go on with the version that has staged it"
        )
    start = len(_BATCH_KEY) + 8
    size = int.from_bytes(content[len(_BATCH_KEY) : start], "big")
    found: Mapping[str, Any] = json.loads(content[start : start + size])
    place, parts = start + size, list[Part]()
    for each in found["parts"]:
        end = place + each["content"]
        batches = (EncodedBatch._make((*values[:3], RecordsSummary(*values[3]))) for values in each.get("batches", ()))
        known = each["name"], each["size"], _numbered(each["counts"]), content[place:end]
        parts.append(Part(*known, tuple(batches), each.get("digest", "")))
        place = end
    bases, following = (_numbered(found[name]) for name in ("bases", "following"))
    origin = {int(number): (start, stop) for number, (start, stop) in found.get("origin", {}).items()}
    return StagedBatch(found["batch_id"], found["producer_id"], tuple(parts), bases, following, origin)


def _numbered(found: Mapping[str, Mapping[str, int]]) -> Sequences:
    return {topic: {int(number): value for number, value in each.items()} for topic, each in found.items()}
