"""Records that are produced one by one, on real tables: reports, order, linger, memory, errors, flush and close."""

import datetime as dt
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

from lakelog.replication.clients import accumulator
from lakelog.replication.clients import producer as producers
from lakelog.replication.clients.accumulator import RecordAccumulator
from lakelog.replication.clients.delivery_reports import DeliveryReports, SingleRecord, reports_of
from lakelog.replication.clients.producer import Producer, remember
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidPartitionsException,
    InvalidRecordException,
    InvalidTopicException,
    KafkaStorageException,
    LakelogException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.protocol.topic import Topic
from tests.clients.world import LONG, led_world
from tests.processes import wait_until
from tests.registrations import joined
from tests.storage.delta.answers import lose_an_answer
from tests.storage.logs import NOON, P0, P1, TOPIC, TOPIC_ID, lead, values

NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture
def world(root):
    return led_world(root)


@pytest.fixture
def told():
    """The reports: error and message of each."""
    return []


@pytest.fixture
def report(told):
    return lambda error, message: told.append((error, message))


def seen(told):
    """Partition, offset and value of each report without an error."""
    assert [error for error, _ in told] == [None] * len(told)
    return [(message.partition(), message.offset(), message.value()) for _, message in told]


def test_a_report_tells_all_of_its_record(world, told, report):
    with Producer(world.uri, acks=1) as producer:
        producer.produce(TOPIC, "v", "k", 1, report, NOON_MS + 7, {"h": b"x"})
    ((error, message),) = told
    assert error is message.error() is None
    assert (message.topic(), message.partition(), message.offset()) == (TOPIC, 1, 0)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("h", b"x")])
    assert message.timestamp() == (1, NOON_MS + 7)
    (row,) = world.logs[1].read(P1, 0).to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [{"key": "h", "value": b"x"}])
    assert row["timestamp"] == NOON + dt.timedelta(milliseconds=7)


