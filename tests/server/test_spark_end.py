"""A broker stops when its JVM or its Spark session ends."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint
from lakelog.replication.server.spark_check import kill_if_stopped, pass_while_spark_runs


def session(is_stopped):
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None if is_stopped else object()))


@pytest.mark.parametrize(
    ("is_stopped", "status", "ends"),
    [(False, None, False), (True, None, True), (False, 137, True)],
    ids=["it runs", "its session was stopped", "its JVM was killed"],
)
def test_a_broker_is_killed_when_its_spark_has_ended(monkeypatch, caplog, is_stopped, status, ends):
    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: status))
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    pause_point = PausePoint()
    with pytest.raises(BrokerKilled) if ends else nullcontext():
        pass_while_spark_runs(session(is_stopped), 2, pause_point)
    assert pause_point.is_killed is ends
    assert ("broker 2 stops: its Spark has ended" in caplog.text) is ends


@pytest.mark.parametrize("ends", [False, True])
def test_under_spark_submit_the_jvm_is_the_parent(monkeypatch, ends):
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=None))
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 1 if ends else parent)
    pause_point = PausePoint()
    with pytest.raises(BrokerKilled) if ends else nullcontext():
        pass_while_spark_runs(session(False), 2, pause_point)


@pytest.mark.parametrize(
    ("context", "ends"),
    [(True, True), (False, False), (None, False)],
    ids=["the JVM stopped it", "it runs", "Python stopped it"],
)
def test_a_broker_is_killed_when_the_jvm_has_stopped_its_application(caplog, context, ends):
    """Such as after ten executors have failed in a row. A session that Python has stopped has no context to ask."""
    java = None if context is None else SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: context))
    pause_point = PausePoint()
    kill_if_stopped(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java)), 2, pause_point)
    assert pause_point.is_killed is ends
    assert ("broker 2 stops: its Spark has ended" in caplog.text) is ends
