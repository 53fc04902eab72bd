"""Which cluster root a process believes: the one that it has seen, in that state or in a later one."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterRootException, KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.server.registration import prepare_start
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot, TableState
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from lakelog.replication.storage.tables.group_tables import CommittedOffset, MemberTable
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.verification.memory_root import MemoryStore

CAUSE = {"who": "test"}


class OnDisk:
    """The cluster root on a disk, and others that may be put in its place."""

    def __init__(self, folder: str) -> None:
        self.uri = f"{folder}/cluster"

    def move(self, old: str, new: str) -> None:
        Path(old).rename(new)

    def copy(self, old: str, new: str) -> None:
        shutil.copytree(old, new)

    def make_folder(self, uri: str) -> None:
        Path(uri).mkdir()

    def files(self, uri: str) -> set[str]:
        return {str(path) for path in Path(uri).rglob("*") if path.is_file()}

    def another_process(self) -> AbstractContextManager[object]:
        return nullcontext()


class InMemory:
    """The same in a store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.uri = store, f"{store.uri}/lake/cluster"

    def move(self, old: str, new: str) -> None:
        self.copy(old, new)
        self.store.delete_folder(old)

    def copy(self, old: str, new: str) -> None:
        inside = {u: files for u, files in self.store.folders.items() if u == old or u.startswith(f"{old}/")}
        self.store.folders.update({new + u[len(old) :]: dict(files) for u, files in inside.items()})

    def make_folder(self, uri: str) -> None:
        self.store.make_folder(uri)

    def files(self, uri: str) -> set[str]:
        folders = self.store.folders.items()
        return {f"{u}/{name}" for u, files in folders if u.startswith(f"{uri}/") for name in files}

    @contextmanager
    def another_process(self) -> Iterator[None]:
        """Another process does not know the commits that this one has read."""
        self.store.process, before = lambda: "another", self.store.process
        yield
        self.store.process = before


@pytest.fixture(params=["disk", "store in memory"])
def place(request, root):
    if request.param == "disk":
        yield OnDisk(root)
        return
    with MemoryStore("guard").opened() as store:
        yield InMemory(store)


def partition(leader_epoch=0, partition_epoch=0, number=0):
    return PartitionRegistration(
        "t", "id", number, (1,), leader=1, leader_epoch=leader_epoch, isr=(1,), partition_epoch=partition_epoch
    )


def put(cluster, *registrations):
    cluster.metadata.put(registrations, CAUSE)


def register(cluster, broker_id=1):
    row = BrokerRegistration(broker_id, "/broker", None, 1, -1, False, None, "log-id", 0)
    table = BrokerTable.open_or_create(cluster.root, broker_id)
    table.register(lambda _: row)
    return table


@pytest.fixture
def cluster(place):
    """A cluster as a process has seen it that has all its tables open. Its root has an older copy, `<uri>.older`, and
    there is another cluster's root, `<uri>.other`."""
    format_cluster(StorageRoot.of(place.uri), Config())
    opened = Cluster.open(place.uri)
    put(opened, partition())
    held = opened.lease.elect("controller-1", None)
    place.copy(place.uri, f"{place.uri}.older")
    put(opened, partition(leader_epoch=1))
    opened.lease.renew(held)
    format_cluster(StorageRoot.of(f"{place.uri}.other"), Config())
    return opened


def instead(place, what):
    """Puts something else at the cluster's address."""
    place.move(place.uri, f"{place.uri}.right")
    if what == "an empty folder":
        place.make_folder(place.uri)
    elif what == "a folder of other files":
        place.make_folder(place.uri)
        StorageRoot.of(place.uri).put("thesis.tex", b"mine")
    elif what in ("an older copy", "an older copy that went on"):
        place.copy(f"{place.uri}.older", place.uri)
        if what.endswith("went on"):
            with place.another_process():
                other = Cluster.open(place.uri)
                for number in range(8):
                    put(other, partition(leader_epoch=number, number=1))
                    other.lease.renew(other.lease.read())
    elif what == "another cluster":
        place.copy(f"{place.uri}.other", place.uri)
    elif what == "another cluster of more commits":
        place.copy(f"{place.uri}.other", place.uri)
        other = Cluster.open(place.uri)
        held = other.lease.elect("another", None)
        for number in range(8):
            put(other, partition(leader_epoch=number))
            held = other.lease.renew(held)


