"""With `storage.fsync` a power cut takes nothing that was committed. A table is opened from what is whole."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.topic import Entity, Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.commit_format import check_commits, commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.log_recovery import ASIDE, recover_log
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Fetched, append_as_follower
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.replication.storage.root_probe import recover_root, storage_error
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.group_tables import CommittedOffset, MemberTable
from lakelog.replication.storage.tables.producer_table import ProducerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.replication.storage.tables.topic_table import TopicTable
from lakelog.schemas import LOG, PRODUCERS
from tests.hanging import raises
from tests.storage.delta.tables import at, checkpoint, facts, filled, go_on, moved, of, opened
from tests.storage.delta.unsynced import UnsyncedDisk, at_folder_syncs
from tests.storage.logs import P0, fill, follow, lead, leo, new_log, request, send


@pytest.fixture
def often(monkeypatch):
    """Checkpoints after 5 commits, of which few stay."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr("lakelog.replication.storage.log.replica_log.LOG", dataclasses.replace(LOG, commits_kept=3))


def broker_root(folder, fsync):
    root = StorageRoot.of(str(folder / "lake" / "broker-1"), fsync=fsync)
    format_broker(root, "cluster-id", 1)
    return root


@pytest.mark.usefixtures("often")
def test_li_04_with_fsync_a_power_cut_takes_nothing_that_was_committed(tmp_path, monkeypatch):
    """At any moment: checkpoints, new tables and new folders are synced before anything needs them."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root = broker_root(tmp_path, fsync=True)
    log, registered = ReplicaLog.open(root.child("log")), BrokerTable.open_or_create(root, 1)
    lead(log, P0, epoch=0)
    registered.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    for count in range(1, 18):
        fill(log, P0, 1)
        registered.heartbeat(1, "heartbeat", log_version=count)
        for table in (log, registered):
            table.maintain()
        after = StorageRoot.of(str(disk.after_power_cut(tmp_path / "after") / "broker-1"))
        assert storage_error(after, "cluster-id", 1) is None
        assert leo(ReplicaLog.open(after.child("log"))) == count
        assert BrokerTable.open(after, 1).registration == registered.registration
    assert len(checkpoints(log.root)) >= 2


def test_li_04_a_broker_root_that_was_formatted_without_fsync_is_there_after_a_power_cut(tmp_path, monkeypatch):
    """`format` and the broker may have different settings. The broker syncs its commits, and needs the first ones."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    broker_root(tmp_path, fsync=False)
    root = StorageRoot.of(str(tmp_path / "lake" / "broker-1"), fsync=True)
    log, rows = ReplicaLog.open(root.child("log")), ReplicaTable.open(root)
    lead(log, P0, epoch=0)
    fill(log, P0, 3)
    after = StorageRoot.of(str(disk.after_power_cut(tmp_path / "after") / "broker-1"))
    assert storage_error(after, "cluster-id", 1) is None
    assert leo(ReplicaLog.open(after.child("log"))) == 3
    assert ReplicaTable.open(after).version == rows.version


