"""A lost cluster root is made again from the roots of its brokers, on real tables, with a
crash between any two writes."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakelog.replication.clients.topic_view import open_view
from lakelog.replication.config import Config
from lakelog.replication.controller.active_controller import ActiveController
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.errors import (
    FencedClusterRootException,
    InconsistentClusterIdException,
    InconsistentClusterRootException,
    KafkaStorageException,
    LakelogException,
    LeaderNotAvailableException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.offset_expiration import SeenGroup
from lakelog.replication.protocol.partition_log import FENCED, STOPPED, Role
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Entity, Topic
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.registration import Registration, check_cluster_root
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.cluster_copier import LOCAL_SECONDS, ClusterCopier
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_state import LogChange
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_recovery import Recovery, is_finished, open_broker_roots
from lakelog.replication.storage.staged_batch import StagedBatch, batch_bytes, batch_of, stages_of
from lakelog.replication.storage.tables import cluster_copy
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.cluster_copy import COPIED, ClusterCopy, CopySource, read_copy
from lakelog.replication.storage.tables.group_tables import CommittedOffset, GroupTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import GROUPS, METADATA
from tests.clock import Clock
from tests.hanging import Hanging, ends, in_background, raises, wait_for_root_workers
from tests.processes import wait_until
from tests.storage.delta.unsynced import UnsyncedDisk
from tests.storage.logs import P0, PRODUCER, TOPIC, TOPIC_ID, fill, follow, lead, leo, replicate, request, send

CONFIG = Config.from_properties({"min.insync.replicas": 2})
OFFSETS = [CommittedOffset("g", TOPIC, TOPIC_ID, 0, 3)]
CONTROLLER = 4  # its epoch
STAGED = StagedBatch(7, PRODUCER, (), {TOPIC: {0: 3}}, {TOPIC: {0: 4}})  # by a query, and all brokers have it
STEP = 9  # writes between two crashes; a longer test takes all of them


class Lake:
    """A cluster of three brokers in a folder: broker 1 leads P0, whose 4 records all have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made(cls, folder: Path) -> "Lake":
        lake = cls(folder)
        old = lake.root("cluster")
        cluster_id = format_cluster(old, CONFIG)
        cluster = Cluster.open(old.uri, CONFIG)
        cluster.topics.change([Topic(TOPIC, TOPIC_ID, 1, {"retention.ms": "-1"})], (), {})
        cluster.configs.change({Entity("brokers", "<default>"): {"message.max.bytes": "1000"}}, {})
        for broker in (1, 2, 3):
            format_broker(lake.root(f"broker-{broker}"), cluster_id, broker)
            lake.start(broker)
            (lead if broker == 1 else follow)(lake.log(broker), P0, epoch=0)
        leader = lake.log(1)
        fill(leader, P0, 3, 1, epoch=0)
        for broker in (2, 3):
            replicate(leader, lake.log(broker))
        for broker in (1, 2, 3):
            lake.publish(broker)
        cluster.metadata.put([PartitionRegistration(TOPIC, TOPIC_ID, 0, (1, 2, 3), 1, 0, (1, 2, 3), 7, CONTROLLER)], {})
        cluster.groups.commit(OFFSETS)
        cluster.groups.expire({}, {"g": SeenGroup(0, ConsumerGroup())}, 0, 1, {})
        cluster.producers.init_producer("p", "me")
        lake.copy()
        for broker in (1, 2, 3):
            lake.root(f"broker-{broker}").child("sinks", "query").write("batch-7.arrow", batch_bytes(STAGED))
            cluster.note_what_was_seen(lake.root(f"broker-{broker}"))
        return lake

    def start(self, broker: int) -> None:
        """Registers a process of a broker, which claims its tables."""
        root = self.root(f"broker-{broker}")
        log = ReplicaLog.open(root.child("log"))
        registry = BrokerTable.open_or_create(self.root("cluster"), broker)
        given = Registration(registry, root, replace(CONFIG, broker_id=broker))
        epoch = given.register(log)
        log.claim(epoch, given.log_epoch)
        ReplicaTable.open(root).claim(epoch)

    def at(self, folder: Path) -> "Lake":
        """The same cluster at another place, which the registrations and the copies name."""
        moved = Lake(shutil.copytree(self.folder, folder))
        for broker in (1, 2, 3):
            table = BrokerTable.open(moved.root("cluster"), broker)
            table.heartbeat(1, "moved", root=moved.root(f"broker-{broker}").uri)
        moved.copy()
        return moved

    def root(self, name: str) -> StorageRoot:
        return StorageRoot.of(str(self.folder / name))

    def log(self, broker: int) -> ReplicaLog:
        return ReplicaLog.open(self.root(f"broker-{broker}").child("log"))

    def publish(self, broker: int, epoch: int = 0, high_watermark: int = 4, partition: TopicIdPartition = P0) -> None:
        root = self.root(f"broker-{broker}")
        state = self.log(broker).current()
        log = state.partition(partition)
        role = LEADER_ROLE if log.role.is_leader else FOLLOWER_ROLE
        row = ReplicaStatus(
            TOPIC, partition.topic_id, partition.partition, broker, 1, epoch, role, "Fetching", log.log_start_offset,
            log.log_end_offset, high_watermark, log.lineage, None, state.version, chain=log.log_end.chain,
        )  # fmt: skip
        table = ReplicaTable.open(root)
        table.publish([*(r for p, r in table.replicas.items() if p != partition), row], "test")

    def copy(self, brokers=(1, 2, 3), cluster="cluster") -> None:
        opened = Cluster.open(self.root(cluster).uri, CONFIG)
        small = opened.topics, opened.configs, opened.groups, opened.producers, opened.metadata
        tables = {table.TABLE: table.snapshot() for table in small}
        for broker in brokers:
            copy = ClusterCopy(self.root(f"broker-{broker}"))
            source = CopySource(opened.root.uri, opened.generation, CONTROLLER)
            copy.write(COPIED[0], [opened.identity], 0, source)
            for table, (version, rows) in tables.items():
                copy.write(table, rows, version, source)

    def lose(self, *names: str) -> "Lake":
        for name in names or ("cluster",):
            shutil.rmtree(self.folder / name)
        return self

    def keep_aside(self) -> "Lake":
        """The old root comes back later, as a zombie."""
        shutil.move(self.folder / "cluster", self.folder / "old")
        return self

    def recovery(self, *brokers: int, to: str = "new") -> Recovery:
        given = [(None, str(self.folder / f"broker-{broker}")) for broker in brokers or (1, 2, 3)]
        return Recovery(self.root(to), open_broker_roots(given, CONFIG), CONFIG)

    def opened(self, name: str = "new") -> Cluster:
        return Cluster.open(self.root(name).uri, CONFIG)

    def refuses(self, cluster: Cluster, broker: int) -> bool:
        """Whether a broker refuses a cluster root: when it starts, and as the log that a client opens."""
        root, refused = self.root(f"broker-{broker}"), list[bool]()
        for attempt in (
            lambda: check_cluster_root(cluster, root),
            lambda: ReplicaLog.open(root.child("log"), cluster.generation),
        ):
            try:
                attempt()
                refused.append(False)
            except (FencedClusterRootException, InconsistentClusterRootException):
                refused.append(True)
        return any(refused)