def test_records_of_a_topic_share_a_commit_and_each_has_its_offset(world, told, report):
    producer = Producer(world.uri, acks=1, linger_ms=LONG)
    for number in range(6):
        producer.produce(TOPIC, str(number), partition=number % 2, on_delivery=report)
    assert producer.poll() == 0, "they wait for others"
    before = world.logs[1].refresh().version
    assert producer.flush() == 0
    assert seen(told) == [(n % 2, n // 2, b"%d" % n) for n in range(6)]
    assert world.logs[1].refresh().version == before + 1
    producer.close()


def test_without_a_partition_it_is_that_of_the_key(world, told, report):
    producer = Producer(world.uri, acks=1, linger_ms=LONG)
    for key in (b"a", b"b", b"c", b"a"):
        producer.produce(TOPIC, b"v", key, on_delivery=report)
    producer.flush()
    by_table = Producer(world.uri, acks=1)
    for _, message in told:
        answers = by_table.send(TOPIC, pa.table({"key": [message.key()], "value": [b"v"]}))
        assert [*answers] == [message.partition()]


def test_ap_06_each_partition_keeps_the_order_of_all_calls(world):
    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        producer.produce(TOPIC, "a", partition=0)
        producer.send_async(TOPIC, [{"value": "b", "partition": 0}])
        producer.produce(TOPIC, "c", partition=0)
        producer.send(TOPIC, [{"value": "d", "partition": 0}])
        producer.produce(TOPIC, "e", partition=0)
    assert values(world.logs[1]) == [b"a", b"b", b"c", b"d", b"e"]


def test_ap_06_a_record_whose_answer_was_lost_is_there_once(world, monkeypatch, told, report):
    lost = lose_an_answer(monkeypatch, lambda _, cause: cause["why"] == "append", True)
    with Producer(world.uri, acks=1) as producer:
        producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    assert lost
    assert seen(told) == [(0, 0, b"a")]
    assert values(world.logs[1]) == [b"a"]


def test_records_are_sent_when_they_have_lingered(world):
    producer, before = Producer(world.uri, acks=1, linger_ms=1), set(threading.enumerate())
    producer.produce(TOPIC, "a", partition=0)
    wait_until(lambda: values(world.logs[1]) == [b"a"], "the record, without a flush")
    wait_until(lambda: set(threading.enumerate()) <= before, "the thread ends when no record waits")
    producer.close()


@pytest.mark.parametrize(("batch_size", "count"), [(0, 2), (150, 1)], ids=["each", "those of a full batch"])
def test_records_are_sent_when_there_are_enough(world, batch_size, count):
    """Those that no longer fit wait for others."""
    wide = [b"a" * 100, b"b" * 100]
    producer = Producer(world.uri, acks=1, linger_ms=LONG, batch_size=batch_size)
    for value in wide:
        producer.produce(TOPIC, value, partition=0)
    wait_until(lambda: values(world.logs[1]) == wide[:count], "the records")
    producer.close()
    assert values(world.logs[1]) == wide


BAD = {
    "value": ({"value": 5}, InvalidRecordException, "record for topic flights: value is of type int"),
    "key": ({"key": 1.5}, InvalidRecordException, "key is of type float"),
    "partition": ({"partition": 2}, InvalidPartitionsException, "partition 2 is out of range, the topic has 0 to 1"),
    "negative": ({"partition": -1}, InvalidPartitionsException, "partition -1 is out of range"),
    "no number": ({"partition": "0"}, InvalidRecordException, "partition is of type str"),
    "timestamp": ({"timestamp": "now"}, InvalidRecordException, "timestamp is of type str"),
    "late": ({"timestamp": 10**18}, InvalidRecordException, "is no time of the years 1 to 9999"),
    "headers": ({"headers": ["h"]}, InvalidRecordException, "headers: header 0 is 'h'"),
    "topic": ({"topic": "nobody"}, UnknownTopicOrPartitionException, "no topic nobody"),
    "no text": ({"topic": b"x"}, InvalidTopicException, "it must be text"),
}


def test_what_a_producer_knows_of_topics_ends(monkeypatch):
    """Topics that were used last are known."""
    monkeypatch.setattr(producers, "_TOPICS", 3)
    known = {}
    for topic in "abcade":
        assert remember(known, topic, 4) == 4
    assert list(known) == ["a", "d", "e"]


def test_threads_that_produce_to_many_topics_share_what_is_known_of_them(monkeypatch):
    monkeypatch.setattr(producers, "_TOPICS", 1)
    known, errors = {}, []

    def produce(number):
        try:
            for count in range(20_000):
                remember(known, f"topic{(count + number) % 3}", count)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert len(known) == 1


def test_a_record_that_is_wrong_is_refused_and_concerns_no_other(world):
    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        producer.produce(TOPIC, "a", partition=0)
        for given, error, words in BAD.values():
            with pytest.raises(error, match=words):
                producer.produce(**{"topic": TOPIC, "value": "v", **given})
        producer.produce(TOPIC, "b", partition=0)
    assert values(world.logs[1]) == [b"a", b"b"]


def test_a_partition_that_was_added_a_moment_ago_is_known(world):
    with Producer(world.uri, acks=1) as producer:
        producer.produce(TOPIC, "a", partition=1)
        added = joined(new_partition(TOPIC, TOPIC_ID, 2, (1, 2), {1, 2}))
        world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 3)], (), {"who": "test"})
        world.cluster.metadata.put([added], {"who": "test"})
        lead(world.logs[1], added.topic_id_partition, epoch=0)
        producer.produce(TOPIC, "b", partition=2)
    assert values(world.logs[1], added.topic_id_partition) == [b"b"]


def fails(told):
    def on_delivery(_, message):
        told.append(message.value())
        if message.value() in (b"a", b"c"):
            raise ValueError(message.value().decode())

    return on_delivery