def right_again(place):
    if isinstance(place, OnDisk):
        shutil.rmtree(place.uri, ignore_errors=True)
    else:
        place.store.delete_folder(place.uri)
    place.move(f"{place.uri}.right", place.uri)


FOUND = {
    "nothing": "is gone: nothing is there",
    "an empty folder": "is an empty folder",
    "a folder of other files": "lacks its table cluster, and holds thesis.tex",
    "an older copy": "is an older copy: (metadata|controller) has version ., and version . was seen",
    "an older copy that went on": "has another history: version . of (metadata|controller) is not the commit that",
    "another cluster": "is the root of cluster .{32}, and that of cluster .{32} is expected",
    "another cluster of more commits": "is the root of cluster .{32}, and that of cluster .{32} is expected",
}
USES = {
    "reads metadata": lambda cluster: cluster.metadata.refresh(),
    "reads the lease": lambda cluster: cluster.lease.read(),
    "opens groups": lambda cluster: cluster.groups.read(),
    "opens producers and writes": lambda cluster: cluster.producers.init_producer("p", "owner"),
    "renews the lease": lambda cluster: cluster.lease.renew(cluster.lease.read()),
    "stands for election": lambda cluster: cluster.lease.elect("controller-2", Lease("c", 1)),
    "changes metadata": lambda cluster: put(cluster, partition(leader_epoch=9)),
    "changes settings": lambda cluster: cluster.configs.change({}, CAUSE),
    "asks the controller": lambda cluster: cluster.admin.claim(5),
    "joins a group": lambda cluster: MemberTable.open_or_create(cluster.root, "g"),
    "registers a broker": lambda cluster: register(cluster, 2),
    "looks for brokers": lambda cluster: (cluster.metadata.refresh(), cluster.refresh_brokers()),
    "maintains": lambda cluster: cluster.maintain(),
}


