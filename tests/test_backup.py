"""A cluster root is backed up to a file, and made again from it; roots of the cluster and of brokers move elsewhere."""

import gzip
import io
import json
import shlex
import shutil
import tarfile
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from lakelog.jobs import backup as backup_verb
from lakelog.jobs import recover as recover_verb
from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentClusterIdException,
    InvalidRequestException,
    KafkaStorageException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.server.registration import Registration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.cluster_backup import read_backup, take_backup
from lakelog.replication.storage.log.log_identity import identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_recovery import Recovery, open_broker_roots
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.cluster_copy import read_copy
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from lakelog.replication.storage.tables.topic_table import TopicTable
from tests.pages import commands
from tests.storage.logs import P0, TOPIC, TOPIC_ID, fill, leo, replicate
from tests.storage.test_root_recovery import CONFIG, CONTROLLER, OFFSETS, Lake

LATER = [CommittedOffset("g", TOPIC, TOPIC_ID, 0, 4)]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    """A lake that each test copies; its controller was elected."""
    lake = Lake.made(tmp_path_factory.mktemp("pattern") / "lake")
    lease = lake.opened("cluster").lease
    for _ in range(CONTROLLER):
        lease.elect("c", lease.read())
    return lake


@pytest.fixture
def lake(pattern, tmp_path):
    return pattern.at(tmp_path / "lake")


def saved(lake, name="backup.tar.gz"):
    return take_backup(lake.opened("cluster"), str(lake.folder / name))


def recovery(lake, *brokers, to="new", name="backup.tar.gz"):
    given = [(None, str(lake.folder / f"broker-{broker}")) for broker in brokers or (1, 2, 3)]
    return Recovery(lake.root(to), open_broker_roots(given, CONFIG), CONFIG, read_backup(str(lake.folder / name)))


def without_copies(lake):
    for broker in (1, 2, 3):
        shutil.rmtree(lake.folder / f"broker-{broker}" / "cluster-copy")


def test_a_backup_has_the_rows_of_the_small_tables(lake):
    taken = saved(lake)
    found = read_backup(taken.path)
    assert found == taken
    copied = read_copy(lake.root("broker-1"))
    assert {name: table.rows for name, table in found.tables.items()} == {n: t.rows for n, t in copied.items()}
    assert [path.name for path in lake.folder.iterdir() if path.is_file()] == ["backup.tar.gz"]


def test_other_programs_read_a_backup(lake):
    path = saved(lake).path
    with tarfile.open(path) as archive:
        assert archive.getnames() == [
            "backup.json", "cluster.parquet", "topics.parquet", "configs.parquet", "groups.parquet",
            "producers.parquet", "metadata.parquet",
        ]  # fmt: skip


def test_what_is_newer_in_the_backup_counts(lake):
    """After the last copy a group has committed, as when a cluster was stopped."""
    cluster = lake.opened("cluster")
    cluster.groups.commit(LATER)
    saved(lake)
    lake.lose()
    assert lake.recovery().plan().rows["groups"][0]["committed_offset"] == OFFSETS[0].committed_offset
    made = recovery(lake)
    plan = made.execute()
    assert [each.loss for each in plan.partitions] == [None]
    assert lake.opened().groups.read() == LATER
    assert lake.opened().generation == 1


def test_an_older_backup_changes_nothing(lake):
    saved(lake)
    cluster = lake.opened("cluster")
    cluster.groups.commit(LATER)
    (known,) = cluster.metadata.partitions.values()
    cluster.metadata.put([replace(known, leader_epoch=1, partition_epoch=8, isr=(1, 2))], {})
    lake.copy()
    lake.lose()
    without, with_backup = lake.recovery().plan(), recovery(lake).plan()
    assert with_backup == without
    assert without.rows["groups"][0]["committed_offset"] == 4


def test_metadata_that_only_the_backup_has_promise_nothing(lake):
    """The partition may have moved to other brokers since, so the number of missing roots says nothing."""
    saved(lake)
    without_copies(lake)
    made = recovery(lake.lose())
    (found,) = made.plan().partitions
    assert made.goes_by_backup
    assert (found.loss, found.registration.isr) == ("records from offset 4 on", (1, 2, 3))
    assert "may have had replicas of it" in found.why
    made.execute()
    cluster = lake.opened()
    assert cluster.topics.topics[TOPIC].configs == {"retention.ms": "-1"}
    assert cluster.groups.read() == OFFSETS
    assert leo(lake.log(1)) == 4