def test_an_error_of_a_callback_is_raised_and_the_others_are_called_next_time(world, told):
    producer = Producer(world.uri, acks=1, linger_ms=LONG)
    for value in "abcd":
        producer.produce(TOPIC, value, partition=0, on_delivery=fails(told))
    with pytest.raises(ValueError, match="a"):
        producer.flush()
    assert told == [b"a"]
    with pytest.raises(ValueError, match="c"):
        producer.poll()
    assert producer.poll() == 1
    assert told == [b"a", b"b", b"c", b"d"]
    producer.close()


def test_close_calls_all_and_raises_the_first_error(world, told):
    producer = Producer(world.uri, acks=1, linger_ms=LONG)
    for value in "abcd":
        producer.produce(TOPIC, value, partition=0, on_delivery=fails(told))
    with pytest.raises(ValueError, match="a"):
        producer.close()
    assert told == [b"a", b"b", b"c", b"d"]
    with pytest.raises(IllegalStateException, match="the producer is closed"):
        producer.produce(TOPIC, "e")


def test_a_callback_may_produce_and_flush_waits_for_that_too(world, told):
    producer = Producer(world.uri, acks=1, linger_ms=LONG)

    def again(_, message):
        told.append(message.value())
        if len(told) < 3:
            producer.produce(TOPIC, b"%d" % len(told), partition=0, on_delivery=again)

    producer.produce(TOPIC, "0", partition=0, on_delivery=again)
    producer.flush()
    assert told == values(world.logs[1]) == [b"0", b"1", b"2"]
    producer.close()


def test_poll_waits_for_a_report(world, told, report):
    producer = Producer(world.uri, acks=1, linger_ms=20)
    assert producer.poll(None) == 0, "none can come"
    for timeout in (60.0, None):
        producer.produce(TOPIC, "a", partition=0, on_delivery=report)
        assert producer.poll(timeout) == 1
    assert len(seen(told)) == 2
    producer.close()


def test_a_script_that_ends_without_flush_sends_what_it_has(world):
    script = (
        "from lakelog.replication.clients.producer import Producer;"
        f"Producer({world.uri!r}, acks=1, linger_ms=500).produce({TOPIC!r}, 'a', partition=0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(world.logs[1]) == [b"a"]


def test_without_memory_a_record_is_refused_and_none_is_lost_or_doubled(world, told, report):
    """Nothing is acknowledged, so each record keeps all the memory."""
    producer = Producer(world.uri, buffer_memory=1, max_block_ms=0, linger_ms=LONG)
    for number, value in enumerate((b"a", b"b", b"c")):
        producer.produce(TOPIC, value, partition=0, on_delivery=report)
        with pytest.raises(TimeoutException, match=r"no memory within max_block_ms \(0\): earlier .* of 1 bytes"):
            producer.produce(TOPIC, b"refused", partition=0, on_delivery=report)
        wait_until(lambda end=number + 1: log_end(world) == end, "the record, which lingers no longer")
        world.say(number + 1)
        wait_until(lambda count=number + 1: producer.poll() or len(told) == count, "its report")
    producer.close()
    assert seen(told) == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]


def log_end(world):
    return world.logs[1].refresh().partition(P0).log_end_offset


CALLS = {
    "produce": lambda producer, value: producer.produce(TOPIC, value, partition=0),
    "send_async": lambda producer, value: producer.send_async(TOPIC, [{"value": value, "partition": 0}], LONG),
}


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
def test_ap_06_records_and_sends_share_the_memory(world, first, second):
    producer = Producer(world.uri, buffer_memory=1, max_block_ms=1, linger_ms=LONG)
    CALLS[first](producer, b"a")
    with pytest.raises(TimeoutException, match="found no memory"):
        CALLS[second](producer, b"refused")
    wait_until(lambda: log_end(world) == 1, "the first record")
    world.say(1)
    producer.flush()
    CALLS[second](producer, b"b")
    producer.close(0)
    assert values(world.logs[1])[:1] == [b"a"]


