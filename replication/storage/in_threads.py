"""Several calls at the same time, also while the interpreter ends: then Python's pools refuse new calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(call: Callable[[T], R], items: Iterable[T], most: int) -> list[R]:
    """Calls `call` with each item, at most `most` at the same time. Returns the results in the order of the items.

    The caller's thread works too, alone if there is one item or no other thread can be started. After an error no
    further call begins, and the error of the first of the items that failed is raised.
    """
    left = deque(enumerate(items))
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                number, item = left.popleft()
            except IndexError:
                return
            try:
                results[number] = call(item)
            except BaseException as error:
                errors[number] = error
                left.clear()

    threads: list[threading.Thread] = []
    with suppress(RuntimeError):  # this process has too many threads
        for _ in range(min(most, len(left)) - 1):
            thread = threading.Thread(target=work)
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in sorted(results)]