def test_a_partition_that_had_not_begun_at_the_backup_may_have_begun_elsewhere(lake):
    cluster = lake.opened("cluster")
    cluster.topics.change([Topic("u", "u-id", 1, {})], (), {})
    cluster.metadata.put([PartitionRegistration("u", "u-id", 0, (1, 2), 1, 0, (1, 2), 0, CONTROLLER)], {})
    saved(lake)
    without_copies(lake)
    losses = {each.registration.topic: each.loss for each in recovery(lake.lose()).plan().partitions}
    assert losses["u"] == "all records"


def test_a_topic_that_was_made_after_the_backup_stays(lake):
    path = lake.folder / "backup.tar.gz"
    saved(lake)
    path.write_bytes(emptied(path.read_bytes()))
    without_copies(lake)
    (found,) = recovery(lake.lose()).plan().partitions
    assert (found.registration.topic, found.loss) == (TOPIC, "records from offset 4 on")


def files_of(packed):
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def packed_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def emptied(packed):
    """The backup as it was before there were topics."""
    files = files_of(packed)
    for name in ("topics.parquet", "metadata.parquet", "groups.parquet"):
        buffer = io.BytesIO()
        pq.write_table(pq.read_table(io.BytesIO(files[name])).slice(0, 0), buffer)
        files[name] = buffer.getvalue()
    return packed_of(files)


def with_head(packed, **changes):
    files = files_of(packed)
    head = json.loads(files["backup.json"]) | changes
    return packed_of({**files, "backup.json": json.dumps(head).encode()})


def flipped(packed):
    middle = len(packed) // 2
    return packed[:middle] + bytes([packed[middle] ^ 1]) + packed[middle + 1 :]


def without(packed, name):
    return packed_of({n: content for n, content in files_of(packed).items() if n != name})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (flipped, CorruptRecordException, "is damaged"),
        (lambda packed: packed[:-9], CorruptRecordException, "is damaged"),
        (lambda packed: packed[:40], CorruptRecordException, "is damaged"),
        (lambda packed: packed + b"x", CorruptRecordException, "is damaged"),
        (lambda packed: without(packed, "topics.parquet"), CorruptRecordException, r"is damaged.*topics\.parquet"),
        (lambda packed: with_head(packed, tables={}), CorruptRecordException, "is damaged"),
        (lambda packed: without(packed, "backup.json"), InvalidRequestException, r"it has no backup\.json"),
        (lambda _: gzip.compress(b"x"), CorruptRecordException, "is damaged"),
        (lambda _: b"", InvalidRequestException, "is no backup of a cluster root"),
        (lambda packed: with_head(packed, format=2), InconsistentClusterIdException, "has format 2, this version of"),
        (
            lambda packed: with_head(packed, cluster_id="x"),
            InconsistentClusterIdException,
            "backup of cluster x, and the roots belong",
        ),
    ],
)
def test_a_file_that_is_no_whole_backup_of_this_cluster_is_refused(lake, change, error, message):
    path = lake.folder / "backup.tar.gz"
    saved(lake)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=message):
        recovery(lake)
    assert not lake.root("new").list()


def test_a_file_that_is_there_stays(lake):
    path = lake.folder / "backup.tar.gz"
    path.write_text("mine")
    with pytest.raises(InvalidRequestException, match="is there already"):
        saved(lake)
    assert path.read_text() == "mine"


def test_a_backup_that_cannot_be_written_leaves_no_file(lake, monkeypatch):
    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lakelog.replication.storage.cluster_backup.os.fsync", fails)
    with pytest.raises(InvalidRequestException, match="cannot be written: No space left on device"):
        saved(lake)
    assert not [path for path in lake.folder.iterdir() if path.is_file()]


