"""Appends records to the logs of their leaders, under a name of its own if it has one.

Kafka: `KafkaProducer`, `ReplicaManager.appendRecords`. [AP-02, AP-06]
"""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

from lakelog.replication.clients.accumulator import PendingRecords, PendingSend, answers_of
from lakelog.replication.clients.arguments import function, mapping, milliseconds, seconds, text, whole_number
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import DeliveryReports, OnDelivery, SingleRecord
from lakelog.replication.clients.one_process import Closing
from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.record_set import ArrowRecordSet, Records, record_set
from lakelog.replication.clients.records import row_bytes, single_row
from lakelog.replication.clients.send_executor import SendExecutor
from lakelog.replication.clients.sender import Sender, settle_each
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidPartitionsException, InvalidRequestException, KafkaStorageException
from lakelog.replication.protocol.append import parse_acks
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.pipeline_round import Answers, SendInFlight
from lakelog.replication.protocol.rounds.send_round import RecordMetadata as RecordMetadata
from lakelog.replication.protocol.rounds.send_round import SendOptions
from lakelog.replication.protocol.topic import check_is_text, check_not_internal
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.tables.producer_table import new_producer_id


class ProducerName:
    """A producer's name and its identities. The first identity fences the earlier producer of that name.

    A name expires if its producer takes no identity for `transactional.id.expiration.ms`. A working producer takes a
    new identity after half of that time. The other half covers a process that freezes during a send.
    """

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._producers = cluster.producers
        self._seconds = cluster.config.transactional_id_expiration_ms / 2000
        self._owner = uuid.uuid4().hex
        self._has_started = False
        self._used_at = _name_at()

    @property
    def needs_new_identity(self) -> bool:
        """Whether the next send needs a new identity. A monotonic clock may stop while a machine sleeps, and the time
        of day may be set back, so the longer of the two times counts."""
        return any(now - used_at >= self._seconds for now, used_at in zip(_name_at(), self._used_at, strict=True))

    def new_identity(self, deadline: float) -> ProducerIdAndEpoch:
        """The next identity. Raises ProducerFencedException if another producer has started under the name, and
        TimeoutException at the `deadline` (s, monotonic clock)."""
        used_at = _name_at()
        take = self._producers.renew if self._has_started else self._producers.init_producer
        given = take(self._name, self._owner, deadline)
        self._has_started, self._used_at = True, used_at
        return given


def _name_at() -> tuple[float, float]:
    return time.monotonic(), time.time()


_RETRIES = 2**31 - 1
_TOPICS = 10_000  # of which a producer knows the number of partitions
_remembering = threading.Lock()
_RECORD_BYTES = 32  # offsets, timestamp and partition of a record in memory
_DEFAULT = ProducerConfig()


