"""Several calls at the same time, without a pool."""

import os
import subprocess
import sys
import threading
from collections import deque
from queue import Empty, SimpleQueue

import pytest

from lakelog.replication.storage import in_threads as threads
from lakelog.replication.storage.in_threads import in_threads, start_thread
from tests.hanging import raises
from tests.processes import wait_until


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


@pytest.mark.parametrize(("items", "started"), [([], 0), ([1], 0), ([1, 2], 1), (range(20), 3), (iter([1]), 3)])
def test_so_many_threads_are_started(monkeypatch, items, started):
    """Of an iterator nobody knows how many items it has."""
    starts, start = [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (starts.append(thread), start(thread)))
    in_threads(lambda item: item, items, 4)
    assert len(starts) == started


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


def test_an_iterator_gives_an_item_while_others_are_at_work():
    """So a chunk comes from the JVM while another one is encoded. The first call ends last, and its result is first."""
    given, ended = [], threading.Event()

    def items():
        for number in range(4):
            given.append(number)
            yield number

    def call(number):
        if number == 0:
            assert ended.wait(60)
        elif number == 3:
            ended.set()
        return number * 2

    assert in_threads(call, items(), 2) == [0, 2, 4, 6]
    assert given == [0, 1, 2, 3]


def test_no_more_items_are_taken_than_calls_are_at_work():
    """Each may be large."""
    given, ended = deque(), deque()

    def items():
        for number in range(20):
            given.append(number)
            assert len(given) - len(ended) <= 2
            yield number

    in_threads(lambda number: ended.append(number), items(), 2)
    assert len(ended) == 20


def test_one_thread_at_a_time_takes_an_item():
    """A generator is for one thread at a time, and a socket too."""

    def items():
        for number in range(5000):
            os.stat(os.curdir)  # gives up the GIL, as a read of a socket does
            yield number

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert in_threads(lambda number: number, items(), 4) == list(range(5000))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("most", [1, 2])
def test_an_error_of_the_iterator_is_raised_after_the_calls_that_have_begun(most):
    ended = []

    def items():
        yield 0
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        in_threads(ended.append, items(), most)
    assert ended == [0]


def test_the_error_of_the_first_item_that_failed_is_raised():
    both = threading.Barrier(2)

    def fails(item):
        both.wait(60)
        raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        in_threads(fails, iter([1, 2]), 2)


def test_after_an_error_in_another_thread_no_further_call_begins():
    called, failed, caller = [], [], threading.current_thread()
    begun = threading.Event()

    def call(item):
        called.append(item)
        if threading.current_thread() is caller:
            assert begun.wait(60)
            failed[0].join(60)
        else:
            failed.append(threading.current_thread())
            begun.set()
            raise ValueError(item)

    with pytest.raises(ValueError, match=r"0|1"):
        in_threads(call, range(9), 2)
    assert len(called) <= 2


def is_at_work(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame and frame.f_code.co_name != "work":
        frame = frame.f_back
    return frame is not None


def test_an_item_that_comes_after_an_error_is_not_called():
    called, failed, is_asked = [], [], threading.Event()

    def items():
        yield 0
        is_asked.set()
        wait_until(lambda: failed and not is_at_work(failed[0]), "the end of the thread that failed")
        yield 1

    def call(item):
        called.append(item)
        assert is_asked.wait(60)
        failed.append(threading.current_thread())
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        in_threads(call, items(), 2)
    assert called == [0]


def test_the_caller_works_alone_if_no_thread_can_be_started(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raises(RuntimeError("can't start new thread")))
    assert in_threads(lambda item: item * 2, [1, 2, 3], 4) == [2, 4, 6]


def named(name):
    """The threads that work under this name, or have done so last."""
    return [thread for thread in threading.enumerate() if thread.name == name]


def run_in_thread(name="mine"):
    """The thread that has run a call, after it has ended the call."""
    found = []
    start_thread(lambda: found.append(threading.current_thread()), name)
    wait_until(lambda: found and not named(name), "the call has ended")
    return found[0]


def test_a_thread_that_has_ended_its_call_gets_the_next_one():
    first = run_in_thread()
    assert first.daemon
    assert run_in_thread("another") is first


def test_calls_at_the_same_time_have_threads_of_their_own():
    meet = threading.Barrier(3)
    for name in ("one", "two"):
        start_thread(lambda: meet.wait(60), name)
    assert len({*named("one"), *named("two")}) == 2
    meet.wait(60)


def test_a_thread_without_a_call_ends(monkeypatch):
    monkeypatch.setattr(threads, "_LINGER_SECONDS", 0.0)
    run_in_thread().join(60)  # it may have begun to wait before
    ended = run_in_thread()
    ended.join(60)
    assert not ended.is_alive()
    assert run_in_thread() is not ended


def test_a_thread_whose_call_raises_gets_no_other(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    failed = []

    def fails():
        failed.append(threading.current_thread())
        raise ValueError("a fault")

    start_thread(fails, "fails")
    wait_until(lambda: failed and not failed[0].is_alive(), "the thread has ended")
    assert run_in_thread() is not failed[0]


def test_a_thread_that_is_found_at_the_end_of_its_wait_takes_the_call(monkeypatch):
    """The call comes between the end of the wait and the thread's leaving the list of those that wait."""
    calls = [threading.Event(), threading.Event()]
    left = iter([call.set for call in calls])

    class TakenLate(SimpleQueue):
        def get(self, timeout=None):
            if timeout is None:
                return super().get()
            if (call := next(left, None)) is not None:
                start_thread(call, "the last moment")
            raise Empty

    monkeypatch.setattr(threads, "SimpleQueue", TakenLate)
    monkeypatch.setattr(threads, "waiting", deque())
    start_thread(lambda: None, "first")
    assert all(call.wait(60) for call in calls)
    wait_until(lambda: not named("the last moment"), "the thread has ended")
    assert not threads.waiting


FORKS = """
import os
from threading import Event
from lakelog.replication.storage import in_threads as threads
threads.start_thread(Event().set, "first")
while not threads.waiting:
    pass
child = os.fork()
if child == 0:
    ran = Event()
    threads.start_thread(ran.set, "of the fork")
    print(ran.wait(60), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_starts_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"