@pytest.mark.usefixtures("often")
def test_li_04_without_fsync_a_power_cut_takes_no_commit_of_the_cluster_root(tmp_path, monkeypatch):
    """Else brokers refuse the cluster root for good, and a torn commit of a client stops the controllers. The worst
    case is a broker's note that is durable at once."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root, noted = StorageRoot.of(str(tmp_path / "lake" / "cluster")), StorageRoot.of(str(tmp_path / "note"))
    noted.create_folder()
    format_cluster(root, Config())
    cluster = Cluster.open(root.uri)
    registered = BrokerTable.open_or_create(cluster.root, 1)
    members = MemberTable.open_or_create(cluster.root, "g")
    for count in range(1, 13):
        lease = cluster.lease.elect(f"c{count}", cluster.lease.read())
        cluster.admin.add(AdminRequest(f"r{count}", "delete_topic", {"topic": "t"}))
        cluster.configs.change({Entity("broker", "1"): {"log.retention.ms": str(count)}}, {"who": "test"})
        cluster.producers.init_producer("p", f"owner-{count}")
        cluster.groups.commit([CommittedOffset("g", "t", "id", 0, count)])
        members.change("g", "join", lambda group, to=count: replace(group, generation=to))
        registered.register(lambda _, to=count: BrokerRegistration(1, "/1", None, to, -1, False, None, "log", 0))
        cluster.metadata.put([PartitionRegistration("t", "id", count, (1,), 1, 0, (1,), 0)], {"who": "test"})
        cluster.topics.change([Topic("t", "id", count)], (), {"who": "test"})
        written = (cluster.metadata, cluster.topics, cluster.lease, cluster.admin, cluster.configs, cluster.producers,
                   cluster.groups, members, registered)  # fmt: skip
        for table in written:
            table.maintain()
        cluster.note_what_was_seen(noted)
        after = disk.after_power_cut(tmp_path / "after") / "cluster"
        assert_is_kept(after, cluster.seen_by(noted))
        for table in written:
            name = table.uri.removeprefix(f"{root.uri}/")
            assert DeltaLog.open(StorageRoot.of(str(after / name))).version == table.version
    assert lease is not None
    assert all(checkpoints(root.child(name)) for name in ("metadata", "topics", "admin", "groups"))


def assert_is_kept(root, seen):
    """Opens the tables of the cluster as the power cut has left them."""
    for name, state in seen.items():
        opened = DeltaLog.open(StorageRoot.of(str(root / name)))
        assert (opened.table_id, opened.version) == (state.table_id, state.version)


def test_a_note_waits_for_the_sync_of_a_commit_whose_writer_has_not_done_it_yet(tmp_path, monkeypatch):
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root, noted = StorageRoot.of(str(tmp_path / "lake" / "cluster")), StorageRoot.of(str(tmp_path / "note"))
    noted.create_folder()
    format_cluster(root, Config())
    cluster, reader = Cluster.open(root.uri), Cluster.open(root.uri)
    with monkeypatch.context() as between:
        between.setattr(LocalRoot, "sync", at_folder_syncs(lambda: None))
        cluster.metadata.put([PartitionRegistration("t", "id", 0, (1,), 1, 0, (1,), 0)], {"who": "test"})
    reader.metadata.refresh()
    reader.note_what_was_seen(noted)
    assert reader.seen_by(noted)["metadata"].version == cluster.metadata.version
    assert_is_kept(disk.after_power_cut(tmp_path / "after") / "cluster", reader.seen_by(noted))


class Producer:
    """Sends three records, and the same ones again if it does not know whether they were appended."""

    def __init__(self, root):
        new_log(root.child("log"), P0)

    def process(self, root):
        log = ReplicaLog.open(root.child("log"))
        return lambda: send(log, request(P0, 3))[0].last_offset

    def is_kept(self, root):
        return leo(ReplicaLog.open(root.child("log"))) == 3


class Follower(Producer):
    """Commits three records, whose segment it has copied."""

    def __init__(self, root):
        source, own = new_log(root.child("leader"), P0), ReplicaLog.create(root.child("log"))
        send(source, request(P0, 3))
        follow(own, P0, epoch=0)
        segments = [copy_segment(source.root, each, own.root) for each in source.refresh().segments.values()]
        self._fetched = Fetched(segments, {P0: own.refresh().partition(P0).log_end.chain}, {P0: 0})

    def process(self, root):
        log = ReplicaLog.open(root.child("log"))
        return lambda: append_as_follower(log, [self._fetched], "test")


class Broker:
    """Takes up a role."""

    def __init__(self, root):
        new_log(root.child("log"))

    def process(self, root):
        log = ReplicaLog.open(root.child("log"))
        return lambda: log.become({P0: Role(4, LEADER)}, "test")

    def is_kept(self, root):
        return ReplicaLog.open(root.child("log")).current().known(P0).role == Role(4, LEADER)


class Controller:
    """Makes a topic, if it is not there."""

    def __init__(self, root):
        TopicTable.create(root)

    def process(self, root):
        topics = TopicTable.open(root)
        return lambda: topics.change([Topic("t", "id", 1)], (), {"who": "test"})

    def is_kept(self, root):
        return set(TopicTable.open(root).topics) == {"t"}


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """A root with `storage.fsync`, and its disk."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root = StorageRoot.of(f"{tmp_path}/lake/broker-1", fsync=True)
    root.create_folder()
    return root, disk, lambda: StorageRoot.of(str(disk.after_power_cut(tmp_path / "after") / "broker-1"))


@pytest.mark.parametrize("again", ["the same process", "another process"])
@pytest.mark.parametrize("writer", [Producer, Follower, Broker, Controller])
def test_li_04_with_fsync_who_finds_what_it_would_write_makes_it_durable(synced, monkeypatch, writer, again):
    """The name of the commit was not synced: its writer has died before, or met an error. What is found is acknowledged
    as if it were written now. Who finds it once more syncs nothing."""
    (root, disk, after), real = synced, LocalRoot.sync
    work = writer(root)
    write = work.process(root)

    def fails(self, name=""):
        if name == "_delta_log":
            raise KafkaStorageException(f"{self.uri}: Input/output error")
        real(self, name)

    with monkeypatch.context() as failing:
        failing.setattr(LocalRoot, "sync", fails)
        for _ in range(2):
            with pytest.raises(KafkaStorageException, match="Input/output error"):
                write()
    assert not work.is_kept(after())
    write = write if again == "the same process" else work.process(root)
    write()
    assert work.is_kept(after())
    syncs = disk.syncs
    write()
    assert disk.syncs == syncs


