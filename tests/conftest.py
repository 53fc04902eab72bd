"""Fixtures for all tests. The JVM starts only if a test asks for `spark`, in one worker of pytest-xdist."""

import gc
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

from lakelog.verification.s3.server import StoreServer
from tests.hanging import ends, in_background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

os.environ.pop("COLUMNS", None)  # a worker of pytest-xdist has a width, though nobody looks at what it prints


# Tests are distributed before anybody knows their fixtures.
_ASKS_FOR_SPARK = re.compile(r"^\s*def \w+\([^)]*\bspark\b", re.M)


class SparkInOneWorker(LoadFileScheduling):
    """Each file runs in one worker, and all files with Spark in the same one: a JVM and Spark's Python workers take
    half a minute of the processor until they run fast."""

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        return "spark" if _has_spark(self.config.rootpath / path) else path


@cache
def _has_spark(path: Path) -> bool:
    return _ASKS_FOR_SPARK.search(path.read_text()) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> SparkInOneWorker:
    """Distributes the tests of this folder."""
    return SparkInOneWorker(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Files keep their order. By default, pytest-xdist begins with those of many tests, which are the short ones."""
    config.option.loadscopereorder = False
    gc.disable()  # nothing that is collected becomes garbage


def pytest_collection_finish() -> None:
    """The garbage collector leaves out what exists now: it would visit each of ten thousand tests time and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins with other files, so that in a new checkout not every worker compiles all of them."""
    given: Mapping[str, Any] = getattr(session.config, "workerinput", {})
    if session.config.args == session.config.getini("testpaths") and given:
        root, number = session.config.rootpath, int(given["workerid"].removeprefix("gw"))
        files = (path.relative_to(root) for path in sorted(root.glob("tests/**/test_*.py")))
        daily = [file for file in files if not {"verification", "long"}.intersection(file.parts)]
        for file in daily[number :: given["workercount"]]:
            with suppress(Exception):  # collection reports it
                import_module(".".join(file.with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with Spark come first, because they take longest: at the end the workers share short files."""
    items.sort(key=lambda item: not _has_spark(item.path))


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """The machine loses no power under a test: to sync a file would only wait for the disk. A model of the page cache
    checks what is synced, see `tests/storage/delta/unsynced.py`, and tests/long a real file system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an error for what is no open file, too
        yield


# For queries of a few rows: to compile them, and to schedule many tasks, takes longer than to run them.
_SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One session for all tests, with the settings that the verbs use, and with those of small queries. Its
    JVM compiles as a broker's does, because queries of a few rows end before better code pays, and it collects garbage
    with one thread."""
    from lakelog.jobs.launch.launcher import VERBS
    from lakelog.jobs.launch.session import spark_session

    java = {"spark.driver.defaultJavaOptions": f"{VERBS['broker'].java_options} -XX:+UseSerialGC"}
    session = spark_session("tests", master="local[2]", configs={**java, **_SMALL_QUERIES})
    yield session
    session.stop()


@pytest.fixture
def change_settings(spark: "SparkSession") -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Changes settings of the session until the end of the test."""
    before: dict[str, str | None] = {}

    def change(settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            before.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def stack_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker of Spark sets at its end (`plain_errors`) does not outlive the test that plays a worker."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The level of our logs that a verb sets for its process does not outlive the test that runs the verb."""
    yield
    logging.getLogger("lakelog").setLevel(logging.NOTSET)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty storage root on the local disk."""
    return str(tmp_path)


@pytest.fixture(scope="session")
def s3_options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An object store on localhost: how to reach its bucket `bucket`."""
    with StoreServer(tmp_path_factory.mktemp("s3") / "bucket") as server:
        serving = in_background(server.serve_forever)
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        yield {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
        server.shutdown()
        assert ends(serving)


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Callable[[], object]]]:
    """Runs one given call in each pause of a client between two polls. More pauses than calls are a failure."""

    def happens(*things: Callable[[], object]) -> Iterator[Callable[[], object]]:
        left = iter(things)
        for module in ("purgatory", "send_executor", "sender"):
            monkeypatch.setattr(f"lakelog.replication.clients.{module}.pause", lambda *_: next(left)())
        return left

    return happens
