"""Tables whose commits a majority of three cluster roots decides, on real roots: on disks, in buckets and in memory."""

import json
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

import pytest
from deltalake import DeltaTable

from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta import (
    cluster_quorum,
    commit_publisher,
    delta_log,
    known_roots,
    quorum_member,
    root_requests,
)
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import ROOTS
from lakelog.replication.storage.delta.commit_format import (
    commit_content,
    commit_name,
    drop_commits_before,
    last_version,
    read_commit,
)
from lakelog.replication.storage.delta.commit_publisher import CommitPublisher
from lakelog.replication.storage.delta.delta_log import CommitUnknown
from lakelog.replication.storage.delta.known_roots import KnownRoots
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.quorum_member import CREATES, QuorumMember
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import change_roots
from lakelog.replication.storage.root_identity import read_identity
from lakelog.replication.storage.tables import state_table
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import CLUSTER, PRODUCERS
from tests.hanging import Hanging, ends, in_background, raises, start_no_threads, wait_for_late_requests
from tests.processes import wait_until

NAMES = "abc"


def row(name):
    return {"name": name, "producer_id": 1, "producer_epoch": 0, "owner": "me", "idle_ms": 0}


def add(table, name):
    table.update({"who": "test"}, lambda rows: [*rows, row(name)], once=True)
    table._log.root.quorum.flush()


def names(table):
    table.refresh()
    return [row["name"] for row in table.rows]


class Roots:
    """Three folders on a disk. `process(home)`: a process whose home is this root."""

    def __init__(self, folder):
        self.folders = {name: Path(folder, name) for name in NAMES}
        members = [QuorumMember(StorageRoot.of(str(path))) for path in self.folders.values()]
        root = QuorumRoot.over(ClusterQuorum(members, timeout=60))
        root.create_folder()
        root.quorum.known.format()
        StateTable.create_at(root.child("producers"), PRODUCERS)
        StateTable.create_at(root.child("cluster"), CLUSTER)

    def process(self, home="a"):
        order = sorted(self.folders, key=lambda name: name != home)
        members = [QuorumMember(StorageRoot.of(str(self.folders[name]))) for name in order]
        return QuorumRoot.over(ClusterQuorum(members, timeout=60))

    def table(self, home="a"):
        return StateTable.open_at(self.process(home).child("producers"), PRODUCERS)

    def plain(self, name):
        """The rows that any reader of Delta sees at one root."""
        table = StateTable.open_at(StorageRoot.of(str(self.folders[name])).child("producers"), PRODUCERS)
        return [row["name"] for row in table.rows]

    def remove(self, name):
        """The root is not there, until it is put back."""
        self.folders[name].rename(f"{self.folders[name]}.away")

    def put_back(self, name):
        Path(f"{self.folders[name]}.away").rename(self.folders[name])

    def votes(self, name):
        folder = self.folders[name] / "_quorum" / "producers"
        return len(list(folder.glob("*.json"))) if folder.exists() else 0


def look_always(monkeypatch):
    """Lets each step look for roots that are away, and bring them what they lack."""
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(commit_publisher, "_AWAY_SECONDS", 0.0)


@pytest.fixture
def roots(root):
    return Roots(root)


@pytest.fixture
def writers(root, s3_options, monkeypatch):
    """The table `producers` as two processes have opened it, in one bucket, or in three that vote. No view of a table
    is recent enough for a commit."""
    monkeypatch.setattr("lakelog.replication.storage.delta.compare_and_set.RECENT_SECONDS", 0.0)

    def open_in(buckets):
        made = False
        for process in ("one", "another"):
            options = {**s3_options, "user_agent": process}  # what two processes know is not the same
            roots = [StorageRoot.of(f"s3://bucket/{Path(root).name}/{name}", options) for name in NAMES[:buckets]]
            quorum = QuorumRoot.over(ClusterQuorum([QuorumMember(each) for each in roots], timeout=60))
            cluster = quorum if buckets > 1 else roots[0]
            if not made and buckets > 1:
                quorum.quorum.known.format()
                StateTable.create_at(quorum.child("cluster"), CLUSTER)
            make = StateTable.open_at if made else StateTable.create_at
            yield make(cluster.child("producers"), PRODUCERS)
            made = True

    return open_in


def test_commits_of_racing_processes_are_each_there_once_at_all_roots(roots):
    def work(name):
        table = roots.table(name)
        for number in range(10):
            add(table, f"{name}{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(f"{name}{number}" for name in NAMES for number in range(10))
    for name in NAMES:
        assert sorted(names(roots.table(name))) == expected
        assert sorted(roots.plain(name)) == expected  # which the read has published there


@pytest.mark.parametrize("home", NAMES)
def test_a_process_goes_on_without_one_root_and_brings_it_up_to_date_later(roots, home):
    table = roots.table(home)
    add(table, "first")
    roots.remove("a")
    add(table, "second")
    assert names(roots.table("a")) == names(table) == ["first", "second"]
    roots.put_back("a")
    add(table, "third")
    assert names(roots.table("a")) == ["first", "second", "third"]
    assert roots.plain("a") == ["first", "second", "third"]


def test_a_root_that_was_emptied_has_no_vote_and_gets_no_commit(roots):
    table = roots.table("b")
    add(table, "first")
    shutil.rmtree(roots.folders["a"])
    roots.folders["a"].mkdir()
    add(table, "second")
    assert names(roots.table("a")) == ["first", "second"]
    assert not list(roots.folders["a"].iterdir())


@pytest.mark.parametrize("kind", ["a copy of another", "restored from a backup", "without its votes"])
def test_a_root_that_may_have_forgotten_votes_has_no_vote(roots, kind):
    folder, table = roots.folders["a"], roots.table("b")
    shutil.copytree(folder, f"{folder}.backup")
    add(table, "first")
    if kind == "without its votes":
        shutil.rmtree(folder / "_quorum")
    else:
        shutil.rmtree(folder)
        source = f"{folder}.backup" if kind == "restored from a backup" else roots.folders["c"]
        shutil.copytree(source, folder)
    had = roots.votes("a")
    add(table, "second")
    assert names(roots.table("a")) == ["first", "second"]
    roots.remove("b")
    with pytest.raises(KafkaStorageException, match="no majority of the 3 cluster roots has answered"):
        add(roots.table("c"), "third")
    assert roots.votes("a") >= had


def test_a_commit_of_which_one_root_knows_is_finished_or_harmless(roots):
    """Its writer has died after one of three votes."""
    table = roots.table("a")
    add(table, "first")
    roots.remove("b")
    roots.remove("c")
    with pytest.raises(KafkaStorageException):
        add(table, "torn")
    roots.put_back("b")
    roots.put_back("c")
    other = roots.table("b")
    add(other, "second")
    assert names(other) in (["first", "second"], ["first", "torn", "second"])
    assert names(roots.table("a")) == names(other)


def test_without_a_majority_nothing_is_written_and_reads_of_what_is_there_go_on(roots):
    table = roots.table("a")
    add(table, "first")
    names(table)
    roots.remove("b")
    roots.remove("c")
    with pytest.raises(KafkaStorageException, match="no majority of the 3 cluster roots has answered"):
        add(table, "second")
    assert roots.plain("a") == ["first"]


def test_two_processes_that_make_one_table_make_it_once(roots):
    made, errors = [], []

    def make(name):
        try:
            made.append(StateTable.create_at(roots.process(name).child("brokers", "7"), PRODUCERS))
        except InconsistentClusterIdException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(errors)) == (1, 2)
    contents = {(folder / "brokers/7/_delta_log" / f"{0:020d}.json").read_bytes() for folder in roots.folders.values()}
    assert len(contents) == 1