def test_li_04_with_fsync_an_update_that_has_landed_is_made_durable(synced, monkeypatch):
    """Its outcome was unknown: the store has written the commit, and then answered and read nothing for a moment."""
    root, _, after = synced
    ProducerTable.create(root)
    table, real = ProducerTable.open(root), LocalRoot.put_if_absent

    def unknown(self, name, content):
        real(self, name, content)
        answers.setattr(delta_log, "read_commit", raises(KafkaStorageException("no answer")))
        raise KafkaStorageException("no answer")

    with monkeypatch.context() as answers:
        answers.setattr(LocalRoot, "put_if_absent", unknown)
        answers.setattr("random.uniform", lambda *_: answers.undo() or 0.0)  # the pause before the next attempt
        given = table.init_producer("p", "owner")
    assert ProducerTable.open(after()).init_producer("p", "other") == given._replace(producer_epoch=1)


def checkpoints(root):
    return [name for name in root.child("_delta_log").list() if ".checkpoint" in name]


def test_without_fsync_a_power_cut_takes_all_records(tmp_path, monkeypatch):
    """So the model notices what is not synced."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root = broker_root(tmp_path, fsync=False)
    log, synced = ReplicaLog.open(root.child("log")), disk.syncs
    lead(log, P0, epoch=0)
    fill(log, P0, 3)
    after = StorageRoot.of(str(disk.after_power_cut(tmp_path / "after") / "broker-1"))
    assert (disk.syncs, leo(ReplicaLog.open(after.child("log")))) == (synced, 0)


TORN = {
    "empty": lambda content: content[:0],
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("torn", TORN)
def test_li_04_a_table_whose_newest_checkpoint_is_torn_is_read_from_an_older_one(table, torn, caplog):
    log = go_on(filled(table, 3), 4)
    checkpoint(log)
    checkpoint(go_on(log, 5, 6))
    go_on(log, 7)
    name = f"_delta_log/{6:020}.checkpoint.parquet"
    content = table.read(name)
    table.write("x", b"")
    table.child("_delta_log").write(name.split("/")[1], TORN[torn](content))
    found = DeltaLog.open(table)
    assert facts(found) == of(7)
    assert f"{6:020}.checkpoint.parquet: torn, so it was read from older files" in caplog.text
    found.commit({})
    found.move()
    other = DeltaLog.open(table)
    assert other.version == 8


def test_a_table_in_an_object_store_whose_checkpoint_is_torn_has_all_files(s3_options):
    """Its readers read the last two commits, and here need more."""
    root = StorageRoot.of("s3://bucket/torn-checkpoint", s3_options)
    log = filled(root, 3)
    checkpoint(go_on(log, 4))
    go_on(log, 5, 6, 7, 8, 9)
    folder, name = root.child("_delta_log"), f"{4:020}.checkpoint.parquet"
    folder.write(name, folder.read(name)[:100])
    assert facts(DeltaLog.open(root)) == of(9)


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_hint_at_the_last_checkpoint_is_no_harm(tmp_path, torn):
    root = StorageRoot.of(str(tmp_path))
    checkpoint(filled(root, 3))
    path = Path(root.path("_delta_log/_last_checkpoint"))
    path.write_bytes(TORN[torn](path.read_bytes()))
    assert moved(DeltaLog.open(root)) == of(3)


def lost_checkpoint(root):
    """A table whose power cut has taken the last checkpoint, and not the hint at it."""
    log = filled(root, 3)
    checkpoint(log)
    checkpoint(go_on(log, 4, 5, 6))
    Path(root.path(f"_delta_log/{6:020}.checkpoint.parquet")).unlink()


def test_li_04_a_hint_at_a_checkpoint_that_is_lost_is_no_harm(tmp_path, caplog):
    root = StorageRoot.of(str(tmp_path))
    lost_checkpoint(root)
    for _ in range(3):
        assert facts(DeltaLog.open(root)) == of(6)
    said = f"opened at version 6: {6:020}.checkpoint.parquet: gone, so it was read from older files"
    assert [said in record.getMessage() for record in caplog.records] == [True], "once, however often it is opened"
    go_on(DeltaLog.open(root), 7)
    assert facts(DeltaLog.open(root)) == of(7)


@pytest.mark.parametrize("lost", [(), (5,), (5, 6)], ids=["no commit", "a commit below", "all commits since"])
def test_li_04_the_owner_takes_a_hint_at_a_lost_checkpoint_away(tmp_path, lost):
    """Also one that was left when it died while it put ghosts aside."""
    root = StorageRoot.of(str(tmp_path))
    lost_checkpoint(root)
    for version in lost:
        root.delete(commit_name(version))
    recover_log(root, is_after_crash=True)
    last = min(lost, default=7) - 1
    assert root.open_table().version() == last
    assert facts(DeltaLog.open(root)) == of(last)


def test_the_next_checkpoint_heals_a_torn_one(tmp_path, monkeypatch):
    """It is made of an older one and the commits. The torn one is put aside."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    root = StorageRoot.of(str(tmp_path))
    log = filled(root, 4)
    checkpoint(log)
    Path(root.path(f"_delta_log/{4:020}.checkpoint.parquet")).write_bytes(b"PAR1")
    owner = go_on(DeltaLog.open(root), *range(5, 12))
    owner.checkpoint_if_due()
    assert checkpoints(root) == [f"{11:020}.checkpoint.parquet"]
    assert root.open_table().version() == 11
    assert facts(DeltaLog.open(root)) == of(11)


