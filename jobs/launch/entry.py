"""The beginning of a verb's process: what has to hold before the imports, which take most of a short verb's time.

`python -m lakelog.jobs.launch.entry MODULE [arguments]` runs the verb of a module in this process, with Spark.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from types import FrameType

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def begin() -> None:
    """Until `interruptible`, Ctrl-C ends the process at once, with status 130 and without a word: there is nothing to
    withdraw yet. Streams that are closed are opened again, as streams that fail: no other file gets their numbers."""
    signal.signal(signal.SIGINT, _leave)
    for number, (name, flags, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A block in which Ctrl-C raises KeyboardInterrupt, if `begin` made it end the process. It does so after it again:
    Python waits for threads at its end."""
    began = signal.getsignal(signal.SIGINT) is _leave
    if began:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if began:
            signal.signal(signal.SIGINT, _leave)


class WithoutPandas:
    """A finder of modules that finds no pandas. pyarrow imports pandas with the first value that it makes, which takes
    longer than most verbs, and none of those without Spark uses it."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas, as if it were not installed."""
        if name == "pandas":
            raise ModuleNotFoundError("verbs without Spark have no pandas", name=name)


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    begin()
    sys.exit(import_module(sys.argv[1]).main(sys.argv[2:]))