@pytest.fixture(autouse=True)
def no_old_looks(monkeypatch):
    """In an object store each check asks the store."""
    monkeypatch.setattr("lakelog.replication.storage.delta.root_guard._AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("lakelog.replication.storage.delta.delta_log.SURE_FOR_COMMITS_SECONDS", 0.0)


@pytest.mark.parametrize("what", FOUND)
def test_a_wrong_root_is_not_read_and_not_written_and_the_right_one_heals(place, cluster, what):
    if isinstance(place, InMemory) and what == "an empty folder":
        return  # an object store has no folders
    processes = {use: Cluster.open(place.uri) for use in USES}
    seen = dict(cluster.metadata.partitions)
    instead(place, what)
    before = place.files(place.uri)
    for use, process in processes.items():
        for _ in range(2):
            with pytest.raises(InconsistentClusterRootException, match=FOUND[what]):
                USES[use](process)
        assert process.metadata.partitions == seen
    assert place.files(place.uri) == before
    right_again(place)
    for process in processes.values():
        process.metadata.refresh()
        register(process)
    put(cluster, partition(leader_epoch=2))
    assert Cluster.open(place.uri).metadata.partitions == cluster.metadata.partitions != seen


def test_a_process_says_once_that_the_root_is_wrong_and_once_that_it_is_back(place, cluster, caplog):
    others = [Cluster.open(place.uri) for _ in range(3)]
    caplog.set_level(logging.WARNING)
    instead(place, "an older copy")
    for process in [cluster, *others] * 3:
        with suppress(InconsistentClusterRootException):
            process.metadata.refresh()
    right_again(place)
    for process in [cluster, *others] * 2:
        process.metadata.refresh()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "is an older copy" in caplog.text
    assert "is back after" in caplog.text


def test_a_copy_of_the_newest_state_is_the_same_root(place, cluster):
    place.copy(place.uri, f"{place.uri}.copy")
    for path in (Path(f"{place.uri}.copy").rglob("*")) if isinstance(place, OnDisk) else ():
        if path.is_file():
            path.touch()
    place.move(place.uri, f"{place.uri}.right")
    place.move(f"{place.uri}.copy", place.uri)
    for use in USES.values():
        with suppress(AssertionError):
            use(cluster)
    put(cluster, partition(leader_epoch=10))


def test_a_process_that_was_away_while_the_log_was_cleaned_up_goes_on(place, cluster, monkeypatch):
    monkeypatch.setattr(ControllerLease, "TABLE", replace(ControllerLease.TABLE, commits_kept=5))
    away, cluster = Cluster.open(place.uri), Cluster.open(place.uri)
    held = away.lease.read()
    for number in range(1, 121):
        held = cluster.lease.renew(held)
        if number % 60 == 0:
            cluster.lease.maintain()
    assert not StorageRoot.of(f"{place.uri}/controller").exists(commit_name(2)) or isinstance(place, InMemory)
    assert away.lease.read() == held


def test_the_registration_of_a_broker_may_be_made_again_but_not_under_its_own_process(place, cluster):
    own = register(cluster)
    other = Cluster.open(place.uri)
    other.refresh_brokers()
    place.move(f"{place.uri}/brokers/1", f"{place.uri}.moved")
    with pytest.raises(KafkaStorageException):
        own.heartbeat(1, "heartbeat")
    register(Cluster.open(place.uri)).heartbeat(1, "heartbeat")
    assert other.refresh_brokers()[1].heartbeat == 2
    with pytest.raises(InconsistentClusterRootException, match="has another table brokers/1"):
        own.heartbeat(1, "heartbeat")


def test_rows_of_metadata_that_somebody_has_restored_are_not_used(place, cluster):
    """RESTORE of Delta writes older rows as a new commit."""
    put(cluster, partition(leader_epoch=7, partition_epoch=3))
    watching = Cluster.open(place.uri)
    put(Cluster.open(place.uri), partition(leader_epoch=6, partition_epoch=4))
    for _ in range(2):
        with pytest.raises(KafkaStorageException, match="t-0 has leader epoch 6, and 7 was seen"):
            watching.metadata.refresh()
    assert watching.metadata.partitions == {r.topic_id_partition: r for r in [partition(7, 3)]}
    put(Cluster.open(place.uri), partition(leader_epoch=8, partition_epoch=5))
    watching.metadata.refresh()
    assert watching.metadata.partitions == Cluster.open(place.uri).metadata.partitions


def test_a_process_may_know_what_an_earlier_one_has_seen(place, cluster):
    seen = cluster.guard.states("metadata", "topics")
    instead(place, "an older copy")
    opened = Cluster.open(place.uri)
    for _ in range(2):
        with pytest.raises(InconsistentClusterRootException, match="metadata has version 1, and version 2 was seen"):
            opened.guard.expect(seen)
    right_again(place)
    opened.guard.expect(seen)
    opened.metadata.refresh()
    assert opened.metadata.partitions == cluster.metadata.partitions
    other = seen["metadata"]._replace(commit="another")
    with pytest.raises(InconsistentClusterRootException, match="version 2 of metadata is not the commit"):
        Cluster.open(place.uri).guard.expect({"metadata": other})
    with pytest.raises(InconsistentClusterRootException, match="has another table metadata"):
        Cluster.open(place.uri).guard.expect({"metadata": TableState("id", 0, "")})


@pytest.mark.parametrize("opens", ["open", "reopen"])
def test_one_table_of_the_root_that_is_an_older_copy_is_not_opened(place, cluster, opens):
    """Another table has the newest commit of the root, so nobody looks at this one otherwise."""
    topics = f"{place.uri}/topics"
    place.copy(topics, f"{topics}.older")
    cluster.topics.change([Topic("t", "id", 1)], (), CAUSE)
    put(cluster, partition(leader_epoch=2))
    place.move(topics, f"{topics}.right")
    place.copy(f"{topics}.older", topics)
    with pytest.raises(InconsistentClusterRootException, match="topics has version 0, and version 1 was seen"):
        getattr(cluster.guard, opens)(cluster.root.child("topics"))


@pytest.mark.parametrize("opens", ["open", "reopen"])
def test_a_table_that_may_be_made_again_is_not_opened_in_an_older_root(place, cluster, opens):
    register(cluster)
    place.copy(place.uri, f"{place.uri}.copy")
    put(cluster, partition(leader_epoch=2))
    place.move(place.uri, f"{place.uri}.right")
    place.copy(f"{place.uri}.copy", place.uri)
    with pytest.raises(InconsistentClusterRootException, match="metadata has version 2, and version 3 was seen"):
        getattr(cluster.guard, opens)(cluster.root.child("brokers", "1"))


def test_what_a_slower_reader_sees_of_a_table_replaces_nothing_later(cluster):
    seen = cluster.guard.states("metadata")
    older, of_another = seen["metadata"]._replace(version=1), seen["metadata"]._replace(table_id="another", version=9)
    for state in (older, of_another):
        cluster.guard.saw(cluster.root.child("metadata"), state, None)
    assert cluster.guard.states("metadata") == seen


def test_what_an_earlier_process_has_seen_replaces_nothing_later_while_the_root_cannot_be_read(
    place, cluster, monkeypatch
):  # fmt: skip
    instead(place, "an older copy")
    earlier = Cluster.open(place.uri).guard.states("metadata")
    right_again(place)

    def no_answer(*_):
        raise KafkaStorageException("the store does not answer")

    with monkeypatch.context() as store:
        store.setattr(type(cluster.root), "stamps", no_answer)
        with pytest.raises(KafkaStorageException, match="does not answer"):
            cluster.guard.expect(earlier)
    instead(place, "an older copy")
    with pytest.raises(InconsistentClusterRootException, match="metadata has version 1, and version 2 was seen"):
        cluster.guard.check()


def test_two_readers_of_a_process_do_not_go_back_behind_each_other(place, cluster):
    late = MetadataTable.open(cluster.root)
    put(cluster, partition(leader_epoch=2))
    put(cluster, partition(leader_epoch=3))
    late.refresh()
    assert late.partitions == cluster.metadata.partitions
    assert last_version(StorageRoot.of(f"{place.uri}/metadata")) == late.version


@pytest.fixture
def late(place, cluster):
    """A reader at a version after which the process has seen another. An older copy, which ends at that version, is at
    the address now."""
    reader = MetadataTable.open(cluster.root)
    place.copy(place.uri, f"{place.uri}.copy")
    put(cluster, partition(leader_epoch=2))
    place.move(place.uri, f"{place.uri}.right")
    place.copy(f"{place.uri}.copy", place.uri)
    return reader


def test_a_reader_at_the_version_of_an_older_copy_does_not_take_it_for_the_newest(late):
    with pytest.raises(InconsistentClusterRootException, match="metadata has version 2, and version 3 was seen"):
        late.refresh()


def test_a_reader_at_the_version_of_an_older_copy_does_not_take_its_later_commits(place, late):
    with place.another_process():
        other = Cluster.open(place.uri)
        put(other, partition(leader_epoch=7))
        put(other, partition(leader_epoch=8))
    with pytest.raises(InconsistentClusterRootException, match="version 3 of metadata is not the commit that was seen"):
        late.refresh()


@pytest.mark.parametrize("place", ["disk"], indirect=True)  # elsewhere the process has the commits in its memory
def test_a_reader_takes_no_commits_that_an_older_copy_has_put_between_those_that_were_seen(place, cluster):
    """Somebody has copied an older root that went on over this one, and has deleted nothing."""
    reader, version = MetadataTable.open(cluster.root), last_version(StorageRoot.of(f"{place.uri}/metadata"))
    place.copy(place.uri, f"{place.uri}.copy")
    put(cluster, partition(leader_epoch=2))
    put(cluster, partition(leader_epoch=3))
    with place.another_process():
        put(Cluster.open(f"{place.uri}.copy"), partition(leader_epoch=7))
    of_another = StorageRoot.of(f"{place.uri}.copy/metadata").read(commit_name(version + 1))
    StorageRoot.of(f"{place.uri}/metadata").write(commit_name(version + 1), of_another)
    with pytest.raises(KafkaStorageException, match=r"is an older copy|is not the commit that was seen"):
        reader.refresh()
    assert reader.partitions[partition().topic_id_partition].leader_epoch == 1


@pytest.mark.parametrize("place", ["disk"], indirect=True)  # a check of an object store counts for seconds
def test_a_reader_takes_no_commits_of_a_copy_whose_other_tables_are_older(place, cluster):
    reader, held = MetadataTable.open(cluster.root), cluster.lease.elect("controller-1", None)
    put(cluster, partition(leader_epoch=2))
    place.copy(place.uri, f"{place.uri}.copy")
    cluster.lease.renew(held)
    place.move(place.uri, f"{place.uri}.right")
    place.copy(f"{place.uri}.copy", place.uri)
    with place.another_process():
        put(Cluster.open(place.uri), partition(leader_epoch=7))
    with pytest.raises(InconsistentClusterRootException, match="is an older copy: controller has"):
        reader.refresh()


def test_a_writer_finds_an_older_copy_although_it_has_seen_the_members_of_a_group_last(place, cluster):
    """The copy has no table of members. That alone says nothing, as the controller deletes such tables."""
    place.copy(place.uri, f"{place.uri}.copy")
    cluster.groups.commit([CommittedOffset("g", "t", "id", 0, 5)])
    MemberTable.open_or_create(cluster.root, "g")
    place.move(place.uri, f"{place.uri}.right")
    place.copy(f"{place.uri}.copy", place.uri)
    with pytest.raises(InconsistentClusterRootException, match="is an older copy: groups has"):
        put(cluster, partition(leader_epoch=2))


def test_a_reader_replays_what_another_of_its_process_has_written_without_opening_the_table(cluster):
    reader = DeltaLog.open(cluster.root.child("metadata"))
    put(cluster, partition(leader_epoch=2))
    put(cluster, partition(leader_epoch=3))
    replayed = reader.move()
    assert replayed is not None
    assert [commit.version for commit in replayed] == [3, 4]


# --- what a broker has noted on its own root ---


@pytest.fixture
def broker_root(place):
    made = StorageRoot.of(f"{place.uri}/../broker-1".replace("cluster/../", ""))
    made.create_folder()
    return made


@pytest.mark.parametrize("what", ["an older copy", "an older copy that went on", "another cluster"])
def test_a_broker_that_starts_knows_what_its_earlier_process_has_seen(place, cluster, broker_root, what):
    cluster.expect_what_was_seen(broker_root)  # nothing is noted yet
    cluster.note_what_was_seen(broker_root)
    instead(place, what)
    opened, before = Cluster.open(place.uri), place.files(place.uri)
    for _ in range(2):
        with pytest.raises(InconsistentClusterRootException, match=r"an older copy|is not the commit|is the root of"):
            opened.expect_what_was_seen(broker_root)
        with pytest.raises(InconsistentClusterRootException):
            register(opened)
    with pytest.raises(InconsistentClusterRootException):
        prepare_start(opened, 1, broker_root.uri)
    assert place.files(place.uri) == before
    right_again(place)
    opened = Cluster.open(place.uri)
    opened.expect_what_was_seen(broker_root)
    register(opened)


def test_a_broker_that_starts_names_the_cluster_that_it_belongs_to(place, cluster, broker_root):
    format_broker(broker_root, cluster.cluster_id, 1)
    cluster.note_what_was_seen(broker_root)
    instead(place, "another cluster")
    opened = Cluster.open(place.uri)
    told = f"is the root of cluster {opened.cluster_id}, and that of cluster {cluster.cluster_id} is expected"
    for start in (lambda: prepare_start(opened, 1, broker_root.uri), lambda: register(opened)):
        with pytest.raises(InconsistentClusterRootException, match=told):
            start()


def reads(process):
    for table in (process.topics, process.configs, process.admin, process.producers, process.groups, process.metadata):
        table.refresh()
    process.lease.read()
    process.refresh_brokers()
    return process.metadata.refresh


def registers(process):
    own = register(process)
    return lambda: own.heartbeat(1, "heartbeat")


def sees_it_go_on(process):
    put(process, partition(leader_epoch=8, number=1))
    return process.metadata.refresh


# What a process does with an older copy before the right root is back; what it has against that then; whether a restart
# does not help, as what it has noted is of the other history, too.
BEGUN_ON_A_COPY = {
    "reads": (reads, None, False),
    "registers": (registers, "another history: version 2 of brokers/1 is not the commit that was seen", False),
    "sees it go on": (sees_it_go_on, "another history: version 3 of metadata is not the commit that was seen", True),
}


@pytest.mark.parametrize(("begins", "against", "is_noted"), BEGUN_ON_A_COPY.values(), ids=BEGUN_ON_A_COPY)
def test_a_process_that_has_begun_on_an_older_copy_accepts_the_right_root_if_it_has_seen_no_other_history(
    place, cluster, broker_root, begins, against, is_noted
):  # fmt: skip
    before = register(cluster)
    place.copy(place.uri, f"{place.uri}.copy")
    put(cluster, partition(leader_epoch=2))
    before.heartbeat(1, "heartbeat")
    place.move(place.uri, f"{place.uri}.right")
    place.move(f"{place.uri}.copy", place.uri)
    with place.another_process():
        process = Cluster.open(place.uri)
        goes_on = begins(process)
        process.note_what_was_seen(broker_root)
        right_again(place)
        for _ in range(2 if against else 0):
            with pytest.raises(InconsistentClusterRootException, match=against):
                goes_on()
        restarted = process if against is None else Cluster.open(place.uri)
        if is_noted:
            with pytest.raises(InconsistentClusterRootException, match=against):
                restarted.expect_what_was_seen(broker_root)
            restarted = Cluster.open(place.uri)
            restarted.forget_what_was_seen(broker_root)
        restarted.expect_what_was_seen(broker_root)
        reads(restarted)
        register(restarted)
        put(restarted, partition(leader_epoch=3))
    cluster.metadata.refresh()
    assert cluster.metadata.partitions == restarted.metadata.partitions


def test_a_note_that_a_power_cut_has_torn_is_written_anew(place, cluster, broker_root, caplog):
    for torn in (b"", b"{", b"[]", b'{"metadata": {}}', b'{"metadata": {"id": "i", "version": "x", "commit": ""}}'):
        broker_root.put("cluster-seen.json", torn)
        Cluster.open(place.uri).expect_what_was_seen(broker_root)
        assert "makes no sense, and is written anew" in caplog.text
        caplog.clear()
    cluster.note_what_was_seen(broker_root)
    assert cluster.seen_by(broker_root) == cluster.guard.states("cluster", "metadata", "topics")


def test_a_note_is_written_where_something_has_moved(cluster, broker_root):
    cluster.note_what_was_seen(broker_root)
    broker_root.delete("cluster-seen.json")
    cluster.note_what_was_seen(broker_root)
    assert not broker_root.exists("cluster-seen.json")
    put(cluster, partition(leader_epoch=5))
    cluster.note_what_was_seen(broker_root)
    assert cluster.seen_by(broker_root)["metadata"].version == cluster.metadata.version
