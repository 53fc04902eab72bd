"""The stage of a query: where its executors put records, and where its driver fixes what a batch is.

Spark may run a batch again after a crash, and other tasks then have its records in another order and for other
partitions. So the driver stages the batch before the first append: one object names its records and their sequences,
and the store takes only one object of that name. A later run of the batch sends the same records under the same
sequences, and the logs take none of them twice.

A stage counts as empty only in the cluster root that this process has seen. In another one, in an older copy, or where
nothing is mounted, a batch that was sent would begin anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import pyarrow as pa

from lakelog.replication.clients.sink.routed_records import large_and_small
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.clients.sink.stage_copies import StageCopies
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.data_file_name import digest_of
from lakelog.replication.storage.delta.delta_log import SURE_FOR_COMMITS_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.encoded_batches import EncodedBatch, encode_batches, encoded_records
from lakelog.replication.storage.log.new_batches import NewRecords
from lakelog.replication.storage.staged_batch import (
    PART,
    Part,
    Sequences,
    Staged,
    StagedBatch,
    batch_bytes,
    batch_name,
    batch_of,
    done_name,
    older_marks,
    staged,
)

_END, _ENCODED_END = ".arrow", ".parquet"
_PART_IN_BATCH_BYTES = 256 * 1024  # a part of up to this size lies in the object of its batch, a larger one beside it


class SinkStage:
    """The objects of one query, in a folder of the cluster root. Its name is that of the query. `copies`: of its staged
    batches, in the roots of the brokers."""

    def __init__(self, root: StorageRoot, copies: StageCopies | None = None) -> None:
        self._folder = root
        self._copies = copies
        self.name = root.uri.rpartition("/")[2]

    @property
    def _root(self) -> StorageRoot:
        """The folder, at all cluster roots once several vote."""
        return self._folder.current_files

    def _check_root(self) -> None:
        if self._root.guard is not None:
            self._root.guard.check(SURE_FOR_COMMITS_SECONDS)

    def _write(self, name: str, content: bytes | pa.Buffer) -> None:
        self._check_root()  # writing makes the folder, also in a wrong root
        root = self._root
        root.write(name, content)
        if not root.is_alone():
            self._root.write(name, content)

    def read(self) -> Staged:
        """The content of the stage now. Raises KafkaStorageException, also for a cluster root that is not the one that
        was seen: only in that one a missing folder is an empty stage."""
        self._check_root()
        found = self._root.list()
        self._check_root()  # the root may have been replaced or unmounted meanwhile
        if found:
            self._root.sync()  # its writer may have died before, and what counts on a mark must not outlive it
        return staged(found)

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
        name = f"{PART}{batch_id}-{uuid.uuid4().hex}{_ENCODED_END if batches else _END}"
        is_small = content.size <= _PART_IN_BATCH_BYTES
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
        root = self._root
        root.create_folder()
        is_put = root.put_if_absent(batch_name(batch.batch_id), batch_bytes(batch)) is not None
        root.sync()  # after a power cut another batch would take these sequences
        if not root.is_alone():
            is_put = self.put_batch(batch)
        self._check_root()
        return is_put

    def read_batch(self, batch_id: int) -> StagedBatch:
        """A staged batch. Raises CorruptRecordException if it is gone, and KafkaStorageException."""
        name = batch_name(batch_id)
        try:
            return batch_of(self._root.read(name))
        except FileNotFoundError as error:
            raise CorruptRecordException(f"{self._root.path(name)}: is gone, and batch {batch_id} needs it") from error

    def copy_batch(self, batch: StagedBatch) -> None:
        """Copies a staged batch to the roots of the brokers, as far as they answer in time."""
        if self._copies is not None:
            self._copies.put_batch(batch)

    def put_done(self, batch_id: int) -> None:
        """Notes that all records of a batch are committed, later also in the roots of the brokers. Raises
        KafkaStorageException."""
        self._write(done_name(batch_id), b"")
        if self._copies is not None:
            self._copies.put_done(batch_id)

    def clean(self, found: Staged) -> None:
        """Deletes the objects of committed batches. It keeps the last batch, which has the next sequences. Raises
        KafkaStorageException."""
        for name in (name for batch_id, name in found.parts if batch_id <= found.done):
            self._root.delete(name)
        for name in older_marks(found, found.done):
            self._root.delete(name)

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
        found = staged(times)
        is_finished = all(batch_id <= found.done for batch_id in found.batches)
        if not times or max(times.values()) >= before or not is_finished:
            return
        self._root.sync()  # as in `read`
        for _, name in found.parts:
            self._root.delete(name)
        for batch_id in found.batches:
            self._root.delete(batch_name(batch_id))
        for batch_id in (each for each in found.finished if each < found.done):
            self._root.delete(done_name(batch_id))
        if not self._root.list():
            self._root.delete_folder()


def free_unused_stages(stages: StorageRoot, own: str, seconds: float) -> None:
    """Frees the stages of queries and of writes that have written nothing for `seconds`. Only the store's clock counts:
    the last file of the stage `own`, which was just written, gives the present time. Raises KafkaStorageException."""
    times = stages.child(own).modified().values()
    for name in stages.list() if times else ():
        if name != own:
            SinkStage(stages.child(name)).free(max(times) - seconds)


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
