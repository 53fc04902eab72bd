"""A broker maintains its log in rounds, without delaying its other work."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, STOPPED, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.server import log_maintenance
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.log_maintenance import LogMaintenance
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.checkpoint import last_checkpoint
from lakelog.replication.storage.delta.commit_format import is_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import replica_log
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.schemas import LOG
from lakelog.verification.memory_root import MemoryStore
from tests.processes import wait_until
from tests.storage.logs import NOON, P0, P1, TOPIC, TOPIC_ID, facts, fill, lead, new_log, offsets

SETTINGS = {
    "log.cleaner.backoff.ms": 1,
    "log.retention.check.interval.ms": 1,
    "log.cleaner.min.files": 3,
    "log.segment.delete.delay.ms": 0,
}


class World:
    """A log with four files of P0, all committed, written at noon; it is an hour later."""

    def __init__(self, root, **settings):
        self.log = new_log(root, P0, P1)
        fill(self.log, P0, 2, 2, 2, 2)
        self.high_watermark, self.leader_epoch = 8, 0
        self.configs = {}
        self.pause_point = PausePoint()
        config = Config.from_properties({**SETTINGS, **settings})
        cache = SimpleNamespace(topic_config=lambda _: config.topic(self.configs))
        self.maintenance = LogMaintenance(
            "broker-1",
            self.log,
            self,
            cache,
            config,
            self.pause_point,
            None,
            lambda: NOON.timestamp() + 3600,
        )

    def led(self):
        registration = PartitionRegistration(TOPIC, TOPIC_ID, 0, (1, 2), 1, self.leader_epoch, (1, 2))
        return {P0: HostedPartition(registration, self.high_watermark)}

    hosted = led

    def files(self):
        return {name for name in self.log.root.list() if name.endswith(".parquet")}


@pytest.fixture
def world(root):
    return World(root)


@pytest.mark.parametrize(
    ("configs", "high_watermark", "left"),
    [
        pytest.param({}, 8, range(8), id="a week is the default"),
        pytest.param({"retention.ms": 3_000_000}, 8, [], id="by time"),
        pytest.param({"retention.ms": 3_000_000}, 5, range(4, 8), id="what is not committed stays"),
        pytest.param({"retention.ms": 4_000_000}, 8, range(8), id="young enough"),
        pytest.param({"retention.bytes": 8}, 8, range(4, 8), id="by size"),
        pytest.param({"retention.ms": 0, "cleanup.policy": "none"}, 8, range(8), id="a topic that keeps everything"),
    ],
)
def test_dr_01_a_leader_raises_log_starts_by_retention(world, configs, high_watermark, left):
    world.configs, world.high_watermark = configs, high_watermark
    world.maintenance.run_once()
    assert offsets(world.log) == list(left)
    assert facts(ReplicaLog.open(world.log.root)) == facts(world.log)


@pytest.mark.parametrize("epoch", [0, 1])
def test_dr_01_a_broker_that_does_not_lead_at_that_epoch_deletes_nothing(world, epoch):
    world.configs = {"retention.ms": 0}
    world.log.become({P0: Role(epoch, FOLLOWER)}, "test") if epoch else lead(world.log, P0, epoch=2)
    world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))


def test_dr_01_retention_is_checked_at_its_interval(root):
    world = World(root, **{"log.retention.check.interval.ms": 3_600_000})
    world.maintenance.run_once()
    world.configs = {"retention.ms": 0}
    world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))


def test_na_04_small_files_are_compacted_and_the_old_ones_deleted(world):
    assert len(world.files()) == 4
    world.maintenance.run_once()
    assert world.files() == set(world.log.current().segments)
    assert len(world.files()) == 1
    assert offsets(world.log) == list(range(8))


COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.mark.parametrize(
    ("configs", "high_watermark", "left"),
    [
        pytest.param({"cleanup.policy": "compact"}, 8, [7], id="more than half is dirty"),
        pytest.param({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}, 8, range(8), id="not enough is"),
        pytest.param({**COMPACTED, "min.compaction.lag.ms": "3600001"}, 8, range(8), id="too young"),
        pytest.param({**COMPACTED, "min.compaction.lag.ms": "3599000"}, 8, [7], id="old enough"),
        pytest.param(COMPACTED, 5, [3, *range(4, 8)], id="what is not committed stays"),
        pytest.param({"cleanup.policy": "compact", "retention.ms": "0"}, 8, [7], id="retention does not count"),
        pytest.param({"cleanup.policy": "compact,delete", "retention.ms": "0"}, 8, [], id="but with delete it does"),
        pytest.param({}, 8, range(8), id="by default nothing is cleaned"),
    ],
)
@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_lc_01_each_replica_of_a_compacted_topic_is_cleaned(world, role, configs, high_watermark, left):
    """All records have the same key."""
    if role == FOLLOWER and "delete" in configs.get("cleanup.policy", ""):
        left = [7]  # its leader raises the log start
    world.configs, world.high_watermark = configs, high_watermark
    world.log.become({P0: Role(1, role)}, "test")
    world.leader_epoch = 1
    world.maintenance.run_once()
    assert offsets(world.log) == list(left)


@pytest.mark.parametrize("kind", [FENCED, STOPPED])
def test_lc_01_a_replica_that_neither_leads_nor_follows_is_not_cleaned(world, kind):
    world.configs, world.leader_epoch = COMPACTED, 1
    world.log.become({P0: Role(1, kind)}, "test")
    world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))


def hosts_both(world):
    """Replicas of P0 and P1, with P0 first."""
    (hosted,) = world.led().values()
    other = replace(hosted.registration, partition=1)
    world.hosted = lambda: {P0: hosted, P1: replace(hosted, registration=other)}


def test_lc_01_a_log_that_cannot_be_read_keeps_no_other_from_being_cleaned(root, caplog):
    world = World(root, **{"log.cleaner.min.files": 1000, "lakelog.scrub.bytes.per.second": 0})
    fill(world.log, P1, 8)
    hosts_both(world)
    name = next(iter(world.log.current().segments))
    content = bytearray(world.log.root.read(name))
    content[40] ^= 1
    world.log.root.delete(name)
    world.log.root.put(name, bytes(content))
    world.configs = COMPACTED
    world.maintenance.run_once()
    assert offsets(world.log, P1) == [7]
    assert world.log.refresh().known(P0).cleaned_to == 0
    assert "cleaning" in caplog.text
    assert name in caplog.text


def test_lc_01_a_replica_whose_role_changes_while_another_is_cleaned_stays_as_it_is(world, monkeypatch):
    fill(world.log, P1, 8)
    hosts_both(world)
    world.configs, clean = COMPACTED, log_maintenance.clean

    def cleans(*given):
        cleaned = clean(*given)
        world.log.become({P1: Role(0, FENCED)}, "test")
        return cleaned

    monkeypatch.setattr(log_maintenance, "clean", cleans)
    world.maintenance.run_once()
    assert offsets(world.log) == [7]
    assert offsets(world.log, P1) == list(range(8))


def test_lc_01_a_log_is_looked_at_again_if_it_has_changed_or_after_a_minute(world, monkeypatch):
    looks, look = [], log_maintenance.log_to_clean
    monkeypatch.setattr(log_maintenance, "log_to_clean", lambda *given: looks.append(1) or look(*given))
    clock = [NOON.timestamp() + 3600]
    monkeypatch.setattr(world.maintenance, "_wall_clock", lambda: clock[0])

    def looked():
        looks.clear()
        world.maintenance.run_once()
        world.maintenance.run_once()
        return len(looks)

    world.configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    assert looked() == 1
    assert looked() == 0
    fill(world.log, P0, 1)
    assert looked() == 1
    world.high_watermark = 9
    assert looked() == 1
    world.configs = {**world.configs, "max.compaction.lag.ms": "3660000"}
    assert looked() == 1
    clock[0] += 59.9
    assert looked() == 0
    clock[0] += 0.2
    assert looked() == 2, "now it is too old; once it is clean there is nothing to clean"
    assert offsets(world.log) == [8]


def test_lc_01_cleaning_may_be_switched_off(root):
    world = World(root, **{"log.cleaner.enable": "false"})
    world.configs = COMPACTED
    world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))


@pytest.mark.parametrize("fails", [False, True], ids=["they do", "the driver does"])
def test_lc_01_executors_clean_many_bytes_of_an_object_store(monkeypatch, fails, caplog):
    ran = []

    def on_executors(_, call, segments):
        ran.append(len(segments))
        if fails:
            raise ExecutorsFailed("Spark has no executor")
        return [call(segment) for segment in segments]

    monkeypatch.setattr(log_maintenance, "has_executors", lambda _: True)
    monkeypatch.setattr(log_maintenance, "on_executors", on_executors)
    with MemoryStore("clean").opened() as store:
        world = World(f"{store.uri}/broker", **{"lakelog.executor.copy.bytes": 1, "log.cleaner.min.files": 9})
        world.configs = COMPACTED
        world.maintenance.run_once()
        assert (ran, offsets(world.log)) == ([4], [7])
    assert ("the driver cleans 4 segments itself: Spark has no executor" in caplog.text) == fails


def test_na_04_compaction_may_be_switched_off(root):
    world = World(root, **{"log.cleaner.enable": "false"})
    world.maintenance.run_once()
    assert len(world.files()) == 4


def test_na_04_removed_files_stay_for_those_who_read_older_versions(root):
    world = World(root, **{"log.segment.delete.delay.ms": 3_600_000})
    world.maintenance.run_once()
    assert len(world.log.current().segments) == 1
    assert len(world.files()) == 5


@pytest.mark.parametrize(("is_local", "rounds"), [(True, 10), (False, 60)], ids=["a disk", "an object store"])
def test_ol_01_missing_files_are_searched_every_few_rounds(root, is_local, rounds, monkeypatch):
    """A listing costs money, and a read of a broken file reports it anyway."""
    with MemoryStore("scrub").opened() as store:
        world, polled = World(root if is_local else f"{store.uri}/broker", **{"log.cleaner.enable": "false"}), []
        monkeypatch.setattr(world.log, "scrub", lambda: polled.append(world.maintenance._rounds) and False)
        for _ in range(2 * rounds + 1):
            world.maintenance.run_once()
    assert polled == [0, rounds, 2 * rounds]


@pytest.mark.parametrize("error", [KafkaStorageException("full"), ValueError("odd")], ids=["expected", "unexpected"])
@pytest.mark.parametrize("part", ["delete_old_segments", "compact", "raise_log_starts"])
def test_ev_01_a_failed_part_of_maintenance_does_not_stop_the_others(world, monkeypatch, caplog, part, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(log_maintenance, part, fails)
    world.configs = {"retention.ms": 3_000_000}
    world.log.root.write(f"leader-1-{'0' * 32}.parquet", b"no version knows it")
    world.maintenance._cleaner.removed([f"leader-1-{'0' * 32}.parquet"])
    world.maintenance.run_once()
    assert str(error) in caplog.text
    assert offsets(world.log) == list(range(8) if part == "raise_log_starts" else [])
    assert len(world.files()) == 1, "what is left, and not what was removed"
    monkeypatch.undo()
    world.maintenance.run_once()
    assert offsets(world.log) == [], "what could not be done is done the next time"


def test_na_04_a_round_makes_a_bounded_number_of_compactions(world, monkeypatch):
    """Retention and the deletion of files wait for its end."""
    asked = []
    monkeypatch.setattr(log_maintenance, "compact", lambda *_: asked.append(1) or 8)
    world.maintenance.run_once()
    assert len(asked) == 16


@pytest.mark.parametrize(("rate", "most"), [(1000, 60_000), (2**63 - 1, 5_000_000)])
def test_na_04_a_compaction_is_no_larger_than_its_rate_allows_in_a_minute(root, monkeypatch, rate, most):
    limits = {"log.cleaner.io.max.bytes.per.second": rate, "log.cleaner.max.bytes": 5_000_000}
    asked = []
    monkeypatch.setattr(log_maintenance, "compact", lambda _log, _size, _files, found, *_: asked.append(found) or 0)
    World(root, **limits).maintenance.run_once()
    assert asked == [most]


def test_na_04_no_compaction_begins_after_a_minute(world, monkeypatch):
    asked, now = [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(*_):
        asked.append(1)
        now[0] += 25.0
        return 8

    monkeypatch.setattr(log_maintenance, "compact", slow)
    world.maintenance._compact()
    assert len(asked) == 3


def test_na_04_a_compaction_that_waits_ends_with_its_broker(root, caplog):
    world = World(root, **{"log.cleaner.io.max.bytes.per.second": 200})
    stopping, waits = world.maintenance.stopping, []
    wait = stopping.wait
    stopping.wait = lambda seconds: waits.append(seconds) or wait(seconds)
    world.maintenance.start()
    wait_until(lambda: waits, "the compaction waits")
    world.maintenance.stop()
    assert (len(world.files()), caplog.text) == (4, "")


def test_br_04_a_compaction_that_waits_ends_with_its_killed_broker(world, monkeypatch):
    monkeypatch.setattr(world.maintenance.stopping, "wait", lambda _: world.pause_point.kill())
    world.maintenance._is_in_use = lambda: True
    with pytest.raises(BrokerKilled):
        world.maintenance.run_once()
    assert len(world.files()) == 4


def test_ev_01_maintenance_continues_after_an_error_and_ends_with_its_broker(world, monkeypatch, caplog):
    found = []

    def fails(*_):
        found.append(1)
        raise KafkaStorageException("full")

    monkeypatch.setattr(log_maintenance, "compact", fails)
    world.maintenance.start()
    wait_until(lambda: len(found) > 2, "it has tried again")
    world.maintenance.stop()
    assert "broker-1: compaction: full" in caplog.text


def test_br_04_a_killed_broker_writes_nothing_more(world):
    world.pause_point.kill()
    world.configs = {"retention.ms": 0}
    with pytest.raises(BrokerKilled):
        world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))


def test_ol_01_digests_of_files_are_checked_at_their_interval(root, caplog):
    """The settings say how much a second."""
    world = World(root, **{"lakelog.scrub.bytes.per.second": 2**31 - 1})
    name = next(iter(world.log.refresh().segments))
    content = bytearray(world.log.root.read(name))
    content[100] ^= 1
    world.log.root.write(name, bytes(content))
    world.maintenance.run_once()
    assert name in world.log.refresh().broken
    assert "1 files of the log differ from what was committed" in caplog.text


@pytest.mark.parametrize(("interval", "found"), [(0, 1), (-1, 0), (3_600_000, 0)])
def test_ol_01_settings_bound_how_often_a_file_is_checked(root, interval, found):
    """The file was whole when it was read first."""
    settings = {
        "lakelog.scrub.bytes.per.second": 2**31 - 1, "lakelog.scrub.interval.ms": interval, "log.cleaner.enable": False,
    }  # fmt: skip
    world = World(root, **settings)
    world.maintenance.run_once()
    name = next(iter(world.log.refresh().segments))
    content = bytearray(world.log.root.read(name))
    content[100] ^= 1
    world.log.root.write(name, bytes(content))
    for _ in range(10):
        world.maintenance.run_once()
    assert len(world.log.refresh().broken) == found


def optimized(root):
    """The log of a world that other tools may write; one of them has merged its files."""
    world = World(replace(StorageRoot.of(root).child("log"), admits_writers=True), **{"log.cleaner.enable": "false"})
    world.maintenance.run_once()
    DeltaTable(world.log.root.uri).optimize.compact()
    world.log.refresh()
    return world


def test_ol_01_a_round_undoes_what_another_tool_has_written(root, caplog):
    world = optimized(root)
    world.maintenance.run_once()
    assert offsets(world.log) == list(range(8))
    assert "another tool has rewritten 4 segments; they are back" in caplog.text


def test_ol_01_nothing_is_deleted_while_a_partition_is_offline(root, caplog, monkeypatch):
    """An operator may put the file back, or the table, however late."""
    world = optimized(root)
    monkeypatch.setattr(log_maintenance, "undo_other_writers", lambda *_: None)
    before, version = world.files(), world.log.current().version - 1
    for _ in range(3):
        world.maintenance.run_once()
    assert world.files() == before
    assert caplog.text.count("no file of the log is deleted while partitions are offline") == 1
    DeltaTable(world.log.root.uri).restore(version)
    assert offsets(world.log) == list(range(8))
    world.maintenance.run_once()
    assert len(before - world.files()) == 1, "the other tool's file stays"


def test_ol_01_no_commit_is_dropped_while_a_partition_is_offline(root, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 1)
    monkeypatch.setattr(replica_log, "LOG", replace(LOG, commits_kept=1))
    world = optimized(root)
    world.log.maintain()
    log = world.log.root.child("_delta_log")
    assert last_checkpoint(world.log.root) == world.log.current().version
    assert len([name for name in log.list() if is_commit(name)]) == world.log.current().version + 1
    world.maintenance.run_once()
    world.log.maintain()
    assert len([name for name in log.list() if is_commit(name)]) == 2