def check(lake, name="new", generation=1):
    """The new root has all that the old one had, and takes its place."""
    cluster = lake.opened(name)
    assert cluster.generation == generation
    (registration,) = cluster.metadata.partitions.values()
    assert (registration.leader, registration.isr, registration.replicas) == (NO_LEADER, (1, 2, 3), (1, 2, 3))
    assert min(registration.leader_epoch, registration.partition_epoch, registration.controller_epoch) >= 1000
    assert cluster.topics.topics[TOPIC].configs == {"retention.ms": "-1"}
    assert cluster.configs.of_broker(1) == {"message.max.bytes": "1000"}
    assert cluster.groups.read() == OFFSETS
    assert [row["idle_ms"] for row in cluster.groups.snapshot()[1]] == [None], "the retention begins anew"
    assert cluster.config.min_insync_replicas == 2
    assert cluster.lease.read().resigned
    for broker, registered in cluster.refresh_brokers().items():
        root = lake.root(f"broker-{broker}")
        assert (registered.root, registered.shutting_down) == (root.uri, True)
        assert registration.isr_epoch(broker) == registered.broker_epoch > 1000 > registered.log_epoch
        assert not lake.refuses(cluster, broker)
        assert lake.log(broker).current().generation == generation
        assert leo(lake.log(broker)) == 4
    assert cluster.producers.init_producer("p", "other").producer_epoch > 0
    check_stage(cluster.root, generation)
    return cluster


def check_stage(root, generation):
    """The stage of the query, whose last batch all logs have."""
    stage = stages_of(root, generation).child("query")
    assert stage.list() == ["batch-7.arrow", "done-7"]
    assert batch_of(stage.read("batch-7.arrow")) == STAGED


def test_a_lost_cluster_root_is_made_again(lake):
    cluster_id = lake.opened("cluster").cluster_id
    recovery = lake.lose().recovery()
    recovery.check_old_root()
    recovery.execute()
    assert check(lake).cluster_id == cluster_id
    for broker in (1, 2, 3):
        check_stage(lake.root(f"broker-{broker}"), 1)
    assert lake.log(1).current().known(P0).role == Role(0, FENCED)


def test_a_root_that_is_made_again_at_its_place_is_opened_anew(lake):
    uri = lake.root("cluster").uri
    before = open_view(uri, CONFIG)
    lake.lose().recovery(to="cluster").execute()
    check(lake, "cluster")
    assert (before.cluster.generation, open_view(uri, CONFIG).cluster.generation) == (0, 1)


def test_the_old_root_is_refused_when_it_comes_back(lake):
    producer = ReplicaLog.open(lake.root("broker-1").child("log"), 0)
    older = ReplicaLog.open(lake.root("broker-2").child("log"), 0)
    older.claim(2, 1)
    rows = ReplicaTable.open(lake.root("broker-2"))
    rows.claim(2)
    lake.keep_aside().recovery().execute()
    old = lake.opened("old")
    for broker in (1, 2, 3):
        assert lake.refuses(old, broker)
        with pytest.raises(FencedClusterRootException, match="recovered elsewhere"):
            check_cluster_root(old, lake.root(f"broker-{broker}"))
    with pytest.raises(FencedClusterRootException, match="generation 1 of the cluster root, and this process uses"):
        fill(producer, P0, 1, epoch=0)
    with pytest.raises(StaleBrokerEpochException):
        older.refresh()
    with pytest.raises(StaleBrokerEpochException):
        rows.publish([], "zombie")
    with pytest.raises(FencedClusterRootException, match=r"is a copy of generation 1 .*/old is of generation 0"):
        lake.copy(cluster="old")
    check(lake)


