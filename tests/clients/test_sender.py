"""Several sends in flight on real tables: futures, order, flush and close."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import wait
from functools import partial

import pyarrow as pa
import pytest

from lakelog.replication.clients import sender
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.producer import Producer as SharingProducer
from lakelog.replication.clients.record_set import ArrowRecordSet
from lakelog.replication.clients.sender import Sender
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidConfigurationException,
    InvalidRecordException,
    KafkaStorageException,
    TimeoutException,
)
from lakelog.replication.protocol.rounds.send_round import Pause
from lakelog.replication.storage.delta.delta_log import DeltaLog
from tests.clients.world import LONG, led_world
from tests.processes import wait_until
from tests.storage.delta.answers import lose_an_answer
from tests.storage.logs import P0, P1, TOPIC, follow, lead, values

Producer = partial(SharingProducer, batch_size=0)  # each send has a commit of its own


@pytest.fixture
def world(root):
    return led_world(root)


def record(value, partition=0):
    return pa.table({"value": [value], "partition": [partition]})


def end(world, partition=P0):
    return world.logs[1].refresh().partition(partition).log_end_offset


def is_append(_, cause):
    return cause.get("why") == "append"


def test_ap_06_sends_are_appended_in_order_while_none_is_acknowledged(world):
    with Producer(world.uri) as producer:
        futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b", b"c")]
        wait_until(lambda: end(world) == 3, "the records in the leader's log")
        assert not any(future.done() for future in futures)
        world.say(2)
        assert [future.result()[0].base_offset for future in futures[:2]] == [0, 1]
        assert not futures[2].done()
        world.say(3)
    assert [future.result()[0].error for future in futures] == [None] * 3
    assert values(world.logs[1]) == [b"a", b"b", b"c"]


def test_ap_07_sends_that_wait_share_each_poll(world, monkeypatch, while_waiting):
    """In each pause one poll follows, whatever the number of sends in flight."""
    looks, leaderships = [], TopicView.leaderships

    def counted(*given):
        looks.append(given)
        return leaderships(*given)

    monkeypatch.setattr(TopicView, "leaderships", counted)
    monkeypatch.setattr(Sender, "start", lambda _: None)
    producer = Producer(world.uri)
    futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b", b"c")]
    while_waiting(looks.clear, lambda: None, lambda: world.say(3))
    producer.flush()
    assert [future.result()[0].error for future in futures] == [None] * 3
    assert len(looks) == 3


def test_do_02_a_commit_of_this_process_starts_the_next_poll(world):
    config = Config(lakelog_poll_interval_ms=LONG)
    with Producer(world.uri, config=config) as producer:
        future = producer.send_async(TOPIC, record(b"a"), LONG)
        wait_until(lambda: end(world) == 1, "the record in the leader's log")
        world.say(1)
        assert future.result(60)[0].base_offset == 0


def test_ap_06_news_end_the_pause_before_a_look_but_none_before_another_attempt(monkeypatch):
    waits = []
    monkeypatch.setattr(sender, "pause", lambda ms, *_: bool(waits.append(ms)))
    sends, far = Sender(ProducerConfig(), 50, lambda _: None, lambda: None), time.monotonic() + LONG
    sends.wake()
    assert (sends._pause(Pause(far)), waits) == (False, [])
    assert (sends._pause(Pause(far)), waits) == (False, [50])
    sends.wake()
    assert (sends._pause(Pause(far, is_backoff=True)), waits) == (False, [50, 50])
    assert (sends._pause(Pause(far)), waits) == (False, [50, 50, 50])


def test_ap_06_no_more_than_allowed_are_in_flight(world):
    producer = Producer(world.uri, max_in_flight_requests_per_connection=2)
    futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b", b"c")]
    wait_until(lambda: end(world) == 2, "two records in the leader's log")
    assert futures[2].cancel()
    world.say(2)
    producer.flush()
    assert values(world.logs[1]) == [b"a", b"b"]


@pytest.mark.parametrize("most", [0, 6, "5", None, True])
def test_ap_06_idempotence_allows_one_to_five_sends_in_flight(world, most):
    with pytest.raises(InvalidConfigurationException, match=f"producer: .*per_connection is {most!r}, .* from 1 to 5"):
        Producer(world.uri, max_in_flight_requests_per_connection=most)


def test_ap_06_a_send_waits_behind_those_in_flight(world):
    producer = Producer(world.uri)
    first = producer.send_async(TOPIC, record(b"a"), LONG)
    wait_until(lambda: end(world) == 1, "the first record")
    world.say(2)
    assert producer.send(TOPIC, record(b"b"))[0].base_offset == 1
    assert first.result()[0].base_offset == 0


def test_ap_06_an_unknown_outcome_holds_up_the_next_send_of_the_partition(world, monkeypatch):
    """The first append lands without an answer, and is found when it is repeated."""
    lose_an_answer(monkeypatch, is_append, error=KafkaStorageException("no answer"))
    with Producer(world.uri, acks=1) as producer:
        futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b")]
    assert [future.result()[0].base_offset for future in futures] == [0, 1]
    assert values(world.logs[1]) == [b"a", b"b"]


def test_ap_06_a_partition_that_cannot_be_sent_to_holds_up_no_other(world):
    follow(world.logs[1], P1, epoch=1)
    producer = Producer(world.uri, acks=1)
    stuck = producer.send_async(TOPIC, record(b"stuck", 1), LONG)
    assert producer.send_async(TOPIC, record(b"a"), LONG).result()[0].error is None
    assert not stuck.done()
    producer.close(timeout=0)
    assert isinstance(stuck.exception(), IllegalStateException)


def test_ap_06_leaders_are_appended_to_at_the_same_time(world, monkeypatch):
    """Each commit waits until the other one has begun too."""
    world.change(P1, leader=2, leader_epoch=1)
    lead(world.logs[2], P1, epoch=1)
    both, commit = threading.Barrier(2), DeltaLog.commit

    def meets(log, cause, *args, **options):
        if is_append(log, cause):
            both.wait(60)
        return commit(log, cause, *args, **options)

    monkeypatch.setattr(DeltaLog, "commit", meets)
    answers = Producer(world.uri, acks=1).send(TOPIC, pa.table({"value": [b"a", b"b"], "partition": [0, 1]}), LONG)
    assert [(answer.base_offset, answer.error) for answer in answers.values()] == [(0, None), (0, None)]
    assert (values(world.logs[1]), values(world.logs[2], P1)) == ([b"a"], [b"b"])


def test_ap_06_a_leader_that_cannot_be_read_holds_up_no_other(world, monkeypatch):
    world.change(P1, leader=2, leader_epoch=1)
    log = TopicView.log
    monkeypatch.setattr(TopicView, "log", lambda view, broker: log_of(log, view, broker))
    both = pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
    answers = Producer(world.uri, acks=1).send(TOPIC, both, 0)
    assert [answer.error and str(answer.error) for answer in answers.values()] == [None, "broker 2 is out of reach"]


def log_of(log, view, broker):
    if broker == 2:
        raise KafkaStorageException("broker 2 is out of reach")
    return log(view, broker)


def test_ap_06_after_a_failure_the_next_send_has_a_new_identity(world):
    producer = Producer(world.uri)
    assert isinstance(producer.send(TOPIC, record(b"a"), 0)[0].error, TimeoutException)
    second = producer.send_async(TOPIC, record(b"b"), LONG)
    wait_until(lambda: end(world) == 2, "both records")
    world.say(2)
    assert second.result()[0].error is None
    one, other = (batch.header for batch in world.logs[1].refresh().partition(P0).batches)
    assert (one.producer_id == other.producer_id, other.base_sequence) == (False, 0)


def test_ap_06_a_send_whose_time_is_over_before_it_begins_is_not_sent(world):
    producer = Producer(world.uri, max_in_flight_requests_per_connection=1)
    first, second = (producer.send_async(TOPIC, record(value), ms) for value, ms in ((b"a", LONG), (b"b", 0)))
    wait_until(lambda: end(world) == 1, "the first record")
    world.say(1)
    assert first.result()[0].error is None
    with pytest.raises(TimeoutException, match="flights: 1 records waited for earlier sends, and were not sent within"):
        second.result()
    assert values(world.logs[1]) == [b"a"]


def test_ap_06_a_send_expires_in_time_while_it_waits(world):
    """Behind a send that is not acknowledged."""
    producer = Producer(world.uri, max_in_flight_requests_per_connection=1)
    first = producer.send_async(TOPIC, record(b"a"), LONG)
    wait_until(lambda: end(world) == 1, "the first record")
    with pytest.raises(TimeoutException, match="flights: 1 records waited for earlier sends"):
        producer.send_async(TOPIC, record(b"b"), 20).result(timeout=60)
    assert not first.done()
    producer.close(timeout=0)


def test_ap_06_records_that_cannot_be_freed_end_no_other_send(world, monkeypatch, caplog):
    """Neither those of a send that was cancelled, nor those of one that ends."""
    freed = []

    def stopped(records, *_):
        freed.append(records.counts[0])
        raise ValueError("the session is stopped")

    monkeypatch.setattr(ArrowRecordSet, "__exit__", stopped)
    producer = Producer(world.uri, acks=1, linger_ms=LONG, batch_size=1_000)
    tables = [pa.concat_tables([record(b"a")] * count) for count in (11, 12, 13)]
    first, cancelled, last = (producer.send_async(TOPIC, table, LONG) for table in tables)
    cancelled.cancel()
    producer.flush()
    assert [future.result(timeout=0)[0].base_offset for future in (first, last)] == [0, 11]
    assert {11, 12, 13} <= set(freed)  # a producer of another test may free its records meanwhile
    assert "the records of a send to flights were not freed: the session is stopped" in caplog.text


def test_ap_06_an_interruption_while_sends_begin_ends_them(world, monkeypatch):
    """Other threads may wait for their futures, and are not interrupted."""
    monkeypatch.setattr(ArrowRecordSet, "joined", interrupted)
    monkeypatch.setattr(Sender, "start", lambda _: None)
    producer = Producer(world.uri, acks=1, batch_size=1_000)
    futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b")]
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert [type(future.exception(timeout=0)) for future in futures] == [IllegalStateException] * 2
    assert isinstance(futures[0].exception().__cause__, KeyboardInterrupt)


def interrupted(_):
    raise KeyboardInterrupt


def test_ap_06_a_script_that_ends_without_close_sends_what_it_has(world):
    """To several leaders. The send still lingers when the script ends."""
    world.change(P1, leader=2, leader_epoch=1)
    lead(world.logs[2], P1, epoch=1)
    script = (
        "import pyarrow as pa; from lakelog.replication.clients.producer import Producer;"
        f"producer = Producer({world.uri!r}, acks=1, linger_ms=500);"
        f"producer.send_async({TOPIC!r}, pa.table({{'value': [b'a', b'b'], 'partition': [0, 1]}}), {LONG})"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (values(world.logs[1]), values(world.logs[2], P1)) == ([b"a"], [b"b"])


def no_thread(_):
    raise RuntimeError("can't start new thread")


def test_ap_06_a_send_for_which_no_thread_starts_is_refused_and_holds_up_no_other(world, monkeypatch):
    producer = Producer(world.uri, acks=1)
    with monkeypatch.context() as here:
        here.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            producer.send_async(TOPIC, record(b"refused"), LONG)
    assert producer.send_async(TOPIC, record(b"a"), LONG).result()[0].base_offset == 0
    producer.flush()
    assert values(world.logs[1]) == [b"a"]


def test_ap_06_without_another_thread_a_caller_finishes_what_others_have_sent(world, monkeypatch):
    producer = Producer(world.uri, acks=1)
    with monkeypatch.context() as here:
        here.setattr(Sender, "start", lambda _: None)
        first, second = (producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b"))
    with monkeypatch.context() as here:
        here.setattr(threading.Thread, "start", no_thread)
        producer._sender.work(first.done)
    assert second.result(timeout=0)[0].base_offset == 1


def test_ap_02_a_send_that_is_wrong_is_refused_at_once(world):
    with pytest.raises(InvalidRecordException):
        Producer(world.uri).send_async(TOPIC, pa.table({"key": [b"k"]}))


def test_ap_02_flush_waits_for_all_and_times_out(world):
    producer = Producer(world.uri)
    future = producer.send_async(TOPIC, record(b"a"), LONG)
    with pytest.raises(TimeoutException, match=r"1 sends are not settled in time"):
        producer.flush(timeout=0.01)
    wait_until(lambda: end(world) == 1, "the record")
    world.say(1)
    producer.flush()
    assert future.done()


def test_ap_02_a_closed_producer_sends_nothing(world):
    producer = Producer(world.uri, acks=1)
    producer.close()
    for send in (producer.send, producer.send_async):
        with pytest.raises(IllegalStateException, match="the producer is closed"):
            send(TOPIC, record(b"a"))
    producer.close()
    assert values(world.logs[1]) == []


def test_ap_02_close_ends_what_is_not_settled_in_time(world, monkeypatch):
    """One send hangs in its commit and one waits. `close` waits for no store. Kafka: `Sender.forceClose`."""
    goes_on, commit = threading.Event(), DeltaLog.commit

    def hangs(log, cause, *args, **options):
        if is_append(log, cause):
            goes_on.wait(60)
        return commit(log, cause, *args, **options)

    monkeypatch.setattr(DeltaLog, "commit", hangs)
    producer = Producer(world.uri, max_in_flight_requests_per_connection=1)
    first, second = (producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b"))
    producer.close(timeout=0.01)
    assert [type(future.exception(timeout=0)) for future in (first, second)] == [IllegalStateException] * 2
    goes_on.set()
    wait_until(no_thread_of_a_producer, "the end of the commit")
    assert values(world.logs[1]) == [b"a"]


@pytest.mark.parametrize("timeout_ms", [LONG, 20], ids=["closed", "expired"])
def test_ap_02_who_waits_for_a_send_that_is_cancelled_in_the_queue_is_notified(world, timeout_ms):
    """It does not begin, behind a send that is not acknowledged."""
    producer = Producer(world.uri, max_in_flight_requests_per_connection=1)
    first = producer.send_async(TOPIC, record(b"a"), LONG)
    wait_until(lambda: end(world) == 1, "the first record")
    cancelled = producer.send_async(TOPIC, record(b"b"), timeout_ms)
    assert cancelled.cancel()
    if timeout_ms == LONG:
        producer.close(timeout=0)
    assert not wait([cancelled], 10).not_done
    assert first.done() is (timeout_ms == LONG)
    producer.close(timeout=0)


def test_ap_02_a_future_keeps_no_records_of_a_send_that_is_over(world):
    """They no longer count as `buffer.memory`."""
    made, init = [], ArrowRecordSet.__init__

    def noted(self, *given):
        made.append(weakref.ref(self))
        init(self, *given)

    with pytest.MonkeyPatch.context() as here:
        here.setattr(ArrowRecordSet, "__init__", noted)
        with Producer(world.uri, acks=1) as producer:
            future = producer.send_async(TOPIC, record(b"a"), LONG)
    gc.collect()
    assert future.result()[0].base_offset == 0
    assert [each() for each in made] == [None]


def test_ap_02_in_a_callback_of_a_future_that_close_ends_nothing_can_be_waited_for(world, monkeypatch):
    """Its thread ends what it would wait for."""
    monkeypatch.setattr(Sender, "start", lambda _: None)
    producer, told = Producer(world.uri, linger_ms=LONG, batch_size=1_000), []

    def waits(_):
        with pytest.raises(IllegalStateException, match="a callback must not wait"):
            producer.flush(0)
        told.append("told")

    futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b")]
    futures[0].add_done_callback(waits)
    producer.close(0)
    assert told == ["told"]
    producer.flush()


def test_ap_06_a_send_whose_call_is_interrupted_in_the_queue_is_not_sent(world, monkeypatch):
    """Its records are free."""
    put, producer = Sender.put, Producer(world.uri, acks=1)

    def interrupted_after(*given):
        put(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as here:
        here.setattr(Sender, "put", interrupted_after)
        with pytest.raises(KeyboardInterrupt):
            producer.send_async(TOPIC, record(b"a"), LONG)
    producer.close()
    assert values(world.logs[1]) == []


def test_ap_02_in_a_callback_nothing_can_be_waited_for(world):
    """The thread that calls it is the one that would have to do the work."""
    producer, told = Producer(world.uri, acks=1), []

    def waits(_):
        for call in (producer.flush, producer.close, lambda: producer.send(TOPIC, record(b"b"))):
            with pytest.raises(IllegalStateException, match="a callback must not wait"):
                call()
        told.append(producer.send_async(TOPIC, record(b"c")))

    producer.send_async(TOPIC, record(b"a")).add_done_callback(waits)
    wait_until(lambda: told, "the callback")
    assert told[0].result()[0].base_offset == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ap_02_a_callback_that_ends_its_thread_leaves_no_future_unsettled(world):
    """Sends that share a commit are settled one after the other, and sends in flight are ended after that."""

    def ends_the_thread(_):
        sys.exit()

    with SharingProducer(world.uri, acks=1, linger_ms=50) as producer:
        futures = [producer.send_async(TOPIC, record(value)) for value in (b"a", b"b", b"c")]
        for future in futures[:2]:
            future.add_done_callback(ends_the_thread)
        answers = [future.result(10) for future in futures]
    assert [answer[0].base_offset for answer in answers] == [0, 1, 2]
    wait_until(no_thread_of_a_producer, "the end of its threads, which pytest reports to the test that runs then")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ap_02_a_callback_that_raises_while_sends_are_ended_leaves_no_future_unsettled(world):
    def ends_the_thread(_):
        sys.exit()

    producer = Producer(world.uri, max_in_flight_requests_per_connection=2)
    futures = [producer.send_async(TOPIC, record(value), LONG) for value in (b"a", b"b", b"c", b"d")]
    wait_until(lambda: end(world) == 2, "the records in the leader's log")
    for future in futures:
        future.add_done_callback(ends_the_thread)
    with pytest.raises(SystemExit):
        producer.close(0)
    assert [type(future.exception(10)) for future in futures] == [IllegalStateException] * 4
    wait_until(no_thread_of_a_producer, "the end of its threads, which pytest reports to the test that runs then")


def no_thread_of_a_producer():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("lakelog-producer-network")]


def test_ap_06_threads_share_a_producer(world):
    producer, answers = Producer(world.uri, acks=1), []

    def send(name):
        answers.extend(producer.send(TOPIC, record(f"{name}{n}".encode()))[0] for n in range(5))

    threads = [threading.Thread(target=send, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answer.base_offset for answer in answers) == list(range(10))
    got = values(world.logs[1])
    assert [v for v in got if v.startswith(b"a")] == [b"a%d" % n for n in range(5)]
