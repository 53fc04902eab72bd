"""Items of several threads in one commit."""

import threading
import time

import pytest

from lakelog.replication.server.follower_writes import GroupCommit
from tests.hanging import ends, in_background
from tests.processes import wait_until

LONG = 60.0


class Commits:
    """Notes the items of each commit. `refuse` has items with their errors."""

    def __init__(self, took=0.0, refuse=None):
        self.made, self._refuse = [], refuse or {}
        self.group = GroupCommit(self._commit)
        self.group._took = took  # of a commit before
        self.may_end = threading.Event()
        self.may_end.set()

    def _commit(self, items):
        self.made.append(list(items))
        assert self.may_end.wait(LONG)
        return [self._refuse.get(item) for item in items]

    def add(self, item):
        """Adds an item in a thread of its own."""
        return in_background(lambda: self.group.add(item, item))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A wait for others lasts until they come."""
    monkeypatch.setattr("lakelog.replication.server.follower_writes._LONGEST_SECONDS", LONG)


def test_an_item_is_committed_at_once_if_no_other_is_expected():
    commits = Commits(took=LONG)
    commits.group.add("a", "a")
    assert commits.made == [["a"]]


def test_the_first_item_waits_for_expected_items():
    commits = Commits(took=LONG)
    commits.group.expect("a")
    commits.group.expect("b")
    first = commits.add("a")
    wait_until(lambda: commits.group._group, "the first item")
    assert commits.made == []
    commits.group.add("b", "b")
    assert ends(first)
    assert commits.made == [["a", "b"]]


def test_a_commit_does_not_wait_for_a_thread_that_gave_up():
    commits = Commits(took=LONG)
    commits.group.expect("b")
    first = commits.add("a")
    wait_until(lambda: commits.group._group, "the first item")
    commits.group.give_up("b")
    assert ends(first)
    assert commits.made == [["a"]]


@pytest.mark.parametrize(("took", "shortest"), [(0.1, 0.0), (0.0, 0.1)], ids=["the last commit took", "is usual"])
def test_a_commit_waits_for_an_expected_item_until_its_limit(monkeypatch, took, shortest):
    monkeypatch.setattr("lakelog.replication.server.follower_writes._SHORTEST_SECONDS", shortest)
    commits, started = Commits(took), time.monotonic()
    commits.group.expect("b")
    commits.group.add("a", "a")
    assert commits.made == [["a"]]
    assert time.monotonic() - started >= 0.1, "but so long"


def test_a_thread_that_never_adds_an_item_is_no_longer_expected_after_a_second(monkeypatch):
    monkeypatch.setattr("lakelog.replication.server.follower_writes._EXPECTED_SECONDS", 0.0)
    commits = Commits(took=LONG)
    commits.group.expect("b")
    commits.group.add("a", "a")
    assert commits.made == [["a"]]


def test_a_commit_after_a_fast_one_does_not_wait(monkeypatch):
    monkeypatch.setattr("lakelog.replication.server.follower_writes._SHORTEST_SECONDS", 0.0)
    commits = Commits(took=0.0)
    commits.group.expect("b")
    commits.group.add("a", "a")
    assert commits.made == [["a"]]


def test_a_commit_after_a_slow_one_waits_at_most_the_longest_time(monkeypatch):
    monkeypatch.setattr("lakelog.replication.server.follower_writes._LONGEST_SECONDS", 0.0)
    commits = Commits(took=LONG)
    commits.group.expect("b")
    commits.group.add("a", "a")
    assert commits.made == [["a"]]


def test_items_added_during_a_commit_form_the_next_one():
    commits = Commits()
    commits.may_end.clear()
    threads = [commits.add("a")]
    wait_until(lambda: commits.made, "the first commit")
    for item in "bcd":
        threads.append(commits.add(item))
        wait_until(lambda: len(commits.group._group) == len(threads) - 1, "an item that waits")
    commits.may_end.set()
    assert all(ends(thread) for thread in threads)
    assert commits.made == [["a"], ["b", "c", "d"]]


def test_each_thread_gets_the_error_of_its_own_item():
    commits, raised = Commits(took=LONG, refuse={"a": ValueError("a is refused")}), []
    commits.group.expect("b")

    def add_a():
        with pytest.raises(ValueError, match="a is refused"):
            commits.group.add("a", "a")
        raised.append("a")

    first = in_background(add_a)
    wait_until(lambda: commits.group._group, "the first item")
    commits.group.add("b", "b")
    assert ends(first)
    assert (commits.made, raised) == ([["a", "b"]], ["a"])


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "end of the process"])
def test_a_failed_commit_fails_all_its_items_and_the_next_one_works(error):
    fails, raised = [error], []

    def commit(items):
        if fails:
            raise fails.pop()
        return [None] * len(items)

    group = GroupCommit(commit)
    group._took = LONG
    group.expect("b")

    def add(item):
        try:
            group.add(item, item)
        except BaseException as found:
            raised.append(type(found))

    first = in_background(lambda: add("a"))
    wait_until(lambda: group._group, "the first item")
    add("b")
    assert ends(first)
    others = type(error) if isinstance(error, Exception) else RuntimeError
    assert sorted(map(repr, raised)) == sorted(map(repr, [type(error), others]))
    group.add("a", "a")
