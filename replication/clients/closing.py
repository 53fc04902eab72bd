"""Clients in `with` and `async with` blocks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Self

from lakelog.replication.clients.one_process import OneProcess


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
