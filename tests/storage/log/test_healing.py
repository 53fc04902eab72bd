"""Broken files are checked again in the background, and used again once they can be read."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.log import broken_segments, replica_log
from lakelog.replication.storage.log.broken_segments import HEAL_SECONDS, Healing
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.clock import Clock
from tests.hanging import Hanging, ends, in_background
from tests.processes import wait_until
from tests.storage.logs import P0, P1, fill, leo, new_log, values


class Broken:
    """A log with two missing files of P0 and one file of P1. Its handle has never read the missing ones."""

    def __init__(self, root):
        made = new_log(root, P0, P1)
        fill(made, P0, 2, 2)
        fill(made, P1, 1)
        self.files = [Path(made.root.path(b.segment)) for b in made.refresh().known(P0).batches]
        self._contents = [file.read_bytes() for file in self.files]
        for file in self.files:
            file.unlink()
        self.log = ReplicaLog.open(made.root)

    def put_back(self, *numbers):
        for number in numbers:
            self.files[number].write_bytes(self._contents[number])

    def is_refused(self):
        return self.log.refresh().fault(P0) is not None


@pytest.fixture
def broken(root):
    return Broken(root)


def test_ol_01_a_store_that_hangs_while_a_broken_file_is_read_holds_up_nobody(broken, monkeypatch):
    """Heartbeats, high watermarks and producers need the log meanwhile."""
    clock, hanging = Clock(), Hanging(broken_segments.check_content)
    monkeypatch.setattr(broken_segments, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(broken_segments, "check_content", hanging)
    broken.log.refresh()
    clock.now += HEAL_SECONDS
    assert ends(in_background(broken.log.refresh))
    assert hanging.is_entered.wait(30)
    assert ends(in_background(lambda: fill(broken.log, P1, 2, 3)))
    assert (leo(broken.log, P1), broken.is_refused()) == (6, True)
    broken.put_back(0, 1)
    hanging.let_go()
    wait_until(lambda: not broken.is_refused(), "what is whole again")
    assert (leo(broken.log), values(broken.log), leo(broken.log, P1)) == (4, [b"0", b"1", b"0", b"1"], 6)


def test_ol_01_what_is_reported_broken_while_it_is_read_again_is_not_taken_in(broken, monkeypatch):
    """The file was read successfully, but another read of it has failed since."""
    broken.put_back(0, 1)

    def read(root, found):
        segment = broken_segments.read_again(root, found)
        broken.log.report_broken(found.file.name, "rotten")
        return segment

    with monkeypatch.context() as patch:
        patch.setattr(replica_log, "read_again", read)
        broken.log.heal()
    assert broken.log.current().fault(P0) == "rotten"
    broken.log.heal()
    assert broken.log.current().fault(P0) is None


@pytest.mark.parametrize("numbers", [(0,), (0, 1)], ids=["one of two", "both"])
def test_ol_01_nothing_is_read_while_the_log_is_locked(broken, monkeypatch, numbers):
    broken.put_back(*numbers)
    reads, read_segments = [], replica_log.read_segments
    monkeypatch.setattr(
        replica_log, "read_segments", lambda root, files: reads.extend(files) or read_segments(root, files)
    )
    broken.log.heal()
    assert reads == []
    assert set(broken.log.current().broken) == {file.name for file in broken.files if not file.exists()}


def test_ol_01_a_store_that_does_not_hand_a_file_out_keeps_no_other_from_being_healed(broken, monkeypatch):
    broken.put_back(0, 1)
    check_content = broken_segments.check_content

    def refuse(root, file):
        if file.name == broken.files[0].name:
            raise KafkaStorageException("503")
        check_content(root, file)

    monkeypatch.setattr(broken_segments, "check_content", refuse)
    broken.log.heal()
    assert set(broken.log.current().broken) == {broken.files[0].name}
    with pytest.raises(CorruptRecordException, match=broken.files[0].name):
        broken.log.current().partition(P0)


def test_ol_01_one_look_at_a_time_and_each_some_time_after_the_last(monkeypatch):
    clock, looks = Clock(), []
    monkeypatch.setattr(broken_segments, "time", SimpleNamespace(monotonic=clock))
    hanging = Hanging()
    found = Healing("log", lambda: looks.append(clock.now - began) or hanging())
    began = clock.now
    found.begin_if_due()
    clock.now += HEAL_SECONDS - 1
    found.begin_if_due()
    assert looks == [], "a file that has just been found broken need not be looked at again at once"
    clock.now += 1
    found.begin_if_due()
    assert hanging.is_entered.wait(30)
    clock.now += HEAL_SECONDS
    found.begin_if_due()
    assert looks == [HEAL_SECONDS]
    hanging.let_go()
    wait_until(lambda: not found._is_under_way, "the first poll")
    found.begin_if_due()
    wait_until(lambda: len(looks) == 2 and not found._is_under_way, "the second poll")
    clock.now += HEAL_SECONDS - 1
    found.begin_if_due()
    assert looks == [HEAL_SECONDS, 2 * HEAL_SECONDS]


def test_ol_01_a_look_that_fails_is_not_the_last(monkeypatch, caplog):
    clock, errors = Clock(), [KafkaStorageException("503"), KafkaStorageException("504")]
    monkeypatch.setattr(broken_segments, "time", SimpleNamespace(monotonic=clock))

    def fail():
        raise errors.pop(0)

    found = Healing("log", fail)
    found.begin_if_due()
    for left in (1, 0):
        clock.now += HEAL_SECONDS
        found.begin_if_due()
        wait_until(lambda left=left: len(errors) == left and not found._is_under_way, "the poll")
    assert "log: cannot read broken files again: 503" in caplog.text


def test_ol_01_a_look_that_cannot_begin_is_begun_another_time(monkeypatch, caplog):
    clock, looks = Clock(), []
    monkeypatch.setattr(broken_segments, "time", SimpleNamespace(monotonic=clock))
    found = Healing("log", lambda: looks.append(clock.now))
    found.begin_if_due()
    clock.now += HEAL_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        found.begin_if_due()
    assert "log: cannot read broken files again: can't start new thread" in caplog.text
    clock.now += HEAL_SECONDS
    found.begin_if_due()
    wait_until(lambda: looks == [clock.now], "the poll")


def no_thread(_):
    raise RuntimeError("can't start new thread")