def test_a_broker_that_was_away_takes_the_new_root_for_the_right_one_and_then_no_older_one(lake):
    lake.keep_aside().recovery(1, 2).execute()
    cluster, root = lake.opened(), lake.root("broker-3")
    check_cluster_root(cluster, root)
    log = ReplicaLog.open(root.child("log"), cluster.generation)
    log.claim(2, 1)
    assert lake.refuses(lake.opened("old"), 3)
    (registration,) = cluster.metadata.partitions.values()
    assert (registration.isr, registration.replicas) == ((1, 2), (1, 2, 3))


def restored(lake, broker, before):
    """The broker gets the root that `before` has, a copy of the lake from before."""
    shutil.rmtree(lake.folder / f"broker-{broker}")
    shutil.copytree(before / f"broker-{broker}", lake.folder / f"broker-{broker}")
    return lake.root(f"broker-{broker}")


def test_a_root_from_before_a_recovery_counts_as_one_that_has_lost_its_log(lake, tmp_path):
    """Its log has grown beyond the registered version since, on the old cluster root, and that commit is cleaned up."""
    before = shutil.copytree(lake.folder, tmp_path / "before")
    lake.keep_aside().recovery().execute()
    cluster, root = lake.opened(), restored(lake, 3, before)
    registered = cluster.registration(3)
    own = ReplicaLog.open(root.child("log"))
    while own.refresh().version <= registered.log_version:
        own.transact({"who": "old"}, lambda state: LogChange(txns={"broker-epoch": state.broker_epoch + 1}))
    DeltaTable(root.path("log")).create_checkpoint()
    os.remove(root.path(f"log/_delta_log/{registered.log_version:020d}.json"))
    view = open_view(cluster.root.uri, CONFIG)
    with pytest.raises(LeaderNotAvailableException, match="is not the log that it registered"):
        view.log(3)
    log = ReplicaLog.open(root.child("log"), cluster.generation)
    given = Registration(BrokerTable.open(cluster.root, 3), root, replace(CONFIG, broker_id=3))
    assert given.log_epoch == 0
    assert given.register(log, 0, cluster.generation) == given.log_epoch > registered.broker_epoch


def test_a_root_from_before_a_recovery_does_not_prove_that_nothing_is_lost(lake, tmp_path, monkeypatch):
    """Not either if a recovery that was given it did not end. Its log may lead, if it is all that is left."""
    before = shutil.copytree(lake.folder, tmp_path / "before")
    lake.keep_aside().recovery().execute()
    restored(lake, 3, before)
    lake.lose("new")
    for brokers, loss in (((1, 2), None), ((1, 3), "records from offset 4 on"), ((1, 2, 3), None)):
        (found,) = lake.recovery(*brokers, to="newer").plan().partitions
        assert (found.loss, sorted(found.absent)) == (loss, [b for b in (1, 2, 3) if b == 3 or b not in brokers])
    with monkeypatch.context() as patched:
        patched.setattr(Recovery, "_write_tables", raises(Crash()))
        with pytest.raises(Crash):
            lake.recovery(1, 3, to="newer").execute()
    (found,) = lake.recovery(1, 3, to="newer").plan().partitions
    assert (found.loss, sorted(found.absent)) == ("records from offset 4 on", [2, 3])
    lake.recovery(1, 2, 3, to="newer").execute()
    (registration,) = lake.opened("newer").metadata.partitions.values()
    assert registration.isr == (1, 2, 3)
    assert lake.opened("newer").registration(3).log_epoch == registration.isr_epoch(3) - 1000


def test_a_leader_that_still_uses_the_old_root_finds_out_by_the_rows_of_others(lake):
    old, root = MetadataCache(lake.opened("cluster")), lake.root("broker-2").uri
    for broker in (2, 3):
        old.check_generation(broker)  # it has read nothing yet
        old.replica_table(broker)
        old.check_generation(broker)
    lake.recovery(1, 2).execute()
    for broker in (2, 3):
        old.replica_table(broker).refresh()
    with pytest.raises(FencedClusterRootException, match=f"the broker at {root} belongs to generation 1"):
        old.check_generation(2)
    old.check_generation(3)
    new = MetadataCache(lake.opened())
    new.replica_table(2)
    new.check_generation(2)


class Crash(BaseException):
    """The process dies."""


def crash_after(writes, monkeypatch):
    """The process dies before its write of this number; the answer tells how many it has made."""
    count = [0]

    def counted(write):
        def attempt(self, name, content):
            if count[0] == writes:
                raise Crash
            count[0] += 1
            return write(self, name, content)

        return attempt

    local = type(StorageRoot.of("/lake"))
    monkeypatch.setattr(local, "put", counted(local.put))
    monkeypatch.setattr(local, "put_if_absent", counted(local.put_if_absent))
    return count


