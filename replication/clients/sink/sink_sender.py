"""Sends staged records to the leaders of their partitions, under given sequences. Kafka: `Sender`, KIP-98."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from lakelog.replication.clients.delayed_operation import until_available
from lakelog.replication.clients.producer import raise_first_error
from lakelog.replication.clients.record_set import PartitionedRecords, record_set
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.sink.batch_commit import KnownProducer
from lakelog.replication.clients.sink.sink_stage import Part, Sequences, SinkStage
from lakelog.replication.clients.sink.staged_records import staged_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InconsistentClusterIdException,
    KafkaStorageException,
    LeaderNotAvailableException,
    OutOfOrderSequenceException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.append import ALL
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.rounds.acknowledge_round import produce
from lakelog.replication.protocol.rounds.send_round import SendOptions

_RETRIES = 2**31 - 1
_PASSING = (  # another broker leads soon
    KafkaStorageException, LeaderNotAvailableException, BrokerNotAvailableException, InconsistentClusterIdException,
)  # fmt: skip


class SinkSender:
    """Sends parts of a batch with acks=all. `name`: the id of the query, for commits and errors."""

    def __init__(self, view: TopicView, stage: SinkStage, name: str, timeout_ms: int) -> None:
        self._view = view
        self._stage = stage
        self._name = name
        self._timeout_ms = timeout_ms

    def send(self, producer_id: int, parts: Sequence[Part], sequences: Sequences) -> None:
        """Sends the records of parts, and waits until all are committed. What a log has already it does not take again.

        Raises the error of the first partition that has one, UnknownTopicOrPartitionException, KafkaStorageException,
        and OutOfOrderSequenceException where acknowledged records of the query have been lost.
        """
        for topic, records in staged_records(self._stage, parts):
            self._send(topic, records, producer_id, sequences[topic])

    def known(self, producer_ids: Collection[int], topics: Collection[str]) -> list[KnownProducer]:
        """What the logs of the leaders of all partitions of topics know of producers. Waits for leaders, and raises the
        last error when the time is over."""
        deadline, pause = time.monotonic() + self._timeout_ms / 1000, self._view.cluster.config.lakelog_poll_interval_ms
        look = partial(self._known, producer_ids, topics)
        return until_available(look, deadline, pause, _PASSING)

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
        sender = Sender(self._view, topic, given, options, self._no_other_identity)
        raise_first_error(sender.run(produce(topic, given.counts, identity, options, time.monotonic)))

    def _no_other_identity(self, deadline: float) -> ProducerIdAndEpoch:
        raise OutOfOrderSequenceException(
            f"query {self._name}: a log lacks records that it has acknowledged to this query, so an unclean election "
            "has cost records; start the query with a new checkpointLocation"
        )
