"""Small sends share a commit: `linger.ms`, `batch.size` and `buffer.memory`."""

import gc
import math
import threading
import weakref
from concurrent.futures import Future
from functools import partial

import pyarrow as pa
import pytest

from lakelog.replication.clients import accumulator
from lakelog.replication.clients.accumulator import PendingRecords, RecordAccumulator, answers_of
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import DeliveryReports, SingleRecord
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.record_set import ArrowRecordSet
from lakelog.replication.clients.sender import Sender
from lakelog.replication.errors import InvalidConfigurationException, LakelogException, TimeoutException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from tests.clients.world import LONG, World
from tests.processes import wait_until
from tests.storage.logs import P0, P1, TOPIC, values

HOUR = 3_600_000


class PendingSend:
    """A send of so many bytes to each partition."""

    topic = TOPIC

    def __init__(self, name, sizes, shares_with, deadline, may_expire=True):
        self.deadline, self.may_expire = deadline, may_expire
        self.name, self.partition_bytes, self.shares_with = name, sizes, shares_with
        self.future, self.nbytes = Future(), sum(sizes.values())


class Waiting:
    """An accumulator on a clock that stands still. `linger.ms` is 10, `batch.size` 100."""

    def __init__(self, monkeypatch, **settings):
        self.now = 50.0
        monkeypatch.setattr(accumulator.time, "monotonic", lambda: self.now)
        self.sends = RecordAccumulator(ProducerConfig(**{"linger_ms": 10, "batch_size": 100, **settings}))

    def add(self, name, sizes, is_awaited=False, shares_with="t", seconds=30, may_expire=True):
        self.sends.add(PendingSend(name, sizes, shares_with, self.now + seconds, may_expire), is_awaited)

    def take(self):
        return "".join(send.name for send in self.sends.take())


@pytest.fixture
def waiting(monkeypatch):
    return Waiting(monkeypatch)


def test_ap_06_a_send_waits_for_others_for_linger_ms(waiting):
    waiting.add("a", {0: 10})
    waiting.now += 0.004
    waiting.add("b", {1: 10})
    assert waiting.take() == ""
    assert waiting.sends.seconds_left() == pytest.approx(0.006)
    waiting.now += 0.007
    assert waiting.take() == "ab"
    assert (waiting.sends.seconds_left(), len(waiting.sends)) == (None, 0)


def test_ap_06_a_send_lingers_for_no_more_than_half_of_its_time(waiting):
    waiting.add("a", {0: 10}, seconds=0.006)
    waiting.now += 0.002
    assert waiting.take() == ""
    waiting.now += 0.002
    assert waiting.take() == "a"


def test_ap_06_a_send_that_must_go_soon_takes_those_before_it_along(waiting):
    for name, seconds in (("a", 30), ("b", 30), ("c", 0.006), ("d", 30)):
        waiting.add(name, {0: 10}, shares_with=name, seconds=seconds)
    waiting.now += 0.0031
    assert [waiting.take() for _ in range(4)] == ["a", "b", "c", ""]


def test_ap_06_a_full_batch_goes_at_once(waiting):
    """The size is that of one partition. What no longer fits goes next, and does not wait either."""
    for name, sizes in (("a", {0: 60, 1: 9}), ("b", {0: 30, 1: 80}), ("c", {0: 11})):
        assert waiting.take() == ""
        waiting.add(name, sizes)
    assert [waiting.take(), waiting.take(), waiting.take()] == ["ab", "c", ""]


