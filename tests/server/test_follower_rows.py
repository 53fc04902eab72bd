"""Reads the rows of followers while the root of one hangs, fails or is slow."""

import threading

import pytest

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.server import follower_rows
from lakelog.replication.server.follower_rows import FollowerStatusReader
from tests.clock import Clock
from tests.hanging import Hanging, raises
from tests.processes import wait_until

MAX_AGE = 5.0


class World:
    """Brokers 2 and 3. The test chooses what reads of their tables return."""

    def __init__(self):
        self.clock, self.reads, self.looks = Clock(), {2: lambda: "rows of 2", 3: lambda: "rows of 3"}, []
        self.late = threading.Event()
        self.rows = FollowerStatusReader(self.read, MAX_AGE, self.clock, when_late=self.late.set)

    def read(self, broker):
        self.looks.append(broker)
        return self.reads[broker]()

    def poll(self):
        return self.rows.poll([2, 3])


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 30.0)
    return World()


def impatient(monkeypatch):
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 0.05)


def test_fe_03_each_poll_reads_the_rows_of_every_follower(world):
    assert world.poll() == {2: "rows of 2", 3: "rows of 3"}
    world.reads[2] = lambda: "newer rows of 2"
    assert world.poll() == {2: "newer rows of 2", 3: "rows of 3"}
    assert sorted(world.looks) == [2, 2, 3, 3]


def test_fe_03_a_root_that_hangs_does_not_delay_the_rows_of_other_brokers(world, monkeypatch):
    """Its last rows count for a while. It is read again when the hanging read ends."""
    world.poll()
    hanging = world.reads[2] = Hanging(lambda: "late rows of 2")
    impatient(monkeypatch)
    world.reads[3] = lambda: "newer rows of 3"
    wait_until(lambda: world.poll() == {2: "rows of 2", 3: "newer rows of 3"}, "the rows of broker 3")
    world.clock.now += MAX_AGE + 1
    wait_until(lambda: world.poll()[3] == "newer rows of 3", "the rows of broker 3")
    error = world.poll()[2]
    assert isinstance(error, KafkaStorageException)
    assert str(error) == "its root has not answered for 6 s"
    assert world.looks.count(2) == 2, "one poll is enough"
    hanging.let_go()
    wait_until(lambda: world.poll()[2] == "late rows of 2", "its rows")


def test_fe_03_only_the_first_poll_waits_for_a_root_that_hangs(world, monkeypatch):
    hanging = world.reads[2] = Hanging()
    impatient(monkeypatch)
    assert world.poll()[2] == {}, "nothing is known of it yet"
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 1e6)
    assert world.poll() == {2: {}, 3: "rows of 3"}
    hanging.let_go()


def test_do_02_a_read_that_ends_after_its_poll_wakes_the_leader(world, monkeypatch):
    """A follower's commit wakes the leader while a read that began before it hangs: nothing else tells of it."""
    world.poll()
    assert not world.late.is_set(), "the poll has the rows"
    hanging = world.reads[2] = Hanging(lambda: "late rows of 2")
    impatient(monkeypatch)
    wait_until(lambda: world.poll()[3] == "rows of 3", "a poll that does not wait for broker 2")
    assert not world.late.is_set(), "nothing new can be read yet"
    hanging.let_go()
    assert world.late.wait(30)
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 30.0)
    assert world.poll()[2] == "late rows of 2"


def test_expired_rows_are_left_out_while_the_next_read_runs(world, monkeypatch):
    world.poll()
    world.clock.now += MAX_AGE + 1
    hanging = world.reads[2] = Hanging()
    impatient(monkeypatch)
    assert world.poll()[2] == {}
    hanging.let_go()


@pytest.mark.parametrize(
    ("error", "told"),
    [(KafkaStorageException("no route"), "no route"), (TypeError("no such column"), "TypeError: no such column")],
    ids=repr,
)
def test_fe_03_an_error_of_one_follower_is_returned_and_leaves_the_rows_of_others(world, error, told):
    def fail():
        raise error

    world.poll()
    world.reads[2] = fail
    found = world.poll()
    assert isinstance(found[2], LakelogException)
    assert str(found[2]) == told
    assert found[3] == "rows of 3"
    world.reads[2] = lambda: "rows again"
    assert world.poll()[2] == "rows again"


def test_a_reader_thread_that_failed_to_start_is_started_by_the_next_poll(world, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(follower_rows, "start_thread", raises(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            world.poll()
    assert world.poll() == {2: "rows of 2", 3: "rows of 3"}
