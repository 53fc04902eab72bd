"""Appends records to the logs of their leaders.

Kafka: `KafkaProducer`, `ReplicaManager.appendRecords`. [AP-02, AP-06]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future

from lakelog.replication.clients.producer_name import ProducerName
from lakelog.replication.clients.record_set import Records, RecordSet, record_set
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.sends_in_flight import SendsInFlight
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException, TimeoutException
from lakelog.replication.protocol.append import parse_acks
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.rounds.acknowledge_round import produce
from lakelog.replication.protocol.rounds.pipeline_round import Answers, Sending
from lakelog.replication.protocol.rounds.send_round import RecordMetadata as RecordMetadata
from lakelog.replication.protocol.rounds.send_round import SendOptions
from lakelog.replication.protocol.topic_name import check_not_internal
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.producer_table import new_producer_id

_RETRIES = 2**31 - 1
_MOST_IN_FLIGHT = 5  # a log remembers the last five runs of sequences of each producer


class Producer:
    """Kafka's `KafkaProducer`, idempotent: a retry adds no record twice. Threads may share it. It needs no Spark.

    `acks`: "all" waits until every in-sync replica has the records, 1 until the leader has them, 0 does not wait.
    `name`: fences older producers of the same name in every partition that this one writes to, as `transactional.id`
    does. A name expires if it is not used for `transactional.id.expiration.ms`. `retries`: the number of retries in one
    send; by default only the time-out of the send limits them. `max_in_flight_requests_per_connection`: how many sends
    of `send_async` are on their way at the same time, 1 to 5.

    Raises InvalidRequiredAcksException, InvalidConfigurationException, InconsistentClusterIdException if there is no
    cluster at `cluster_uri`, KafkaStorageException, and with a `name` TimeoutException.

        with Producer("/lake/cluster", acks="all") as producer:
            answers = producer.send("orders", [{"key": "k", "value": "v"}])
            raise_first_error(answers)
    """

    def __init__(
        self, cluster_uri: str, acks: int | str = "all", name: str | None = None, config: Config | None = None,
        retries: int = _RETRIES, max_in_flight_requests_per_connection: int = _MOST_IN_FLIGHT,
    ) -> None:  # fmt: skip
        self._acks = parse_acks(acks)
        self._retries = retries
        self._name = name
        most = max_in_flight_requests_per_connection
        if most not in range(1, _MOST_IN_FLIGHT + 1):
            raise InvalidConfigurationException(
                f"max_in_flight_requests_per_connection is {most!r}, it must be an integer from 1 to {_MOST_IN_FLIGHT}"
            )
        self._view = TopicView(Cluster.open(cluster_uri, config))
        self._named = ProducerName(name, self._view.cluster) if name else None
        settings = self._view.cluster.config
        self._identity = ProducerIdentity(self._take_identity(time.monotonic() + settings.request_timeout_ms / 1000))
        self._sends = SendsInFlight(most, settings.lakelog_poll_interval_ms, self._forget_sequences)

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

        Several sends are on their way at the same time; each partition keeps the order of the calls. `timeout_ms`
        begins with the call. Errors of the records and of the topic are raised here, as by `send`; the others that
        `send` raises are raised by the future's `result`. A future can be cancelled until its send begins.
        """
        future = self._put(topic, records, timeout_ms, is_awaited=False)
        self._sends.start()
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
        partitions = self._view.partitions(topic)
        given = record_set(topic, records, len(partitions), self._view.cluster.config.log_segment_bytes)
        send = _Send(self, topic, given, timeout_ms, deadline)
        try:
            self._sends.put(send, is_awaited)
        except BaseException:
            given.__exit__()
            raise
        return send.future

    def _begin(self, send: _Send) -> Sending:
        if self._named and self._named.needs_new_identity:
            self._identity.use_up()
        who = f"producer {self._name or self._identity.given.producer_id}"
        options = SendOptions(who, self._acks, self._retries, send.timeout_ms, send.deadline)
        work = produce(send.topic, send.given.counts, self._identity, options, time.monotonic)
        return Sending(
            work, send.deadline, Sender(self._view, send.topic, send.given, options, self._take_identity), send.end
        )

    def _answers(self, send: _Send, answers: Answers) -> dict[int, RecordMetadata]:
        if self._acks == 0:
            return {p: RecordMetadata(send.topic, p, count) for p, count in send.given.counts.items()}
        return dict(sorted(answers.items()))


class _Send:
    """A send that waits or is in flight, and the future of its answers."""

    def __init__(
        self, producer: Producer, topic: str, given: RecordSet, timeout_ms: int, deadline: float
    ) -> None:  # fmt: skip
        self.future: Future[dict[int, RecordMetadata]] = Future()
        self.topic, self.given, self.timeout_ms, self.deadline = topic, given, timeout_ms, deadline
        self.may_expire = False
        self._producer = producer

    def begin(self) -> Sending | None:
        """Begins it; None if its future was cancelled, or it `may_expire` and its time is over."""
        if not self.future.set_running_or_notify_cancel():
            self.given.__exit__()
        elif self.may_expire and time.monotonic() >= self.deadline:
            self.end(None, self._expired())
        else:
            return self._producer._begin(self)
        return None

    def _expired(self) -> TimeoutException:
        records = sum(self.given.counts.values())
        return TimeoutException(
            f"{self.topic}: {records} records waited for earlier sends, and were not sent within {self.timeout_ms} ms"
        )

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, unless its future was cancelled. Nothing of it was sent."""
        if self.future.set_running_or_notify_cancel():
            self.end(None, error)

    def end(self, answers: Answers | None, error: BaseException | None) -> None:
        """Ends it: its future gets the answers, or the error that its round has raised."""
        self.given.__exit__()
        if answers is None:
            self.future.set_exception(error)
        else:
            self.future.set_result(self._producer._answers(self, answers))


def raise_first_error(answers: Mapping[int, RecordMetadata]) -> None:
    """Raises the error of the first partition that has one. For callers that need all records to be acknowledged."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