def test_a_root_that_was_away_for_longer_than_commits_are_kept_gets_a_checkpoint(roots, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    table = roots.table("b")
    add(table, "first")
    roots.remove("a")
    for number in range(12):
        add(table, f"{number}")
        table.maintain()
    roots.put_back("a")
    add(table, "last")
    assert names(roots.table("a")) == names(table)
    assert roots.plain("a") == names(table)


def test_old_votes_are_sealed_and_then_deleted_and_a_slow_writer_sees_the_seal(roots, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr(quorum_member, "SLOTS_A_SEAL", 4)
    monkeypatch.setattr(quorum_member, "_SEALED_SECONDS", 0.0)
    table = roots.table("a")
    for number in range(20):
        add(table, f"{number}")
        table.maintain()
    votes = sorted(path.name for path in (roots.folders["b"] / "_quorum" / "producers").iterdir())
    assert [name for name in votes if name.startswith("sealed")]
    assert not [name for name in votes if name.startswith(f"{1:020d}")]
    assert names(table) == [f"{number}" for number in range(20)]


def test_a_cluster_is_found_by_any_one_of_its_roots_and_older_versions_refuse_it(root):
    uris = [f"{root}/{name}" for name in NAMES]
    config = Config()
    cluster_id = format_cluster(storage_root(",".join(uris), "cluster", config), config)
    for uri in uris:
        cluster = Cluster.open(uri)
        assert cluster.cluster_id == cluster_id
        assert sorted(member.root.uri for member in cluster.root.quorum.roots) == uris
        assert read_identity(StorageRoot.of(uri))["format_version"] == 6


def test_votes_are_json_that_anyone_reads(roots):
    add(roots.table("a"), "first")
    paths = [path for folder in roots.folders.values() for path in (folder / "_quorum" / "producers").glob("0*.json")]
    votes = [json.loads(path.read_bytes()) for path in paths]
    assert {tuple(sorted(vote)) for vote in votes} == {("ballot", "root"), ("ballot", "commit", "root")}
    assert last_version(StorageRoot.of(str(roots.folders["b"] / "producers"))) == 1


def test_a_lost_root_is_replaced_while_others_go_on(roots):
    table = roots.table("b")
    add(table, "first")
    shutil.rmtree(roots.folders["a"])
    fresh = QuorumMember(StorageRoot.of(str(roots.folders["a"]))).format()
    voting = [QuorumMember(StorageRoot.of(str(roots.folders[name]))).identity() for name in "bc"]
    operator = roots.process("b").quorum
    change_roots(operator, ("producers",), [fresh, *voting])
    add(table, "second")
    roots.remove("b")
    assert names(roots.table("a")) == ["first", "second"]
    add(roots.table("c"), "third")
    assert roots.plain("a") == ["first", "second", "third"]


def test_a_root_that_hangs_holds_nobody_up_and_gets_all_once_it_answers(roots, monkeypatch):
    look_always(monkeypatch)
    root = roots.process("b")
    slow = next(member for member in root.quorum.roots if member.root.uri == str(roots.folders["a"]))
    hanging = Hanging(slow.identity)
    monkeypatch.setattr(slow, "identity", hanging)
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    table.update({"who": "test"}, lambda rows: [*rows, row("first")], once=True)
    assert names(table) == ["first"]
    hanging.let_go()

    def is_there():
        names(table)
        root.quorum.publisher.bring_missing()
        return roots.plain("a") == ["first"]

    wait_until(is_there, "the commits at the root that has hung")


def test_roots_that_hang_and_are_no_longer_of_the_cluster_hold_nobody_up(roots, monkeypatch):
    look_always(monkeypatch)
    added = [QuorumMember(StorageRoot.of(f"{roots.folders['a']}.{number}")) for number in range(4)]
    members = [QuorumMember(StorageRoot.of(str(path))) for path in roots.folders.values()]
    quorum = ClusterQuorum(members, timeout=60, member_at=lambda uri: next(a for a in added if a.root.uri == uri))
    table = StateTable.open_at(QuorumRoot.over(quorum).child("producers"), PRODUCERS)
    hanging = [Hanging(lambda: None) for _ in added]
    for root, hang in zip(added, hanging, strict=True):
        monkeypatch.setattr(root, "identity", hang)
        quorum.known.root_at(root.root.uri)
    add(table, "first")
    assert names(table) == ["first"]
    for hang in hanging:
        assert hang.is_entered.is_set()
        hang.let_go()


def test_a_folder_is_deleted_at_all_roots(roots):
    root = roots.process("b")
    root.child("producers").delete_folder()
    assert [Path(folder, "producers", "_delta_log").exists() for folder in roots.folders.values()] == [False] * 3


def voting(roots, name):
    """The roots that the newest commit at one root names."""
    table = StorageRoot.of(str(roots.folders[name])).child("producers")
    return read_commit(table, last_version(table)).info[ROOTS]


def test_a_root_that_hangs_does_not_hold_up_the_maintenance_of_a_table(roots, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    root = roots.process("a")
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    for number in range(6):
        add(table, f"{number}")
    hanging = Hanging()

    def hang(plain, folder, *args):
        if folder.uri.startswith(str(roots.folders["c"])):
            hanging()
        return plain(folder, *args)

    for name in ("list", "delete"):
        plain = getattr(LocalRoot, name)
        monkeypatch.setattr(LocalRoot, name, lambda *args, plain=plain: hang(plain, *args))
    folder = root.child("producers")
    work = (table.maintain, folder.sizes_listed, *[partial(folder.delete, f"{number}") for number in range(20)])
    assert ends(in_background(lambda: [each() for each in work]))
    hanging.let_go()


def test_a_file_is_listed_until_all_roots_that_vote_have_deleted_it(roots):
    folder = roots.process("a").child("producers")
    StateTable.open_at(folder, PRODUCERS)
    for path in roots.folders.values():
        (path / "producers" / "old.parquet").touch()
    roots.remove("c")
    folder.delete("old.parquet")
    assert "old.parquet" not in folder.sizes_listed()
    roots.put_back("c")
    wait_until(lambda: "old.parquet" in folder.sizes_listed(), "the next sweep sees it")
    folder.delete("old.parquet")
    wait_until(lambda: not (roots.folders["c"] / "producers" / "old.parquet").exists(), "it is deleted")
    assert "old.parquet" not in folder.sizes_listed()


@pytest.fixture
def hangs(roots, monkeypatch):
    """Lets a method of one root hang for a process until the test ends."""
    made = []

    def hang(root, name, method):
        member = next(each for each in root.quorum.roots if each.root.uri == str(roots.folders[name]))
        made.append(Hanging(getattr(member, method)))
        monkeypatch.setattr(member, method, made[-1])

    yield hang
    for each in made:
        each.let_go()


def test_a_process_that_searches_for_roots_waits_for_none_that_hangs(roots, hangs):
    roots.remove("c")
    root = roots.process("a")
    hangs(root, "b", "addresses")
    assert ends(in_background(lambda: add(StateTable.open_at(root.child("producers"), PRODUCERS), "first")))
    assert roots.plain("a") == ["first"]


def test_a_process_brings_tables_without_a_root_that_hangs(roots, hangs):
    root = roots.process("a")
    StateTable.open_at(root.child("producers"), PRODUCERS)
    shutil.rmtree(roots.folders["a"] / "producers")
    hangs(root, "b", "identity")
    assert ends(in_background(lambda: root.quorum.bring_newest(("producers",))))
    assert roots.plain("a") == []


def test_votes_are_found_although_a_root_hangs(roots, hangs):
    roots.remove("a")
    add(roots.table("b"), "first")
    roots.put_back("a")
    root = roots.process("a")
    hangs(root, "b", "has_vote")
    root.child("producers").catch_up_now_and_then(0)
    wait_until(lambda: roots.plain("a") == ["first"], "the commit is there")


def test_a_process_without_another_thread_asks_no_root_that_hangs(roots, monkeypatch):
    root, asked = roots.process("a"), []
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    wait_for_late_requests()
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 0.0)
    hanging = hang_at(root, "c", roots, times=1)
    wait_for_late_requests(str(roots.folders["c"]))

    start_no_threads(monkeypatch)
    root.quorum.at_majority(lambda each: asked.append(each.uri))
    add(table, "first")
    hanging.let_go()
    assert asked == [str(roots.folders[name]) for name in "ab"]
    assert [roots.plain(name) for name in NAMES] == [["first"], ["first"], []]


def test_a_commit_without_one_root_lets_all_roots_vote_on_the_next(roots):
    expected = voting(roots, "b")
    roots.remove("a")
    add(roots.table("b"), "first")
    assert voting(roots, "b") == voting(roots, "c") == expected
    other = roots.process("b").child("brokers", "1")
    StateTable.create_at(other, PRODUCERS)
    first = read_commit(StorageRoot.of(str(roots.folders["c"])).child("brokers", "1"), 0)
    assert first.info[ROOTS] == expected


def test_a_reader_that_slept_until_its_version_was_cleaned_up_reads_on(roots, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    sleeper, table = roots.table("a"), roots.table("a")
    for number in range(20):
        add(table, f"{number}")
        table.maintain()
    drop_commits_before(StorageRoot.of(str(roots.folders["a"])).child("producers"), 15)
    assert not StorageRoot.of(str(roots.folders["a"])).child("producers").exists(commit_name(sleeper.version))
    assert names(sleeper) == [f"{number}" for number in range(20)]


def test_a_process_that_runs_counts_a_root_that_has_replaced_a_lost_one(roots, monkeypatch):
    look_always(monkeypatch)
    table = roots.table("b")
    add(table, "first")
    shutil.rmtree(roots.folders["a"])
    fresh = QuorumMember(StorageRoot.of(str(roots.folders["a"]))).format()
    others = [QuorumMember(StorageRoot.of(str(roots.folders[name]))).identity() for name in "bc"]
    change_roots(roots.process("c").quorum, ("producers",), [fresh, *others])
    add(table, "second")
    roots.remove("c")
    add(table, "third")
    assert roots.plain("a") == ["first", "second", "third"]


def test_a_root_that_does_not_vote_gets_no_commit_and_is_no_home(roots):
    table = roots.table("a")
    add(table, "first")
    others = [QuorumMember(StorageRoot.of(str(roots.folders[name]))).identity() for name in "bc"]
    spare = QuorumMember(StorageRoot.of(f"{roots.folders['a']}.spare")).format()
    roots.folders["d"] = Path(f"{roots.folders['a']}.spare")
    change_roots(roots.process("d").quorum, ("producers",), [*others, spare])
    add(table, "second")
    assert names(table) == names(roots.table("d")) == ["first", "second"]
    both = ["first", "second"]
    # A writer waits for its home and a majority, and this one does not know where d is.
    wait_until(lambda: [names(roots.table("d")), roots.plain("b"), roots.plain("d")] == [both] * 3, "both have it")
    assert roots.plain("a") == ["first"]


def test_a_read_fails_rather_than_show_less_than_was_decided(roots, monkeypatch):
    """Its home has changed after a majority was asked."""
    table = roots.table("a")
    add(table, "first")
    monkeypatch.setattr(ClusterQuorum, "catch_up", lambda *given: given[-1] + 1)
    with pytest.raises(KafkaStorageException, match="cannot be read here"):
        names(table)


def test_a_table_is_opened_as_new_as_it_is(roots):
    roots.remove("a")
    add(roots.table("b"), "first")
    roots.put_back("a")
    assert [row["name"] for row in roots.table("a").rows] == ["first"]


def test_an_older_copy_of_a_root_gets_no_commit(roots):
    table = roots.table("b")
    add(table, "first")
    assert names(roots.table("a")) == ["first"]
    copy = f"{roots.folders['a']}.backup"
    shutil.copytree(roots.folders["a"], copy)
    add(table, "second")
    shutil.rmtree(roots.folders["a"])
    shutil.copytree(copy, roots.folders["a"])
    assert names(roots.table("a")) == ["first", "second"]
    add(roots.table("a"), "third")
    assert roots.plain("a") == ["first"]


def test_a_root_that_has_one_late_commit_gets_all_of_them(roots):
    """It was emptied, and then a commit has landed that was sent to it before."""
    table = roots.table("b")
    for number in range(3):
        add(table, f"{number}")
    names(roots.table("c"))
    spare = StorageRoot.of(f"{roots.folders['a']}.spare")
    late, source = commit_name(2), StorageRoot.of(str(roots.folders["c"]))
    spare.child("producers", "_delta_log").create_folder()
    spare.child("producers").put(late, source.child("producers").read(late))
    QuorumMember(spare).bring(("producers",), QuorumMember(source))
    assert len(StateTable.open_at(spare.child("producers"), PRODUCERS).rows) == 3


def test_a_root_gets_nothing_of_another_table(roots):
    add(roots.table("b"), "first")
    names(roots.table("b"))
    other = StorageRoot.of(f"{roots.folders['a']}.other")
    StateTable.create_at(other.child("producers"), PRODUCERS)
    with pytest.raises(KafkaStorageException, match="has another table"):
        QuorumMember(other).bring(("producers",), QuorumMember(StorageRoot.of(str(roots.folders["b"]))))


@pytest.mark.parametrize("was_there", [True, False], ids=["since before", "since the process began"])
def test_a_root_that_is_back_gets_tables_to_which_nobody_commits_any_more(roots, monkeypatch, was_there):
    look_always(monkeypatch)
    if not was_there:
        roots.remove("c")
    root = roots.process("a")
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    add(table, "first")
    if was_there:
        roots.remove("c")
    add(table, "second")
    roots.put_back("c")
    root.child("brokers", "1").show_life(1)
    wait_until(lambda: last_version(StorageRoot.of(str(roots.folders["c"] / "producers"))) == 2, "the table is there")


@pytest.mark.parametrize("home", NAMES)
def test_a_writer_in_an_object_store_does_not_wait_until_its_commit_is_published(roots, home, monkeypatch):
    """What it reads and writes next does."""
    monkeypatch.setattr(LocalRoot, "is_local", False)
    may_publish, publish = threading.Event(), QuorumMember.publish

    def slow(member, *args):
        may_publish.wait(60)
        return publish(member, *args)

    monkeypatch.setattr(QuorumMember, "publish", slow)
    table = roots.table(home)
    table.update({"who": "test"}, lambda rows: [*rows, row("first")])
    assert roots.plain(home) == []
    threading.Timer(0.1, may_publish.set).start()
    table.update({"who": "test"}, lambda rows: [*rows, row("second")])
    assert names(table) == ["first", "second"]
    table._log.root.quorum.flush()
    assert [roots.plain(name) for name in NAMES] == [["first", "second"]] * 3


def test_a_writer_reads_the_commit_of_another_and_the_next_one_at_the_same_time(roots, monkeypatch):
    """In an object store, where one after the other would take twice as long."""
    monkeypatch.setattr(LocalRoot, "is_local", False)
    table, both, read = roots.table("a"), threading.Barrier(2), QuorumRoot.read_stamped
    add(roots.table("b"), "first")

    def wait(root, name):
        both.wait(30)
        return read(root, name)

    with monkeypatch.context() as patch:
        patch.setattr(QuorumRoot, "read_stamped", wait)
        add(table, "second")
    assert names(table) == ["first", "second"]


@pytest.mark.parametrize(
    ("buckets", "commits", "reads"),
    [
        pytest.param(3, "aaa", 0, id="which wrote the last two"),
        pytest.param(3, "aab", 1, id="though another has committed meanwhile"),
        pytest.param(3, "ba", 1, id="unless another wrote the one before the last"),
        pytest.param(1, "aaa", 1, id="unless there is one root: no votes come before the commit"),
    ],
)
def test_a_writer_that_writes_alone_does_not_read_the_table_first(writers, monkeypatch, buckets, commits, reads):
    """If another has committed meanwhile, the votes say so, and the change follows that."""
    tables = dict(zip("ab", writers(buckets), strict=True))
    found, attempts, read = list[int](), list[int](), delta_log.read_commits_after

    def counted(root, version, **kwargs):
        found.append(version)
        return read(root, version, **kwargs)

    for number, writer in enumerate(commits):
        tables[writer].update({"who": "test"}, lambda rows, name=f"{writer}{number}": [*rows, row(name)])

    def change(rows):
        attempts.append(rows)
        return [*rows, row("last")]

    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "read_commits_after", counted)
        tables["a"].update({"who": "test"}, change)
    assert (len(found), len(attempts)) == (reads, 2 if commits == "aab" else 1)
    assert names(tables["a"]) == [*(f"{writer}{number}" for number, writer in enumerate(commits)), "last"]


def test_a_writer_that_writes_alone_has_nothing_to_do_only_as_of_the_age_that_it_accepts(writers):
    table, other = writers(3)
    for name in ("first", "second"):
        table.update({"who": "test"}, lambda rows, name=name: [*rows, row(name)])
    add(other, "of another")
    done = table.update({"who": "test"}, lambda rows: rows[2:] or None, noop_staleness=0.0)
    assert (done, names(table)) == (4, ["of another"])


def test_a_commit_need_not_be_read_again_though_an_older_one_was_read_last(roots, monkeypatch):
    """Another thread has read that one."""
    table, quorum = roots.table("a"), roots.process("a").quorum
    add(table, "first")
    add(table, "second")
    folder = StorageRoot.of(str(roots.folders["a"])).child("producers")
    for version in (2, 1):
        quorum.note_read(("producers",), version, folder.read(commit_name(version)))
    monkeypatch.setattr(cluster_quorum, "read_commit", raises(AssertionError()))
    assert quorum.commit_of(("producers",), 2).nonce


def test_a_process_without_another_thread_asks_one_root_after_another(roots, monkeypatch):
    table = roots.table("a")

    start_no_threads(monkeypatch)
    add(table, "first")
    roots.remove("b")
    add(table, "second")
    assert names(table) == names(roots.table("c")) == ["first", "second"]


def test_a_root_that_gets_the_commits_of_the_cluster_from_another_one_gets_the_tables_that_they_make(roots):
    """Else a change of the roots could overlook a table: its other voters may be away by then."""
    roots.remove("c")
    StateTable.create_at(roots.process("a").child("brokers", "7"), PRODUCERS)
    roots.put_back("c")
    source, late = (QuorumMember(StorageRoot.of(str(roots.folders[name]))) for name in "ac")
    assert ("brokers", "7") not in late.tables()
    late.bring(("cluster",), source)
    assert late.newest(("brokers", "7")) == 0
    assert late.newest(("cluster",)) == source.newest(("cluster",))


@pytest.fixture
def cannot_write(roots, monkeypatch):
    """Lets a root refuse commits from now on: its disk is full. It can be read."""
    put_commit = QuorumMember._put_commit

    def fill(name):
        def put(member, folder, *args):
            if member.root.uri == str(roots.folders[name]):
                raise KafkaStorageException(f"{folder.uri}: no space left on device")
            put_commit(member, folder, *args)

        monkeypatch.setattr(QuorumMember, "_put_commit", put)

    return fill


def test_a_process_leaves_a_home_that_it_can_read_and_not_write(roots, cannot_write):
    table = roots.table("a")
    add(table, "first")
    cannot_write("a")
    for number in range(3):
        add(roots.table("b"), f"{number}")
    assert names(table) == ["first", "0", "1", "2"]
    add(table, "last")
    assert names(table)[-1] == "last"
    assert roots.plain("a") == ["first"]
    assert table._log.root.quorum.home.root.uri == str(roots.folders["b"])


def test_a_writer_leaves_a_home_that_it_can_no_longer_write(roots, cannot_write):
    table = roots.table("a")
    add(table, "first")
    cannot_write("a")
    for number in range(3):
        add(table, f"{number}")
    assert names(table) == ["first", "0", "1", "2"]


def test_a_process_leaves_a_home_that_could_not_be_written_when_its_table_was_made(roots, cannot_write):
    cannot_write("a")
    made = StateTable.create_at(roots.process("b").child("brokers", "7"), PRODUCERS)
    add(made, "first")
    quorum = roots.process("a").quorum
    assert quorum.catch_up(("brokers", "7"), 0) == 1
    assert quorum.home.newest(("brokers", "7")) == 1


def test_a_process_leaves_a_home_that_cannot_get_what_others_have_cleaned_up(roots, cannot_write, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr(quorum_member, "SLOTS_A_SEAL", 4)
    monkeypatch.setattr(quorum_member, "_SEALED_SECONDS", 0.0)
    sleeper, writer = roots.table("a"), roots.table("b")
    cannot_write("a")
    for number in range(20):
        add(writer, f"{number}")
        writer.maintain()
    assert names(sleeper) == [f"{number}" for number in range(20)]
    assert roots.plain("a") == []


READS = {kind: getattr(LocalRoot, kind) for kind in ("read", "read_stamped", "stamps", "list", "mark")}


@pytest.fixture
def answer_late(roots, monkeypatch):
    """Lets these roots take longer for an answer than reads wait that other roots can answer. With `knows`, only the
    files of their identities come soon, as if the process had read them lately. Returns what the thread of the test
    waits for nevertheless."""

    def late(kind, knows):
        def call(root, *given):
            if knows and given == ("_quorum/_root.json",):
                return READS[kind](root, *given)
            raise KafkaStorageException("has not answered")

        return call

    def noted(kind, folders, waited):
        def call(root, *given):
            if any(Path(root.uri).is_relative_to(folder) for folder in folders):
                waited.extend([given] if threading.current_thread() is threading.main_thread() else [])
            return READS[kind](root, *given)

        return call

    def begin(slow, knows):
        waited, folders = [], [roots.folders[name] for name in slow]
        quick = type("Quick", (LocalRoot,), {kind: late(kind, knows) for kind in READS})

        def of(root):
            is_slow = any(Path(root.uri).is_relative_to(folder) for folder in folders)
            return quick(**{field.name: getattr(root, field.name) for field in fields(root)}) if is_slow else root

        monkeypatch.setattr(LocalRoot, "quick", property(of))
        for kind in READS:
            monkeypatch.setattr(LocalRoot, kind, noted(kind, folders, waited))
        return waited

    return begin


@pytest.mark.parametrize("knows", [True, False], ids=["lately known", "not lately known"])
def test_a_home_that_does_not_answer_soon_is_left_and_is_asked_no_more(roots, answer_late, monkeypatch, knows):
    """Nor is a handle of delta-rs that was opened there."""
    table, asked, plain = roots.table("a"), [], DeltaTable.transaction_version
    add(roots.table("b"), "first")

    def transaction_version(handle, app_id):
        asked.append(Path(urlparse(handle.table_uri).path))
        return plain(handle, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", transaction_version)
    waited = answer_late("a", knows)
    assert names(table) == ["first"]
    assert table.transaction_version("app") is None
    add(table, "second")
    assert table._log.root.quorum.home.root.uri == str(roots.folders["b"])
    assert waited == []
    assert not any(path.is_relative_to(roots.folders["a"]) for path in asked)
    assert roots.plain("a") == ["first", "second"]


@pytest.mark.parametrize("knows", [True, False], ids=["lately known", "not lately known"])
def test_reads_go_on_where_no_root_answers_soon(roots, answer_late, knows):
    """Stores may be slow. Reads that have failed wait longer for a while."""
    add(roots.table("b"), "first")
    answer_late("abc", knows)
    process = roots.process("a")
    table = StateTable.open_at(process.child("producers"), PRODUCERS)
    assert names(table) == ["first"]
    add(table, "second")
    assert names(roots.table("c")) == names(table) == ["first", "second"]


@pytest.mark.parametrize("knows", [True, False], ids=["lately known", "not lately known"])
@pytest.mark.parametrize(
    "read",
    [
        lambda quorum: quorum.catch_up(("producers",), 0),
        lambda quorum: quorum.newest_at_home(("producers",)),
        lambda quorum: quorum.check_home(("producers",)) is quorum.home,
    ],
    ids=["catch up", "newest", "home"],
)
def test_the_first_read_where_no_root_answers_soon_waits_longer(roots, answer_late, knows, read):
    add(roots.table("b"), "first")
    answer_late("abc", knows)
    quorum = roots.process("a").quorum
    assert quorum.known.members.keys()
    assert read(quorum) == 1


def test_a_home_is_found_where_no_root_answers_within_a_second(roots, answer_late, monkeypatch):
    quorum = roots.process("a").quorum
    assert len(quorum.known.members) == 3
    answer_late("abc", knows=False)
    monkeypatch.setattr(KnownRoots, "identified", lambda _: {})
    assert quorum.check_home(("producers",)) is quorum.home


def test_a_call_is_repeated_once_unless_a_read_has_waited_for_long(roots):
    known, calls = roots.process("a").quorum.known, []

    def fail(*_):
        raise KafkaStorageException("has not answered")

    def call():
        calls.append(len(calls))
        for member in known.all:
            with suppress(KafkaStorageException):
                member.read(fail)
        fail()

    for expected in (2, 3):
        with pytest.raises(KafkaStorageException, match="has not answered"):
            known.repeat_if_slow(call)
        assert len(calls) == expected


def test_a_call_that_fails_while_a_root_answers_is_not_repeated(roots):
    process, calls = roots.process("a"), []
    fail_at(process, "a", roots)

    def call():
        calls.append(len(calls))
        for name in "bc":
            fail_at(process, name, roots)
        never_answers()

    with pytest.raises(KafkaStorageException, match="has not answered"):
        process.quorum.known.repeat_if_slow(call)
    assert calls == [0]


def test_reads_wait_longer_for_a_minute_once_they_are_told_to(roots, answer_late, monkeypatch):
    answer_late("a", knows=False)
    member = QuorumMember(StorageRoot.of(str(roots.folders["a"])))
    with pytest.raises(KafkaStorageException, match="has not answered"):
        member.has(("producers",), 0)
    began_at = time.monotonic()
    assert member.be_patient(began_at)
    assert member.be_patient(began_at), "another read that began then has not waited either"
    assert member.has(("producers",), 0)
    monkeypatch.setattr(quorum_member, "_PATIENT_SECONDS", 0.0)
    assert not member.be_patient(time.monotonic())  # it was already, and the minute is over now
    with pytest.raises(KafkaStorageException, match="has not answered"):
        member.has(("producers",), 0)


def never_answers(*_):
    raise KafkaStorageException("has not answered")


def fail_at(process, name, roots):
    """A read of a process fails at one of its roots."""
    (member,) = (each for each in process.quorum.roots if each.root.uri == str(roots.folders[name]))
    with pytest.raises(KafkaStorageException, match="has not answered"):
        member.read(never_answers)


def home_of(process):
    return Path(process.quorum.home.root.uri).name


def test_a_home_at_which_any_read_of_the_process_has_failed_is_left(roots):
    process = roots.process("a")
    table = StateTable.open_at(process.child("producers"), PRODUCERS)

    def home_after_failures(*names):
        for name in names:
            fail_at(process, name, roots)
        table.refresh(0.0)
        return home_of(process)

    assert home_after_failures("b") == "a"
    assert home_after_failures("a") == "c"
    assert home_after_failures("c") == "b", "where a read has failed longest ago"


def test_a_sign_of_life_is_not_read_at_a_home_where_a_read_has_failed(roots):
    process = roots.process("a")
    assert process.quorum.signs.number(("producers",), 1, 0.0) == 0
    assert home_of(process) == "a"
    fail_at(process, "a", roots)
    assert process.quorum.signs.number(("producers",), 1, 0.0) == 0
    assert home_of(process) != "a"


def test_a_root_at_which_requests_hang_is_asked_last_and_is_no_nearer_home(roots, monkeypatch):
    process = roots.process("a")
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == []
    wait_for_late_requests()
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 0.0)
    monkeypatch.setattr(known_roots, "_NEARER_SECONDS", 0.0)
    known, hanging = process.quorum.known, hang_at(process, "b", roots, times=1)
    wait_for_late_requests(str(roots.folders["b"]))
    found = known.at_home(lambda root: never_answers() if root.uri == str(roots.folders["a"]) else root.uri)
    assert found == str(roots.folders["c"])
    wait_for_late_requests(str(roots.folders["b"]))
    assert [Path(each.root.uri).name for each in known.due_nearer_roots().values()] == ["a"]
    hanging.let_go()


def test_a_read_gives_up_where_the_home_moves_all_the_time(roots, monkeypatch):
    quorum, plain = roots.process("a").quorum, ClusterQuorum._home_with

    def find_and_move(quorum, *given):
        found = plain(quorum, *given)
        quorum.known.home = next(each for each in quorum.roots if each is not found[0])
        return found

    monkeypatch.setattr(ClusterQuorum, "_home_with", find_and_move)
    with pytest.raises(KafkaStorageException, match="is read at one root after the other"):
        quorum.catch_up(("producers",), 0)


def test_a_root_that_was_emptied_is_no_home_where_reads_have_failed(roots):
    process = roots.process("a")
    table = StateTable.open_at(process.child("producers"), PRODUCERS)
    add(table, "first")
    shutil.rmtree(roots.folders["b"])
    roots.folders["b"].mkdir()
    for name, expected in [("a", "c"), ("c", "a")]:
        fail_at(process, name, roots)
        table.refresh(0.0)
        assert home_of(process) == expected


def test_clusters_that_a_process_has_opened_find_out_once_that_a_store_does_not_answer(root, s3_options):
    first, again, other = (
        QuorumMember(StorageRoot.of(f"s3://bucket/{Path(root).name}/{name}", s3_options)) for name in "aab"
    )
    with pytest.raises(KafkaStorageException, match="has not answered"):
        first.read(never_answers)
    assert again.failed_at == first.failed_at > float("-inf") == other.failed_at
    assert first.be_patient(time.monotonic())
    assert not again.be_patient(time.monotonic())


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_goes_back_to_a_nearer_root_that_answers_again(roots, monkeypatch, answers):
    """Once it has what the process has read."""
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    process = roots.process("a")
    table = StateTable.open_at(process.child("producers"), PRODUCERS)
    roots.remove("a")
    add(table, "first")
    assert home_of(process) != "a"
    monkeypatch.setattr(CommitPublisher, "bring_missing", lambda _: None)
    monkeypatch.setattr(known_roots, "_NEARER_SECONDS", 0.0)
    monkeypatch.setattr(quorum_member, "_FAILED_SECONDS", 0.0)
    if answers:
        roots.put_back("a")
    process.child("producers").catch_up_now_and_then(1)
    assert (home_of(process) == "a") == answers
    assert not answers or roots.plain("a") == ["first"]


def test_a_process_does_not_go_back_in_the_minute_after_it_has_left(roots, monkeypatch):
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    process = roots.process("a")
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == []
    fail_at(process, "a", roots)
    for _ in range(2):
        process.child("producers").list()
        process.child("producers").catch_up_now_and_then(0)
        assert home_of(process) != "a"


def test_a_process_does_not_go_back_to_a_root_that_votes_no_more(roots, monkeypatch):
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    process = roots.process("a")
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == []
    fail_at(process, "a", roots)
    process.child("producers").list()
    home, voters = home_of(process), process.quorum.voters()
    monkeypatch.setattr(known_roots, "_NEARER_SECONDS", 0.0)
    monkeypatch.setattr(ClusterQuorum, "voters", lambda _: voters[1:])
    process.child("producers").catch_up_now_and_then(0)
    assert home_of(process) == home != "a"


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_lost_root_gets_nothing_although_reads_have_failed_at_the_others(roots, is_emptied):
    process = roots.process("a")
    add(StateTable.open_at(process.child("producers"), PRODUCERS), "first")
    shutil.rmtree(roots.folders["a"] / "producers")
    if is_emptied:
        shutil.rmtree(roots.folders["a"])
        roots.folders["a"].mkdir()
    process.quorum.publisher.bring_home(("producers",))
    assert (not list(roots.folders["a"].iterdir())) == is_emptied
    assert is_emptied or roots.plain("a") == ["first"]


def test_a_nearer_root_is_no_home_once_another_one_has_become_it(roots):
    known = roots.process("a").quorum.known
    nearest, was, other = known.all
    known.home = other
    known.go_nearer(nearest, was)
    assert known.home is other
    known.go_nearer(nearest, other)
    assert known.home is nearest


def test_a_table_is_opened_as_new_as_a_majority_has_said_although_the_home_moves(roots, monkeypatch):
    for name in ("first", "second"):
        add(roots.table("b"), name)
    process, bring = roots.process("a"), ClusterQuorum.bring_newest

    def bring_and_move(quorum, table):
        newest = bring(quorum, table)
        (roots.folders["c"] / "producers" / commit_name(2)).unlink(missing_ok=True)
        quorum.known.home = next(each for each in quorum.roots if each.root.uri == str(roots.folders["c"]))
        return newest

    monkeypatch.setattr(ClusterQuorum, "bring_newest", bring_and_move)
    with pytest.raises(KafkaStorageException, match="version 2 cannot be read here"):
        StateTable.open_at(process.child("producers"), PRODUCERS)
    monkeypatch.undo()
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == ["first", "second"]


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_an_update_that_has_landed_is_not_repeated_where_it_is_not_yet_published(roots, monkeypatch, is_elsewhere):
    table, plain, calls = roots.table("a"), StateTable._commit, []

    def commit(writer, *given):
        plain(writer, *given)
        raise CommitUnknown("no majority has answered")

    def change(rows):
        calls.append(len(rows))
        monkeypatch.setattr(StateTable, "_commit", commit if len(calls) == 1 else plain)
        return [*rows, row("first")]

    def lacks_it(root, version):
        if version == 1 and (not is_elsewhere or "," in root.uri):
            raise FileNotFoundError(root.uri)
        return read_commit(root, version)

    monkeypatch.setattr(state_table, "read_commit", lacks_it)
    if is_elsewhere:
        assert table.update({"who": "test"}, change, once=True) == 1
    else:
        with pytest.raises(KafkaStorageException, match="version 1 cannot be read here"):
            table.update({"who": "test"}, change, once=True)
    assert calls == [0]
    monkeypatch.undo()
    assert names(roots.table("b")) == ["first"]


def test_a_home_that_gets_a_commit_and_does_not_answer_is_left(roots, monkeypatch):
    monkeypatch.setattr(LocalRoot, "is_local", False)
    process = roots.process("a")
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == []
    process.quorum.home.begin_publishing(("producers",), 1)
    monkeypatch.setattr(process.quorum.home, "_identity", never_answers)
    assert process.quorum.settled_home(("producers",)).root.uri != str(roots.folders["a"])


def test_a_reader_does_not_wait_for_long_to_publish_at_a_home_that_hangs(roots, monkeypatch):
    table, writer = roots.table("a"), roots.table("b")
    monkeypatch.setattr(ClusterQuorum, "_settle", lambda *_, **__: None)
    writer.update({"who": "test"}, lambda rows: [*rows, row("first")], once=True)
    monkeypatch.undo()
    table._log.root.quorum._requests.timeout = 600.0
    hanging, publish = Hanging(), QuorumMember.publish

    def publish_or_hang(member, *given):
        return hanging() if member.root.uri == str(roots.folders["a"]) else publish(member, *given)

    monkeypatch.setattr(QuorumMember, "publish", publish_or_hang)
    reading = in_background(lambda: names(table))
    assert ends(reading)
    hanging.let_go()
    assert names(table) == ["first"]


def test_a_reader_gets_an_error_if_no_root_can_be_written(roots, monkeypatch):
    table, other = roots.table("a"), roots.table("b")
    add(table, "first")

    def fail(*_):
        raise KafkaStorageException("no space left on device")

    monkeypatch.setattr(QuorumMember, "_put_commit", fail)
    other.update({"who": "test"}, lambda rows: [*rows, row("second")], once=True)
    with pytest.raises(KafkaStorageException, match="is decided, and published at no root that answers"):
        names(table)
    monkeypatch.undo()
    assert names(table) == ["first", "second"]


def hang_at(root, name, roots, times=8):
    """Lets requests of a process hang at one of its roots until they are let go."""
    hanging = Hanging()
    for _ in range(times):
        root.quorum.at_majority(lambda each: hanging() if each.uri == str(roots.folders[name]) else None)
    return hanging


def wait_for_version(root, roots, name, version):
    """Waits until a root has a version of a table to which nobody commits any more."""

    def is_there():
        root.child("brokers", "1").show_life(1)
        return last_version(StorageRoot.of(str(roots.folders[name] / "producers"))) == version

    wait_until(is_there, "the commit is there")


def test_a_writer_that_loses_to_another_one_waits_for_no_root_that_hangs(roots, monkeypatch):
    """Those that answer have refused the vote."""
    root, other = roots.process("a"), roots.table("b")
    hanging = Hanging()
    for kind in ("put", "put_if_absent"):
        plain = getattr(LocalRoot, kind)

        def put(folder, *args, plain=plain):
            if Path(folder.uri).is_relative_to(roots.folders["c"]):
                hanging()
            return plain(folder, *args)

        monkeypatch.setattr(LocalRoot, kind, put)

    def lose():
        """The session of each ballot is drawn, and the higher one of two is granted."""
        for version in range(1, 11):
            other.update({"who": "test"}, lambda rows: [*rows, row("first")])
            content = commit_content({"who": "test"}, f"late-{version}", (), (), {})
            assert root.quorum.commit(("producers",), version, f"late-{version}", content, {}) == 0

    thread = in_background(lose)
    assert ends(thread)
    assert names(other) == ["first"] * 10
    hanging.let_go()


def test_many_requests_of_a_process_that_do_not_hang_leave_it_all_roots(roots, monkeypatch):
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 60.0)
    root = roots.process("a")
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    slow = [hang_at(root, name, roots) for name in "bc"]
    add(table, "first")
    for each in slow:
        each.let_go()
    root.quorum.flush()
    assert [roots.plain(name) for name in NAMES] == [["first"]] * 3


def test_a_commit_that_is_not_sent_to_a_root_that_hangs_is_brought_there_later(roots, monkeypatch):
    look_always(monkeypatch)
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 0.0)
    root = roots.process("a")
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    hanging = hang_at(root, "c", roots)
    add(table, "first")
    assert roots.plain("c") == []
    hanging.let_go()
    wait_for_version(root, roots, "c", 1)


def test_a_commit_that_a_root_does_not_take_is_brought_there_later(roots, monkeypatch):
    look_always(monkeypatch)
    root = roots.process("a")
    table = StateTable.open_at(root.child("producers"), PRODUCERS)
    late = next(member for member in root.quorum.roots if member.root.uri == str(roots.folders["c"]))
    with monkeypatch.context() as away:
        away.setattr(late, "publish", lambda *_: False)
        away.setattr(late, "bring", lambda *_: None)
        add(table, "first")
    assert roots.plain("c") == []
    wait_for_version(root, roots, "c", 1)


@pytest.mark.parametrize("has_identity", [True, False])
def test_a_table_is_made_by_a_decision_though_the_home_is_bare(roots, has_identity):
    root = roots.process("a")
    names(StateTable.open_at(root.child("producers"), PRODUCERS))
    shutil.rmtree(roots.folders["a"])
    roots.folders["a"].mkdir()
    if has_identity:
        QuorumMember(StorageRoot.of(str(roots.folders["a"]))).format()
        root = roots.process("a")
    StateTable.create_at(root.child("brokers", "7"), PRODUCERS)
    root.quorum.flush()
    assert len(first_commits(roots, "bc")) == 1
    made = QuorumMember(StorageRoot.of(str(roots.folders["b"])))
    assert made.newest(("cluster",)) == 1
    assert not (roots.folders["a"] / "brokers").exists()


def test_a_table_is_made_by_a_decision_though_the_oldest_commits_of_the_cluster_are_cleaned_up(roots):
    process = roots.process("a")
    table = StateTable.open_at(process.child("cluster"), CLUSTER)
    table.update({"who": "test"}, lambda rows: rows, once=True)
    process.quorum.flush()
    table._log.root.checkpoint_table(1)
    for folder in roots.folders.values():
        drop_commits_before(StorageRoot.of(str(folder / "cluster")), 1)
    StateTable.create_at(process.child("brokers", "7"), PRODUCERS)
    assert last_version(StorageRoot.of(str(roots.folders["a"] / "cluster"))) == 2


def test_no_table_is_made_at_once_while_a_root_that_may_have_the_cluster_does_not_answer(roots, monkeypatch):
    quorum = roots.process("a").quorum

    def newest(member, _):
        if member is quorum.home:
            return -1
        raise KafkaStorageException("does not answer")

    monkeypatch.setattr(QuorumMember, "newest", newest)
    with pytest.raises(KafkaStorageException, match="does not answer"):
        StateTable.create_at(QuorumRoot.over(quorum).child("brokers", "7"), PRODUCERS)
    assert not any((folder / "brokers").exists() for folder in roots.folders.values())


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_home_that_has_just_answered_and_fails_or_is_emptied_is_left(roots, monkeypatch, opens, is_emptied):
    """In an object store a process relies on its identity for 10 s."""
    monkeypatch.setattr(LocalRoot, "is_local", False)
    process = roots.process("a")
    reader = StateTable.open_at(process.child("producers"), PRODUCERS)
    add(roots.table("b"), "p")
    roots.remove("a")
    if is_emptied:
        roots.folders["a"].mkdir()
    else:
        roots.folders["a"].symlink_to(roots.folders["a"])  # each access fails
    if opens:
        reader = StateTable.open_at(process.child("producers"), PRODUCERS)
    assert names(reader) == ["p"]
    assert process.quorum.home.root.uri == str(roots.folders["b"])


def test_a_home_that_is_emptied_while_a_table_is_opened_there_is_left(roots, monkeypatch):
    folder, open_table = roots.folders["a"], LocalRoot.open_table

    def open_emptied(root, version=None):
        if root.uri.startswith(str(folder)):
            shutil.rmtree(folder)
            folder.mkdir()
        return open_table(root, version)

    process = roots.process("a")
    add(StateTable.open_at(process.child("producers"), PRODUCERS), "p")
    monkeypatch.setattr(LocalRoot, "is_local", False)  # else its commits say enough
    monkeypatch.setattr(LocalRoot, "open_table", open_emptied)
    assert names(StateTable.open_at(process.child("producers"), PRODUCERS)) == ["p"]
    assert process.quorum.home.root.uri == str(roots.folders["b"])


@pytest.mark.parametrize("reads", [names, lambda table: table.root.list() and names(table)])
def test_a_home_that_hangs_while_a_commit_is_published_there_is_left(roots, monkeypatch, reads):
    """In an object store a writer does not wait for that, and a later read does."""
    monkeypatch.setattr(LocalRoot, "is_local", False)
    monkeypatch.setattr(cluster_quorum, "SOON_SECONDS", 0.05)
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 0.0)
    process = roots.process("a")
    table, home = StateTable.open_at(process.child("producers"), PRODUCERS), process.quorum.home
    hanging = Hanging()
    monkeypatch.setattr(home, "publish", hanging)
    table.update({"who": "test"}, lambda rows: [*rows, row("p")], once=True)
    assert hanging.is_entered.wait(30)
    reading = in_background(lambda: reads(table))
    assert ends(reading)
    assert (names(table), process.quorum.home is home) == (["p"], False)
    hanging.let_go()
    process.quorum.flush()


