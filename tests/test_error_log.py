"""Errors of repeated work are logged once, then counted, and their end is logged."""

import logging

import pytest

from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import InconsistentClusterRootException, KafkaStorageException
from tests.clock import Clock

logger = logging.getLogger("repeated")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return ErrorLog(logger, "broker 1", clock)


def test_equal_errors_are_logged_once_and_then_counted_ever_more_rarely(log, clock, caplog):
    at = []
    for _ in range(10_000):
        before = len(caplog.records)
        log.failed(KafkaStorageException(f"version {clock.now}: cannot be read"))
        at += [round(clock.now)] * (len(caplog.records) - before)
        clock.now += 0.25
    assert at == [100, 110, 130, 170, 250, 410, 730, 1330, 1930, 2530]
    assert "broker 1: 41 errors in 10 s, the last: version 110.0: cannot be read" in caplog.text
    log.worked()
    assert caplog.records[-1].getMessage() == "broker 1: works again after 10000 errors in 2500 s"
    log.worked()
    assert len(caplog.records) == 11


def test_another_error_is_logged_at_once_and_one_error_has_no_end(log, caplog):
    log.failed(KafkaStorageException("a"))
    log.worked()
    log.failed(KafkaStorageException("a"))
    log.failed(KafkaStorageException("b"))
    assert [record.getMessage() for record in caplog.records] == ["broker 1: a", "broker 1: a", "broker 1: b"]


def test_a_wrong_cluster_root_is_said_by_its_guard_alone(log, caplog):
    for _ in range(3):
        log.failed(InconsistentClusterRootException("older"))
    log.worked()
    assert not caplog.records