def test_a_record_that_waits_for_memory_is_refused_when_the_producer_is_closed(world):
    producer, refused = Producer(world.uri, buffer_memory=1, max_block_ms=LONG, linger_ms=LONG), []

    def waits():
        with pytest.raises(IllegalStateException, match="the producer is closed"):
            producer.produce(TOPIC, "b", partition=0)
        refused.append("b")

    producer.produce(TOPIC, "a", partition=0)
    thread = threading.Thread(target=waits)
    thread.start()
    wait_until(lambda: log_end(world) == 1, "the first record, because the second one waits for its memory")
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(lambda: refused, "the error, while the first record is not acknowledged yet")
    world.say(1)
    thread.join()
    closing.join()


def test_what_fails_for_the_moment_is_tried_again(world, monkeypatch, told, report):
    partitions, failures = TopicView.partitions, iter([KafkaStorageException("away"), KafkaStorageException("still")])

    def fails_twice(*given):
        for failure in failures:
            raise failure
        return partitions(*given)

    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        producer.produce(TOPIC, "a", partition=0, on_delivery=report)
        monkeypatch.setattr(TopicView, "partitions", fails_twice)
        producer.flush()
        producer.produce(TOPIC, "b", partition=0, on_delivery=report)
    assert [*failures] == []
    assert seen(told) == [(0, 0, b"a"), (0, 1, b"b")]


def broken(*_):
    raise KafkaStorageException("away")


@pytest.mark.parametrize("flushes", [True, False])
def test_what_fails_for_all_of_its_time_is_reported(world, monkeypatch, told, report, flushes):
    producer = Producer(world.uri, acks=1, linger_ms=1, delivery_timeout_ms=20)
    producer.produce(TOPIC, "warm")
    producer.flush()
    monkeypatch.setattr(TopicView, "partitions", broken)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    producer.flush() if flushes else producer.poll(60)
    ((error, message),) = told
    assert isinstance(error, KafkaStorageException | TimeoutException)
    assert (message.partition(), message.offset()) == (0, -1)
    producer.close()


def test_a_record_whose_time_is_over_before_it_is_sent_is_reported(world, told, report):
    """Its partition is unknown, because it goes by its key."""
    producer = Producer(world.uri, max_in_flight_requests_per_connection=1, linger_ms=0, delivery_timeout_ms=20)
    first = producer.send_async(TOPIC, [{"value": "first", "partition": 0}], LONG)
    wait_until(lambda: log_end(world) == 1, "the first record, which is not acknowledged")
    producer.produce(TOPIC, "a", "key", on_delivery=report)
    assert producer.poll(60) == 1
    ((error, message),) = told
    assert str(error) == "flights: 1 records waited for earlier sends, and were not sent within 20 ms"
    assert (message.partition(), message.offset(), first.done()) == (-1, -1, False)
    producer.close(0)


def test_records_are_sent_that_would_linger_for_longer_than_their_time(world, told, report):
    with Producer(world.uri, acks=1, linger_ms=LONG, delivery_timeout_ms=2000) as producer:
        producer.produce(TOPIC, "a", partition=0, on_delivery=report)
        assert producer.poll(60) == 1
    ((error, message),) = told
    assert (error, message.offset()) == (None, 0)


def test_a_record_that_is_not_acknowledged_in_time_is_reported(world, told, report):
    producer = Producer(world.uri, delivery_timeout_ms=50)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    producer.poll(60)
    ((error, message),) = told
    assert (type(error), message.partition()) == (TimeoutException, 0)
    producer.close(0)


def test_an_error_that_nobody_asked_for_is_logged_once_for_its_records(world, monkeypatch, caplog):
    monkeypatch.setattr(accumulator, "table_of_rows", lambda *_: [][0])
    producer = Producer(world.uri, acks=1, linger_ms=LONG)
    for _ in range(2):
        producer.produce(TOPIC, "a", partition=0)
    assert producer.poll(0.01) == 0
    producer.flush()
    assert producer.poll(None) == 0, "no report can come"
    assert "2 records to flights were not delivered: IndexError: list index out of range" in caplog.text
    producer.close()


