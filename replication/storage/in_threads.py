"""Several calls at the same time, also while the interpreter ends: then Python's pools refuse new calls.

A thread that has ended its call waits a few seconds for another one: to start a thread takes several times as long as
to wake one, and each step of a quorum of cluster roots needs one thread a root.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

_LINGER_SECONDS = 5.0  # how long a thread without work stays
_Call: TypeAlias = Callable[[], object]

# The threads that wait for a call, each with the queue from which it takes it. The last one has waited least.
waiting = deque[tuple[threading.Thread, SimpleQueue[_Call]]]()
os.register_at_fork(after_in_child=waiting.clear)  # a fork has none of these threads


def start_thread(run: _Call, name: str) -> None:
    """Calls `run` in a daemon thread of this name. Raises RuntimeError if no thread can be started."""
    try:
        thread, calls = waiting.pop()
    except IndexError:
        threading.Thread(target=partial(_serve, run), name=name, daemon=True).start()
    else:
        thread.name = name
        calls.put(run)


def _serve(run: _Call) -> None:
    me = threading.current_thread(), SimpleQueue[_Call]()
    thread, calls = me
    while True:
        run()
        del run  # what it refers to may be large
        thread.name = "waits for a call"
        waiting.append(me)
        try:
            run = calls.get(timeout=_LINGER_SECONDS)
        except Empty:
            with suppress(ValueError):
                waiting.remove(me)
                return
            run = calls.get()  # `start_thread` has taken this thread just now


def in_threads(call: Callable[[T], R], items: Iterable[T], most: int) -> list[R]:
    """Calls `call` with each item, at most `most` at the same time. Returns the results in the order of the items.

    The caller's thread works too, alone if `items` has one item or no other thread can be started. A thread takes an
    item when it can call: an iterator makes its next item while others are at work. It has all threads, since nobody
    knows how many items it has. After an error, also of the iterator, no further call begins, and the error of the
    first of the items that failed is raised.
    """
    numbers, left, lock, end = count(), iter(items), threading.Lock(), cast("T", object())
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        number = -1
        try:
            while True:
                with lock:
                    number = next(numbers)
                    item = end if errors else next(left, end)
                    if errors or item is end:  # an error while the iterator made this item
                        return
                results[number] = call(item)
                del item  # it may be large, and so may the next one
        except BaseException as error:
            errors[number] = error

    threads: list[threading.Thread] = []
    with suppress(RuntimeError):  # this process has too many threads
        for _ in range(min(most, len(items) if isinstance(items, Sized) else most) - 1):
            thread = threading.Thread(target=work)
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in sorted(results)]