def test_ap_06_large_sends_that_wait_share_a_commit_by_default(monkeypatch):
    """A commit to three brokers costs as much as 20 MB of records."""
    waiting = Waiting(monkeypatch, batch_size=ProducerConfig().batch_size)
    for name in "abcde":
        waiting.add(name, dict.fromkeys(range(12), 20_000_000 // 12))
    waiting.now += 0.011
    assert [waiting.take(), waiting.take()] == ["abcde", ""]


@pytest.mark.parametrize(("size", "chunks"), [(10, 1), (200_000, 3)])
def test_ap_06_only_small_records_are_copied_to_share_a_commit(size, chunks):
    table = pa.table({"value": [b"x" * size], "partition": [0]})
    joined = ArrowRecordSet.joined([ArrowRecordSet("flights", table, 1, 0, LONG)] * 3)
    values_of = joined._by_partition[0][0].table["value"]
    assert (values_of.num_chunks, values_of.to_pylist()) == (chunks, [b"x" * size] * 3)


def test_ap_06_a_send_that_is_awaited_takes_those_before_it_along(waiting):
    waiting.add("a", {0: 1})
    waiting.add("b", {0: 1}, is_awaited=True)
    waiting.add("c", {0: 1}, shares_with="u")
    assert [waiting.take(), waiting.take()] == ["ab", ""]
    waiting.sends.hurry()
    assert waiting.take() == "c"


def test_ap_06_sends_to_other_topics_and_of_spark_have_their_own_commit_in_order(waiting):
    for name, shares_with in (("a", "t"), ("b", "u"), ("c", "u"), ("d", None), ("e", None), ("f", "t")):
        waiting.add(name, {0: 1}, shares_with=shares_with)
    waiting.sends.hurry()
    assert [waiting.take() for _ in range(6)] == ["a", "bc", "d", "e", "f", ""]


def test_ap_06_no_send_loses_much_of_its_time_by_sharing(waiting):
    """A commit has the deadline of its first send."""
    for name, later in (("a", 0), ("b", 0.9), ("c", 0.2)):
        waiting.now += later
        waiting.add(name, {0: 1})
    assert [waiting.take(), waiting.take()] == ["ab", ""]
    waiting.sends.hurry()
    assert waiting.take() == "c"


def test_ap_06_sends_whose_time_is_over_expire_wherever_they_wait(waiting):
    """Those behind them keep their order, and those that were ready stay so."""
    assert waiting.sends.expires_at == math.inf
    for name, seconds, may_expire in (("a", 0, False), ("b", 3, True), ("c", 9, True), ("d", 2, True), ("e", 30, True)):
        waiting.add(name, {0: 1}, is_awaited=name == "d", shares_with=name, seconds=seconds, may_expire=may_expire)
    assert waiting.sends.take_expired() == []
    assert waiting.sends.expires_at == waiting.now + 2
    waiting.now += 3
    assert [send.name for send in waiting.sends.take_expired()] == ["b", "d"]
    assert waiting.sends.expires_at == waiting.now + 6
    waiting.now -= 3
    assert [waiting.take(), waiting.take(), waiting.take()] == ["a", "c", ""]
    waiting.sends.hurry()
    assert waiting.take() == "e"


class Singles:
    """Single records on a clock that stands still. `linger.ms` is 10, `batch.size` 100. Sends begin, and do no more."""

    def __init__(self, monkeypatch, **settings):
        self.now, self._begun = 50.0, []
        monkeypatch.setattr(accumulator.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Sender, "start", lambda _: None)
        config = ProducerConfig(**{"linger_ms": 10, "batch_size": 100, **settings})
        self.sends = Sender(config, 50, self._begin, lambda: None)

    def _begin(self, sends):
        self._begun += [send.given._by_partition for send in sends]
        return sends

    def append(self, value, topic=TOPIC, partition=0, partitions=2, nbytes=10, key=None):
        record = SingleRecord({"value": value, "key": key, "partition": partition}, None, nbytes)
        new_send = partial(PendingRecords, topic, partitions, LONG, LONG, DeliveryReports())
        self.sends.put_record(topic, partitions, record, new_send)

    def begun(self):
        """The values of the sends that begin now; a list for each commit."""
        commits = []
        while self.sends._next() is not None:
            found = [part.table["value"].to_pylist() for parts in self._begun for (part,) in parts.values()]
            commits.append(b"".join(value for values in found for value in values))
            self._begun.clear()
        return commits


@pytest.fixture
def singles(monkeypatch):
    return Singles(monkeypatch)


def test_ap_06_single_records_linger_once(singles):
    """For `linger.ms` from the first of them. Then their send begins, and does not wait as a send again."""
    singles.append(b"a")
    singles.now += 0.009
    singles.append(b"b")
    assert singles.begun() == []
    singles.now += 0.002
    assert singles.begun() == [b"ab"]


def test_ap_06_single_records_that_fill_a_batch_go_at_once(singles):
    """Those of other topics that wait behind it do not."""
    for value in (b"a", b"b"):
        singles.append(value, nbytes=50, partition=None)
    assert singles.begun() == [b"ab"]
    singles.append(b"c", nbytes=60)
    singles.append(b"d", topic="other")
    singles.append(b"e", nbytes=60)
    assert singles.begun() == [b"c"]
    singles.now += 0.011
    assert singles.begun() == [b"d", b"e"]


def test_ap_06_single_records_join_the_last_send_of_their_topic_only(singles):
    """Another send to the topic, and another number of partitions, come between; another topic does not."""
    singles.append(b"a")
    singles.append(b"x", topic="other")
    singles.append(b"b")
    singles.append(b"c", partitions=3, partition=2)
    singles.append(b"d", partitions=3)
    sent = ArrowRecordSet(TOPIC, records(b"e"), 2, 0, LONG)
    singles.sends.put(accumulator.PendingSend(TOPIC, sent, 1, singles.now + 1), False)
    singles.append(b"f", partitions=3)
    singles.now += 0.011
    assert singles.begun() == [b"ab", b"x", b"dc", b"e", b"f"]


def test_ap_06_single_records_with_keys_share_commits_as_if_partitions_had_equally_many(singles):
    """Two batches of 100 bytes over two partitions are 100 bytes of each."""
    for value in (b"a", b"b", b"c", b"d", b"e"):
        singles.append(value, key=value, partition=None, nbytes=50)
    singles.now += 0.011
    assert [len(commit) for commit in singles.begun()] == [4, 1]


@pytest.mark.parametrize(("settings", "taken"), [({"batch_size": 0}, "a"), ({"linger_ms": 0}, "ab")])
def test_ap_06_batch_size_0_shares_nothing_and_linger_0_what_waits_anyway(monkeypatch, settings, taken):
    waiting = Waiting(monkeypatch, **settings)
    waiting.add("a", {0: 1})
    waiting.add("b", {0: 1})
    assert waiting.take() == taken


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"linger_ms": -1}, "linger_ms is -1, it must be an integer from 0"),
     ({"batch_size": "16k", "buffer_memory": 0}, "batch_size is '16k'.*; buffer_memory is 0, it must be .* from 1 "),
     ({"max_block_ms": 1.5}, "max_block_ms is 1.5")],
)  # fmt: skip
def test_ap_06_settings_that_are_wrong_are_all_told(settings, message):
    with pytest.raises(InvalidConfigurationException, match=f"producer: {message}"):
        ProducerConfig(**settings)


