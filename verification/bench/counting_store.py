"""`python -m lakelog.verification.bench.counting_store FOLDER [KIND=MS …]`: the object store of the soak, which counts
its requests by kind, table and part of the table, and answers each kind after so many milliseconds."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote
from urllib.request import urlopen

from lakelog.replication.storage.delta.quorum_member import FOLDER
from lakelog.verification.s3.server import Response, StoreProcess, StoreServer, serve

KINDS = ("HEAD", "GET", "LIST", "PUT", "POST", "DELETE")
ROOT = "lake"  # the folder of the cluster and of its brokers in the bucket
_COUNTS = "/counts"
_BROKER = re.compile(r"broker-\d+")


class Counted(NamedTuple):
    """What requests have in common: kind, table of the cluster, and part of the table."""

    kind: str
    table: str
    part: str


def counted(method: str, url: str) -> Counted:
    """The kind of a request, its table and the part. A request of no table belongs to `root`."""
    path, _, query = url.partition("?")
    given = parse_qs(query, keep_blank_values=True)
    is_listing = "list-type" in given
    key = given.get("prefix", [""])[0] if is_listing else unquote(path).lstrip("/").partition("/")[2]
    _, _, below = key.partition("/")  # the folder of the cluster
    _, _, in_root = below.partition("/")
    if in_root.startswith(f"{FOLDER}/"):
        table, _, file = in_root.removeprefix(f"{FOLDER}/").partition("/")
        return Counted("LIST" if is_listing else method, table if file else "root", "votes")
    table, _, file = in_root.partition("/")
    if not file:
        return Counted("LIST" if is_listing else method, table or "root", "files")
    return Counted("LIST" if is_listing else method, table, _part(file))


def _part(file: str) -> str:
    folder, _, name = file.rpartition("/")
    if "_delta_log" not in (*folder.split("/"), name):
        return "files"
    return "commits" if name.endswith(".json") or not name else "checkpoints"


class CountingServer(StoreServer):
    """Counts each request that it answers. `/counts` has the counts, as JSON, and is not counted."""

    def __init__(self, folder: Path, latencies: Mapping[str, int]) -> None:
        super().__init__(folder)
        self._latencies = latencies
        self._counts: Counter[Counted] = Counter()
        self._counting = threading.Lock()

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Carries out a request, or returns the counts."""
        with self._counting:
            if url == _COUNTS:
                return Response(200, json.dumps([[*what, count] for what, count in self._counts.items()]).encode())
            what = counted(method, url)
            self._counts[what] += 1
        threading.Event().wait(self._latencies.get(what.kind, 0) / 1000)
        return super().answer(method, url, headers, body)


class CountingStore(StoreProcess):
    """The process of a counting store."""

    module = "lakelog.verification.bench.counting_store"

    def __init__(self, folder: Path, log: Path, latencies: Mapping[str, int]) -> None:
        super().__init__(folder, log)
        self._words += tuple(f"{kind}={ms}" for kind, ms in latencies.items())

    def counts(self, options: Mapping[str, str]) -> Counter[Counted]:
        """The requests so far. `options` are those of the store's clients."""
        with urlopen(options["AWS_ENDPOINT_URL"] + _COUNTS) as answer:
            found = json.load(answer)
        return Counter({Counted(*what): count for *what, count in found})


@contextmanager
def counting_store(
    folder: Path, latencies: Mapping[str, int], bucket: str = "bucket"
) -> Iterator[tuple[CountingStore, dict[str, str]]]:
    """A store of one bucket that runs until the block ends, and the options of its clients. `latencies` are the
    milliseconds after which it answers, by kind of request."""
    store = CountingStore(folder / bucket, folder / "store.log", latencies)
    store.start()
    try:
        yield store, store.await_options()
    finally:
        store.kill()


if __name__ == "__main__":
    given = {kind: int(ms) for kind, _, ms in (word.partition("=") for word in sys.argv[2:])}
    serve(partial(CountingServer, latencies=given), Path(sys.argv[1]))