def test_flush_times_out_and_goes_on_later(world, told, report):
    producer = Producer(world.uri, linger_ms=LONG)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    with pytest.raises(TimeoutException, match="not settled"):
        producer.flush(0.01)
    wait_until(lambda: world.logs[1].refresh().partition(P0).log_end_offset == 1, "the record")
    world.say(1)
    producer.flush()
    assert seen(told) == [(0, 0, b"a")]
    producer.close()


def test_ap_06_records_that_become_no_table_fail_without_others(world, monkeypatch, told, report):
    """They would have shared their commit."""
    make, failures = accumulator.table_of_rows, iter([MemoryError("no table")])

    def fails_once(rows):
        for failure in failures:
            raise failure
        return make(rows)

    monkeypatch.setattr(accumulator, "table_of_rows", fails_once)
    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        producer.produce(TOPIC, "a", "k", on_delivery=report)
        timeout_ms = producer._settings.delivery_timeout_ms
        future = producer.send_async(TOPIC, [{"value": "b", "partition": 0}], timeout_ms)
        producer.produce(TOPIC, "c", partition=0, on_delivery=report)
    assert [(type(error), message.partition(), message.offset()) for error, message in told] == [
        (MemoryError, -1, -1), (type(None), 0, 1),
    ]  # fmt: skip
    assert future.result()[0].base_offset == 0
    assert world.logs[1].refresh().partition(P0).batches[0].header.records == 2


def test_close_ends_what_is_not_sent_in_time(world, told, report):
    """The first record is not acknowledged, the second one waits behind it."""
    producer = Producer(world.uri, linger_ms=0, max_in_flight_requests_per_connection=1)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    wait_until(lambda: log_end(world) == 1, "the first record")
    producer.produce(TOPIC, "b", partition=0, on_delivery=report)
    producer.close(0)
    assert sorted((message.value(), type(error)) for error, message in told) == [
        (b"a", IllegalStateException),
        (b"b", IllegalStateException),
    ]
    assert values(world.logs[1]) == [b"a"]


def interrupt_table(changes, _):
    changes.setattr(accumulator, "table_of_rows", interrupted)


def interrupt_before_the_table(changes, _):
    """The send is no longer in the queue, and not in flight either."""
    take = RecordAccumulator.take
    changes.setattr(RecordAccumulator, "take", lambda sends: interrupted() if take(sends) else [])


def interrupt_start(changes, producer):
    changes.setattr(producer._sender, "_begin", interrupted)


def interrupt_reports(changes, _):
    """After the record was appended."""
    calls = iter([interrupted])
    changes.setattr(accumulator, "reports_of", lambda *given: next(calls, reports_of)(*given))


INTERRUPTIONS = {
    interrupt_before_the_table: IllegalStateException,
    interrupt_table: IllegalStateException,
    interrupt_start: IllegalStateException,
    interrupt_reports: type(None),
}


@pytest.mark.parametrize(("interruption", "error"), INTERRUPTIONS.items())
def test_ap_06_an_interrupted_call_ends_the_records_that_it_was_sending(
    world, monkeypatch, told, report, interruption, error
):  # fmt: skip
    """Each has one report, and the memory is free again."""
    monkeypatch.setattr(Sender, "start", lambda _: None)
    producer = Producer(world.uri, acks=1, linger_ms=LONG, buffer_memory=40, max_block_ms=0)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    with monkeypatch.context() as here:
        interruption(here, producer)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
    producer.produce(TOPIC, "b", partition=0, on_delivery=report)
    producer.close()
    assert [(type(error), message.value()) for error, message in told] == [
        (error, b"a"), (type(None), b"b"),
    ]  # fmt: skip


def interrupted(*_):
    raise KeyboardInterrupt