def dies(lake, writes, monkeypatch):
    """A recovery that dies before a write."""
    with monkeypatch.context() as patched:
        crash_after(writes, patched)
        with pytest.raises(Crash):
            lake.recovery().execute()


def test_a_crash_between_two_writes_leaves_one_root_at_most_and_the_command_goes_on(lake, tmp_path, monkeypatch):
    lake.keep_aside()
    with monkeypatch.context() as patched:
        count = crash_after(10_000, patched)
        Lake(shutil.copytree(lake.folder, tmp_path / "whole")).recovery().execute()
    assert count[0] > 50
    finished = 0
    for writes in range(0, count[0], STEP):
        now = Lake(shutil.copytree(lake.folder, tmp_path / str(writes)))
        dies(now, writes, monkeypatch)
        old, closed = now.opened("old"), [now.log(broker).current().generation for broker in (1, 2, 3)]
        assert [now.refuses(old, broker) for broker in (1, 2, 3)] == [generation > 0 for generation in closed]
        if is_finished(now.root("new")):  # only copies are missing
            with pytest.raises(InconsistentClusterIdException, match="is the root of cluster"):
                now.recovery()
            finished += 1
        else:
            now.recovery().execute()
        check(now, generation=max(closed) + (not finished))
        assert all(now.refuses(now.opened("old"), broker) for broker in (1, 2, 3))
        shutil.rmtree(now.folder)
    assert finished


def test_an_unfinished_recovery_may_end_at_another_place(lake, monkeypatch):
    lake.keep_aside()
    dies(lake, 40, monkeypatch)
    recovery = lake.recovery(to="elsewhere")
    recovery.check_old_root()
    recovery.execute()
    check(lake, "elsewhere", generation=2)


def test_a_recovery_that_is_overtaken_writes_nothing_more(lake):
    lake.keep_aside()
    slow = lake.recovery()
    lake.recovery().execute()
    with pytest.raises(FencedClusterRootException, match="another recovery is under way"):
        slow.execute()
    check(lake)
    later = lake.recovery(to="elsewhere")
    with pytest.raises(InconsistentClusterIdException, match="the cluster root is there, so it need not be recovered"):
        later.check_old_root()


def test_a_recovery_with_fewer_roots_that_did_not_end_does_not_count_for_the_next_one(lake, monkeypatch):
    """Broker 1 alone tells that the topic was deleted, or moved to the others."""
    lake.log(1).become({P0: Role(6, STOPPED)}, "test")
    lake.lose()
    with monkeypatch.context() as patched:
        patched.setattr(Recovery, "_set", lambda *_: pytest.fail("not yet"))
        with pytest.raises(pytest.fail.Exception):
            lake.recovery(1).execute()
    assert read_copy(lake.root("broker-1"))[METADATA.name].source.uri == lake.root("cluster").uri
    (found,) = lake.recovery().plan().partitions
    assert (found.registration.replicas, found.registration.isr, found.loss) == ((2, 3), (2, 3), None)


def test_a_slow_recovery_cannot_end_while_another_one_writes_its_tables(lake, monkeypatch):
    lake.keep_aside()
    slow, identity = lake.recovery(), []
    monkeypatch.setattr(slow, "_copy", lambda *_: None)

    def overtaken(plan):
        if not identity:
            identity.append(Recovery._identity(slow, plan))
            later = lake.recovery()
            with monkeypatch.context() as patched:  # it has closed all logs, and has begun with the tables
                patched.setattr(later, "_take_note", lambda *_: pytest.fail("not yet"))
                with pytest.raises(pytest.fail.Exception):
                    later.execute()
        return identity[0]

    monkeypatch.setattr(slow, "_identity", overtaken)
    with pytest.raises(FencedClusterRootException, match="was written by a recovery of generation 2, and this one"):
        slow.execute()
    assert not is_finished(lake.root("new"))
    lake.recovery().execute()
    check(lake, generation=3)


def test_what_is_recovered_survives_a_power_cut_of_all_roots(lake, tmp_path, monkeypatch):
    disk = UnsyncedDisk(lake.folder, monkeypatch)
    lake.lose()
    for folder, _, files in os.walk(lake.folder):
        for path in (*(Path(folder, name) for name in files), Path(folder)):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    lake.recovery().execute()
    after = disk.after_power_cut(tmp_path / "after")
    shutil.rmtree(lake.folder)
    shutil.move(after, lake.folder)
    check(lake)


def test_the_copies_are_delta_tables_with_the_columns_of_the_originals(lake):
    copies = lake.root("broker-2").child("cluster-copy")
    assert copies.list() == ["cluster", "configs", "groups", "metadata", "producers", "topics"]
    rows = DeltaTable(copies.child("groups").uri).to_pyarrow_table().to_pylist()
    assert rows == [{**row._asdict(), "idle_ms": 0} for row in OFFSETS]
    found = read_copy(lake.root("broker-2"))
    assert found[METADATA.name].source.uri == lake.root("cluster").uri
    assert read_copy(lake.root("none")) == {}


def copied_versions(lake):
    folder = lake.root("broker-1").child("cluster-copy")
    return [StateTable.open_at(folder.child(table.name), table).version for table in COPIED]


def test_a_copy_that_is_the_same_is_not_written_again(lake):
    before = copied_versions(lake)
    lake.copy()
    assert copied_versions(lake) == before


