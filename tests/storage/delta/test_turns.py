"""When a writer waits for others before its next commit."""

import time

import pytest

from lakelog.replication.storage.delta.compare_and_set import CommitBackoff

TOOK = 0.1  # seconds of a commit


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        at = 100.0

        def __call__(self):
            return self.at

    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def commits(turns, clock, count, rest=0.0):
    """The pauses before so many commits that take `TOOK` seconds, each begun `rest` seconds after the one before."""
    pauses = []
    for _ in range(count):
        pauses.append(turns.next_pause())
        clock.at += pauses[-1] + TOOK
        turns.won(TOOK)
        clock.at += rest
    return pauses


def test_a_writer_that_has_lost_gives_others_the_time_of_one_or_two_commits(clock):
    turns = CommitBackoff()
    turns.lost()
    first, *following = commits(turns, clock, 40)
    assert first == 0.0, "it has not won yet"
    assert all(TOOK - 1e-9 <= pause <= 2 * TOOK for pause in following)
    assert len({round(pause, 6) for pause in following}) > 1, "two writers that wait equally long would meet again"


def test_time_that_has_passed_since_the_last_commit_counts(clock):
    turns = CommitBackoff()
    turns.lost()
    assert all(pause <= TOOK for pause in commits(turns, clock, 20, rest=TOOK))
    assert not any(commits(turns, clock, 20, rest=2 * TOOK)[1:])


@pytest.mark.parametrize(("seconds", "pauses"), [(9.9, True), (10.1, False)])
def test_a_lost_commit_is_remembered_for_ten_seconds(clock, seconds, pauses):
    turns = CommitBackoff()
    turns.lost()
    clock.at += seconds
    turns.won(TOOK)
    assert (turns.next_pause() > 0) == pauses


def test_a_writer_that_never_loses_lets_others_go_first_now_and_then(clock):
    """Others who lose all the time leave no trace in the table."""
    at = [number for number, pause in enumerate(commits(CommitBackoff(), clock, 300)) if pause]
    assert at == [8, 24, 56, 120, 184, 248]


def test_after_a_lost_commit_it_does_so_sooner_again(clock):
    turns = CommitBackoff()
    commits(turns, clock, 300)
    turns.lost()
    clock.at += 20.0
    assert [number for number, pause in enumerate(commits(turns, clock, 20)) if pause] == [8]


def test_a_writer_that_rests_between_commits_never_waits(clock):
    assert not any(commits(CommitBackoff(), clock, 300, rest=2 * TOOK))


def test_a_commit_that_a_fault_of_the_store_has_held_up_holds_up_no_other():
    turns = CommitBackoff()
    turns.lost()
    turns.won(60.0)
    assert 0 < turns.next_pause() <= 2.0
