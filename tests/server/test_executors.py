"""Jobs of a broker end with an error when Spark has no executor for them."""

import threading
from types import SimpleNamespace

import pytest

from lakelog.replication.server import executors
from lakelog.replication.server.executors import (
    ExecutorsFailed,
    has_executors,
    is_local,
    on_executors,
    while_there_are_executors,
)


class Context:
    """A Spark context with `executors` executors at each poll, one number a poll, and the last one from then on."""

    def __init__(self, *found):
        self._found, self.tags, self.cancelled = list(found), [], threading.Event()

    @property
    def _jsc(self):
        number = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        tracker = SimpleNamespace(getExecutorInfos=lambda: ["driver", *range(number)])
        return SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))

    def addJobTag(self, tag):  # noqa: N802
        self.tags.append(tag)

    def cancelJobsWithTag(self, tag):  # noqa: N802
        assert [tag] == self.tags
        self.cancelled.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(executors, "_POLL_SECONDS", 0.001)


@pytest.fixture
def threads(monkeypatch):
    """Plain threads: there is no JVM whose properties they could inherit."""
    monkeypatch.setattr(executors, "InheritableThread", threading.Thread)


def session(*found):
    return SimpleNamespace(sparkContext=Context(*found))


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True), ("local[*]", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False),
        ("spark://127.0.0.1:7077", False), ("yarn", False), ("k8s://https://host", False), (None, False),
    ],
)  # fmt: skip
def test_a_session_is_local_by_its_master(master, expected):
    assert is_local(SimpleNamespace(sparkContext=SimpleNamespace(master=master))) is expected


def test_the_driver_does_not_count_as_an_executor(spark):
    assert not has_executors(spark)
    assert has_executors(session(1))


def test_a_job_of_an_application_without_executors_does_not_begin():
    """Without the fixture `threads`: a thread would fail."""
    with pytest.raises(ExecutorsFailed, match=r"^Spark has no executor$"):
        while_there_are_executors(session(0), lambda: 1)


@pytest.mark.usefixtures("threads")
def test_the_jobs_of_an_application_that_loses_its_executors_are_cancelled():
    lost = session(2, 2, 2, 0)
    with pytest.raises(ExecutorsFailed, match=r"^Spark has no executor$") as raised:
        while_there_are_executors(lost, lambda: lost.sparkContext.cancelled.wait(60))
    assert lost.sparkContext.cancelled.is_set()
    assert raised.value.__cause__ is None


@pytest.mark.usefixtures("threads")
def test_a_job_waits_for_executors_that_start_before_its_timeout():
    come = threading.Event()
    late = session(0, 0, 0, 1)
    late.sparkContext.addJobTag = lambda _: threading.Thread(target=come.set).start()
    assert while_there_are_executors(late, lambda: come.wait(60), 60) is True
    with pytest.raises(ExecutorsFailed):
        while_there_are_executors(session(0), lambda: threading.Event().wait(60), 0.01)


def test_each_item_is_a_task_and_results_come_in_order(spark, monkeypatch):
    monkeypatch.setattr(executors, "has_executors", lambda _: True)
    assert on_executors(spark, lambda number: number * 2, [3, 1, 2]) == [6, 2, 4]


def test_a_task_that_fails_is_one_line_with_its_cause(spark, monkeypatch):
    monkeypatch.setattr(executors, "has_executors", lambda _: True)
    with pytest.raises(ExecutorsFailed, match=r"^ZeroDivisionError: .*zero$") as raised:
        on_executors(spark, lambda number: 1 // number, [1, 0])
    assert "\n" in str(raised.value.__cause__)