def copier_of(lake, time):
    cluster = lake.opened("cluster")
    cluster.refresh_brokers()
    return ClusterCopier(cluster, time)


def committed_in_copy(lake, broker):
    wait_for_root_workers()
    return read_copy(lake.root(f"broker-{broker}"))["groups"].rows[0]["committed_offset"]


def test_the_controller_copies_what_has_changed_to_each_broker(lake):
    lake.lose("broker-3")
    copier = copier_of(lake, Clock())
    lake.opened("cluster").groups.commit([OFFSETS[0]._replace(committed_offset=4)])
    copier.poll(CONTROLLER + 1)
    for broker in (1, 2):
        assert committed_in_copy(lake, broker) == 4
        assert read_copy(lake.root(f"broker-{broker}"))["groups"].source.controller_epoch == CONTROLLER + 1
    assert not (lake.folder / "broker-3").exists()


def test_a_root_that_was_replaced_has_copies_when_its_broker_is_back(lake):
    cluster, time = lake.opened("cluster"), Clock()
    cluster.refresh_brokers()
    copier = ClusterCopier(cluster, time)
    copier.poll(CONTROLLER)
    wait_for_root_workers()
    format_broker(lake.lose("broker-1").root("broker-1"), cluster.cluster_id, 1)
    lake.start(1)
    cluster.refresh_brokers()
    time.now += LOCAL_SECONDS
    copier.poll(CONTROLLER)
    assert committed_in_copy(lake, 1) == 3


def test_tables_are_not_polled_again_before_some_seconds(lake):
    time = Clock()
    copier = copier_of(lake, time)
    copier.poll(CONTROLLER)
    lake.opened("cluster").groups.commit([OFFSETS[0]._replace(committed_offset=4)])
    copier.poll(CONTROLLER)
    assert committed_in_copy(lake, 1) == 3
    time.now += LOCAL_SECONDS
    copier.poll(CONTROLLER)
    assert committed_in_copy(lake, 1) == 4


def test_a_deposed_controller_replaces_no_copy_and_copies_again_when_it_is_elected(lake, caplog):
    time = Clock()
    copier, before = copier_of(lake, time), copied_versions(lake)
    copier.poll(CONTROLLER - 1)
    wait_for_root_workers()
    assert copied_versions(lake) == before
    assert "a controller of epoch 4 has copied the table, and this one is of epoch 3" in caplog.text
    time.now += LOCAL_SECONDS
    copier.poll(CONTROLLER + 1)
    wait_for_root_workers()
    assert read_copy(lake.root("broker-1"))["topics"].source.controller_epoch == CONTROLLER + 1


def test_a_stop_waits_for_the_copies_that_are_being_written_but_not_for_one_that_hangs(lake, monkeypatch):
    written = []
    for seconds in (0.01, 30.0):
        hanging, copier = Hanging(lambda *_: written.append("a table")), copier_of(lake, Clock())
        monkeypatch.setattr(ClusterCopy, "write", hanging)
        copier.poll(CONTROLLER + 1)
        assert hanging.is_entered.wait(30)
        stopping = in_background(lambda copier=copier, seconds=seconds: copier.stop(seconds))
        if seconds < 1:
            assert ends(stopping)
            assert written == []
        hanging.let_go()
        assert ends(stopping)
        if seconds > 1:
            assert len(written) in {len(COPIED) * roots for roots in (1, 2, 3)}  # each that was begun is whole
        wait_for_root_workers()
        written.clear()


def test_a_controller_whose_rounds_fail_copies_all_the_same(lake, monkeypatch):
    for broker in (1, 2, 3):
        shutil.rmtree(lake.folder / f"broker-{broker}" / "cluster-copy")
    controller = Controller(lake.opened("cluster"), "c")
    monkeypatch.setattr(ActiveController, "poll", raises(KafkaStorageException("a torn commit")))
    for _ in range(2):
        controller.round()
    assert committed_in_copy(lake, 1) == 3


def test_a_controller_that_cannot_read_a_table_says_so_once(lake, monkeypatch, caplog):
    time = Clock()
    copier = copier_of(lake, time)
    monkeypatch.setattr(GroupTable, "refresh", raises(KafkaStorageException("a torn commit")))
    for _ in range(3):
        copier.poll(CONTROLLER)
        time.now += LOCAL_SECONDS
    assert [record.message for record in caplog.records] == ["the copies of the cluster's tables: a torn commit"]


def test_a_controller_of_a_root_that_was_recovered_elsewhere_ends(lake):
    lake.keep_aside().recovery(1, 2).execute()
    controller = Controller(lake.opened("old"), "old")
    controller.start()
    try:
        wait_until(lambda: controller.failure is not None and not controller.is_running, "its end")
    finally:
        controller.stop()
    assert "it was recovered elsewhere" in str(controller.failure)
    assert read_copy(lake.root("broker-1"))["topics"].source.generation == 1


def test_a_process_of_the_old_root_writes_no_note_over_that_of_the_new_one(lake):
    root, old = lake.root("broker-1"), lake.opened("cluster")
    lake.recovery().execute()
    seen = lake.opened().seen_by(root)
    with pytest.raises(FencedClusterRootException, match="broker-1 belongs to generation 1"):
        old.note_what_was_seen(root)
    assert lake.opened().seen_by(root) == seen != {}


