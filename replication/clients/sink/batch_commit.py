"""Commits a batch of a query exactly once: stages it, sends it, and notes that it is done. Before it stages a batch it
asks the logs whether they have more records of the query than the stage knows of.

After a crash between any two of these writes, a later run finishes the batch. Logs recognise records that they have by
the sequences of the query's producer (KIP-98).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

import pyarrow as pa

from lakelog.replication.clients.producer import raise_first_error
from lakelog.replication.clients.purgatory import until_available
from lakelog.replication.clients.record_set import PartitionedRecords, record_set
from lakelog.replication.clients.records import split
from lakelog.replication.clients.send_executor import SendExecutor
from lakelog.replication.clients.sink.routed_records import by_topic
from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InconsistentClusterIdException,
    KafkaStorageException,
    LeaderNotAvailableException,
    OutOfOrderSequenceException,
    ProducerFencedException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.append import ALL
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.producer_state import increment_sequence, records_between
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.send_round import SendOptions
from lakelog.replication.storage.log.new_batches import ArrowRecords, NewRecords, joined
from lakelog.replication.storage.staged_batch import Origin, Part, Sequences, Staged, StagedBatch
from lakelog.replication.storage.tables.producer_table import producer_id_of

_RETRIES = 2**31 - 1
_PASSING = (  # errors that pass when another broker leads
    KafkaStorageException, LeaderNotAvailableException, BrokerNotAvailableException, InconsistentClusterIdException,
)  # fmt: skip
_GROUPS = 2  # a log remembers a producer's last five runs of sequences, and a failover may split a group's run in two
_GROUP_BYTES = 128 * 1024 * 1024


class SinkSender:
    """Sends parts of a batch with acks=all. `name`: the id of the query, for commits and errors."""

    def __init__(self, view: TopicView, stage: SinkStage, name: str, timeout_ms: int) -> None:
        self._view = view
        self._stage = stage
        self._name = name
        self._timeout_ms = timeout_ms

    def send(self, producer_id: int, parts: Sequence[Part], sequences: Sequences) -> None:
        """Sends the records of parts, and waits until all are committed. Appending is idempotent.

        Raises the error of the first partition that has one, UnknownTopicOrPartitionException, KafkaStorageException,
        and OutOfOrderSequenceException where acknowledged records of the query have been lost.
        """
        for topic, records in staged_records(self._stage, parts):
            self._send(topic, records, producer_id, sequences[topic])

    def known(self, producer_ids: Collection[int], topics: Collection[str]) -> list[KnownProducer]:
        """The producers that the logs of all partitions of the topics know, by their leaders. Waits for leaders, and
        raises the last error when the time is over."""
        deadline, pause = time.monotonic() + self._timeout_ms / 1000, self._view.cluster.config.lakelog_poll_interval_ms
        attempt = partial(self._known, producer_ids, topics)
        return until_available(attempt, deadline, pause, _PASSING)

    def _known(self, producer_ids: Collection[int], topics: Collection[str]) -> list[KnownProducer]:
        partitions = [(topic, r) for topic in topics for r in self._partitions(topic)]
        if without := [f"{topic}-{r.partition}" for topic, r in partitions if r.leader == NO_LEADER]:
            raise LeaderNotAvailableException(f"query {self._name}: no leader: {first_names(without)}")
        states = {leader: self._view.log(leader).refresh() for leader in {r.leader for _, r in partitions}}
        return [
            KnownProducer(topic, r.partition, producer, entry.next_sequence)
            for topic, r in partitions
            for producer, entry in states[r.leader].known(r.topic_id_partition).producers.items()
            if producer in producer_ids
        ]

    def _partitions(self, topic: str) -> list[PartitionRegistration]:
        with suppress(UnknownTopicOrPartitionException):
            return list(self._view.partitions(topic).values())
        return []

    def _send(self, topic: str, records: PartitionedRecords, producer_id: int, sequences: Mapping[int, int]) -> None:
        partitions, segment_bytes = self._view.partitions(topic), self._view.cluster.config.log_segment_bytes
        given = record_set(topic, records, len(partitions), segment_bytes)
        identity = ProducerIdentity(ProducerIdAndEpoch(producer_id, 0))
        identity.resume(topic, {number: sequences[number] for number in given.counts})
        options = SendOptions(
            f"query {self._name}", ALL, _RETRIES, self._timeout_ms, time.monotonic() + self._timeout_ms / 1000
        )
        executor = SendExecutor(self._view, topic, given, options, self._no_other_identity)
        raise_first_error(executor.run(send_and_acknowledge(topic, given.counts, identity, options, time.monotonic)))

    def _no_other_identity(self, deadline: float) -> ProducerIdAndEpoch:
        raise OutOfOrderSequenceException(
            f"query {self._name}: a log lacks records that it has acknowledged to this query, so an unclean election "
            "has cost records; start the query with a new checkpointLocation"
        )


def staged_records(stage: SinkStage, parts: Sequence[Part]) -> Iterator[tuple[str, PartitionedRecords]]:
    """The records of each topic. Raises CorruptRecordException and KafkaStorageException."""
    found: dict[str, dict[int, list[NewRecords]]] = {}
    for is_encoded, run in groupby(parts, key=lambda part: bool(part.batches)):
        if is_encoded:
            for batch, records in (each for part in run for each in stage.read_batches(part)):
                found.setdefault(batch.topic, {}).setdefault(batch.partition, []).append(records)
        else:
            for topic, ours in by_topic(pa.concat_tables(stage.read_part(part) for part in run)):
                for partition, rows in split(ours.drop_columns(["partition"]), ours["partition"]).items():
                    found.setdefault(topic, {}).setdefault(partition, []).append(ArrowRecords(rows))
    for topic, by_partition in sorted(found.items()):
        yield topic, PartitionedRecords({number: joined(given) for number, given in by_partition.items()})


class KnownProducer(NamedTuple):
    """A producer that the log of a partition knows. `following`: the sequence after the last one."""

    topic: str
    partition: int
    producer_id: int
    following: int


class Logs(Protocol):
    """The logs that a query writes to."""

    def send(self, producer_id: int, parts: Sequence[Part], sequences: Sequences) -> None:
        """Sends the records of parts under a producer id, the first in each partition under the given sequence, until
        all are committed."""

    def known(self, producer_ids: Collection[int], topics: Collection[str]) -> Sequence[KnownProducer]:
        """The producers that the logs of the topics know. A topic that does not exist has no partitions."""


def commit_batch(
    stage: SinkStage, batch_id: int, parts: Sequence[Part], logs: Logs, check: Callable[[], None] = lambda: None,
    origin: Origin | None = None,
) -> None:  # fmt: skip
    """Commits a batch that the tasks of this run have put on the stage as `parts`. If another run has staged the batch,
    the records of that run count, and these are deleted. `check`: raises an error if records may not be sent; a batch
    that an earlier run has staged is not checked. `origin`: staged with the batch.

    Raises ProducerFencedException if a later batch is staged: another driver has this checkpoint. Raises
    OutOfOrderSequenceException if the logs have more records of the query than its stage knows. Raises
    KafkaStorageException, and what `check` and `logs` raise; the next run of the batch goes on from there.
    """
    found = stage.read()
    if batch_id > found.done:
        _finish_earlier(stage, found, batch_id, logs)
        batch = _stage_once(stage, found, batch_id, parts, logs, check, origin or {})
        if batch is not None:
            _finish(stage, batch, logs)
    stage.clean(stage.read())


def _finish_earlier(stage: SinkStage, found: Staged, batch_id: int, logs: Logs) -> None:
    """Finishes the earlier batches that were staged and not finished. Spark runs such a batch again itself, unless its
    checkpoint was restored."""
    for earlier in found.batches:
        if found.done < earlier < batch_id:
            _finish(stage, stage.read_batch(earlier), logs)


def _finish(stage: SinkStage, batch: StagedBatch, logs: Logs) -> None:
    """Copies a staged batch to the roots of brokers, sends it, maybe again, and marks it as done. The copies come
    first: without one, `lakelog recover` would not know a batch of which the logs have a part."""
    stage.copy_batch(batch)
    _send(batch, logs)
    stage.put_done(batch.batch_id)


def _stage_once(
    stage: SinkStage, found: Staged, batch_id: int, parts: Sequence[Part], logs: Logs, check: Callable[[], None],
    origin: Origin,
) -> StagedBatch | None:  # fmt: skip
    """Stages the batch, and returns it. If an earlier run has staged it, returns that run's batch. Returns None if the
    batch has no records, or another driver has finished it meanwhile."""
    if found.batches and found.batches[-1] > batch_id:
        raise ProducerFencedException(
            f"batch {batch_id} comes after batch {found.batches[-1]}: another driver runs a query with this checkpoint"
        )
    if batch_id in found.batches:
        return stage.read_batch(batch_id)
    if found.done >= batch_id or not parts:
        return None
    check()
    producer_id, before = _start(stage, found)
    batch = replace(_new_batch(batch_id, producer_id, before, parts), origin=origin)
    if (where := _where_unknown(stage, found, batch, before, logs)) is not None:
        if (now := stage.read()) != found:  # the root was away for a moment, or another driver was faster
            _finish_earlier(stage, now, batch_id, logs)
            return _stage_once(stage, now, batch_id, parts, logs, check, origin)
        raise OutOfOrderSequenceException(
            f"query {stage.name}: {where} has records of this query that its stage in the cluster root does not know, "
            f"so the stage was removed or restored, and batch {batch_id} could be written twice; start the query with "
            "a new checkpointLocation"
        )
    if not stage.put_batch(batch):
        return stage.read_batch(batch_id)
    now = stage.read()
    if now.done >= batch_id:  # another driver has staged and finished it since the first read, and removed that stage
        return None
    if batch_id not in now.batches:  # the root was away for so long
        raise KafkaStorageException(f"query {stage.name}: batch {batch_id} was staged just now, and is gone")
    return batch


def _start(stage: SinkStage, found: Staged) -> tuple[int, Sequences]:
    """The producer id of the last staged batch, and the sequences after it. Without a staged batch, the query begins at
    sequence 0 under an id that follows from its name and its last batch.

    So a query whose stage is lost, as with an older copy of the cluster root, takes the same id again, and the logs
    know it. Under a random id they would take the records twice.
    """
    if found.batches:
        last = stage.read_batch(found.batches[-1])
        return last.producer_id, last.following
    return _producer_id(stage, found), {}


def _producer_id(stage: SinkStage, found: Staged) -> int:
    """The producer id with which a query begins whose stage has no batch."""
    return producer_id_of(f"sinks/{stage.name}/{found.done}")


def _where_unknown(stage: SinkStage, found: Staged, batch: StagedBatch, before: Sequences, logs: Logs) -> str | None:
    """A partition whose log has records of the query that the stage does not know of; None if there is none."""
    producers = {batch.producer_id}
    if found.batches and found.batches[-1] <= found.done:
        producers.add(_producer_id(stage, found))  # this may be an old copy of a stage that was freed and used again
    for known in logs.known(producers, {*before, *batch.bases}):
        staged = before.get(known.topic, {}).get(known.partition) if known.producer_id == batch.producer_id else None
        if staged is None or records_between(staged, known.following) > 0:
            return f"{known.topic}-{known.partition}"
    return None


def _new_batch(batch_id: int, producer_id: int, following: Sequences, parts: Sequence[Part]) -> StagedBatch:
    """A batch under the given producer id, in each partition from the sequence in `following` on."""
    bases: dict[str, dict[int, int]] = {}
    after: dict[str, dict[int, int]] = {topic: dict(each) for topic, each in following.items()}
    for part in parts:
        for topic, counts in part.counts.items():
            for partition, count in counts.items():
                known = after.setdefault(topic, {}).setdefault(partition, 0)
                bases.setdefault(topic, {}).setdefault(partition, known)
                after[topic][partition] = increment_sequence(known, count)
    return StagedBatch(batch_id, producer_id, tuple(parts), bases, after)


def _send(batch: StagedBatch, logs: Logs) -> None:
    """Sends the batch in groups of parts, which are the same if it is sent again."""
    sequences = {topic: dict(each) for topic, each in batch.bases.items()}
    for group in groups_of(batch.parts):
        logs.send(batch.producer_id, group, sequences)
        for part in group:
            _advance(sequences, part.counts)


def _advance(sequences: Mapping[str, dict[int, int]], counts: Sequences) -> None:
    for topic, each in counts.items():
        for partition, count in each.items():
            sequences[topic][partition] = increment_sequence(sequences[topic][partition], count)


def groups_of(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in at most two groups, of 128 MB or more where there are two."""
    least = max(_GROUP_BYTES, -(-sum(part.size for part in parts) // _GROUPS))
    groups: list[list[Part]] = []
    size = least
    for part in parts:
        if size >= least:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups
