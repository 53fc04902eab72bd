"""Which changes of a leader's rows call for a round, and when."""

import dataclasses

import pytest

from lakelog.replication.server.fetcher.fetch_runner import LeaderRowWatch
from tests.clock import Clock
from tests.storage.tables.test_state_tables import REPLICA

PARTITION = REPLICA.topic_id_partition
LED = dataclasses.replace(REPLICA, role="leader")


def row(**changes):
    return dataclasses.replace(LED, **changes)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock):
    return LeaderRowWatch(0.5, clock)


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        pytest.param(LED, row(leader_epoch=9), True, id="a new epoch"),
        pytest.param(LED, row(epochs=()), True, id="another lineage"),
        pytest.param(LED, row(log_start_offset=4), True, id="another log start"),
        pytest.param(LED, row(state="Offline"), True, id="its log is broken"),
        pytest.param(LED, REPLICA, True, id="it leads no more"),
        pytest.param(REPLICA, LED, True, id="it leads now"),
        pytest.param(None, LED, True, id="it has a row now"),
        pytest.param(LED, row(log_end_offset=99), False, id="a new LEO: the records themselves tell of it"),
        pytest.param(REPLICA, row(role="follower", high_watermark=8, leader_epoch=9), False, id="what it follows"),
        pytest.param(LED, row(high_watermark=8), False, id="a new HW alone: it waits for records"),
    ],
)
def test_hw_02_what_a_leader_says_of_what_it_leads_calls_for_a_round(watch, first, second, is_told):
    watch.note_read({PARTITION: first} if first else {})
    for _ in range(2):
        assert watch.is_round_due({PARTITION: second}, [PARTITION]) is is_told


def test_what_nobody_follows_calls_for_no_round(watch):
    assert not watch.is_round_due({PARTITION: LED}, [])


def test_what_a_round_has_read_is_no_news(watch):
    rows = {PARTITION: LED}
    assert watch.is_round_due(rows, [PARTITION])
    watch.note_read(rows)
    assert not watch.is_round_due(rows, [PARTITION])
    assert not watch.is_round_due(dict(rows), [PARTITION]), "read again, and the same"


def test_ft_05_a_new_hw_waits_for_records_as_long_as_it_may_and_not_anew_for_each_one(watch, clock):
    watch.note_read({PARTITION: LED})
    for number in range(4):
        assert not watch.is_round_due({PARTITION: row(high_watermark=8 + number)}, [PARTITION])
        clock.now += 0.125
    assert watch.is_round_due({PARTITION: row(high_watermark=12)}, [PARTITION])


def test_ft_05_a_new_hw_that_travelled_with_records_waits_no_longer(watch, clock):
    watch.note_read({PARTITION: LED})
    raised = {PARTITION: row(high_watermark=8)}
    assert not watch.is_round_due(raised, [PARTITION])
    watch.note_read(raised)
    clock.now += 1
    assert not watch.is_round_due(raised, [PARTITION])


def test_news_that_no_round_has_read_stay_news(watch):
    """A round may fail before it reads the rows."""
    assert watch.is_round_due({PARTITION: LED}, [PARTITION])
    assert watch.is_round_due({PARTITION: row(log_end_offset=99)}, [PARTITION])


def test_rows_are_compared_once(watch):
    """A poll finds the same rows most of the time, and there may be thousands."""

    class Followed(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    rows, followed = {PARTITION: LED}, Followed([PARTITION])
    for _ in range(3):
        assert watch.is_round_due(rows, followed)
    assert followed.looks == 1