def test_a_note_of_the_old_root_that_comes_late_keeps_no_broker_from_the_new_one(lake):
    root, old = lake.root("broker-1"), lake.opened("cluster")
    late = root.read("cluster-seen.json")
    lake.recovery().execute()
    root.put("cluster-seen.json", late)
    lake.opened().expect_what_was_seen(root)
    with pytest.raises(FencedClusterRootException, match="the cluster root was recovered elsewhere"):
        old.expect_what_was_seen(root)
    lake.opened().note_what_was_seen(root)
    assert lake.opened().seen_by(root) == lake.opened().guard.states("cluster", "metadata", "topics")


def test_a_topic_without_metadata_whose_name_is_taken_stays_a_stray_one(lake):
    other = TopicIdPartition("new-id", 0)
    for broker in (1, 2):
        (lead if broker == 1 else follow)(lake.log(broker), other, epoch=0)
    fill(lake.log(1), other, 2)
    replicate(lake.log(1), lake.log(2), other)
    lake.lose()
    plan = lake.recovery().plan()
    names = {each.registration.topic_id: each.registration.replicas for each in plan.partitions}
    assert names == {TOPIC_ID: (1, 2, 3)}
    assert plan.strays == [f"{TOPIC}-0"]


def test_a_topic_that_was_deleted_after_the_last_copy_does_not_come_back(lake):
    for broker in (1, 2, 3):
        lake.log(broker).become({P0: Role(6, STOPPED)}, "test")
    plan = lake.lose().recovery().plan()
    assert (plan.partitions, plan.rows["topics"], plan.rows[GROUPS.name]) == ([], [], [])


def test_a_partition_whose_last_replicas_have_moved_to_a_missing_root_may_be_lost(lake):
    for broker in (1, 2):
        lake.log(broker).become({P0: Role(6, STOPPED)}, "test")
    plan = lake.lose().recovery(1, 2).plan()
    (found,) = plan.partitions
    assert (found.registration.replicas, found.loss) == ((3,), "all records")
    assert [row["topic"] for row in plan.rows["topics"]] == [TOPIC]


def test_a_topic_that_was_made_again_after_the_last_copy_is_the_new_one(lake):
    again = TopicIdPartition("again", 0)
    for broker in (1, 2):
        log = lake.log(broker)
        log.become({P0: Role(6, STOPPED)}, "test")
        (lead if broker == 1 else follow)(log, again, epoch=0)
    fill(lake.log(1), again, 3)
    replicate(lake.log(1), lake.log(2), again)
    lake.lose()
    for brokers in ((1, 2, 3), (1, 2)):
        if len(brokers) == 3:
            lake.log(3).become({P0: Role(6, STOPPED)}, "test")
        plan = lake.recovery(*brokers).plan()
        (found,) = plan.partitions
        assert (found.registration.topic_id, found.choice.log_end_offset) == ("again", 3)
        assert found.loss == (None if len(brokers) == 3 else "records from offset 3 on")
        assert [(row["topic"], row["topic_id"]) for row in plan.rows["topics"]] == [(TOPIC, "again")]
        assert plan.strays == []


def test_an_election_after_the_last_copy_makes_the_number_of_replicas_uncertain(lake):
    lead(lake.log(2), P0, epoch=1)
    follow(lake.log(1), P0, epoch=1)
    lake.lose()
    for brokers, loss in (((1, 2, 3), None), ((1, 2), "records from offset 4 on")):
        (found,) = lake.recovery(*brokers).plan().partitions
        assert (found.loss, found.registration.isr) == (loss, brokers)


def test_the_offset_of_a_group_is_not_beyond_a_log_that_may_have_lost_records(lake):
    fill(lake.log(1), P0, 3, epoch=0)
    lake.opened("cluster").groups.commit([OFFSETS[0]._replace(committed_offset=7)])
    lake.copy()
    lake.lose()
    for brokers, offset in (((1, 2, 3), 7), ((3,), 4)):
        (row,) = lake.recovery(*brokers).plan().rows[GROUPS.name]
        assert row["committed_offset"] == offset


def test_of_a_topic_without_a_copy_any_missing_root_may_have_records(lake):
    other = TopicIdPartition("other-id", 0)
    lead(lake.log(3), other, epoch=0)
    log = lake.log(3)
    (outcome,) = send(log, replace(request(other, 2), topic="other"))
    assert isinstance(outcome, Appended)
    lake.lose()
    for brokers, loss in (((1, 2, 3), None), ((2, 3), "records from offset 2 on")):
        found = {each.registration.topic: each for each in lake.recovery(*brokers).plan().partitions}
        assert (found["other"].loss, found["other"].registration.replicas) == (loss, (3,))


def test_what_was_copied_before_the_logs_were_closed_counts(lake):
    recovery = lake.recovery()
    lake.opened("cluster").groups.commit([OFFSETS[0]._replace(committed_offset=4)])
    lake.copy()
    recovery.execute()
    assert [row["committed_offset"] for row in lake.opened().groups.snapshot()[1]] == [4]


