"""Clients that belong to the process that made them, and that `with` and `async with` blocks close.

A producer's id and sequences, and a consumer's membership, identify one process. A fork copies them, and also the locks
and the threads' work, but no thread. So a client refuses to work in a child. Kafka's clients for Python (librdkafka)
have the same limit and do not notice.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, Self, TypeVar

from lakelog.replication.errors import IllegalStateException

_ENDS = ("close", "stop", "__exit__")

Result = TypeVar("Result")


class OneProcess:
    """The base of a client. In a fork its public methods and properties raise IllegalStateException, and those that end
    it do nothing: the client of the parent goes on. It cannot be pickled or copied."""

    _made_by: int

    def __new__(cls, *_: object, **__: object) -> Self:
        made = super().__new__(cls)
        made._made_by = os.getpid()
        return made

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in _ENDS:
                continue
            if inspect.isfunction(member):
                setattr(cls, name, _guarded(member, name in _ENDS))
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, property(_guarded(member.fget, False), doc=member.__doc__))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        kind = type(self).__name__
        raise IllegalStateException(
            f"a {kind} cannot be pickled or copied, because it belongs to this process: make a {kind} where it is used"
        )


class OneProcessFuture(Future[Result]):
    """A future that a thread of the process that made it settles. A fork has no such thread, so there it raises
    IllegalStateException instead of waiting for ever. It cannot be pickled or copied."""

    def __init__(self) -> None:
        super().__init__()
        self._made_by = os.getpid()

    def result(self, timeout: float | None = None) -> Result:
        """The result, as that of every future."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, as that of every future."""
        self._check_process()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Calls a function once it is settled."""
        self._check_process()
        super().add_done_callback(fn)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise IllegalStateException(
            "a future of a send cannot be pickled or copied, because it belongs to this process: wait for it here"
        )

    def _check_process(self) -> None:
        if self._made_by != os.getpid():
            raise IllegalStateException(
                f"process {self._made_by} settles this future, and process {os.getpid()} is a fork of it: wait for the "
                "future where it was made"
            )


def _guarded(method: Callable[..., Any], ends: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: OneProcess, *given: Any, **named: Any) -> Any:
        if self._made_by == os.getpid():
            return method(self, *given, **named)
        if ends:
            return None
        kind = type(self).__name__
        raise IllegalStateException(
            f"process {self._made_by} has made this {kind}, and process {os.getpid()} is a fork of it: make a {kind} "
            "in each process, and start processes with spawn or forkserver"
        )

    return checked


class Closing(OneProcess):
    """A client whose `with` block ends with `close`. In an `async with` block `close` waits in another thread, so that
    the event loop goes on."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *more: object) -> None:
        await asyncio.to_thread(self.__exit__, kind, *more)
