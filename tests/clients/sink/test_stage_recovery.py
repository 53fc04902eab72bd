"""A streaming query goes on after its stage was lost with the cluster root: its staged batches are also in the roots of
the brokers. Each record is written once, wherever the loss comes."""

import copy
import os
import shutil
import threading
from random import Random
from types import SimpleNamespace

import pytest

from lakelog.replication.clients.sink import routed_records, stage_copies
from lakelog.replication.clients.sink.sink_stage import SinkStage, free_unused_stages
from lakelog.replication.clients.sink.stage_copies import StageCopies
from lakelog.replication.errors import (
    CorruptRecordException,
    KafkaStorageException,
    OutOfOrderSequenceException,
    ProducerFencedException,
)
from lakelog.replication.storage.cluster import format_broker
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.stage_recovery import recovered_stages
from tests.clients.sink.test_batch_commit import MANY, Crash, Driver, Logs, letters
from tests.copied_roots import copied
from tests.hanging import Hanging, ends, in_background, raises, wait_for_root_workers

BROKERS = (1, 2, 3)
OBJECT = [Random(number).randbytes(20) for number in range(MANY)]  # records of a part that is an object of its own


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(stage_copies, "_roots", {})
    monkeypatch.setattr(routed_records, "LARGE_BYTES", 50)
    monkeypatch.setattr(LocalRoot, "sync", lambda *_: None)  # hundreds of copies


class Lake:
    """A cluster root with the stage of a query, the roots of its brokers, and its logs."""

    def __init__(self, folder):
        self._folder, self.logs, self.generation = folder, Logs(), 0
        self.brokers = BROKERS  # that are registered
        for broker in BROKERS:
            copied(format_broker, self.broker(broker), "cluster-id", broker)

    def broker(self, number):
        return StorageRoot.of(str(self._folder / f"broker-{number}"))

    @property
    def home(self):
        return self._folder / f"cluster-{self.generation}" / "query"

    def driver(self, dies_at=None, after=False):
        return Driver(self.home, self.logs, dies_at, after, self.stage_copies())

    def stage_copies(self):
        cluster = SimpleNamespace(
            cluster_id="cluster-id", generation=self.generation, storage_of=lambda _, uri: StorageRoot.of(uri),
            poll_brokers=lambda: {number: SimpleNamespace(root=self.broker(number).uri) for number in self.brokers},
        )  # fmt: skip
        return StageCopies(cluster, "query")

    def commit(self, batch_id, *tasks, dies_at=None, after=False):
        driver = self.driver(dies_at, after)
        try:
            driver.commit(batch_id, *tasks)
            return True
        except Crash:
            return False

    def copies(self, broker=1):
        wait_for_root_workers()
        folder = self.broker(broker).child("sinks" if not self.generation else f"sinks-{self.generation}", "query")
        return folder.list()

    def recover(self, *brokers, comes_back=False):
        """The cluster root is lost, and made again from the roots of brokers. The old one may come back."""
        wait_for_root_workers()
        if not comes_back:
            shutil.rmtree(self.home, ignore_errors=True)
        producers = {}
        for (place, producer), entry in self.logs.entries.items():
            producers.setdefault(place, {})[producer] = entry
        logs = {place: SimpleNamespace(producers=known) for place, known in producers.items()}
        found = recovered_stages([self.broker(number) for number in brokers or BROKERS], logs)
        self.generation += 1
        for stage in found:
            for name, content in stage.objects.items():
                StorageRoot.of(str(self.home)).write(name, content)
        return [(stage.query_id, stage.batch_id, str(stage.written)) for stage in found]

    def values(self):
        return sorted(value for values in self.logs.values.values() for value in values)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


BATCH = {0: letters("cd"), 1: letters("e")}, {2: letters("f")}
OTHER_WAY = {2: letters("d")}, {1: letters("f"), 0: letters("ec")}


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("batch_id", [0, 5])
def test_a_query_goes_on_wherever_its_driver_and_the_cluster_root_are_lost(tmp_path, batch_id, after):
    """The next run has the same records in other tasks and for other partitions."""
    writes = ["stage", "copy", "partition", "partition", "partition", "done", "clean", "after"]
    for dies_at, _ in enumerate(writes):
        lake, before = Lake(tmp_path / str(dies_at)), letters("ab") if batch_id else []
        if batch_id:
            assert lake.commit(batch_id - 2, {0: letters("a"), 1: letters("b")})
        assert lake.commit(batch_id, *BATCH, dies_at=dies_at, after=after) == (dies_at == 7)
        last = lake.recover()
        expected = "none" if dies_at + after < 3 else "some" if dies_at + after < 5 else "all"
        is_copied = dies_at + after >= 2
        assert [written for _, number, written in last if number == batch_id] == [expected] * is_copied
        assert lake.commit(batch_id, *OTHER_WAY)
        assert lake.commit(batch_id + 1, {0: letters("g"), 3: letters("h")})
        assert lake.values() == before + letters("cdefgh"), (dies_at, last)
        assert lake.commit(batch_id + 1, {0: letters("again")})
        lake.recover()
        assert lake.commit(batch_id + 2, {0: letters("i")})
        assert lake.values() == before + letters("cdefghi")


