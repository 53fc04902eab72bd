"""A cluster that was formatted with one root gets two more, while processes go on that have opened it before."""

import shutil
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InconsistentClusterIdException,
    InvalidRequestException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage import root_changes, root_identity
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta import cluster_quorum, known_roots, quorum_member
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import ROOTS
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.quorum_member import CREATES, QuorumMember, packed
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_opening import create_table
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.root_identity import read_identity
from lakelog.replication.storage.staged_batch import Part, StagedBatch, stages_of
from lakelog.replication.storage.tables import state_table
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import BROKERS, CLUSTER, OLDEST_FORMAT, QUORUM_FORMAT
from tests.processes import wait_until

CONFIG = Config(lakelog_storage_timeout_ms=60_000)


def registered(root, broker_id):
    row = BrokerRegistration(broker_id, f"{root.uri}-broker-{broker_id}", None, 1, -1, False, None, "id", 0)
    table = BrokerTable.open_or_create(root, broker_id)
    table.register(lambda _: row)
    return table


class Lake:
    """A cluster with one root, a, and places for b and c. A broker has registered."""

    def __init__(self, uris):
        self.uris = uris
        format_cluster(StorageRoot.of(uris[0]), CONFIG)
        registered(self.opened().root, 1)

    def opened(self, number=0):
        return Cluster.open(self.uris[number], CONFIG)

    def grow(self, cluster=None):
        return RootChanges(cluster or self.opened()).add(self.uris[1:])

    def undecided(self):
        """The tables whose newest commit at any root does not let the three roots vote."""
        members = [QuorumMember(StorageRoot.of(uri)) for uri in self.uris]
        voting = [member.identity() for member in members]
        newest = {
            table: max((m.root.child(*table) for m in members), key=last_version) for table in members[0].tables()
        }
        return {
            table for table, folder in newest.items()
            if read_commit(folder, last_version(folder)).info.get(ROOTS) != voting
        }  # fmt: skip

    def lose(self, number):
        StorageRoot.of(self.uris[number]).delete_folder()


@pytest.fixture
def lake(root, monkeypatch):
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(quorum_member, "_CLEAR_SECONDS", 0.0)
    return Lake([f"{root}/{name}" for name in "abc"])


def add(table, name):
    row = {"name": name, "producer_id": 1, "producer_epoch": 0, "owner": "me", "idle_ms": 0}
    table.update({"who": "test"}, lambda rows: [*rows, row], once=True)
    settle(table.root)


def settle(root):
    if isinstance(root, QuorumRoot):
        root.quorum.flush()


def names(table):
    table.refresh()
    return [row["name"] for row in table.rows]


@pytest.fixture(params=["disk", "s3"])
def any_lake(request, root, monkeypatch):
    if request.param == "disk":
        return request.getfixturevalue("lake")
    for name, value in request.getfixturevalue("s3_options").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(quorum_member, "_CLEAR_SECONDS", 0.0)
    monkeypatch.setattr(quorum_member, "_SURE_SECONDS", 0.0)  # else an emptied root is noticed after 10 s
    return Lake([f"s3://bucket/others/{Path(root).name}/{name}" for name in "abc"])


@pytest.mark.parametrize("lost", range(3))
def test_processes_go_on_and_any_one_root_may_then_be_lost(any_lake, lost):
    lake = any_lake
    running, reader = lake.opened(), lake.opened()
    producers, broker, lease = running.producers, BrokerTable.open(running.root, 1), running.lease
    assert names(reader.producers) == []
    add(producers, "first")
    held = lease.elect("controller-1", lease.read())
    heartbeat = broker.heartbeat(1, "heartbeat").heartbeat
    assert lake.grow()
    assert lake.undecided() == set()
    add(producers, "second")
    assert names(reader.producers) == ["first", "second"]
    changes = RootChanges(lake.opened(1))
    wait_until(lambda: {status.behind for status in changes.describe()} == {0}, "each root has every commit")
    beats = [broker.heartbeat(1, "heartbeat").heartbeat for _ in range(3)]
    assert beats == sorted({heartbeat, *beats})[1:]
    leases = [lease.renew(held).lease for _ in range(3)]
    assert leases == sorted(set(leases))
    settle(running.root)
    lake.lose(lost)
    add(producers, "third")
    assert names(reader.producers) == ["first", "second", "third"]
    assert {each: reg.broker_epoch for each, reg in reader.refresh_brokers().items()} == {1: 1}
    assert broker.heartbeat(1, "heartbeat").heartbeat > beats[-1]
    left = next(number for number in range(3) if number != lost)
    assert names(lake.opened(left).producers) == ["first", "second", "third"]
    assert not RootChanges(lake.opened(left)).replace(lake.uris[left], lake.uris[left])