def test_the_final_plan_may_be_refused(lake):
    lake.lose()

    def refuse(plan):
        assert [each.registration.isr for each in plan.partitions] == [(1,)]
        raise LakelogException("refused")

    recovery = lake.recovery()
    fill(lake.log(1), P0, 2, epoch=0)  # a broker that still runs
    with pytest.raises(LakelogException, match="refused"):
        recovery.execute(refuse)
    assert not is_finished(lake.root("new"))
    lake.recovery().execute()
    assert is_finished(lake.root("new"))


TABLES = ("log", "replicas", *(f"cluster-copy/{table.name}" for table in COPIED))


def tear(lake, broker, table):
    """A power cut tears the newest commit of a table."""
    log = lake.folder / f"broker-{broker}" / table / "_delta_log"
    newest = max(name for name in os.listdir(log) if name.endswith(".json"))
    (log / newest).write_text("")


@pytest.mark.parametrize("table", TABLES)
def test_what_a_power_cut_has_torn_is_put_aside(lake, table):
    fill(lake.log(1), P0, 2, epoch=0)
    lake.publish(1)
    tear(lake.lose(), 1, table)
    given = [(None, str(lake.folder / f"broker-{broker}")) for broker in (1, 2, 3)]
    message = "broker-1: cannot be read, after a power cut leave out --dry-run: .*torn"
    with pytest.raises(KafkaStorageException, match=message):
        open_broker_roots(given, CONFIG)
    recovery = Recovery(lake.root("new"), open_broker_roots(given, CONFIG, may_mend=True), CONFIG)
    (found,) = recovery.plan().partitions
    absent = {1: "its log has lost its end, as after a power cut"} if table == "log" else {}
    assert found.absent == absent
    (found,) = recovery.execute().partitions
    assert found.absent == absent
    (registration,) = lake.opened().metadata.partitions.values()
    assert registration.isr == ((1, 2, 3) if table == "log" else (1,))


def test_a_copy_that_a_power_cut_has_torn_is_written_again(lake):
    tear(lake, 1, "cluster-copy/groups")
    lake.opened("cluster").groups.commit([OFFSETS[0]._replace(committed_offset=4)])
    lake.copy()
    assert read_copy(lake.root("broker-1"))["groups"].rows[0]["committed_offset"] == 4


@pytest.mark.parametrize("is_torn", [True, False], ids=["its first commit is torn", "a late commit after an emptying"])
@pytest.mark.parametrize("table", ["metadata", "groups"])
def test_a_copy_without_a_beginning_keeps_nobody_from_the_others(lake, table, is_torn):
    log = lake.folder / "broker-1" / "cluster-copy" / table / "_delta_log"
    first, *later = sorted(name for name in os.listdir(log) if name.endswith(".json"))
    if is_torn:
        (log / first).write_text("")
    for name in later if is_torn else [first, *later[:-1]]:
        (log / name).unlink()
    shutil.copytree(lake.folder, lake.folder.with_name("copied"))
    lake.copy()
    assert table in read_copy(lake.root("broker-1"))
    lost = Lake(lake.folder.with_name("copied")).lose()
    given = [(None, str(lost.folder / f"broker-{broker}")) for broker in (1, 2, 3)]
    Recovery(lost.root("new"), open_broker_roots(given, CONFIG, may_mend=True), CONFIG).execute()
    check(lost)


def test_a_copy_that_another_controller_has_begun_again_stays(lake, monkeypatch):
    root = lake.root("broker-1")
    folder = lake.folder / "broker-1" / "cluster-copy" / "groups"
    for name in sorted(os.listdir(folder / "_delta_log"))[:-1]:
        (folder / "_delta_log" / name).unlink()

    def another_is_faster(*_, **__):
        shutil.rmtree(folder)
        ClusterCopy(root).write(GROUPS, [], 1, CopySource("elsewhere", 0, CONTROLLER + 1))
        return False

    monkeypatch.setattr(cluster_copy, "recover_log", another_is_faster)
    cluster_copy.mend_copy(root)
    monkeypatch.undo()
    assert read_copy(root)["groups"].source.uri == "elsewhere"


def test_without_copies_the_logs_tell_what_there_was(lake):
    for broker in (1, 2, 3):
        shutil.rmtree(lake.folder / f"broker-{broker}" / "cluster-copy")
    recovery = lake.lose().recovery()
    with pytest.raises(InconsistentClusterIdException, match=r"says where the root of cluster \w+ was.*--force"):
        recovery.check_old_root()
    recovery.execute()
    (registration,) = lake.opened().metadata.partitions.values()
    assert (registration.topic, registration.replicas, registration.isr) == (TOPIC, (1, 2, 3), (1, 2, 3))
    assert lake.opened().groups.read() == []


def test_the_epoch_of_a_producer_is_that_of_its_batches(lake):
    (row,) = read_copy(lake.root("broker-1"))["producers"].rows
    log = lake.log(1)
    fill(log, P0, 1, producer_id=row["producer_id"])
    (outcome,) = send(log, request(P0, 1, producer_id=row["producer_id"], producer_epoch=4))
    assert isinstance(outcome, Appended)
    assert lake.lose().recovery().plan().rows["producers"] == [{**row, "producer_epoch": 4}]


