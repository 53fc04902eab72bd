"""The stage of a query: where its executors put records, and where its driver fixes what a batch is.

Spark may run a batch again after a crash, and other tasks then have its records in another order and for other
partitions. So the driver stages the batch before the first append: one object names its records and their sequences,
and the store takes only one object of that name. A later run of the batch sends the same records under the same
sequences, and the logs take none of them twice.

A stage counts as empty only in the cluster root that this process has seen. In another one, in an older copy, or where
nothing is mounted, a batch that was sent would begin anew.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from lakelog.replication.clients.sink.routed_records import large_and_small
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.data_file_name import digest_of
from lakelog.replication.storage.delta.delta_log import SURE_FOR_COMMITS_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.encoded_batches import EncodedBatch, encode_batches, encoded_records
from lakelog.replication.storage.log.new_batches import NewRecords, RecordsSummary

_PART, _BATCH, _DONE, _END, _ENCODED_END = "part-", "batch-", "done-", ".arrow", ".parquet"
_BATCH_KEY = b"lakelog.staged_batch.v1"
_INLINE_BYTES = 256 * 1024

Sequences = Mapping[str, Mapping[int, int]]  # of each partition of a topic


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
    """What a batch is. `producer_id`: that of the query since its stage was empty. `bases`: the sequence of the
    first record in each partition. `following`: the sequence after the last record in each partition that the query
    has ever written to."""

    batch_id: int
    producer_id: int
    parts: tuple[Part, ...]
    bases: Sequences
    following: Sequences


@dataclass(frozen=True)
class Staged:
    """What is on the stage. `batches`: the ids of batches that are staged. `finished`: those of batches that are
    committed. `parts`: names of parts, by the id of their batch."""

    batches: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def done(self) -> int:
        """The last batch that is committed, -1 for none."""
        return max(self.finished, default=-1)


class SinkStage:
    """The objects of one query, in a folder of the cluster root. Its name is that of the query."""

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self.name = root.uri.rpartition("/")[2]

    def _check_root(self) -> None:
        if self._root.guard is not None:
            self._root.guard.check(SURE_FOR_COMMITS_SECONDS)

    def _write(self, name: str, content: bytes | pa.Buffer) -> None:
        self._check_root()  # writing makes the folder, also in a wrong root
        self._root.write(name, content)

    def read(self) -> Staged:
        """What is there now. Raises KafkaStorageException, also for a cluster root that is not the one that was seen:
        only in that one a missing folder is an empty stage."""
        self._check_root()
        found = self._root.list()
        self._check_root()  # the root may have been replaced or unmounted meanwhile
        if found:
            self._root.sync_folder()  # its writer may have died before, and what counts on a mark must not outlive it
        return _staged(found)

    def put_parts(self, batch_id: int, records: pa.Table) -> list[Part]:
        """Keeps records of a task: those of a partition with many as batches that are encoded here, for a segment. Few
        records stay with the part. Raises KafkaStorageException."""
        large, small = large_and_small(records)
        parts = list[Part]()
        if large:
            content, batches = encode_batches(large)
            counts = _counted((batch.topic, batch.partition, batch.summary.records) for batch in batches)
            parts.append(self._put(batch_id, content, sum(table.nbytes for _, _, table in large), counts, batches))
        if small.num_rows:
            parts.append(self._put(batch_id, _to_arrow(small), small.nbytes, _counts(small)))
        return parts

    def _put(
        self, batch_id: int, content: pa.Buffer, size: int, counts: Sequences, batches: tuple[EncodedBatch, ...] = ()
    ) -> Part:  # fmt: skip
        name = f"{_PART}{batch_id}-{uuid.uuid4().hex}{_ENCODED_END if batches else _END}"
        is_small = content.size <= _INLINE_BYTES
        if not is_small:
            self._write(name, content)
        return Part(name, size, counts, content.to_pybytes() if is_small else b"", batches, digest_of(content))

    def read_batches(self, part: Part) -> list[tuple[EncodedBatch, NewRecords]]:
        """The batches of a part that has encoded ones. Raises as `read_part`."""
        return encoded_records(self._read(part), part.batches, self._root.path(part.name))

    def read_part(self, part: Part) -> pa.Table:
        """The records of another part. Raises CorruptRecordException if its object is gone or has other bytes, and
        KafkaStorageException."""
        content = self._read(part)
        try:
            return pa.ipc.open_stream(content).read_all()
        except pa.ArrowException as error:
            raise CorruptRecordException(f"{self._root.path(part.name)}: {error}") from error

    def _read(self, part: Part) -> pa.Buffer:
        path = self._root.path(part.name)
        try:
            content = pa.py_buffer(part.content) if part.content else self._root.read_buffer(part.name)
        except FileNotFoundError as error:
            raise CorruptRecordException(f"{path}: is gone, and a staged batch needs it") from error
        if part.digest not in ("", digest_of(content)):
            raise CorruptRecordException(f"{path}: does not have the bytes that were staged")
        return content

    def put_batch(self, batch: StagedBatch) -> bool:
        """Stages a batch, and returns whether it did: not if one of that id is staged. Raises KafkaStorageException."""
        self._check_root()
        self._root.create_folder()
        is_put = self._root.put_if_absent(f"{_BATCH}{batch.batch_id}{_END}", _batch_bytes(batch)) is not None
        self._root.sync_folder()  # after a power cut another batch would take these sequences
        self._check_root()
        return is_put

    def read_batch(self, batch_id: int) -> StagedBatch:
        """A staged batch. Raises CorruptRecordException if it is gone, and KafkaStorageException."""
        name = f"{_BATCH}{batch_id}{_END}"
        try:
            return _batch_of(self._root.read(name))
        except FileNotFoundError as error:
            raise CorruptRecordException(f"{self._root.path(name)}: is gone, and batch {batch_id} needs it") from error

    def put_done(self, batch_id: int) -> None:
        """Notes that all records of a batch are committed. Raises KafkaStorageException."""
        self._write(f"{_DONE}{batch_id}", b"")

    def clean(self, found: Staged) -> None:
        """Deletes the objects of committed batches. It keeps the last batch, which has the next sequences. Raises
        KafkaStorageException."""
        for name in (name for batch_id, name in found.parts if batch_id <= found.done):
            self._root.delete(name)
        for batch_id in (each for each in found.batches if each < found.done):
            self._root.delete(f"{_BATCH}{batch_id}{_END}")
        for batch_id in (each for each in found.finished if each < found.done):
            self._root.delete(f"{_DONE}{batch_id}")

    def delete_parts(self, parts: Sequence[Part]) -> None:
        """Removes parts that no batch has. Raises KafkaStorageException."""
        for part in parts:
            if not part.content:
                self._root.delete(part.name)

    def delete(self) -> None:
        """Removes the whole stage. Raises KafkaStorageException."""
        self._root.delete_folder()

    def free(self, before: float) -> None:
        """Deletes what a query has left that has written nothing since that time (seconds since the epoch, by the
        store's clock), if none of its batches is unfinished.

        The query may come back. So the mark of its last batch stays: it is not written again, and the next one begins
        under another producer id. Raises KafkaStorageException.
        """
        times = self._root.modified()  # only what is listed here goes: a task may write a part meanwhile
        found = _staged(times)
        is_finished = all(batch_id <= found.done for batch_id in found.batches)
        if not times or max(times.values()) >= before or not is_finished:
            return
        self._root.sync_folder()  # as in `read`
        for _, name in found.parts:
            self._root.delete(name)
        for batch_id in found.batches:
            self._root.delete(f"{_BATCH}{batch_id}{_END}")
        for batch_id in (each for each in found.finished if each < found.done):
            self._root.delete(f"{_DONE}{batch_id}")
        if not self._root.list():
            self._root.delete_folder()


def free_unused_stages(stages: StorageRoot, own: str, seconds: float) -> None:
    """Frees the stages of queries and of writes that have written nothing for so long. The store's clock alone counts:
    what the stage `own` has written last was written now. Raises KafkaStorageException."""
    times = stages.child(own).modified().values()
    for name in stages.list() if times else ():
        if name != own:
            SinkStage(stages.child(name)).free(max(times) - seconds)


def _staged(names: Collection[str]) -> Staged:
    batches = (int(name[len(_BATCH) : -len(_END)]) for name in names if name.startswith(_BATCH))
    finished = (int(name[len(_DONE) :]) for name in names if name.startswith(_DONE))
    parts = ((int(name[len(_PART) :].partition("-")[0]), name) for name in names if name.startswith(_PART))
    return Staged(tuple(sorted(batches)), tuple(sorted(finished)), tuple(parts))


def _counts(records: pa.Table) -> Sequences:
    rows = records.group_by(["topic", "partition"]).aggregate([([], "count_all")]).to_pylist()
    return _counted((row["topic"], row["partition"], row["count_all"]) for row in rows)


def _counted(counted: Iterable[tuple[str, int, int]]) -> Sequences:
    counts: dict[str, dict[int, int]] = {}
    for topic, partition, count in counted:
        of_topic = counts.setdefault(topic, {})
        of_topic[partition] = of_topic.get(partition, 0) + count
    return counts


def _to_arrow(records: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROUTED, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(records)
    return sink.getvalue()


def _batch_bytes(batch: StagedBatch) -> bytes:
    """JSON, and after it the content of the parts that have theirs with them."""
    parts = [{**asdict(part), "content": len(part.content), "batches": part.batches} for part in batch.parts]
    described = {
        "batch_id": batch.batch_id, "producer_id": batch.producer_id, "parts": parts, "bases": batch.bases,
        "following": batch.following,
    }  # fmt: skip
    head = json.dumps(described).encode()
    return b"".join((_BATCH_KEY, len(head).to_bytes(8, "big"), head, *(part.content for part in batch.parts)))


def _batch_of(content: bytes) -> StagedBatch:
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
    sequences = (_numbered(found[name]) for name in ("bases", "following"))
    return StagedBatch(found["batch_id"], found["producer_id"], tuple(parts), *sequences)


def _numbered(found: Mapping[str, Mapping[str, int]]) -> Sequences:
    return {topic: {int(number): value for number, value in each.items()} for topic, each in found.items()}
