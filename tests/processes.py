"""Real processes and bounded waiting, for tests in which several processes write one table.

Processes are spawned, never forked: a fork of a process that has used delta-rs panics.
"""

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


def wait_until(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """Waits until `condition` returns a true value, and returns it. Raises AssertionError with `what` on time-out."""
    deadline, pause = time.monotonic() + timeout, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        pause.wait(0.01)
    return found


def race(
    target: Callable[..., Any], *arguments: Sequence[Any], timeout: float = 60.0, meanwhile: Callable[[], Any] = int
) -> list[Any]:
    """Calls `target(start, *a)` in a process of its own for each `a` of `arguments`, and returns what they returned.

    `start` is called with no arguments by `target` when it is ready: it returns in all processes at once.
    `meanwhile` is called over and over until they are done.
    """
    barrier = SPAWN.Barrier(len(arguments))
    pipes = [SPAWN.Pipe(duplex=False) for _ in arguments]
    processes = [
        SPAWN.Process(target=_run, args=(sender, barrier, target, given), daemon=True)
        for (_, sender), given in zip(pipes, arguments, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        return [_result(receiver, timeout, meanwhile) for receiver, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _result(receiver: Connection, timeout: float, meanwhile: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + timeout
    while not receiver.poll(0.1):
        assert time.monotonic() < deadline, f"a process has not answered within {timeout:.0f} s"
        meanwhile()
    error, result = receiver.recv()
    assert error is None, error
    return result


def _run(sender: Connection, barrier: Barrier, target: Callable[..., Any], given: Sequence[Any]) -> None:
    try:
        answer = (None, target(lambda: barrier.wait(30), *given))
    except BaseException:  # delta-rs panics with what is no Exception
        answer = (traceback.format_exc(), None)
    sender.send(answer)
