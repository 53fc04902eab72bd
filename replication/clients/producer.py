"""Appends records to the logs of their leaders.

Kafka: `KafkaProducer`, `ReplicaManager.appendRecords`. [AP-02, AP-06]
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lakelog.replication.clients.producer_name import ProducerName
from lakelog.replication.clients.record_set import Records, record_set
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.protocol.append import parse_acks
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.rounds.acknowledge_round import produce
from lakelog.replication.protocol.rounds.send_round import RecordMetadata as RecordMetadata
from lakelog.replication.protocol.rounds.send_round import SendOptions
from lakelog.replication.protocol.topic_name import check_not_internal
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.producer_table import new_producer_id

_RETRIES = 2**31 - 1


class Producer:
    """Kafka's `KafkaProducer`, idempotent: a retry adds no record twice. For one thread at a time. It needs no Spark.

    `acks`: "all" waits until every in-sync replica has the records, 1 until the leader has them, 0 does not wait.
    `name`: fences older producers of the same name in every partition that this one writes to, as `transactional.id`
    does. A name expires if it is not used for `transactional.id.expiration.ms`. `retries`: the number of retries in one
    send; by default only the time-out of the send limits them.

    Raises InvalidRequiredAcksException, InconsistentClusterIdException if there is no cluster at `cluster_uri`,
    KafkaStorageException, and with a `name` TimeoutException.

        producer = Producer("/lake/cluster", acks="all")
        answers = producer.send("orders", [{"key": "k", "value": "v"}])
        raise_first_error(answers)
    """

    def __init__(
        self, cluster_uri: str, acks: int | str = "all", name: str | None = None, config: Config | None = None,
        retries: int = _RETRIES,
    ) -> None:  # fmt: skip
        self._acks = parse_acks(acks)
        self._retries = retries
        self._name = name
        self._view = TopicView(Cluster.open(cluster_uri, config))
        self._named = ProducerName(name, self._view.cluster) if name else None
        self._identity: ProducerIdentity | None = self._new_identity(
            time.monotonic() + self._view.cluster.config.request_timeout_ms / 1000
        )

    def _new_identity(self, deadline: float) -> ProducerIdentity:
        if self._named:
            return self._named.new_identity(deadline)
        return ProducerIdentity(ProducerIdAndEpoch(new_producer_id(), 0), new_producer_id)

    def _take_identity(self, deadline: float) -> ProducerIdentity:
        """The identity of the last send if that succeeded and the name needs no new one, otherwise a new identity."""
        identity, self._identity = self._identity, None
        if identity is None or (self._named and self._named.needs_new_identity):
            return self._new_identity(deadline)
        return identity

    def send(self, topic: str, records: Records, timeout_ms: int = 30_000) -> dict[int, RecordMetadata]:
        """Appends records. Returns, for each partition that got any, its offsets or its error.

        `records` is a Spark DataFrame, a pyarrow.Table or a list of dicts. Columns are `value` and optionally `key`,
        `partition`, `timestamp` and `headers`. A str or bytes in a list is a value alone. Text is encoded as UTF-8.

        Retriable errors of a partition are retried until `timeout_ms`. A partition without a leader in all that time
        gets TimeoutException, whose `__cause__` is the last error. These errors concern all records, and are raised
        before anything is written: InvalidRecordException, InvalidPartitionsException,
        UnknownTopicOrPartitionException, InvalidTopicException (an internal topic, or a name that is not a str),
        ProducerFencedException (another producer has taken the name), TimeoutException (no new identity in time) and
        KafkaStorageException (the cluster's tables cannot be read).
        """
        # Only a send without any error passes its identity on. Otherwise the next send could repeat the sequence
        # numbers of this one, and its records would be taken for a retry.
        check_not_internal(topic, "a producer")
        deadline = time.monotonic() + timeout_ms / 1000
        partitions = self._view.partitions(topic)
        with record_set(topic, records, len(partitions), self._view.cluster.config.log_segment_bytes) as given:
            identity = self._take_identity(deadline)
            who = f"producer {self._name or identity.producer_id}"
            options = SendOptions(who, self._acks, self._retries, timeout_ms, deadline)
            work = produce(topic, given.counts, identity, options, time.monotonic)
            answers = Sender(self._view, topic, given, options).run(work)
            if not any(answer.error for answer in answers.values()):
                self._identity = identity
        if self._acks == 0:
            return {p: RecordMetadata(topic, p, count) for p, count in given.counts.items()}
        return dict(sorted(answers.items()))


def raise_first_error(answers: Mapping[int, RecordMetadata]) -> None:
    """Raises the error of the first partition that has one. For callers that need all records to be acknowledged."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
