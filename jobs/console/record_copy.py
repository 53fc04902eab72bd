"""Copies records of one topic into another one, each once, however often the copy is stopped and called again.

A copy goes on in batches, as a streaming query does: each batch is staged in the cluster root of the target, sent, and
marked as done. A staged batch names its records, their sequences, and the offsets of the source that it covers. So one
write decides both what is sent and where the copy goes on. After a crash the next run finishes the batch that is
staged; the logs recognise the records of it that they have, by the sequences of the copy's producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from blake3 import blake3

from lakelog.replication.clients.partitioner import partition_of_keys
from lakelog.replication.clients.record_limit import refused_records
from lakelog.replication.clients.sink.batch_commit import SinkSender, commit_batch
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.clients.sink.stage_copies import StageCopies
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidPartitionsException,
    OutOfOrderSequenceException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.staged_batch import Origin, Part, stages_of

SAME, KEY = "same", "key"
_TIMEOUT_MS = 120_000


class CopyTarget(NamedTuple):
    """The topic that records are copied into. `partitioner`: `SAME`, the partition that a record had; `KEY`, that of
    its key, as Kafka's producer chooses it. Then records without a key stay together: all records of a partition of the
    source go to one."""

    view: TopicView
    topic: str
    topic_id: str
    partitioner: str

    @classmethod
    def of(cls, view: TopicView, topic: str, partitioner: str) -> CopyTarget:
        """The topic that has the name now. Raises UnknownTopicOrPartitionException."""
        known = view.partitions(topic)
        return cls(view, topic, known[min(known)].topic_id, partitioner)

    def partitions(self) -> dict[int, PartitionRegistration]:
        """Its partitions now. Raises UnknownTopicOrPartitionException if it was deleted, and UnknownTopicIdException if
        it was made again."""
        known = self.view.partitions(self.topic)
        if known[min(known)].topic_id != self.topic_id:
            raise UnknownTopicIdException(f"topic {self.topic} was made again: call the command again to copy into it")
        return known

    def check(self, numbers: Sequence[int], source: str) -> None:
        """Raises InvalidPartitionsException if it lacks partitions of the source that keep their numbers."""
        known = self.partitions()
        lacking = [number for number in numbers if number not in known]
        if self.partitioner == SAME and lacking:
            raise InvalidPartitionsException(
                f"topic {self.topic} has {len(known)} partitions, and lacks partition {lacking[0]} of topic {source}: "
                "give --partitioner key, or choose others with --partitions"
            )

    def route(self, records: pa.Table) -> pa.Table:
        """The records of one partition of the source with the columns of `ROUTED`: each with its topic and partition.
        They keep their order."""
        numbers = records["partition"]
        if self.partitioner == KEY and records.num_rows:
            count = len(self.partitions())
            numbers = partition_of_keys(records["key"], count, numbers[0].as_py() % count)
        kept = {name: records[name] for name in ROUTED.names if name not in ("topic", "partition")}
        return pa.table({"topic": pa.repeat(self.topic, records.num_rows), "partition": numbers, **kept}).cast(ROUTED)


def copy_name(parts: Sequence[object]) -> str:
    """The name of a copy, which follows from what makes it this copy and no other one."""
    return f"copy-{blake3(repr(tuple(parts)).encode()).hexdigest(length=16)}"


class RecordCopy:
    """One copy, by its name."""

    def __init__(self, target: CopyTarget, name: str) -> None:
        cluster = target.view.cluster
        folder = stages_of(cluster.root, cluster.generation).child(name)
        self._target = target
        self._stage = SinkStage(folder, StageCopies(cluster, name))
        self._logs = SinkSender(target.view, self._stage, name, _TIMEOUT_MS)
        self._next_batch = 0
        self.name = name

    def positions(self) -> dict[int, int]:
        """The offset at which the copy goes on in each partition of the source; none before its first batch. Writes
        nothing: records of a batch that is staged and not done are still to be copied.

        Raises IllegalStateException if the copy was finished so long ago that its place is forgotten.
        """
        found = self._stage.read()
        self._next_batch = max((found.done, *found.batches)) + 1
        if not found.batches:
            if found.done >= 0:
                raise IllegalStateException(
                    f"{self.name} was unused for so long that its place is forgotten: begin another copy with "
                    "--copy-name, and with --offset where it is to begin"
                )
            return {}
        last = self._stage.read_batch(found.batches[-1])
        is_done = last.batch_id <= found.done
        return {number: stop if is_done else start for number, (start, stop) in last.origin.items()}

    def finish(self) -> None:
        """Finishes the batch that an earlier run has staged, if there is one."""
        found = self._stage.read()
        if found.batches and found.batches[-1] > found.done:
            self._commit(found.batches[-1], [], {})

    def put(self, tables: Sequence[pa.Table], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Copies records. `tables`: those of the source between the offsets `before`, which were the `positions`, and
        the offsets `after` that are to be copied; each table has those of one partition.

        If another process runs the copy, its records may count in place of these: the `positions` afterwards tell it.
        Raises RecordTooLargeException, and InvalidRecordException for a record without a key that a compacted topic
        does not take, before anything is written. Raises OutOfOrderSequenceException if the logs of the target do not
        fit what the copy knows of them, ProducerFencedException if another process is ahead, and what `commit_batch`
        and `SinkSender` raise.
        """
        records = pa.concat_tables(self._target.route(table) for table in tables)
        for refused in refused_records(records, self._target.view.record_limit):
            refused.check(self._target.view.record_limit(refused.topic))
        origin = {number: (before[number], stop) for number, stop in after.items()}
        self._commit(self._next_batch, self._stage.put_parts(self._next_batch, records), origin)

    def _commit(self, batch_id: int, parts: Sequence[Part], origin: Origin) -> None:
        def check() -> None:
            self._target.partitions()

        try:
            commit_batch(self._stage, batch_id, parts, self._logs, check, origin)
        except OutOfOrderSequenceException as error:
            raise OutOfOrderSequenceException(
                f"{self.name}: the logs of topic {self._target.topic} do not have the records that this copy has "
                "written, or have more: the cluster root was restored, or an unclean election has cost records; begin "
                "another copy with --copy-name, and with --offset where it is to begin"
            ) from error