@pytest.mark.usefixtures("often")
def test_li_04_a_clean_up_keeps_what_a_torn_checkpoint_needs(tmp_path):
    """The last checkpoint but one, and the commits since then."""
    root = StorageRoot.of(str(tmp_path))
    log = ReplicaLog.create(root)
    lead(log, P0, epoch=0)
    for _ in range(23):
        fill(log, P0, 1)
        log.maintain()
    newest = checkpoints(root)[-1]
    Path(root.path(f"_delta_log/{newest}")).write_bytes(b"")
    kept = [int(name[:20]) for name in root.child("_delta_log").list() if is_commit(name)]
    assert kept[0] > 0
    assert leo(ReplicaLog.open(root)) == 23


def test_after_a_power_cut_commits_before_a_torn_checkpoint_may_be_torn_too(tmp_path):
    root = StorageRoot.of(str(tmp_path))
    log = filled(root, 6)
    checkpoint(log)
    go_on(log, 7)
    for name in (f"{6:020}.checkpoint.parquet", f"{4:020}.json"):
        root.child("_delta_log").write(name, b"")
    recover_log(root, is_after_crash=True)
    assert facts(DeltaLog.open(root)) == of(3)
    assert len(root.child(ASIDE).list()) == 5


@pytest.mark.parametrize("older", [(3,), ()], ids=["an older checkpoint", "none"])
@pytest.mark.parametrize(
    ("torn", "last"), [((0,), 7), ((2, 4), 7), ((2, 4, 6), 7), ((5, 6, 7), 6), ((4, 7), 6), ((6, 7), 6)], ids=str
)
def test_li_04_after_a_power_cut_commits_before_a_whole_checkpoint_may_be_torn(tmp_path, torn, last, older):
    """The checkpoint has their content. No gap stays between commits, which others would take for the end of the log,
    and the next commit has one to follow."""
    root = StorageRoot.of(str(tmp_path))
    with_checkpoints(root, *older, 6)
    for version in torn:
        root.child("_delta_log").write(f"{version:020}.json", b"")
    recover_log(root, is_after_crash=True)
    check_commits(root)
    kept = [int(name[:20]) for name in root.child("_delta_log").list() if is_commit(name)]
    assert sorted(kept) == list(range(min(kept), last + 1))
    assert facts(go_on(DeltaLog.open(root), last + 1)) == of(last + 1)
    assert DeltaLog.open(root).version == last + 1


def with_checkpoints(root, *versions):
    """A table of 7 commits."""
    log = filled(root, 0)
    for number in range(1, 8):
        go_on(log, number)
        if number in versions:
            checkpoint(log)


LOST = {
    "empty": lambda root, name: root.write(name, b""),
    "gone": lambda root, name: root.delete(name),
    "half": lambda root, name: root.write(name, root.read(name)[:40]),
}