def test_a_part_that_was_an_object_is_needed_if_its_batch_was_written_in_part(tmp_path):
    for dies_at, written in ((2, "none"), (3, "some"), (4, "all")):
        lake = Lake(tmp_path / str(dies_at))
        assert lake.commit(0, {0: letters("a")})
        lake.commit(1, {0: OBJECT, 1: OBJECT}, dies_at=dies_at)
        assert lake.recover() == [("query", 1, written)]
        if written == "some":
            with pytest.raises(CorruptRecordException, match=r"part-1-\w+.parquet: is gone, and a staged"):
                lake.commit(1, {0: OBJECT, 1: OBJECT})
            for done, batches in ((1, [b"a", *OBJECT, b"b"]), (0, [b"a", *OBJECT, *OBJECT, *OBJECT, b"b"])):
                again = copy.deepcopy(lake)  # what the page tells people to do
                again.driver().stage.delete()
                again.driver().stage.put_done(done)
                assert again.commit(1, {0: OBJECT, 1: OBJECT})
                assert again.commit(2, {0: letters("b")})
                assert again.values() == sorted(batches)
            continue
        assert lake.commit(1, {0: OBJECT, 1: OBJECT})
        assert lake.values() == sorted([b"a", *OBJECT, *OBJECT])


def test_a_finished_batch_stays_finished_when_the_logs_have_forgotten_the_query(lake):
    """As after retention and `producer.id.expiration.ms`."""
    assert lake.commit(0, {0: letters("a")})
    wait_for_root_workers()
    lake.logs.entries.clear()
    assert lake.recover() == [("query", 0, "all")]
    assert lake.commit(0, {0: letters("a")})
    assert lake.commit(1, {0: letters("b")})
    assert lake.values() == letters("ab")


def test_only_the_newest_batch_is_kept_and_any_root_tells_it(lake):
    for batch_id in range(4):
        assert lake.commit(batch_id, {0: letters(str(batch_id))})
    for broker in BROKERS:
        assert lake.copies(broker) == ["batch-3.arrow", "done-3"]
    lake.broker(1).child("sinks").delete_folder()
    lake.broker(2).child("sinks", "query").put("batch-3.arrow", b"torn")
    assert lake.recover() == [("query", 3, "all")]
    assert lake.commit(4, {0: letters("4")})
    assert lake.values() == letters("01234")


def test_records_that_the_copies_do_not_know_end_the_query(lake, monkeypatch):
    assert lake.commit(0, {0: letters("a")})
    wait_for_root_workers()
    with monkeypatch.context() as away:
        away.setattr(stage_copies, "check_identity", raises(KafkaStorageException("away")))
        stage_copies._roots.clear()
        assert lake.commit(1, {0: letters("b")})
        wait_for_root_workers()
    assert lake.copies() == ["batch-0.arrow", "done-0"]
    assert lake.recover() == [("query", 0, "all")]
    with pytest.raises(OutOfOrderSequenceException, match="of this query that its stage in the cluster root does not"):
        lake.commit(1, {0: letters("b")})
    assert lake.values() == letters("ab")


def test_a_query_of_an_older_version_has_no_copies_and_ends(lake):
    assert Driver(lake.home, lake.logs).commit(0, {0: letters("a")})
    assert lake.recover() == []
    with pytest.raises(OutOfOrderSequenceException):
        lake.commit(1, {0: letters("b")})


def test_a_driver_of_the_lost_root_changes_nothing_for_the_next_recovery(lake):
    """It stages and copies the next batch, and the logs refuse it: they are of another generation."""
    assert lake.commit(0, {0: letters("a")})
    zombie = lake.driver(dies_at=2)
    lake.recover(comes_back=True)
    with pytest.raises(Crash):
        zombie.commit(1, {0: letters("bx")}, {1: letters("y")})
    assert "batch-1.arrow" in lake.broker(1).child("sinks", "query").list()
    assert lake.commit(1, {0: letters("b")})
    assert lake.recover() == [("query", 1, "all")]
    assert lake.commit(2, {0: letters("c")})
    assert lake.values() == letters("abc")