def test_two_of_three_roots_lose_nothing_and_one_may(lake):
    lake.lose()
    for brokers, loss in (((1, 2), None), ((2, 3), None), ((3,), "records from offset 4 on")):
        (found,) = lake.recovery(*brokers).plan().partitions
        assert (found.loss, sorted(found.absent)) == (loss, [b for b in (1, 2, 3) if b not in brokers])


def test_settings_of_a_newer_version_are_kept_and_one_replica_may_have_been_enough(lake):
    """Nobody here knows how many replicas `a majority` of them is."""
    configs = {"min.insync.replicas": "a majority", "x.of.recovered.topics": "1"}
    old = lake.opened("cluster")
    old.topics.change([Topic(TOPIC, TOPIC_ID, 1, configs)], (), {})
    old.configs.change({Entity("brokers", "1"): {"x.of.brokers": "1"}}, {})
    lake.copy()
    (found,) = lake.lose().recovery(1, 2).execute().partitions
    assert (found.loss, sorted(found.absent)) == ("records from offset 4 on", [3])
    assert lake.opened().topics.topics[TOPIC].configs == configs
    assert lake.opened().configs.of_broker(1)["x.of.brokers"] == "1"


def test_the_longest_log_leads(lake):
    fill(lake.log(1), P0, 2, epoch=0)
    lake.lose().recovery().execute()
    (registration,) = lake.opened().metadata.partitions.values()
    assert registration.isr == (1,)


def test_a_plan_writes_nothing(lake):
    lake.lose()
    before = sorted((path, os.stat(path).st_mtime_ns) for path in map(str, lake.folder.rglob("*")))
    recovery = lake.recovery()
    recovery.check_old_root()
    recovery.plan()
    assert sorted((path, os.stat(path).st_mtime_ns) for path in map(str, lake.folder.rglob("*"))) == before


def unreadable(lake):
    for name in os.listdir(lake.folder / "broker-2" / "log" / "_delta_log"):
        (lake.folder / "broker-2" / "log" / "_delta_log" / name).write_text("torn")
    return "log"


def moved_in(lake):
    os.mkdir(lake.folder / "new")
    (lake.folder / "new" / "thesis.doc").write_text("x")


def test_roots_that_do_not_fit_are_refused(lake, tmp_path):
    lake.keep_aside()
    other = Lake.made(tmp_path / "other")
    cases = [
        ([1, 1], "are both roots of broker 1: give the one that it has used last"),
        (["old"], "old: is the root of cluster .*, no root of a broker"),
        ([1, other.folder / "broker-2"], "belongs to cluster .*, and .*broker-1 to cluster"),
        (["nowhere"], "there is no root of a broker at .*nowhere"),
    ]
    for roots, message in cases:
        given = [(None, str(lake.folder / (f"broker-{root}" if isinstance(root, int) else root))) for root in roots]
        with pytest.raises(InconsistentClusterIdException, match=message):
            open_broker_roots(given, CONFIG)
    with pytest.raises(InconsistentClusterIdException, match="is the root of broker 1, not of 2"):
        open_broker_roots([(2, str(lake.folder / "broker-1"))], CONFIG)


def test_a_root_that_cannot_be_read_is_named(lake):
    unreadable(lake)
    with pytest.raises((KafkaStorageException, LakelogException), match="broker-2"):
        lake.lose().recovery()


def test_the_place_of_the_new_root_is_checked(lake):
    lake.keep_aside()
    moved_in(lake)
    for to, message in (
        ("new", r"must be empty to be formatted, it holds thesis\.doc"),
        ("broker-1", "is the root of broker 1 of cluster .* already"),
        ("broker-1/new", "lies in .*broker-1, the root of broker 1"),
        ("old", "is the root of cluster .* already"),
    ):
        with pytest.raises(InconsistentClusterIdException, match=message):
            lake.recovery(to=to)


def test_a_recovery_that_has_ended_is_not_begun_again(lake):
    lake.lose().recovery().execute()
    with pytest.raises(InconsistentClusterIdException, match="the recovery has ended, and this is the root of cluster"):
        lake.recovery()
    check(lake)


def test_a_recovery_goes_on_that_was_killed_while_it_wrote_its_first_file(lake, monkeypatch):
    recovery = lake.lose().recovery()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", raises(Crash()))
        patched.setattr(os, "remove", raises(OSError("it does not come to that")))
        with pytest.raises(Crash):
            recovery.execute()
    (left,) = lake.root("new").list()
    assert left.startswith(".recovery.json.")
    lake.recovery().execute()
    assert lake.opened().groups.read() == OFFSETS


@pytest.mark.parametrize("is_readable", [True, False])
def test_an_old_root_that_is_there_is_not_recovered_unasked(lake, is_readable, monkeypatch):
    recovery = lake.recovery()
    message = "is there, so it need not be recovered"
    if not is_readable:
        message = "cannot be read here, and others may still use it"

        def fails(*_):
            raise KafkaStorageException("the store does not answer")

        monkeypatch.setattr("lakelog.replication.storage.root_recovery.is_formatted", fails)
    with pytest.raises(InconsistentClusterIdException, match=message):
        recovery.check_old_root()


def test_a_second_loss_is_recovered_too(lake):
    lake.lose().recovery().execute()
    lake.opened().groups.commit([OFFSETS[0]._replace(committed_offset=4)])
    lake.lose("new").recovery(to="third").execute()
    check(lake, "third", generation=2)
