"""Appends records to the logs of their leaders.

Kafka: `KafkaProducer`, `ReplicaManager.appendRecords`. [AP-02, AP-06]
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import cast

from lakelog.replication.clients.producer_config import ProducerConfig
from lakelog.replication.clients.producer_name import ProducerName
from lakelog.replication.clients.record_set import ArrowRecordSet, Records, record_set
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.sends_in_flight import SendsInFlight
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.clients.waiting_send import Send, answers_of
from lakelog.replication.config import Config
from lakelog.replication.protocol.append import parse_acks
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.rounds.acknowledge_round import produce
from lakelog.replication.protocol.rounds.pipeline_round import Answers, Sending
from lakelog.replication.protocol.rounds.send_round import RecordMetadata as RecordMetadata
from lakelog.replication.protocol.rounds.send_round import SendOptions
from lakelog.replication.protocol.topic_name import check_not_internal
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.newest_versions import YOUNG_SECONDS
from lakelog.replication.storage.tables.producer_table import new_producer_id

_RETRIES = 2**31 - 1
_DEFAULT = ProducerConfig()


class Producer:
    """Kafka's `KafkaProducer`, idempotent: a retry adds no record twice. Threads may share it. It needs no Spark.

    `acks`: "all" waits until every in-sync replica has the records, 1 until the leader has them, 0 does not wait.
    `name`: fences older producers of the same name in every partition that this one writes to, as `transactional.id`
    does. A name expires if it is not used for `transactional.id.expiration.ms`. `retries`: the number of retries in one
    send; by default only the time-out of the send limits them. The other settings shape `send_async`, see
    `ProducerConfig`.

    A limit: one thread carries out all sends, so a leader whose store hangs holds up those to other leaders, until
    `lakelog.storage.timeout.ms` ends the request.

    Raises InvalidRequiredAcksException, InvalidConfigurationException, InconsistentClusterIdException if there is no
    cluster at `cluster_uri`, KafkaStorageException, and with a `name` TimeoutException.

        with Producer("/lake/cluster", acks="all") as producer:
            answers = producer.send("orders", [{"key": "k", "value": "v"}])
            raise_first_error(answers)
    """

    def __init__(
        self, cluster_uri: str, acks: int | str = "all", name: str | None = None, config: Config | None = None,
        retries: int = _RETRIES, *,
        max_in_flight_requests_per_connection: int = _DEFAULT.max_in_flight_requests_per_connection,
        linger_ms: int = _DEFAULT.linger_ms, batch_size: int = _DEFAULT.batch_size,
        buffer_memory: int = _DEFAULT.buffer_memory, max_block_ms: int = _DEFAULT.max_block_ms,
    ) -> None:  # fmt: skip
        settings = ProducerConfig(
            max_in_flight_requests_per_connection, linger_ms, batch_size, buffer_memory, max_block_ms
        )
        self._acks = parse_acks(acks)
        self._retries = retries
        self._name = name
        self._view = TopicView(Cluster.open(cluster_uri, config), lambda: self._sends.look())
        self._named = ProducerName(name, self._view.cluster) if name else None
        own = self._view.cluster.config
        self._identity = ProducerIdentity(self._take_identity(time.monotonic() + own.request_timeout_ms / 1000))
        self._sends = SendsInFlight(settings, own.lakelog_poll_interval_ms, self._forget_sequences)

    def _take_identity(self, deadline: float) -> ProducerIdAndEpoch:
        return self._named.new_identity(deadline) if self._named else ProducerIdAndEpoch(new_producer_id(), 0)

    def _forget_sequences(self) -> None:
        self._identity = ProducerIdentity(self._identity.given)
        self._identity.use_up()

    def send(self, topic: str, records: Records, timeout_ms: int = 30_000) -> dict[int, RecordMetadata]:
        """Appends records. Returns, for each partition that got any, its offsets or its error.

        `records` is a Spark DataFrame, a pyarrow.Table or a list of dicts. Columns are `value` and optionally `key`,
        `partition`, `timestamp` and `headers`. A str or bytes in a list is a value alone. Text is encoded as UTF-8.

        Retriable errors of a partition are retried until `timeout_ms`. A partition without a leader in all that time
        gets TimeoutException, whose `__cause__` is the last error. These errors concern all records, and are raised
        before anything is written: InvalidRecordException, InvalidPartitionsException,
        UnknownTopicOrPartitionException, InvalidTopicException (an internal topic, or a name that is not a str),
        ProducerFencedException (another producer has taken the name), TimeoutException (no new identity in time, or
        earlier sends took all of it), KafkaStorageException (the cluster's tables cannot be read) and
        IllegalStateException (after `close`, or in a callback of a future).
        """
        self._sends.check_may_wait()
        future = self._put(topic, records, timeout_ms, is_awaited=True)
        self._sends.work(future.done)
        return future.result()

    def send_async(self, topic: str, records: Records, timeout_ms: int = 30_000) -> Future[dict[int, RecordMetadata]]:
        """Begins to append records, and returns a future of the answers of `send`, without waiting for them.

        Several sends are on their way at the same time; each partition keeps the order of the calls. Small sends to a
        topic share a commit: a send waits `linger_ms` for others. `timeout_ms` begins with the call. Errors of the
        records and of the topic are raised here, as by `send`, and TimeoutException if there is no memory in time; the
        others that `send` raises are raised by the future's `result`. A future can be cancelled until its send begins.
        Use `with`, or call `close`. Without them a program ends after its last send is settled, and sees no error.
        """
        future = self._put(topic, records, timeout_ms, is_awaited=False)
        try:
            self._sends.start()
        except BaseException:
            future.cancel()
            raise
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all sends are settled, whether they succeeded or not.

        Raises TimeoutException if they are not after `timeout` seconds.
        """
        self._sends.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Sends nothing new, and waits until all sends are settled. The end of a `with` block does it too.

        Sends that are not settled after `timeout` seconds fail with IllegalStateException. Nobody knows whether their
        records are in a log.
        """
        self._sends.close(timeout)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _put(
        self, topic: str, records: Records, timeout_ms: int, is_awaited: bool
    ) -> Future[dict[int, RecordMetadata]]:  # fmt: skip
        check_not_internal(topic, "a producer")
        deadline = time.monotonic() + timeout_ms / 1000
        partitions = self._view.partitions(topic, YOUNG_SECONDS)
        given = record_set(topic, records, len(partitions), self._view.cluster.config.log_segment_bytes)
        send = Send(self._begin, topic, given, timeout_ms, deadline)
        try:
            self._sends.put(send, is_awaited)
        except BaseException:
            send.release()
            raise
        return send.future

    def _begin(self, sends: Sequence[Send]) -> Sending:
        """Begins sends to one topic. They share a commit, and the deadline of the first one."""
        if self._named and self._named.needs_new_identity:
            self._identity.use_up()
        first = sends[0]
        sets = [send.given for send in sends]
        given = ArrowRecordSet.joined(cast(list[ArrowRecordSet], sets)) if len(sends) > 1 else first.given
        who = f"producer {self._name or self._identity.given.producer_id}"
        options = SendOptions(who, self._acks, self._retries, first.timeout_ms, first.deadline)
        work = produce(first.topic, given.counts, self._identity, options, time.monotonic)
        sender = Sender(self._view, first.topic, given, options, self._take_identity)
        return Sending(work, first.deadline, sender, partial(self._end, sends))

    def _end(self, sends: Sequence[Send], answers: Answers | None, error: BaseException | None) -> None:
        if answers is not None and self._acks == 0:  # nobody waits for the offsets, or for an error
            each = [{p: RecordMetadata(s.topic, p, count) for p, count in s.given.counts.items()} for s in sends]
        else:
            each = answers_of(sends, answers) if answers is not None else []
        for number, send in enumerate(sends):
            send.end(each[number] if each else None, error)


def raise_first_error(answers: Mapping[int, RecordMetadata]) -> None:
    """Raises the error of the first partition that has one. For callers that need all records to be acknowledged."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