class Shared:
    """Sends of two and three records to partition 0."""

    def __init__(self, records):
        self.given = self
        self.counts = {0: records}


@pytest.mark.parametrize(
    ("base", "last", "wanted"),
    [(7, 11, [(7, 8), (9, 11)]), (7, 20, [(-1, -1), (-1, -1)]), (-1, -1, [(-1, -1), (-1, -1)])],
    ids=["in a row", "others between them", "not appended"],
)
def test_ap_06_each_send_gets_its_own_offsets(base, last, wanted):
    error = LakelogException("it failed")
    answers = answers_of([Shared(2), Shared(3)], {0: RecordMetadata("t", 0, 5, base, last, error=error)})
    assert [(a[0].base_offset, a[0].last_offset) for a in answers] == wanted
    assert [(a[0].records, a[0].error) for a in answers] == [(2, error), (3, error)]


@pytest.fixture
def world(root):
    return World(root)


def records(*given, partition=0):
    return pa.table({"value": list(given), "partition": [partition] * len(given)})


def test_ap_06_small_sends_are_one_commit(world):
    producer = Producer(world.uri, acks=1, linger_ms=HOUR)
    before = world.logs[1].refresh().version
    sends = [records(b"a"), records(b"x", b"y", partition=1), records(b"b", b"c")]
    futures = [producer.send_async(TOPIC, each, LONG) for each in sends]
    cancelled = producer.send_async(TOPIC, records(b"never"), LONG)
    assert cancelled.cancel()
    producer.flush()
    assert world.logs[1].refresh().version == before + 1
    assert (values(world.logs[1]), values(world.logs[1], P1)) == ([b"a", b"b", b"c"], [b"x", b"y"])
    answers = [future.result() for future in futures]
    assert [{p: (a.base_offset, a.last_offset, a.records) for p, a in found.items()} for found in answers] == [
        {0: (0, 0, 1)}, {1: (0, 1, 2)}, {0: (1, 2, 2)},
    ]  # fmt: skip
    (batch,) = world.logs[1].refresh().partition(P0).batches
    assert batch.header.records == 3


