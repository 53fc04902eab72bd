"""The requests that this process sends to object stores: a store that counts them, and their price.

Counted is each request that obstore is asked for. Not counted are the further attempts of one that has failed, the
requests of Delta's library, which opens tables when a process starts, and those of Spark's executors.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from lakelog.replication.storage.delta.object_headers import headers_of

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ListResult, ObjectMeta, PutResult

# Dollars of a million requests, at the list prices of S3 Standard in us-east-1. DELETE costs nothing.
DOLLARS = {"HEAD": 0.4, "GET": 0.4, "LIST": 5.0, "PUT": 5.0, "POST": 5.0, "DELETE": 0.0}

PART_BYTES = 8 << 20  # larger files are written in parts of this size; a file is visible when all are there
_PAGE = 1_000  # names in one answer to a listing


class RequestCounts(NamedTuple):
    """Numbers since the process began, by method; LIST is a GET that lists. `seconds`: until the answers were there, or
    the last attempt had failed. `errors`: requests that have failed; a missing file is an answer."""

    requests: Mapping[str, int]
    seconds: Mapping[str, float]
    errors: Mapping[str, int]

    @property
    def dollars(self) -> float:
        """The price of the requests."""
        return sum(count * DOLLARS[method] for method, count in self.requests.items()) / 1e6


class RequestCounter:
    """Counts the requests of a process. Only those who count share its lock, for an addition: a reader takes none."""

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._requests = Counter(dict.fromkeys(DOLLARS, 0))
        self._seconds = dict.fromkeys(DOLLARS, 0.0)
        self._errors = Counter(dict.fromkeys(DOLLARS, 0))

    def counts(self) -> RequestCounts:
        """The counts as they are now."""
        return RequestCounts(dict(self._requests), dict(self._seconds), dict(self._errors))

    def add(self, method: str, requests: int) -> None:
        """Adds requests whose time is counted with others."""
        with self._adding:
            self._requests[method] += requests

    @contextmanager
    def request(self, method: str) -> Iterator[None]:
        """Counts the request that the block sends."""
        began, failed = time.perf_counter(), 0
        try:
            yield
        except (FileNotFoundError, AlreadyExistsError):
            raise
        except BaseException:
            failed = 1
            raise
        finally:
            with self._adding:
                self._requests[method] += 1
                self._seconds[method] += time.perf_counter() - began
                self._errors[method] += failed


COUNTER = RequestCounter()  # of this process


class CountedStore:
    """A store of obstore that counts requests. Each method raises as obstore's."""

    def __init__(self, store: ObjectStore, counter: RequestCounter = COUNTER) -> None:
        self.store, self._counter = store, counter

    def head(self, key: str) -> ObjectMeta:
        """The metadata of an object."""
        with self._counter.request("HEAD"):
            return self.store.head(key)

    def headers(self, key: str, client_options: Mapping[str, str], seconds: float) -> dict[str, str]:
        """The headers of an object, see `headers_of`."""
        with self._counter.request("HEAD"):
            return headers_of(self.store, key, client_options, seconds)

    def get(self, key: str, options: GetOptions | None = None) -> GetResult:
        """An object, or a part of it."""
        with self._counter.request("GET"):
            return self.store.get(key, options=options)

    def put(self, key: str, content: Any, mode: Any = None) -> PutResult:
        """Writes an object; a large one in parts, unless `mode` says what must hold for it."""
        with self._counter.request("PUT"):
            found = self.store.put(key, content, mode=mode, chunk_size=PART_BYTES)
        if mode is None and len(content) > PART_BYTES:
            self._counter.add("PUT", -(-len(content) // PART_BYTES) - 1)
            self._counter.add("POST", 2)  # the begin and the end
        return found

    def copy(self, source: str, target: str) -> None:
        """Lets the store copy an object."""
        with self._counter.request("PUT"):
            self.store.copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects, by a request each."""
        with self._counter.request("DELETE"):
            self.store.delete(keys)
        self._counter.add("DELETE", len(keys) - 1)

    def list_with_delimiter(self, prefix: str | None) -> ListResult[Sequence[ObjectMeta]]:
        """The objects and folders of a folder."""
        with self._counter.request("LIST"):
            found = self.store.list_with_delimiter(prefix)
        self._counter.add("LIST", _more_pages(len(found["objects"]) + len(found["common_prefixes"])))
        return found

    def keys(self, prefix: str | None) -> list[str]:
        """The names of all objects below a folder."""
        with self._counter.request("LIST"):
            found = [file["path"] for files in self.store.list(prefix) for file in files]
        self._counter.add("LIST", _more_pages(len(found)))
        return found


def _more_pages(names: int) -> int:
    """The pages of a listing after the first one."""
    return max(0, names - 1) // _PAGE