def test_a_home_at_which_a_request_hangs_is_left(roots, monkeypatch):
    process = roots.process("a")
    table = StateTable.open_at(process.child("producers"), PRODUCERS)
    wait_for_late_requests()
    monkeypatch.setattr(root_requests, "_HANGS_SECONDS", 0.0)
    hanging = hang_at(process, "a", roots, times=1)
    wait_for_late_requests(str(roots.folders["a"]))
    assert table.root.list() == ["_delta_log"]
    assert process.quorum.home.root.uri == str(roots.folders["b"])
    hanging.let_go()


def left_of(folder):
    """What a root has, apart from its noted addresses."""
    return sorted(path.name for path in [*folder.iterdir(), *(folder / "_quorum").iterdir()] if path.suffix != ".json")


@pytest.mark.parametrize("is_local", [True, False])
def test_a_root_is_cleared_of_its_identity_first_and_of_the_rest_once_nobody_relies_on_it(roots, monkeypatch, is_local):
    monkeypatch.setattr(LocalRoot, "is_local", is_local)
    folder, waited, wait = roots.folders["a"], [], threading.Event.wait
    member = QuorumMember(StorageRoot.of(str(folder)))
    identity, everything = member.identity(), left_of(folder)

    def note(event, timeout=None):
        if timeout == quorum_member._CLEAR_SECONDS:
            waited.append((member.is_still(identity), member.identity(), left_of(folder)))
        return timeout == quorum_member._CLEAR_SECONDS or wait(event, timeout)

    def interrupt(_):
        raise KafkaStorageException("interrupted")

    monkeypatch.setattr(threading.Event, "wait", note)
    with monkeypatch.context() as patch:
        patch.setattr(LocalRoot, "delete_folder", interrupt)
        with pytest.raises(KafkaStorageException, match="interrupted"):
            member.clear()
    assert (member.identity(), left_of(folder)) == (None, everything)
    assert waited == ([] if is_local else [(False, None, everything)])
    member.clear()
    assert left_of(folder) == ["_quorum"]
    assert len(waited) == (0 if is_local else 2)  # the identity may have been deleted just now
    assert quorum_member._CLEAR_SECONDS >= quorum_member._SURE_SECONDS


