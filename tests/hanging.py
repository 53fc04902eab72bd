"""A store that does not answer: its calls hang or fail."""

import threading
from collections.abc import Callable

import pytest

from lakelog.replication.storage.delta import root_requests
from tests.processes import wait_until

SECONDS = 30.0


class Hanging:
    """Hangs until it is let go, and answers then."""

    def __init__(self, answer: Callable[..., object] = lambda *_, **__: None) -> None:
        self.is_entered = threading.Event()
        self._go_on = threading.Event()
        self._answer = answer

    def __call__(self, *args: object, **options: object) -> object:
        self.is_entered.set()
        assert self._go_on.wait(SECONDS)
        return self._answer(*args, **options)

    def let_go(self) -> None:
        self._go_on.set()


def raises(error: BaseException) -> Callable[..., object]:
    """A call that fails."""

    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Work that may hang; it does not hold up the end of a test."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    """Whether the work comes to its end."""
    thread.join(SECONDS)
    return not thread.is_alive()


def wait_for_root_workers() -> None:
    """Waits until all work on roots that this process has begun has ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(("the copies of staged batches", "the copy of the cluster's tables")):
            assert ends(thread)


def wait_for_late_requests(hanging_at: str = "") -> None:
    """Waits until the requests to cluster roots for which no step has waited have ended: those to the slowest root. Not
    for those to the root `hanging_at`, a URI."""

    def late() -> list[str]:
        names = (thread.name for thread in threading.enumerate())
        return [name for name in names if name.startswith("quorum ") and name != f"quorum {hanging_at}"]

    wait_until(lambda: not late(), "no request is under way")


def start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process has too many threads to call several functions at the same time."""
    for where, name in ((root_requests, "start_thread"), (threading.Thread, "start")):
        monkeypatch.setattr(where, name, raises(RuntimeError("can't start new thread")))