def test_a_table_is_opened_for_the_first_time_after_the_change(lake):
    running = lake.opened()
    lake.grow()
    lake.lose(1)
    add(running.producers, "first")
    registered(running.root, 2)
    assert set(running.refresh_brokers()) == {1, 2}
    lake.lose(0)
    with pytest.raises(KafkaStorageException, match="no majority"):
        add(running.producers, "second")


def test_racing_writers_of_before_and_after_lose_no_commit(lake):
    done, failed = threading.Event(), list[BaseException]()

    def write(number, cluster):
        try:
            written[number] = 0
            while not done.is_set() or written[number] < 3:
                add(cluster.producers, f"{number}-{written[number]}")
                written[number] += 1
        except BaseException as error:
            failed.append(error)

    written = dict[int, int]()
    threads = [threading.Thread(target=write, args=(number, lake.opened())) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        lake.grow()
        threads.append(threading.Thread(target=write, args=(3, lake.opened(2))))
        threads[-1].start()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []
    found = [f"{number}-{count}" for number, total in written.items() for count in range(total)]
    for uri in lake.uris:
        assert sorted(names(Cluster.open(uri, CONFIG).producers)) == sorted(found)


class Interrupted(KafkaStorageException):
    pass


def interrupted(*_):
    raise Interrupted


@pytest.mark.parametrize("after", range(0, 240, 11))
def test_an_interrupted_change_loses_nothing_and_is_finished_by_the_same_command(lake, monkeypatch, after):
    """It is interrupted before any write to any root."""
    running, left = lake.opened(), after
    add(running.producers, "first")

    def interrupted_by(call):
        def write(self, *words):
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted("no space left")
            return call(self, *words)

        return write

    with monkeypatch.context() as patch:
        for name in ("put", "put_if_absent", "create_folder"):
            patch.setattr(LocalRoot, name, interrupted_by(getattr(LocalRoot, name)))
        try:
            lake.grow()
        except KafkaStorageException:
            pass
        else:
            assert after > 150
    add(running.producers, "second")  # a process that has opened the table before never waits
    lake.grow(lake.opened())
    assert lake.undecided() == set()
    add(running.producers, "third")
    settle(running.root)
    lake.lose(0)
    assert names(lake.opened(1).producers) == ["first", "second", "third"]


def test_a_place_where_a_change_has_only_made_a_folder_is_taken(lake):
    Path(lake.uris[1], "_quorum").mkdir(parents=True)
    assert lake.grow()
    assert lake.undecided() == set()


def test_of_two_changes_one_is_refused(lake, root, monkeypatch):
    first, plain = lake.opened(), RootChanges._let_vote_on_cluster

    def late(self, *words):
        with monkeypatch.context() as patch:
            patch.setattr(RootChanges, "_let_vote_on_cluster", plain)
            RootChanges(lake.opened()).add([f"{root}/d", f"{root}/e"])
        return plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", late)
    with pytest.raises(InvalidRequestException, match="another command has changed the roots"):
        lake.grow(first)
    there = {status.uri for status in RootChanges(lake.opened()).describe() if status.has_vote}
    assert there == {lake.uris[0], f"{root}/d", f"{root}/e"}
    add(lake.opened().producers, "first")


def test_a_process_that_finds_the_others_reads_what_they_have_decided_without_the_first(lake):
    running = lake.opened()
    assert names(running.producers) == []
    lake.grow()
    other, away = lake.opened(1), Path(f"{lake.uris[0]}.away")
    Path(lake.uris[0]).rename(away)
    add(other.producers, "first")
    away.rename(lake.uris[0])
    assert names(running.producers) == ["first"]


def test_a_table_that_was_not_read_since_goes_on_although_the_first_root_is_lost(lake):
    running = lake.opened()
    producers, groups = running.producers, running.groups
    lake.grow()
    assert names(producers) == []  # by this table the process finds the others
    settle(lake.opened().root)
    lake.lose(0)
    groups.refresh()
    assert isinstance(groups.root, QuorumRoot)
    add(producers, "first")


def test_the_same_command_twice_keeps_the_roots_that_the_first_one_has_prepared(lake, monkeypatch):
    plain = RootChanges._let_vote_on_cluster

    def let_vote(self, *words):
        with monkeypatch.context() as patch:
            patch.setattr(RootChanges, "_let_vote_on_cluster", interrupted)
            with pytest.raises(Interrupted):
                lake.grow()
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", let_vote)
    assert lake.grow()
    assert lake.undecided() == set()
    add(lake.opened(2).producers, "first")


def test_the_first_root_names_those_that_vote_although_another_change_has_noted_its_own(lake, root, monkeypatch):
    plain = RootChanges._let_vote_on_cluster

    def let_vote(self, *words):
        with monkeypatch.context() as patch:
            patch.setattr(RootChanges, "_let_vote_on_cluster", interrupted)
            with pytest.raises(Interrupted):
                RootChanges(lake.opened()).add([f"{root}/d", f"{root}/e"])
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", let_vote)
    assert lake.grow()
    add(lake.opened().producers, "first")
    assert lake.undecided() == set()


def test_a_change_that_comes_second_keeps_what_the_first_root_has_noted(lake, root, monkeypatch):
    plain = root_changes._note_addresses

    def note(*words):
        monkeypatch.setattr(root_changes, "_note_addresses", plain)
        lake.grow()
        plain(*words)

    monkeypatch.setattr(root_changes, "_note_addresses", note)
    with pytest.raises(InvalidRequestException, match="another command has changed the roots"):
        RootChanges(lake.opened()).add([f"{root}/d", f"{root}/e"])
    add(lake.opened().producers, "first")
    assert lake.undecided() == set()


def test_nothing_is_copied_to_the_folder_where_a_root_was_unmounted(lake, monkeypatch):
    plain = RootChanges._let_vote_on_cluster

    def let_vote(self, *words):
        Path(lake.uris[2]).rename(f"{lake.uris[2]}.away")
        Path(lake.uris[2]).mkdir()
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", let_vote)
    assert lake.grow()
    settle(lake.opened().root)
    assert list(Path(lake.uris[2]).iterdir()) == []


@pytest.mark.parametrize("is_torn", [True, False], ids=["torn", "late, after a hole"])
def test_a_newest_commit_that_does_not_count_is_no_end_of_a_table(lake, monkeypatch, is_torn):
    plain, folder = RootChanges._let_vote_on_cluster, StorageRoot.of(lake.uris[0]).child("producers")
    add(lake.opened().producers, "first")
    content = folder.read(commit_name(1))

    def let_vote(self, *words):
        Path(folder.path(commit_name(1 if is_torn else 3))).write_bytes(b"" if is_torn else content)
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", let_vote)
    if is_torn:
        with pytest.raises(KafkaStorageException, match="this commit is empty or torn"):
            lake.grow()
        Path(folder.path(commit_name(1))).write_bytes(content)
    assert lake.grow()
    add(lake.opened(1).producers, "second")
    assert [names(lake.opened(number).producers) for number in range(3)] == [["first", "second"]] * 3


def test_a_root_that_was_away_at_the_change_is_no_cluster_of_its_own(lake, monkeypatch):
    plain, away = RootChanges._let_vote_on_cluster, Path(f"{lake.uris[2]}.away")

    def let_vote(self, *words):
        Path(lake.uris[2]).rename(away)
        Path(lake.uris[2]).touch()  # it does not answer
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", let_vote)
    assert lake.grow(Cluster.open(lake.uris[0], Config(lakelog_storage_timeout_ms=3000)))
    Path(lake.uris[2]).unlink()
    away.rename(lake.uris[2])
    with pytest.raises(InconsistentClusterIdException, match=r"there is no cluster at .*/c"):
        lake.opened(2)
    add(lake.opened().producers, "first")


def test_the_root_itself_is_refused_by_another_name(lake, root, monkeypatch):
    """A bind mount, or an access point of the bucket."""
    Path(root, "alias").symlink_to(lake.uris[0])
    monkeypatch.setattr(root_identity, "_comparable", lambda uri: f"{uri}/")
    with pytest.raises(InvalidRequestException, match="is the root of the cluster, by another name"):
        RootChanges(lake.opened()).add([f"{root}/alias", lake.uris[2]])
    add(lake.opened().producers, "first")


def test_the_root_of_another_cluster_is_told_nothing(lake, root):
    other = Lake([f"{root}/{name}" for name in "xyz"])
    other.grow()
    lake.grow()
    before = QuorumMember(StorageRoot.of(other.uris[1])).addresses()
    for change in (lambda c: c.add([other.uris[1], f"{root}/w"]), lambda c: c.replace(lake.uris[2], other.uris[1])):
        with pytest.raises(InconsistentClusterIdException, match="/y: is the root of cluster"):
            change(RootChanges(lake.opened()))
    assert QuorumMember(StorageRoot.of(other.uris[1])).addresses() == before
    add(other.opened(1).producers, "first")


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("when", ["before the others vote", "after all is done"])
def test_a_table_that_is_made_by_a_process_that_knows_one_root_gets_the_others(lake, monkeypatch, when, lost):
    running, plain = lake.opened(), RootChanges._finish_adding_to_one
    tables = []
    maker = threading.Thread(target=lambda: tables.append(registered(running.root, 2)))

    def made(self, *words):
        if when == "before the others vote":
            maker.start()  # it waits for the first vote
            wait_until(lambda: isinstance(running.root, QuorumRoot), "it finds the others")
        return plain(self, *words)

    monkeypatch.setattr(RootChanges, "_finish_adding_to_one", made)
    lake.grow()
    if when == "after all is done":
        maker.start()
    maker.join()
    assert lake.undecided() == set()
    settle(running.root)
    assert [set(lake.opened(number).refresh_brokers()) for number in range(3)] == [{1, 2}] * 3
    lake.lose(lost)
    assert tables[0].heartbeat(1, "heartbeat", rack="b").heartbeat > 0
    assert lake.opened(2).refresh_brokers()[2].rack == "b"


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_table_that_is_made_at_the_first_root_alone_when_others_vote_does_not_count(lake, goes_on, is_away):
    """Its maker knows one root. Another process makes the table by votes, and so does the maker if it does not end."""
    running, away = lake.opened(), Path(f"{lake.uris[0]}.away")
    lake.grow()
    if is_away:  # while the other one makes its table
        Path(lake.uris[0]).rename(away)
    else:
        create_table(replace(running.root, guard=None).child("brokers", "2"), BROKERS)
    made = registered(lake.opened(1).root, 2)
    settle(made.root)
    if is_away:
        away.rename(lake.uris[0])
        create_table(replace(running.root, guard=None).child("brokers", "2"), BROKERS)
    if goes_on:
        registered(running.root, 2)
        settle(running.root)
    assert made.heartbeat(1, "heartbeat", rack="b").heartbeat > 0
    settle(made.root)
    assert [lake.opened(number).refresh_brokers()[2].rack for number in range(3)] == ["b"] * 3


def make(member, source):
    """Publishes the commit again that has made the table by votes."""
    folder = source.root.child(CLUSTER.name)
    version = next(v for v in range(last_version(folder) + 1) if CREATES in read_commit(folder, v).info)
    assert member.publish((CLUSTER.name,), version, packed(folder.read(commit_name(version)), {}))


def publish(member, source):
    """Publishes a commit after one that is not there, and brings the table then."""
    content = source.root.child("brokers", "2").read(commit_name(1))
    assert not member.publish(("brokers", "2"), 1, packed(content, {}))
    assert member.newest(("brokers", "2")) < 0
    member.bring(("brokers", "2"), source)


def bring(member, source):
    member.bring(("brokers", "2"), source)


@pytest.mark.parametrize("call", [make, publish, bring])
def test_at_a_root_a_table_that_was_made_alone_gives_way_to_what_was_voted_on(lake, call):
    lake.grow()
    settle(registered(lake.opened(1).root, 2).root)
    first, other = (QuorumMember(StorageRoot.of(uri)) for uri in lake.uris[:2])
    folder = first.root.child("brokers", "2")
    folder.delete_folder()
    create_table(folder, BROKERS)
    call(first, other)
    assert folder.read(commit_name(0)) == other.root.child("brokers", "2").read(commit_name(0))


def test_a_process_leaves_a_table_that_was_made_alone_once_it_finds_the_others(lake):
    running = lake.opened()
    lake.grow()
    create_table(replace(running.root, guard=None).child("brokers", "2"), BROKERS)
    log = DeltaLog.open(running.root.child("brokers", "2"))
    assert (log.move(), isinstance(log.root, QuorumRoot)) == ([], False)
    assert names(running.producers) == []  # by this table it finds them
    with pytest.raises(KafkaStorageException, match="no majority decides here yet"):
        log.move()
    assert isinstance(log.root, QuorumRoot)


def test_a_table_that_is_made_while_others_get_votes_gets_them_by_the_change(lake, monkeypatch):
    running, plain, made = lake.opened(), DeltaLog.let_vote, threading.Lock()
    running.guard.voting = tuple  # its maker ends before it finds the others

    def let_vote(log, voting):
        if made.acquire(blocking=False):
            registered(running.root, 2)
        plain(log, voting)

    monkeypatch.setattr(DeltaLog, "let_vote", let_vote)
    lake.grow()
    assert ("brokers", "2") in QuorumMember(StorageRoot.of(lake.uris[2])).tables()
    assert lake.undecided() == set()


def test_a_copy_of_the_root_from_before_gets_no_commits(lake, root):
    shutil.copytree(lake.uris[0], f"{root}/backup")
    lake.grow()
    settle(lake.opened().root)
    shutil.rmtree(lake.uris[0])
    shutil.copytree(f"{root}/backup", lake.uris[0])
    before = sorted(map(str, Path(lake.uris[0]).rglob("*.json")))
    assert RootChanges(lake.opened(1)).replace(lake.uris[2], f"{root}/d")
    assert sorted(map(str, Path(lake.uris[0]).rglob("*.json"))) == before
    assert RootChanges(lake.opened(1)).replace(lake.uris[0], lake.uris[0])


def test_a_change_fails_that_leaves_a_table_at_one_root(lake, monkeypatch):
    bring, has_voted = QuorumMember.bring, threading.Event()

    def fails(member, table, source):
        if table == ("producers",) and has_voted.is_set() and member is not source:
            raise KafkaStorageException("no space left")
        bring(member, table, source)

    def let_vote(log, voting, plain=DeltaLog.let_vote):
        plain(log, voting)
        if log.root.uri.endswith("producers"):
            has_voted.set()

    monkeypatch.setattr(QuorumMember, "bring", fails)
    monkeypatch.setattr(DeltaLog, "let_vote", let_vote)
    with pytest.raises(
        KafkaStorageException, match="producers: a majority of the roots has no copy of it: no space left"
    ):
        lake.grow()


def test_a_change_is_not_finished_without_the_first_root_that_has_tables_alone(lake, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "let_vote", interrupted)
        with pytest.raises(Interrupted):
            lake.grow()
    assert all("has no vote on some tables yet" in each.error for each in RootChanges(lake.opened()).describe())
    Path(lake.uris[0]).rename(f"{lake.uris[0]}.away")
    with pytest.raises(KafkaStorageException, match="/a: does not answer, and still decides alone on some tables"):
        lake.grow(lake.opened(1))
    Path(f"{lake.uris[0]}.away").rename(lake.uris[0])
    assert lake.grow(lake.opened(1))
    assert lake.undecided() == set()


def batch(batch_id, content):
    return StagedBatch(batch_id, 1, (Part("part-1", 1, {"t": {0: 1}}, content),), {"t": {0: 0}}, {"t": {0: 1}})


def slow_list(self, plain=LocalRoot.list):
    """A majority of the roots answers before the first one does."""
    if "/a/sinks" in self.uri:
        threading.Event().wait(0.1)
    return plain(self)


def commit_with_unknown_outcome(self, cause, *words, plain=DeltaLog.commit, **more):
    version = plain(self, cause, *words, **more)
    if cause.get(ROOTS) and self.root.uri.endswith("cluster"):
        raise CommitUnknown("timed out")
    return version


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("when", ["before", "at the table cluster", "after"])
def test_what_a_query_stages_meanwhile_is_at_a_majority(lake, monkeypatch, when, is_known):
    monkeypatch.setattr(LocalRoot, "list", slow_list)
    if not is_known:
        monkeypatch.setattr(DeltaLog, "commit", commit_with_unknown_outcome)
    task, driver = (SinkStage(stages_of(lake.opened().root, 0).child("query")) for _ in range(2))
    plain = RootChanges._let_vote_on_cluster

    def put():
        task._write("part-2", b"2")
        driver.put_batch(batch(1, b"1"))
        driver.put_done(1)

    def staged(self, *words):
        if when == "at the table cluster":
            put()
        plain(self, *words)

    monkeypatch.setattr(RootChanges, "_let_vote_on_cluster", staged)
    if when == "before":
        put()
    lake.grow()
    if when == "after":
        put()
    for lost in (0, 1):
        again = SinkStage(stages_of(lake.opened(2).root, 0).child("query"))
        if lost == 0:
            lake.lose(0)
        assert (again.read().batches, again.read().done) == ((1,), 1)
        assert again.read_batch(1) == batch(1, b"1")
        assert again._root.read("part-2") == b"2"


def stage_of(cluster):
    return SinkStage(stages_of(cluster.root, 0).child("query"))


@contextmanager
def first_root_away(lake):
    away = Path(f"{lake.uris[0]}.away")
    Path(lake.uris[0]).rename(away)
    yield
    away.rename(lake.uris[0])


@pytest.mark.parametrize("ends", [False, True], ids=["its writer goes on", "its writer ends after it has written it"])
@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away when others decide"])
def test_a_staged_batch_is_decided_once_although_its_writer_knows_one_root(lake, monkeypatch, is_away, ends):
    """Another writer stages the batch by votes before it."""
    early = stage_of(lake.opened())
    lake.grow()
    late = stage_of(lake.opened(1))
    with first_root_away(lake) if is_away else nullcontext():
        assert late.put_batch(batch(1, b"late"))
    with monkeypatch.context() as patch:
        if ends:
            patch.setattr(StorageRoot, "is_alone", interrupted)
        with pytest.raises(Interrupted) if ends else nullcontext():
            assert not early.put_batch(batch(1, b"early"))
    for stage in (stage_of(lake.opened()), late, *([] if ends else [early])):
        assert stage.read_batch(1) == batch(1, b"late")


def test_a_stage_is_at_all_roots_once_another_table_has_shown_them(lake):
    running = lake.opened()
    producers, stage = running.producers, stage_of(running)
    lake.grow()
    assert names(producers) == []
    stage._write("part-1", b"x")
    assert stage.put_batch(batch(1, b"1"))
    for name in ("part-1", "batch-1.arrow"):
        assert sum(Path(uri, "sinks", "query", name).exists() for uri in lake.uris) >= 2


def test_a_process_that_slept_stages_at_all_roots_although_the_change_is_cleaned_up(lake):
    stage = stage_of(lake.opened())
    lake.grow()
    cluster = lake.opened()
    registered(cluster.root, 2)
    settle(cluster.root)
    table = StorageRoot.of(lake.uris[0]).child(CLUSTER.name)
    table.checkpoint_table(last_version(table))
    for version in range(last_version(table)):
        table.child("_delta_log").delete(f"{version:020d}.json")
    stage.put_batch(batch(1, b"1"))
    assert sum(Path(uri, "sinks", "query", "batch-1.arrow").exists() for uri in lake.uris) >= 2


def test_files_and_new_tables_wait_until_the_files_of_the_first_root_are_at_the_others(lake, monkeypatch):
    monkeypatch.setattr(cluster_quorum, "_LONGEST_PAUSE_SECONDS", 0.01)
    plain, commit_of = RootChanges._finish_adding_to_one, ClusterQuorum.commit_of
    results, asked = dict[str, object](), Counter[int | None]()
    stages_of(lake.opened().root, 0).child("query").write("batch-1.arrow", b"1")

    def use(name, call):
        def run():
            results[name] = call(lake.opened())

        return threading.Thread(target=run)

    threads = [
        use("files", lambda cluster: stages_of(cluster.root, 0).child("query").list()),
        use("table", lambda cluster: registered(cluster.root, 2).version),
    ]

    def counted(quorum, table, version):
        asked[threading.get_ident()] += 1
        return commit_of(quorum, table, version)

    def held(self, *words):
        # Lost between the two looks at the files of the first root.
        shutil.rmtree(Path(lake.uris[1], "sinks"))
        shutil.rmtree(Path(lake.uris[2], "sinks"))
        for thread in threads:
            thread.start()
        wait_until(lambda: all(asked[thread.ident] > 9 for thread in threads), "both ask again and again")
        assert results == {}
        return plain(self, *words)

    monkeypatch.setattr(ClusterQuorum, "commit_of", counted)
    monkeypatch.setattr(RootChanges, "_finish_adding_to_one", held)
    lake.grow()
    for thread in threads:
        thread.join()
    assert results == {"files": ["batch-1.arrow"], "table": 1}
    assert lake.undecided() == set()


def test_a_change_that_was_interrupted_is_named_by_who_waits_for_it(lake, monkeypatch):
    def interrupted(*_):
        raise Interrupted("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(RootChanges, "_finish_adding_to_one", interrupted)
        with pytest.raises(Interrupted):
            lake.grow()
    cluster = Cluster.open(lake.uris[0], Config(lakelog_storage_timeout_ms=1000))
    for call in (
        lambda: stages_of(cluster.root, 0).child("query").list(),
        lambda: registered(cluster.root, 2),
        lambda: add(cluster.producers, "first"),
    ):
        with pytest.raises(KafkaStorageException, match=r"is getting more roots.* --add` was interrupted"):
            call()


def test_one_root_never_decides_what_several_vote_on(lake):
    lake.grow()
    plain = DeltaLog.open(StorageRoot.of(lake.uris[0]).child("producers"))
    with pytest.raises(KafkaStorageException, match="is one of 3 roots, which decide together"):
        plain.commit({"who": "test"})


def test_a_root_whose_newest_commit_is_gone_asks_the_table_cluster(lake):
    running = lake.opened()
    lake.grow()
    folder = StorageRoot.of(lake.uris[0]).child("groups")
    log = DeltaLog.open(folder)
    folder.checkpoint_table(log.version)
    Path(folder.uri, "_delta_log", f"{log.version:020d}.json").unlink()
    assert isinstance(running.groups.root, QuorumRoot)


def test_the_cleaner_of_a_table_deletes_at_all_roots(lake, monkeypatch):
    monkeypatch.setattr(state_table, "FileCleaner", lambda root, _: FileCleaner(root, delete_delay=0.0))
    table, written = lake.opened().producers, list[set[str]]()
    add(table, "first")
    table.maintain()
    lake.grow()
    for name in ("second", "third"):
        add(table, name)
        table.maintain()
        settle(table.root)
        written.append({file.name for file in table._log.active_files()})
    for uri in lake.uris:
        files = {path.name for path in Path(uri, "producers").glob("*.parquet")}
        assert files & (written[0] | written[1]) == written[1]


def test_a_cluster_of_an_older_format_stays_alone(lake, root):
    old = StorageRoot.of(f"{root}/old")
    format_cluster(replace(old, admits_writers=True), CONFIG)
    assert read_identity(old)["format_version"] == OLDEST_FORMAT < QUORUM_FORMAT
    with pytest.raises(InvalidRequestException, match="was made by an older version of Lakelog"):
        RootChanges(Cluster.open(old.uri, CONFIG)).add(lake.uris[1:])


@pytest.mark.parametrize(
    ("added", "error"),
    [
        (["{a}", "{b}"], "is the root of the cluster already; give a new one"),
        (["{b}", "{b}/in"], "lies in .*/b, the root of the cluster"),
        (["{b}", "{b},/d"], "names several roots; give each by itself"),
        (["{b}", "{b}"], "is given twice"),
        (["{b}"], "the cluster has 1 roots and would have 2"),
        (["{b}", "{a}/in"], "lies in .*/a, the root of cluster"),
        (["{b}", "{full}"], "must be empty to be formatted"),
        (["{b}", "{a}-broker-1/in"], "lies in .*, the root of broker 1"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(lake, root, added, error):
    Path(root, "full").mkdir()
    Path(root, "full", "file").touch()
    given = [each.format(a=lake.uris[0], b=lake.uris[1], full=f"{root}/full") for each in added]
    before = sorted(map(str, Path(root).rglob("*")))
    with pytest.raises(LakelogException, match=error):
        RootChanges(lake.opened()).add(given)
    assert sorted(map(str, Path(root).rglob("*"))) == before


def test_the_roots_are_not_made_with_an_uncertain_list_of_them(lake, monkeypatch):
    monkeypatch.setattr(QuorumMember, "note_addresses", lambda *_: None)
    with pytest.raises(KafkaStorageException, match="does not name the roots of the cluster"):
        lake.grow()
    assert read_identity(StorageRoot.of(lake.uris[0]))["format_version"] < QUORUM_FORMAT