def first_commits(roots, among=NAMES):
    """The different first commits of the table `brokers/7` at these roots."""
    return {(roots.folders[name] / "brokers/7" / commit_name(0)).read_bytes() for name in among}


def test_a_table_that_was_made_while_the_home_could_not_be_written_is_not_made_again(roots, cannot_write):
    root = roots.process("a")
    cannot_write("a")
    StateTable.create_at(root.child("brokers", "7"), PRODUCERS)
    for name in NAMES:
        with pytest.raises(InconsistentClusterIdException):
            StateTable.create_at(roots.process(name).child("brokers", "7"), PRODUCERS)
    assert len(first_commits(roots, "bc")) == 1
    StateTable.create_at(roots.process("b").child("brokers", "8"), PRODUCERS)


def test_a_home_without_the_newest_commit_of_the_cluster_does_not_say_which_tables_there_are(
    roots, cannot_write, monkeypatch
):
    """Its process has just moved there."""
    StateTable.create_at(roots.process("b").child("brokers", "6"), PRODUCERS)
    cannot_write("a")
    StateTable.create_at(roots.process("b").child("brokers", "7"), PRODUCERS)
    root = roots.process("a")
    monkeypatch.setattr(root.quorum, "catch_up", lambda *_: 2)
    made = b"".join(first_commits(roots, "b"))
    with pytest.raises(KafkaStorageException, match="brokers/7: lost"):
        root.quorum.create_table(("brokers", "7"), made)
    assert QuorumMember(StorageRoot.of(str(roots.folders["b"]))).newest(("cluster",)) == 2