def test_of_two_drivers_with_one_checkpoint_the_late_one_is_fenced_after_a_recovery_too(lake):
    assert lake.commit(0, {0: letters("a")})
    late = lake.driver()
    earlier = late.stage.read()
    assert lake.commit(1, {0: letters("b")})
    assert not lake.commit(2, {0: letters("c")}, {1: letters("d")}, dies_at=3)
    late.stage.read = lambda: earlier
    lake.recover()
    with pytest.raises(ProducerFencedException, match="batch 1 comes after batch 2"):
        lake.driver().commit(1, {0: letters("b")})


def test_copies_are_freed_as_stages_are_and_the_query_goes_on(lake):
    assert lake.commit(3, {0: letters("a")})
    assert lake.copies() == ["batch-3.arrow", "done-3"]
    for number in BROKERS:
        SinkStage(lake.broker(number).child("sinks", "query")).free(float("inf"))
    assert lake.copies() == ["done-3"]
    assert lake.recover() == [("query", 3, "all")]
    assert lake.commit(3, {0: letters("a")})
    assert lake.commit(4, {0: letters("b")})
    assert lake.values() == letters("ab")


def test_unused_copies_of_other_queries_are_freed_in_the_background(lake):
    assert lake.commit(0, {0: letters("a")})
    folders = [lake.broker(number).child("sinks") for number in BROKERS]
    for folder in folders:
        for name in ("batch-7.arrow", "done-7"):
            folder.child("unused").write(name, b"")
            os.utime(folder.child("unused").path(name), (1, 1))
    lake.stage_copies().clean(lambda folder: free_unused_stages(folder, "query", 1))
    assert lake.copies() == ["batch-0.arrow", "done-0"]
    assert [folder.child("unused").list() for folder in folders] == [["done-7"]] * len(folders)


def test_a_broker_that_is_added_while_a_query_runs_gets_copies_too(lake):
    lake.brokers = BROKERS[:2]
    driver = lake.driver()
    driver.commit(0, {0: letters("a")})
    assert lake.copies(BROKERS[2]) == []
    lake.brokers = BROKERS
    driver.commit(1, {0: letters("b")})
    assert lake.copies(BROKERS[2]) == ["batch-1.arrow", "done-1"]


def test_a_root_that_refuses_or_is_gone_costs_a_batch_nothing_and_is_not_made_again(lake, caplog):
    lake.broker(1).delete_folder()
    assert lake.commit(0, {0: letters("a")})
    assert lake.copies(2) == ["batch-0.arrow", "done-0"]
    assert lake.broker(1).list() == []
    assert [r.message for r in caplog.records if "broker-1" in r.message and "copies of staged batches" in r.message]
    copied(format_broker, lake.broker(1), "cluster-id", 1)
    assert lake.commit(1, {0: letters("b")})
    assert lake.copies(1) == ["batch-1.arrow", "done-1"]


def test_a_root_in_an_object_store_that_was_emptied_stays_empty(lake, monkeypatch):
    """There a file needs no folder. An operator must be able to format the root."""
    put = LocalRoot.put

    def makes_folders(root, name, content):
        os.makedirs(root.uri, exist_ok=True)
        put(root, name, content)

    monkeypatch.setattr(LocalRoot, "put", makes_folders)
    monkeypatch.setattr(stage_copies, "_is_certain", lambda _: False)
    assert lake.commit(0, {0: letters("a")})
    wait_for_root_workers()
    lake.broker(1).delete_folder()
    assert lake.commit(1, {0: letters("b")})
    assert lake.copies(2) == ["batch-1.arrow", "done-1"]
    assert lake.broker(1).list() == []


def test_a_root_that_hangs_is_waited_for_once_and_has_one_thread(lake, monkeypatch, caplog):
    monkeypatch.setattr(stage_copies, "LATE_SECONDS", 2.0)
    put, hanging = LocalRoot.put, Hanging()
    slow = lake.broker(1).uri

    def hangs(root, name, content):
        if root.uri.startswith(slow):
            hanging()
        put(root, name, content)

    monkeypatch.setattr(LocalRoot, "put", hangs)
    try:
        for batch_id in range(4):
            assert ends(in_background(lambda b=batch_id: lake.commit(b, {0: letters(str(b))})))
            assert sum(thread.name.endswith(f"staged batches in {slow}") for thread in threading.enumerate()) == 1
        assert sum(f"{slow}: no answer, so batches do not wait" in record.message for record in caplog.records) == 1
    finally:
        hanging.let_go()
    assert lake.copies(2) == ["batch-3.arrow", "done-3"]
    assert lake.copies(1) == ["batch-3.arrow", "done-3"], "the newest ones"
    assert lake.commit(4, {0: letters("4")})
    assert lake.copies(1) == ["batch-4.arrow", "done-4"]
    assert lake.recover(1) == [("query", 4, "all")]
    assert lake.commit(5, {0: letters("5")})
    assert lake.values() == letters("012345")
