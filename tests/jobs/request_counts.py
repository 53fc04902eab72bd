"""The requests that readers of a cluster send to an object store."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakelog.jobs.admin import heartbeats
from lakelog.jobs.metrics import scrape_reader
from lakelog.verification.bench.counting_store import counting_store

Count = Callable[[], Counter[str]]


@contextmanager
def counted_requests(folder: Path, bucket: str) -> Iterator[Count]:
    """The requests by kind since the last call, of a store whose address is in the environment. A process keeps the
    clients of a bucket whose options are all there, so no other test may use a bucket of this name."""
    with counting_store(folder, {}, bucket) as (store, options), pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in options.items():
            patch.setenv(name, value)
        seen = Counter[str]()

        def since() -> Counter[str]:
            before = Counter(seen)
            seen.clear()
            for what, count in store.counts(options).items():
                seen[what.kind] += count
            return seen - before

        yield since


def let_no_earlier_poll_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading comes so long after the one before that no poll of that one answers."""
    for module in (heartbeats, scrape_reader):
        monkeypatch.setattr(module, "RECENT_SECONDS", 0.0)
