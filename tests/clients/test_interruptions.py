"""Ctrl-C at any point of the calls of a producer: each record has one report, and is in a log at most once."""

import itertools
import threading
from collections import Counter
from functools import partial

import pyarrow as pa
import pytest

from lakelog.replication.clients import accumulator, delivery_reports, sender
from lakelog.replication.clients.accumulator import PendingRecords, PendingSend
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import DeliveryReports, SingleRecord
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.record_set import ArrowRecordSet
from lakelog.replication.clients.sender import Sender
from lakelog.replication.protocol.rounds import carry_out, pipeline_round
from lakelog.replication.protocol.rounds.pipeline_round import SendInFlight
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from tests.clients.world import LONG
from tests.interruptions import Interruption
from tests.storage.logs import TOPIC

MODULES = accumulator, sender, delivery_reports, carry_out, pipeline_round


class OneLog:
    """The sends of a producer, to partition 0 of a log in memory. No thread carries them out but the caller's."""

    _acks = 1

    def __init__(self):
        self.log, self.told, self.taken, self.futures = [], [], [], []
        self.reports = DeliveryReports()
        self.sends = Sender(ProducerConfig(linger_ms=LONG), 50, self._begin, lambda: None)

    def _begin(self, sends):
        given = ArrowRecordSet.joined([send.given for send in sends])
        return SendInFlight(self._append(given), sends[0].deadline, self._execute, partial(Producer._end, self, sends))

    def _append(self, given):
        base = yield given._by_partition[0][0].table["value"].to_pylist()
        return {0: RecordMetadata(TOPIC, 0, given.counts[0], base, base + given.counts[0] - 1)}

    def _execute(self, step):
        self.log += step
        return len(self.log) - len(step)

    def produce(self, value):
        record = SingleRecord({"value": value, "key": None, "partition": 0}, self._tell, 10)
        self.sends.put_record(TOPIC, 1, record, partial(PendingRecords, TOPIC, 1, LONG, LONG, self.reports))
        self.taken.append(value)

    def _tell(self, error, message):
        self.told.append((message, error))

    def send_async(self, value):
        given = ArrowRecordSet(TOPIC, pa.table({"value": [value], "partition": [0]}), 1, 0, LONG)
        send = PendingSend(TOPIC, given, LONG, PendingRecords(TOPIC, 1, LONG, LONG, self.reports).deadline)
        self.sends.put(send, False)
        self.futures.append(send.future)

    def close(self):
        self.sends.close(0.0)
        self.reports.call_all()


def calls(world):
    world.produce(b"a")
    world.produce(b"b")
    world.send_async(b"c")
    world.produce(b"d")
    world.sends.flush(None)
    world.reports.call()
    world.produce(b"e")
    world.close()


def in_another_thread(call):
    """It waits for ever if the interrupted thread has kept a lock."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def problems(world):
    """What is wrong after an interruption, once the producer is closed by another thread."""
    if not in_another_thread(world.close):
        return ["a lock is kept"]
    told = Counter(message.value() for message, _ in world.told)
    delivered = {message.value() for message, error in world.told if error is None}
    checks = {
        "a record has no report": told.keys() >= set(world.taken),
        "a record has two reports": max(told.values(), default=1) == 1,
        "a record is delivered, but in no log": delivered <= set(world.log),
        "a record is in the log twice": len(set(world.log)) == len(world.log),
        "a future is not settled": all(future.done() for future in world.futures),
        "others wait for a thread that carries out nothing": world.sends._worker is None,
        "memory is not free": (len(world.sends._unsettled), world.sends._used_bytes) == (0, 0),
    }
    return [problem for problem, is_right in checks.items() if not is_right]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C while a generator is closed
def test_ap_06_wherever_a_call_is_interrupted_each_record_has_one_report(monkeypatch):
    monkeypatch.setattr(Sender, "start", lambda _: None)
    found, points = {}, 0
    for point in itertools.count():
        world, interruption = OneLog(), Interruption(point, MODULES)
        if not interruption.during(partial(calls, world)):
            break
        points = point
        for problem in problems(world):
            found.setdefault(problem, []).append(interruption.where)
    assert found == {}
    assert points > 300
