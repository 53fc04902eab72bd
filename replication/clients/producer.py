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
    """An idempotent producer: what it sends again adds nothing that is there already. For one thread at a time.

    `acks`: "all" waits until every in-sync replica has the records, 1 until the leader has, 0 for nothing. Under a
    `name` it fences older producers of that name in every partition that it writes to; a name that is unused for
    `transactional.id.expiration.ms` is forgotten. `retries`: how often something is sent again within the time-out of
    a send; as in Kafka, practically without limit.
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
        """That of the last send, if it may be used again."""
        identity, self._identity = self._identity, None
        if identity is None or (self._named and self._named.needs_new_identity):
            return self._new_identity(deadline)
        return identity

    def send(self, topic: str, records: Records, timeout_ms: int = 30_000) -> dict[int, RecordMetadata]:
        """Appends records and answers, for each partition that got any, its offsets or its error.

        `records` is a DataFrame of Spark, a pyarrow.Table or a list of dicts, each with `value` and optionally `key`,
        `partition`, `timestamp`, `headers`; in a list a str or bytes is a value alone. Text becomes UTF-8.

        Errors that may pass are retried until `timeout_ms`; a partition that had no leader all that time gets
        TimeoutException, whose cause is the last error. Raises what concerns the records as a whole, before anything is
        written: InvalidRecordException, InvalidPartitionsException, UnknownTopicOrPartitionException,
        InvalidTopicException for an internal topic or one that is no text, ProducerFencedException where another
        producer has the name, and KafkaStorageException where the cluster's tables cannot be read.

        Only a send that succeeded as a whole leaves its identity to the next one. Any other end, also by an exception
        or an interrupt, leaves none, so that other records never pass for a repeat of these.
        """
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
    """For callers who want all or an error: raises the first partition's error, if there is one."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
