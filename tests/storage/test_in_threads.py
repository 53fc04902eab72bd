"""Several calls at the same time, without a pool."""

import threading

import pytest

from lakelog.replication.storage.in_threads import in_threads


@pytest.mark.parametrize(("most", "threads"), [(1, 1), (2, 2), (9, 3)])
def test_calls_meet_in_so_many_threads(most, threads):
    meet, names = threading.Barrier(threads), set()

    def call(item):
        if len(names) < threads:
            names.add(threading.current_thread())
            meet.wait(60)
        return item * 2

    assert in_threads(call, [1, 2, 3], most) == [2, 4, 6]
    assert len(names) == threads


def test_no_items_are_no_calls():
    assert in_threads(lambda item: item, [], 4) == []


def test_after_an_error_no_further_call_begins():
    called = []

    def fails(item):
        called.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        in_threads(fails, [1, 2, 3], 1)
    assert called == [1]


def test_the_caller_works_alone_if_no_thread_can_be_started(monkeypatch):
    def no_thread(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert in_threads(lambda item: item * 2, [1, 2, 3], 4) == [2, 4, 6]
