"""Which looks a compare-and-set believes, in an object store and on a disk."""

import threading
import time

import pytest

from lakelog.replication.errors import FencedLeaderEpochException, KafkaStorageException
from lakelog.replication.storage.delta import compare_and_set as module
from lakelog.replication.storage.delta.compare_and_set import CommitBackoff, compare_and_set
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.memory_root import MemoryStore


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_PAUSE_SECONDS", 0.0)


@pytest.fixture
def bucket():
    with MemoryStore("bucket").opened() as store:
        yield StorageRoot.of(f"{store.uri}/table")


def attempts(root, *outcomes, noop_staleness=None):
    """The ages that the attempts got, and the result or error of the last one."""
    return attempts_on(root, CommitBackoff(), *outcomes, noop_staleness=noop_staleness)


def attempts_on(root, turns, *outcomes, noop_staleness=None, deadline=None):
    ages, left = [], list(outcomes)

    def attempt(staleness):
        ages.append(staleness)
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    try:
        return ages, compare_and_set(root, attempt, deadline, noop_staleness, turns)
    except Exception as error:
        return ages, error


FENCED, BROKEN, LOST = FencedLeaderEpochException("fenced"), KafkaStorageException("503"), CommitConflict("another")
UNKNOWN = CommitUnknown("no reply")
YOUNG = RECENT_SECONDS


@pytest.mark.parametrize(
    ("outcomes", "noop_staleness", "ages", "result"),
    [
        pytest.param([7], None, [YOUNG], 7, id="a commit is its own look"),
        pytest.param([LOST, 8], None, [YOUNG, None], 8, id="a loser reads the table"),
        pytest.param([None, 7], None, [YOUNG, None], 7, id="nothing to do is not believed"),
        pytest.param([None, None], None, [YOUNG, None], None, id="nothing to do is believed after a look"),
        pytest.param([FENCED, 7], None, [YOUNG, None], 7, id="an error is not believed"),
        pytest.param([FENCED, FENCED], None, [YOUNG, None], FENCED, id="an error is believed after a look"),
        pytest.param([BROKEN], None, [YOUNG], BROKEN, id="a store that fails is an error at once"),
        pytest.param([None], 5.0, [5.0], None, id="patient work believes that there is nothing to do"),
        pytest.param([7], 5.0, [5.0], 7, id="patient work commits"),
        pytest.param([FENCED, None], 5.0, [5.0, None], None, id="patient work believes no error"),
    ],
)
def test_what_is_believed_of_a_look_that_others_have_made(bucket, outcomes, noop_staleness, ages, result):
    assert attempts(bucket, *outcomes, noop_staleness=noop_staleness) == (ages, result)


@pytest.mark.parametrize("outcome", [7, None, FENCED])
@pytest.mark.parametrize("noop_staleness", [None, 5.0])
def test_on_a_disk_the_first_read_counts(tmp_path, outcome, noop_staleness):
    assert attempts(StorageRoot.of(str(tmp_path)), outcome, noop_staleness=noop_staleness) == ([None], outcome)


@pytest.fixture
def waited(monkeypatch):
    """The seconds of each wait; none of them is waited for."""
    waits = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds=None: waits.append(seconds))
    return waits


def test_a_writer_in_a_store_waits_for_its_turn_and_then_reads_the_table(bucket, waited):
    turns = CommitBackoff()
    turns.lost()
    turns.won(0.8)
    assert attempts_on(bucket, turns, 7) == ([None], 7)
    assert 0.7 < waited[0] <= 1.6


@pytest.mark.parametrize(("left", "waits"), [(-5.0, 0.0), (0.4, pytest.approx(0.4, abs=0.1))])
def test_a_writer_waits_for_its_turn_until_its_deadline_at_most(bucket, waited, left, waits):
    turns = CommitBackoff()
    turns.lost()
    turns.won(0.8)
    assert attempts_on(bucket, turns, 7, deadline=time.monotonic() + left)[1] == 7
    assert waited[0] == waits


def test_a_writer_on_a_disk_waits_for_nobody(tmp_path, waited):
    root, turns = StorageRoot.of(str(tmp_path)), CommitBackoff()
    turns.lost()
    turns.won(0.8)
    assert attempts_on(root, turns, 7) == ([None], 7)
    assert waited == [0.0]


@pytest.mark.parametrize(("outcomes", "is_pausing"), [([LOST, 8], True), ([UNKNOWN, 8], False), ([7], False)])
def test_only_a_commit_of_another_writer_makes_a_writer_give_way(bucket, outcomes, is_pausing):
    turns = CommitBackoff()
    attempts_on(bucket, turns, *outcomes)
    turns.won(0.8)
    assert (turns.next_pause() > 0) == is_pausing


def test_the_time_of_a_commit_is_that_of_its_last_attempt(bucket, monkeypatch):
    turns, noted = CommitBackoff(), []
    monkeypatch.setattr(turns, "won", noted.append)
    attempts_on(bucket, turns, LOST, 8)
    attempts_on(bucket, turns, None, None)
    assert len(noted) == 1