def test_of_two_commits_that_make_one_table_the_first_wins_at_all_roots(roots):
    quorum, maker = roots.process("a").quorum, roots.process("b")
    StateTable.create_at(maker.child("brokers", "7"), PRODUCERS)
    maker.quorum.flush()
    (first,) = first_commits(roots)
    roots.remove("c")
    before = quorum.catch_up(("cluster",), 0)
    follows = quorum.commit_of(("cluster",), before).nonce
    other = quorum.first_commit(("brokers", "7"), first.replace(b"producer_epoch", b"producer_EPOCH"))
    again = commit_content({CREATES: ["brokers/7", other.decode()]}, "again", (), (), {}, follows=follows)
    assert quorum.commit(("cluster",), before + 1, "again", again, {})
    roots.put_back("c")
    StateTable.create_at(roots.process("c").child("brokers", "8"), PRODUCERS)
    members = [QuorumMember(StorageRoot.of(str(roots.folders[name]))) for name in NAMES]
    wait_until(lambda: [member.newest(("cluster",)) for member in members] == [before + 2] * 3, "all are published")
    assert first_commits(roots) == {first}


def test_a_root_that_gets_a_checkpoint_of_the_cluster_gets_the_tables_that_older_commits_have_made(roots, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    roots.remove("c")
    process = roots.process("a")
    StateTable.create_at(process.child("brokers", "7"), PRODUCERS)
    table = StateTable.open_at(process.child("cluster"), CLUSTER)
    for _ in range(12):
        table.update({"who": "test"}, lambda rows: rows, once=True)
        process.quorum.flush()
        table.maintain()
    roots.put_back("c")
    source, late = (QuorumMember(StorageRoot.of(str(roots.folders[name]))) for name in "ac")
    drop_commits_before(source.root.child("cluster"), 5)
    late.bring(("cluster",), source)
    assert late.newest(("cluster",)) == source.newest(("cluster",))
    assert late.newest(("brokers", "7")) == 0