@pytest.mark.parametrize("moves", [1, 10**6])
def test_topics_and_metadata_are_of_one_moment(lake, monkeypatch, moves):
    """A topic is made between the reads of the two tables: it is read with its partitions, or not at all."""
    refresh, made = TopicTable.refresh, list[str]()
    writer = lake.opened("cluster")

    def moving(table, *given):
        moved = refresh(table, *given)
        if len(made) < moves:
            name = f"u{len(made)}"
            made.append(name)
            writer.topics.change([Topic(name, name, 1, {})], (), {})
            writer.metadata.put([PartitionRegistration(name, name, 0, (1,), 1, 0, (1,), 0, CONTROLLER)], {})
        return moved

    cluster = Cluster.open(lake.root("cluster").uri, CONFIG)
    monkeypatch.setattr(TopicTable, "refresh", moving)
    monkeypatch.setattr("lakelog.replication.storage.cluster_backup._ATTEMPTS", 3)
    if moves > 1:
        with pytest.raises(KafkaStorageException, match="its topics change all the time"):
            take_backup(cluster, str(lake.folder / "b"))
        return
    tables = take_backup(cluster, str(lake.folder / "b")).tables
    topics, partitions = ({row["topic"] for row in tables[name].rows} for name in ("topics", "metadata"))
    assert topics == partitions == {TOPIC, "u0"}


def page(lake, verb, words):
    """The command of the page with these words, on the lake."""
    (command,) = (c for c in commands("disaster.md") if f" {verb} " in c and all(word in c for word in words))
    return shlex.split(command.replace("/lake/", f"{lake.folder}/").replace("/backups/", f"{lake.folder}/"))[2:]


def test_the_commands_of_the_page_back_a_cluster_root_up_and_recover_it(lake, capsys):
    assert backup_verb.main(page(lake, "backup", ["--out"])) == 0
    assert "1 topics, 1 partitions, 1 offsets of groups" in capsys.readouterr().err
    lake.lose()
    assert recover_verb.main(page(lake, "recover", ["--backup", "--dry-run"])) == 0
    assert not lake.root("cluster-2").list()
    assert "nothing is written" in capsys.readouterr().err


def test_the_commands_of_the_page_move_a_cluster_root(lake, capsys):
    lake.opened("cluster").groups.commit(LATER)  # after the last copy
    assert backup_verb.main(page(lake, "backup", ["--out"])) == 0
    assert recover_verb.main(page(lake, "recover", ["--backup", "--force"])) == 0
    assert "Nothing that was acknowledged with acks=all is lost of any partition" in capsys.readouterr().err
    moved = lake.opened("cluster-2")
    assert (moved.generation, moved.groups.read()) == (1, LATER)
    old = lake.opened("cluster")
    assert all(lake.refuses(old, broker) for broker in (1, 2, 3))
    assert not any(lake.refuses(moved, broker) for broker in (1, 2, 3))


def started(lake, name):
    """Broker 2 begins at a root, as its process does: the registration, and its log."""
    cluster, root = lake.opened("cluster"), lake.root(name)
    log = ReplicaLog.open(root.child("log"))
    given = Registration(BrokerTable.open(cluster.root, 2), root, replace(CONFIG, broker_id=2))
    log.claim(given.register(log), given.log_epoch)
    given.beat(identify(log))
    return given, log


def test_a_root_of_a_broker_that_was_copied_goes_on_and_the_original_does_not(lake):
    first, _ = started(lake, "broker-2")
    shutil.copytree(lake.folder / "broker-2", lake.folder / "moved")
    second, log = started(lake, "moved")
    assert (second.log_epoch, leo(log)) == (first.log_epoch, 4)
    assert second.table.registration.root == lake.root("moved").uri
    with pytest.raises(StaleBrokerEpochException, match="a newer process has registered"):
        first.check_not_fenced()
    again, _ = started(lake, "broker-2")  # it counts as a log that has lost records
    assert again.log_epoch > second.log_epoch


def test_a_copy_that_is_older_than_the_root_of_a_broker_counts_as_a_log_that_has_lost_records(lake):
    shutil.copytree(lake.folder / "broker-2", lake.folder / "moved")
    first, log = started(lake, "broker-2")
    leader = lake.log(1)
    fill(leader, P0, 2, epoch=0)
    replicate(leader, log)
    second, _ = started(lake, "moved")
    assert second.log_epoch > first.log_epoch
