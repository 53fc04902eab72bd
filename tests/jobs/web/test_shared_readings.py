"""Readings that requests share: one reader at a time, for a while, with an end to patience."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from starlette.testclient import TestClient

from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.metrics.scrape_reader import Scrape, ScrapeReader
from lakelog.jobs.web import shared_readings
from lakelog.jobs.web.page_kit import Console
from lakelog.jobs.web.shared_readings import ConsoleReadings, KeyedReadings, SharedReading
from lakelog.jobs.web.web_app import web_app
from lakelog.replication.errors import KafkaStorageException, TimeoutException
from tests.clients.world import World
from tests.clock import monotonic_clock
from tests.jobs.metrics.scraped import LONG
from tests.jobs.web.conftest import client_of, opened

READERS = 12


def test_many_readers_at_once_cost_one_reading() -> None:
    begun, release, count = threading.Event(), threading.Event(), Counter[str]()

    def read() -> int:
        count["reads"] += 1
        begun.set()
        assert release.wait(30)
        return 7

    shared = SharedReading("it", read, 3600.0)
    with ThreadPoolExecutor(READERS) as pool:
        found = [pool.submit(shared.get) for _ in range(READERS)]
        assert begun.wait(30)
        release.set()
        assert [each.result(30) for each in found] == [7] * READERS
    assert shared.get() == 7
    assert count["reads"] == 1


def test_a_reading_counts_for_a_request_that_came_before_it() -> None:
    numbers = iter(range(10))
    shared = SharedReading("it", lambda: next(numbers), 0.0)
    assert [shared.get() for _ in range(3)] == [0, 1, 2]


def test_what_takes_long_to_read_counts_for_four_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, numbers = monotonic_clock(monkeypatch), iter(range(10))

    def read() -> int:
        clock.now += 10
        return next(numbers)

    shared, found = SharedReading("it", read, 1.5), list[int]()
    for seconds in (0, 39, 2):
        clock.now += seconds
        found.append(shared.get())
    assert found == [0, 0, 1]


def test_an_error_is_raised_and_counts_as_long() -> None:
    count = Counter[str]()

    def read() -> int:
        count["reads"] += 1
        raise KafkaStorageException("it is away")

    shared = SharedReading("it", read, 3600.0)
    assert shared.has_failed
    for _ in range(3):
        with pytest.raises(KafkaStorageException, match="it is away"):
            shared.get()
    assert count["reads"] == 1


def test_a_reading_that_hangs_keeps_nobody() -> None:
    release = threading.Event()
    hanging = SharedReading("the cluster", lambda: release.wait(60), 1.0, patience=0.01)
    with pytest.raises(TimeoutException, match=r"the cluster could not be read within 0\.01 s"):
        hanging.get()
    release.set()


def test_a_process_with_too_many_threads_reads_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shared = SharedReading("it", lambda: 7, 3600.0, patience=5.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            shared.get()
    assert shared.get() == 7


def test_an_old_answer_may_count_on() -> None:
    release, answers = threading.Event(), iter([1])
    shared = SharedReading("it", lambda: next(answers, None) or release.wait(60), 0.0, patience=30.0, may_be_old=True)
    assert shared.get() == 1
    shared._patience = 0.01
    assert shared.get() == 1, "the second reading hangs"
    release.set()


def test_readings_by_key_are_forgotten_in_turn() -> None:
    count = Counter[str]()

    def read(key: str) -> str:
        count[key] += 1
        return key

    keyed = KeyedReadings[str, str](3600.0, 2)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert keyed.get(key, key, lambda key=key: read(key)) == key  # type: ignore[misc]
    assert count == {"a": 1, "b": 2, "c": 1}


def test_ever_new_keys_start_no_more_threads_while_readings_hang() -> None:
    release, begun = threading.Event(), Counter[int]()

    def read(key: int) -> int:
        begun[key] += 1
        release.wait(60)
        return key

    keyed = KeyedReadings[int, int](3600.0, 2, patience=0.01)
    for key in range(100):
        with pytest.raises(TimeoutException):
            keyed.get(key, f"key {key}", partial(read, key))
    assert len(begun) == 16
    with pytest.raises(TimeoutException, match="key 100 cannot be read now: 16 others are being read"):
        keyed.get(100, "key 100", partial(read, 100))
    release.set()


def test_a_reading_that_hangs_after_an_answer_has_failed() -> None:
    release, answers = threading.Event(), iter([1])
    shared = SharedReading("it", lambda: next(answers, None) or release.wait(60), 0.0)
    assert shared.get() == 1
    assert not shared.has_failed
    shared._patience = 0.0
    with pytest.raises(TimeoutException):
        shared.get()
    assert shared.has_failed
    release.set()


def test_few_requests_read_records_at_a_time(furnished_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_readings, "_TURN_SECONDS", 0.0)
    readings = ConsoleReadings(furnished_world.uri, LONG)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(readings.records())
        with pytest.raises(TimeoutException, match="4 requests read records"):
            stack.enter_context(readings.records())
    with readings.records():
        pass


def test_many_requests_cost_one_reading_of_the_cluster(furnished_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    count, read = Counter[str](), ScrapeReader.read

    def counted(reader: ScrapeReader) -> Scrape:
        count["reads"] += 1
        return read(reader)

    monkeypatch.setattr(ScrapeReader, "read", counted)
    paths = ["/", "/brokers", "/topics", "/topics/flights", "/groups", "/events", "/what-if"] * 4
    with client_of(furnished_world.uri, seconds=3600.0) as client, ThreadPoolExecutor(READERS) as pool:
        assert len(list(pool.map(lambda path: opened(client, path), paths))) == len(paths)
    assert count["reads"] == 1


def test_a_page_does_not_wait_for_a_long_prediction(furnished_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    readings = ConsoleReadings(furnished_world.uri, LONG, 3600.0, loss_patience=0.01)
    monkeypatch.setattr(shared_readings, "predicted", lambda *_: release.wait(60))
    with TestClient(web_app(Console(readings, Invocation("lakelog", furnished_world.uri)))) as client:
        assert "This is being predicted" in opened(client, "/what-if?kill=1").text
        assert "This is being predicted" in opened(client, "/brokers/1").text
        release.set()