def test_in_a_callback_of_a_future_nothing_is_produced(world):
    producer, told = Producer(world.uri, acks=1), []

    def produces(_):
        for call in (lambda: producer.produce(TOPIC, "b"), producer.poll):
            with pytest.raises(IllegalStateException, match="a callback must not wait"):
                call()
        told.append(producer.send_async(TOPIC, [{"value": "c", "partition": 0}]))

    producer.send_async(TOPIC, [{"value": "a", "partition": 0}]).add_done_callback(produces)
    wait_until(lambda: told, "the callback")
    assert told[0].result()[0].base_offset == 1
    producer.close()


def no_thread(_):
    raise RuntimeError("can't start new thread")


def test_without_another_thread_records_wait_for_flush(world, monkeypatch, told, report):
    producer = Producer(world.uri, acks=1, linger_ms=0, buffer_memory=1, max_block_ms=0)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    producer.produce(TOPIC, "a", partition=0, on_delivery=report)
    with pytest.raises(TimeoutException, match="memory"):
        producer.produce(TOPIC, "b", partition=0, on_delivery=report)
    producer.flush()
    assert seen(told) == [(0, 0, b"a")]
    producer.close()


@pytest.mark.parametrize("call", [lambda producer: producer.poll(60), lambda producer: producer.produce(TOPIC, "b")])
def test_a_later_call_starts_the_thread_that_could_not_be_started(world, monkeypatch, call):
    producer = Producer(world.uri, acks=1, linger_ms=0)
    with monkeypatch.context() as here:
        here.setattr(threading.Thread, "start", no_thread)
        producer.produce(TOPIC, "a", partition=0, on_delivery=lambda *_: None)
    call(producer)
    wait_until(lambda: log_end(world) >= 1, "the record, without a flush")
    producer.close()


def test_threads_that_poll_share_the_reports():
    """While a thread calls the first report, another one takes the last."""
    calls, reports = [], DeliveryReports()

    def first(_, message):
        thread = threading.Thread(target=reports.call)
        thread.start()
        thread.join()
        calls.append(message.value())

    records = [SingleRecord({"value": b"a", "partition": 0}, first, 1)]
    records += [SingleRecord({"value": b"b", "partition": 0}, lambda _, message: calls.append(message.value()), 1)]
    reports.add(reports_of(TOPIC, records, None, KafkaStorageException("gone")))
    assert reports.call() == 1
    assert calls == [b"b", b"a"]


def test_threads_share_a_producer(world, told, report):
    producer = Producer(world.uri, acks=1, linger_ms=1, batch_size=200)

    def produce(name):
        for number in range(50):
            producer.produce(TOPIC, f"{name}{number:02}", partition=0, on_delivery=report)

    threads = [threading.Thread(target=produce, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    producer.close()
    got = values(world.logs[1])
    assert sorted(seen(told), key=lambda report: report[1]) == [(0, n, value) for n, value in enumerate(got)]
    for name in (b"a", b"b"):
        assert [v for v in got if v.startswith(name)] == [name + b"%02d" % n for n in range(50)]


ANSWERS = {
    "whole": (RecordMetadata(TOPIC, 0, 2, 5, 6), [5, 6]),
    "records of others may lie between": (RecordMetadata(TOPIC, 0, 2, 5, 9), [-1, -1]),
    "acks=0": (RecordMetadata(TOPIC, 0, 2), [-1, -1]),
    "appended, but not acknowledged": (RecordMetadata(TOPIC, 0, 2, 5, 6, error=LakelogException("x")), [5, 6]),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_offsets_of_an_answer(case):
    answer, expected = ANSWERS[case]
    records = [SingleRecord({"value": b"a", "partition": 0}, print, 1)] * 2
    found = [message for _, message in reports_of(TOPIC, records, {0: answer}, None)]
    assert [message.offset() for message in found] == expected
    assert {message.error() for message in found} == {answer.error}