class Producer(Closing):
    """Kafka's `KafkaProducer`, idempotent: a retry adds no record twice. Threads may share it. It needs no Spark.

    `acks`: with "all" a send waits until every in-sync replica has the records, with 1 until the leader has them. With
    0 it waits for the same commit as with 1, but its answers have no offsets and no errors of partitions.
    `name`: a producer with a name fences older producers of that name in every partition that it writes to, as with
    Kafka's `transactional.id`. A name expires if it is not used for `transactional.id.expiration.ms`.
    `retries`: how often one send may send the records of a partition again; by default only its time-out limits that.
    `ProducerConfig` explains the other settings.

    A fork has the identity of its parent. So a producer refuses to work in a fork: make one in each process.

    One thread carries out all sends, which has two disadvantages. A leader whose store hangs holds up sends to other
    leaders, until `lakelog.storage.timeout.ms` ends the request. And the thread may be one that waits in `send` or
    `flush`: if Ctrl-C interrupts it, the sends in flight of all threads fail with IllegalStateException.

    Raises InvalidRequiredAcksException, InvalidConfigurationException, InvalidRequestException (another argument is
    invalid), InconsistentClusterIdException if there is no cluster at `cluster_uri`, KafkaStorageException, and with a
    `name` TimeoutException.

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
        delivery_timeout_ms: int = _DEFAULT.delivery_timeout_ms,
    ) -> None:  # fmt: skip
        settings = ProducerConfig(
            max_in_flight_requests_per_connection, linger_ms, batch_size, buffer_memory, max_block_ms,
            delivery_timeout_ms,
        )  # fmt: skip
        self._settings = settings
        self._acks = parse_acks(acks)
        self._retries = whole_number(retries, "retries", 0)
        self._name = None if name is None else text(name, "name")
        self._view = TopicView(Cluster.open(cluster_uri, config), lambda: self._sender.wake())
        self._named = ProducerName(name, self._view.cluster) if name else None
        # By topic: its number of partitions, the largest record that it takes, and until when `produce` uses them.
        self._known: dict[str, tuple[int, RecordLimit, float]] = {}
        self._reports = DeliveryReports()
        own = self._view.cluster.config
        self._identity = ProducerIdentity(self._take_identity(time.monotonic() + own.request_timeout_ms / 1000))
        self._sender = Sender(settings, own.lakelog_poll_interval_ms, self._begin, self._abandon_identity)

    def __repr__(self) -> str:
        named = f", name {self._name!r}" if self._name else ""
        return f"<Producer of {self._view.cluster.root.uri}, acks={'all' if self._acks == -1 else self._acks}{named}>"

    def _take_identity(self, deadline: float) -> ProducerIdAndEpoch:
        return self._named.new_identity(deadline) if self._named else ProducerIdAndEpoch(new_producer_id(), 0)

    def _abandon_identity(self) -> None:
        self._identity = ProducerIdentity(self._identity.id_and_epoch)
        self._identity.use_up()

    def send(self, topic: str, records: Records, timeout_ms: int = 30_000) -> dict[int, RecordMetadata]:
        """Appends records. Returns, for each partition that got any, its offsets or its error. It does not raise the
        error of a partition: `raise_first_error` does.

        `records` is a Spark DataFrame, a pyarrow.Table or a list of dicts. Columns are `value` and optionally `key`,
        `partition`, `timestamp` and `headers`. A str or bytes in a list is a value alone. Text is encoded as UTF-8.
        A DataFrame is run once, in tasks that need Lakelog, too. They return up to 64 KiB of records each to this
        process, and write the segments of a larger DataFrame. A task takes some time even without records: `coalesce`
        a small DataFrame of many tasks.

        Retriable errors of a partition are retried until `timeout_ms`. A partition without a leader in all that time
        gets TimeoutException, whose `__cause__` is the last error.

        These errors concern all records, and are raised before any of them is written: InvalidRecordException,
        RecordTooLargeException (`max.message.bytes`), InvalidPartitionsException, UnknownTopicOrPartitionException,
        InvalidTopicException (an internal topic, or a name that is not a str), ProducerFencedException (another
        producer has taken the name), TimeoutException (no new identity in time, no memory within `max_block_ms`, or
        earlier sends took all the time), KafkaStorageException (the cluster's tables cannot be read and the topic is
        new to this producer, or no log's folder takes the records of a large DataFrame) and IllegalStateException
        (after `close`, or in a callback of a future).

        IllegalStateException also ends a send if the thread that carries out all sends is interrupted, or if `close`
        reaches its time-out. Then nobody knows whether the records are in a log.
        """
        self._sender.check_may_wait()
        future = self._put(topic, records, timeout_ms, is_awaited=True)
        self._sender.work(future.done)
        return future.result()

    def send_async(self, topic: str, records: Records, timeout_ms: int = 30_000) -> Future[dict[int, RecordMetadata]]:
        """Begins to append records, and returns a future of the answers of `send`, without waiting for them.

        Several sends are on their way at the same time; each partition keeps the order of the calls. Small sends to a
        topic share a commit: a send waits `linger_ms` for others. `timeout_ms` begins with the call; for a DataFrame it
        begins once Spark has run it.

        The call itself raises what `send` would raise at once: errors of the records and of the topic,
        KafkaStorageException, TimeoutException if there is no memory in time, and IllegalStateException after `close`.
        It raises RuntimeError if no thread can be started. The future's `result` raises the others. A future can be
        cancelled until its send begins. Use `with`, or call `close`: without them a program ends after its last send is
        settled, and sees no error.
        """
        future = self._put(topic, records, timeout_ms, is_awaited=False)
        try:
            self._sender.start()
        except BaseException:
            future.cancel()
            raise
        return future

    def produce(
        self, topic: str, value: object = None, key: object = None, partition: int | None = None,
        on_delivery: OnDelivery | None = None, timestamp: dt.datetime | int | None = None, headers: object = None,
    ) -> None:  # fmt: skip
        """Begins to send one record, as in confluent-kafka: `poll` and `flush` call `on_delivery(error, message)` once
        the record is delivered, or has failed.

        `value` and `key`: str, bytes or None. `timestamp`: a datetime (without a time zone it is in UTC) or
        milliseconds since 1970, by default now. `headers`: pairs of a name and a value, or a dict.

        Records of a topic share a send: they wait `linger_ms` for others, or until they are `batch_size` bytes. Each
        partition keeps the order of all calls.

        Raises InvalidRecordException, RecordTooLargeException, InvalidPartitionsException,
        UnknownTopicOrPartitionException, InvalidTopicException, KafkaStorageException, IllegalStateException, and
        TimeoutException if earlier sends and records leave no memory for it within `max_block_ms`. After any of these
        the record is not sent; after TimeoutException call `poll`, and produce it again. All other errors are in the
        report. A record that is not delivered within `delivery_timeout_ms` fails with TimeoutException.
        """
        self._sender.check_may_wait()
        check_is_text(topic)
        row = single_row(topic, value, key, partition, timestamp, headers)
        size = row_bytes(row)
        partitions, limit = self._known_of(topic, partition)
        if partition is not None and not 0 <= partition < partitions:
            raise InvalidPartitionsException(
                f"record for topic {topic}: partition {partition} is out of range, the topic has 0 to {partitions - 1}"
            )
        limit.check(size, partition)
        limit.check_has_key(row["key"] is not None, partition)
        limit.check_value(row["value"], partition)
        record = SingleRecord(row, function(on_delivery, "on_delivery"), _RECORD_BYTES + size)
        self._sender.put_record(topic, partitions, record, partial(self._new_send, topic, partitions))

    def _known_of(self, topic: str, partition: int | None) -> tuple[int, RecordLimit]:
        """The topic's number of partitions and the largest record that it takes. It polls the tables once a second at
        most, because a poll costs more than a record; and for a partition beyond that number, which may be new."""
        known = self._known.get(topic)
        if known is None or time.monotonic() >= known[2] or (partition is not None and partition >= known[0]):
            return self._look_up(topic)
        return known[:2]

    def _new_send(self, topic: str, partitions: int) -> PendingRecords:
        segment_bytes, timeout_ms = self._view.cluster.config.log_segment_bytes, self._settings.delivery_timeout_ms
        return PendingRecords(topic, partitions, segment_bytes, timeout_ms, self._reports)

    def poll(self, timeout: float | None = 0.0) -> int:
        """Calls `on_delivery` of the records that were delivered or have failed. Returns the number of calls.

        If there is none it waits for one, up to `timeout` seconds; with None or a negative number as long as one may
        come. If an `on_delivery` raises an error, this call raises it, and the next one goes on with the other records.
        """
        self._sender.check_may_wait()
        timeout = seconds(timeout, "timeout")
        if timeout is None:
            self._sender.wait_until(lambda: self._reports or not self._sender.has_records, None)
        elif timeout:
            self._sender.wait_until(lambda: self._reports, timeout)
        return self._reports.call()

    def flush(self, timeout: float | None = None) -> int:
        """Waits until all sends and records are settled, whether they succeeded or not, and calls `on_delivery` as
        `poll` does. Returns 0, because no record is left, as in confluent-kafka.

        Raises TimeoutException if they are not settled after `timeout` seconds.
        """
        self._sender.check_may_wait()
        timeout = seconds(timeout, "timeout")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._sender.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not self.poll():  # otherwise an `on_delivery` may have produced more
                return 0

    def close(self, timeout: float | None = None) -> None:
        """Refuses new sends and records, and waits until all others are settled. The end of a `with` block does it too.

        Those that are not settled after `timeout` seconds fail with IllegalStateException before this call returns.
        Nobody knows whether their records are in a log. It calls every `on_delivery` that is due, and then raises the
        first error of one.
        """
        self._sender.check_may_wait()
        self._sender.close(seconds(timeout, "timeout"))
        self._reports.call_all()

    def _look_up(self, topic: str) -> tuple[int, RecordLimit]:
        """The topic's number of partitions and the largest record that it takes. While the metadata cannot be read, the
        producer uses the last number that it read, and the send waits for the metadata until its deadline. Kafka:
        `ProducerMetadata`."""
        check_not_internal(topic, "a producer")
        known = self._known.get(topic)
        try:
            partitions = len(self._view.partitions(topic, RECENT_SECONDS))
        except KafkaStorageException:
            if known is None:
                raise
            partitions = known[0]
        found = partitions, self._view.record_limit(topic), time.monotonic() + RECENT_SECONDS
        return remember(self._known, topic, found)[:2]

    def _put(
        self, topic: str, records: Records, timeout_ms: int, is_awaited: bool
    ) -> Future[dict[int, RecordMetadata]]:  # fmt: skip
        seconds_to_send = milliseconds(timeout_ms, "timeout_ms") / 1000
        partitions, limit = self._look_up(topic)
        segment_bytes, roots = self._view.cluster.config.log_segment_bytes, partial(self._view.log_roots, topic)
        given = record_set(topic, records, partitions, segment_bytes, limit, roots)
        deadline = time.monotonic() + seconds_to_send  # from here on: Spark may run a DataFrame for long
        send = PendingSend(topic, given, timeout_ms, deadline)
        try:
            self._sender.put(send, is_awaited)
        except BaseException:
            if send.future.cancel():  # after an interruption it may be in the queue, which frees it again
                given.__exit__()
            raise
        return send.future

    def _begin(self, sends: Sequence[PendingSend]) -> SendInFlight:
        """Begins sends to one topic. They share a commit, and the deadline of the first one."""
        if self._named and self._named.needs_new_identity:
            self._identity.use_up()
        first = sends[0]
        sets = [send.given for send in sends]
        given = ArrowRecordSet.joined(cast(list[ArrowRecordSet], sets)) if len(sends) > 1 else first.given
        who = f"producer {self._name or self._identity.id_and_epoch.producer_id}"
        options = SendOptions(who, self._acks, self._retries, first.timeout_ms, first.deadline)
        work = send_and_acknowledge(first.topic, given.counts, self._identity, options, time.monotonic)
        executor = SendExecutor(self._view, first.topic, given, options, self._take_identity)
        return SendInFlight(work, first.deadline, executor.execute, partial(self._end, sends))

    def _end(self, sends: Sequence[PendingSend], answers: Answers | None, error: BaseException | None) -> None:
        if answers is not None and self._acks == 0:  # as in Kafka, acks=0 tells no offsets and no errors
            each = [{p: RecordMetadata(s.topic, p, count) for p, count in s.given.counts.items()} for s in sends]
        else:
            each = answers_of(sends, answers) if answers is not None else []
        settle_each(partial(send.end, each[n] if each else None, error) for n, send in enumerate(sends))


Known = TypeVar("Known")


def remember(known: dict[str, Known], topic: str, value: Known) -> Known:
    """Keeps a value of a topic. If there are too many topics, it forgets the one with the oldest value: a producer may
    see topics come and go for years. Threads may share `known`."""
    with _remembering:
        known.pop(topic, None)
        known[topic] = value
        if len(known) > _TOPICS:
            del known[next(iter(known))]
    return value


def raise_first_error(answers: Mapping[int, RecordMetadata]) -> None:
    """Raises the error of the first partition that has one. For callers that need all records to be acknowledged."""
    given = mapping(answers, "answers", "the one that Producer.send returns").values()
    if not all(isinstance(answer, RecordMetadata) for answer in given):
        raise InvalidRequestException(f"answers are {answers!r:.80}: give those that Producer.send returns")
    for answer in given:
        if answer.error is not None:
            raise answer.error