def test_ap_06_sends_that_cannot_begin_end_with_the_error(world, monkeypatch):
    producer = Producer(world.uri, acks=1, linger_ms=HOUR)
    monkeypatch.setattr(ArrowRecordSet, "joined", lambda _: [].pop())
    futures = [producer.send_async(TOPIC, records(value), LONG) for value in (b"a", b"b")]
    producer.flush()
    assert [type(future.exception()) for future in futures] == [IndexError] * 2
    assert producer.send(TOPIC, records(b"c"))[0].base_offset == 0


def test_ap_06_a_send_that_lingers_goes_when_its_time_has_come(world):
    with Producer(world.uri, acks=1, linger_ms=1) as producer:
        assert producer.send_async(TOPIC, records(b"a"), LONG).result()[0].base_offset == 0


def test_ap_06_a_send_that_is_waited_for_does_not_linger(world):
    producer = Producer(world.uri, acks=1, linger_ms=HOUR)
    first = producer.send_async(TOPIC, records(b"a"), LONG)
    assert producer.send(TOPIC, records(b"b"), LONG)[0].base_offset == 1
    assert first.result()[0].base_offset == 0


@pytest.mark.parametrize("max_block_ms", [LONG, 2**63 - 1])
def test_ap_06_sends_that_find_no_memory_wait_for_it(world, max_block_ms):
    """The first may be larger than the memory, because it is alone."""
    producer = Producer(world.uri, buffer_memory=1, linger_ms=HOUR, max_block_ms=max_block_ms)
    first = producer.send_async(TOPIC, records(b"a"), LONG)
    seconds = []
    later = threading.Thread(target=lambda: seconds.append(producer.send_async(TOPIC, records(b"b"), LONG)))
    later.start()
    wait_until(lambda: world.logs[1].refresh().partition(P0).log_end_offset == 1, "the first, which lingers no longer")
    assert (first.done(), seconds) == (False, [])
    world.say(1)
    later.join(60)
    assert first.result()[0].error is None
    assert len(seconds) == 1
    producer.close(timeout=0)


def test_ap_06_without_memory_for_max_block_ms_a_send_is_refused(world):
    producer = Producer(world.uri, buffer_memory=1, max_block_ms=1)
    producer.send_async(TOPIC, records(b"a"), LONG)
    with pytest.raises(TimeoutException, match=r"no memory within max_block_ms \(1\): earlier .* \d+ of 1 bytes"):
        producer.send_async(TOPIC, records(b"b"), LONG)
    producer.close(timeout=0)


def test_ap_06_nothing_is_kept_of_sends_that_have_gone(waiting):
    """Sends with different time-outs share no commit, and a program may compute each time-out anew."""

    kept = []

    class TimeOut:
        """Two of them are not equal, and a weak reference shows whether anybody keeps one."""

    for _ in range(3):
        time_out = TimeOut()
        kept.append(weakref.ref(time_out))
        waiting.add("a", {0: 10}, is_awaited=True, shares_with=("t", time_out))
        del time_out
        assert waiting.take() == "a"
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
