"""The thread of a root: what waits, what is replaced, and what an error leaves."""

import time

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage import root_worker
from lakelog.replication.storage.root_worker import RootWorker
from tests.hanging import Hanging, raises
from tests.processes import wait_until


@pytest.fixture
def hanging():
    made = Hanging()
    yield made
    made.let_go()


def done(worker):
    return worker.wait(time.monotonic() + 30)


def test_work_waits_in_its_order_and_the_newest_of_a_key_replaces_the_others(hanging):
    worker, seen = RootWorker("a root"), []
    worker.begin("first", hanging)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        worker.begin(key, lambda value=value: seen.append(value))
    hanging.let_go()
    assert done(worker)
    assert seen == [2, 3, 4]


def test_work_that_was_dropped_is_not_done(hanging):
    worker, seen = RootWorker("a root"), []
    worker.begin("first", hanging)
    worker.begin("a", lambda: seen.append(1))
    worker.drop()
    hanging.let_go()
    assert done(worker)
    assert seen == []


class Panic(BaseException):
    pass


@pytest.mark.parametrize("error", [KafkaStorageException("away"), OSError("away"), ValueError("away"), Panic("away")])
def test_after_an_error_the_next_work_is_done(error, caplog):
    failed, seen = [], []
    worker = RootWorker("a root", lambda: failed.append(1))
    worker.begin("a", raises(error))
    wait_until(lambda: failed, "the error")
    worker.begin("a", lambda: seen.append(1))
    wait_until(lambda: seen, "the next work")
    assert caplog.records[0].message.startswith("a root: ")


def test_a_root_that_is_late_is_waited_for_once_until_it_has_answered(hanging, monkeypatch):
    monkeypatch.setattr(root_worker, "LATE_SECONDS", 30)
    worker, seen = RootWorker("a root"), []
    worker.begin("a", hanging)
    assert not worker.wait(time.monotonic())
    assert worker.wait(time.monotonic() + 30)
    hanging.let_go()
    worker.begin("b", lambda: seen.append(1))
    wait_until(lambda: seen, "the next work")
    assert done(worker)
