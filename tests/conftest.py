"""Fixtures for all tests. The JVM starts only if a test asks for `spark`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One session for the whole run, with the settings that the verbs use."""
    from lakelog.jobs.launch.session import spark_session

    session = spark_session("tests", master="local[2]")
    yield session
    session.stop()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty storage root on the local disk."""
    return str(tmp_path)


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Callable[[], object]]]:
    """Runs one given call in each pause of a client between two looks. More pauses than calls are a failure."""

    def happens(*things: Callable[[], object]) -> Iterator[Callable[[], object]]:
        left = iter(things)
        for module in ("delayed_operation", "sender"):
            monkeypatch.setattr(f"lakelog.replication.clients.{module}.pause", lambda *_: next(left)())
        return left

    return happens