@pytest.mark.parametrize("last", LOST)
@pytest.mark.parametrize("of_checkpoint", LOST)
@pytest.mark.parametrize("older", [(3,), ()], ids=["an older checkpoint", "none"])
def test_li_04_a_checkpoint_counts_of_which_no_commit_is_left_and_none_after_it(table, older, of_checkpoint, last):
    """Whatever is half done when a recovery ends, the next one comes to the same end."""
    with_checkpoints(table, *older, 6)
    log, behind, writer = table.child("_delta_log"), DeltaLog.open(table), at(table, 5)
    LOST[of_checkpoint](log, f"{6:020}.json")
    LOST[last](log, f"{7:020}.json")
    for step in range(20):
        if ends_before(table, step):
            break
    assert 0 < step < 19
    recover_log(table, is_after_crash=True)
    assert [facts(each) for each in (DeltaLog.open(table), opened(table))] == [of(6), of(6)]
    assert [moved(each) for each in (behind, writer)] == [of(6), of(6)], "also who has replayed other commits"
    assert facts(go_on(writer, 7)) == of(7)
    assert moved(behind) == of(7)
    assert facts(DeltaLog.open(table)) == of(7)


def ends_before(root, step):
    """Recovers a log, and dies before so many changes of it were made. Returns whether it came to its end."""
    left = [step]

    def dies_before(change):
        def change_or_die(*arguments):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return change(*arguments)

        return change_or_die

    with pytest.MonkeyPatch.context() as patched:
        for name in ("move_out", "delete", "put_if_absent"):
            patched.setattr(type(root), name, dies_before(getattr(type(root), name)))
        try:
            recover_log(root, is_after_crash=True)
        except KeyboardInterrupt:
            return False
    return True


@pytest.mark.parametrize(
    ("commits", "rows", "last"),
    [((5,), (6,), 5), ((5, 6), (), 5), ((5, 6), (6,), 5), ((), (5, 6), 4), ((5, 6), (5, 6), 4), ((5,), (5,), 6)],
    ids=str,
)
def test_li_04_a_state_table_goes_back_below_a_checkpoint_only_if_its_rows_are_torn(tmp_path, commits, rows, last):
    """Of 6 versions the fifth has a checkpoint. Empty are these commits, and the files with the rows of these."""
    root = StorageRoot.of(str(tmp_path))
    table, files = StateTable.create_at(root, PRODUCERS), {}
    for version in range(1, 7):
        table.update({"who": "test"}, lambda _, number=version: [producer_row(number)])
        files[version] = read_commit(root, version).adds[0].name
        if version in (3, 5):
            root.checkpoint_table(version)
    for name in [*(commit_name(version) for version in commits), *(files[version] for version in rows)]:
        Path(root.path(name)).write_bytes(b"")
    recover_log(root, is_after_crash=True, has_rows=True)
    found = StateTable.open_at(root, PRODUCERS)
    assert (found.version, found.rows) == (last, [producer_row(last)])
    found.recover()
    found.update({"who": "test"}, lambda _: [producer_row(9)])
    assert StateTable.open_at(root, PRODUCERS).rows == [producer_row(9)]


def producer_row(number):
    return {field.name: str(number) if field.type == pa.string() else number for field in PRODUCERS.arrow}


def test_after_a_power_cut_a_broker_begins_with_rows_and_a_log_that_are_whole(tmp_path):
    """The last commits and files of both tables are empty, and some are missing."""
    root = broker_root(tmp_path, fsync=False)
    log, rows = ReplicaLog.open(root.child("log")), ReplicaTable.open(root)
    lead(log, P0, epoch=0)
    for epoch in (1, 2):
        rows.claim(epoch)
        fill(log, P0, 1, 1)
    log.root.child("_delta_log").write(commit_name(log.current().version - 1).split("/")[1], b"")
    rows_root = root.child("replicas")
    rows_root.child("_delta_log").write(commit_name(rows.version).split("/")[1], b"{")
    assert "empty or torn" in storage_error(root, "cluster-id", 1)
    recover_root(root, "cluster-id", 1)
    assert storage_error(root, "cluster-id", 1) is None
    assert leo(ReplicaLog.open(root.child("log"))) == 2
    assert ReplicaTable.open(root).version == rows.version - 1


@pytest.mark.usefixtures("often")
def test_a_checkpoint_is_not_relied_on_if_it_cannot_be_synced(tmp_path, monkeypatch):
    root = StorageRoot.of(str(tmp_path), fsync=True)
    log = ReplicaLog.create(root)
    lead(log, P0, epoch=0)
    fill(log, P0, *[1] * 8)

    def fails(_, version):
        raise KafkaStorageException(f"version {version} cannot be written: Input/output error")

    monkeypatch.setattr(StorageRoot, "sync_checkpoint", fails)
    with pytest.raises(KafkaStorageException, match="Input/output error"):
        log.maintain()
    assert min(name for name in root.child("_delta_log").list() if is_commit(name)) == f"{0:020}.json"
