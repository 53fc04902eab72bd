"""Files of no table in a cluster with three roots, such as the stage of a query."""

import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage import root_changes
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.staged_batch import stages_of
from tests.hanging import wait_for_late_requests

NAMES = "abc"


def stage(root, order=NAMES):
    uris = ",".join(f"{root}/{name}" for name in order)
    return stages_of(storage_root(uris, "cluster", Config()), 0).child("query")


@pytest.fixture
def cluster(root):
    found = storage_root(",".join(f"{root}/{name}" for name in NAMES), "cluster", Config())
    format_cluster(found, Config())
    return found


def move(root, name, end=("", ".away")):
    Path(root, name + end[0]).rename(Path(root, name + end[1]))


BACK = (".away", "")


@pytest.mark.parametrize("away", NAMES)
@pytest.mark.usefixtures("cluster")
def test_a_file_is_read_where_it_is_although_a_root_was_away_when_it_was_written(root, away):
    move(root, away)
    stage(root).write("part-1", b"one")
    move(root, away, BACK)
    for order in ("abc", "bca", "cab"):
        found = stage(root, order)
        assert (found.list(), found.read("part-1"), found.sizes_listed()) == (["part-1"], b"one", {"part-1": 3})
    (other,) = sorted(set(NAMES) - {away})[:1]
    move(root, other)
    assert stage(root).list() == ["part-1"]


@pytest.mark.usefixtures("cluster")
def test_without_a_majority_nothing_is_found_and_nothing_is_absent(root):
    folder = stage(root)
    folder.write("part-1", b"one")
    for name in "ab":
        move(root, name)
    for call in (folder.list, lambda: folder.read("part-2"), lambda: folder.write("part-2", b"two")):
        with pytest.raises(KafkaStorageException, match="no majority of the 3 cluster roots"):
            call()


@pytest.mark.usefixtures("cluster")
def test_of_racing_writers_of_one_name_one_wins_and_its_content_is_everywhere(root):
    won = []

    def put(order):
        if stage(root, order).put_if_absent("batch-1", order.encode()) is not None:
            won.append(order)

    threads = [threading.Thread(target=put, args=(order,)) for order in ("abc", "bca", "cab")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    for order in ("abc", "bca", "cab"):
        assert stage(root, order).read("batch-1") == won[0].encode()
        assert stage(root, order).put_if_absent("batch-1", b"another") is None


@pytest.mark.usefixtures("cluster")
def test_a_root_that_was_emptied_gets_no_file(root):
    move(root, "a")
    Path(root, "a").mkdir()
    stage(root).write("part-1", b"one")
    assert stage(root).list() == ["part-1"]
    assert not list(Path(root, "a").iterdir())


@pytest.mark.usefixtures("cluster")
def test_deleted_files_leave_no_votes(root):
    folder = stage(root)
    folder.put_if_absent("batch-1", b"one")
    folder.write("part-1", b"two")
    wait_for_late_requests()
    folder.delete("batch-1")
    folder.delete_folder()
    assert not folder.list()
    assert folder.put_if_absent("batch-1", b"anew") is not None
    assert folder.read("batch-1") == b"anew"


@pytest.mark.usefixtures("cluster")
def test_files_are_written_and_found_where_they_are_decided_though_the_former_roots_are_on(root):
    late = stage(root)
    late.write("part-1", b"one")
    replace_all(root)
    late.write("part-2", b"two")
    stage(root, "def").write("part-3", b"three")
    assert late.list() == stage(root, "def").list() == ["part-1", "part-2", "part-3"]


def replace_all(root):
    for old, new in zip(NAMES, "def", strict=True):
        changes(root).replace(f"{root}/{old}", f"{root}/{new}")


def changes(root):
    return RootChanges(Cluster.open(",".join(f"{root}/{name}" for name in NAMES)))


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.usefixtures("cluster")
def test_a_file_that_is_written_while_roots_change_is_not_lost(root, monkeypatch, is_interrupted):
    commit, bring, brought = ClusterQuorum.commit, root_changes.bring_files, []

    def write_and_commit(quorum, table, version, *words):
        if table == ("cluster",):
            move(root, "b")
            stage(root, "acb").write("part-1", b"one")
            move(root, "b", BACK)
        return commit(quorum, table, version, *words)

    def bring_once(*words):
        brought.append(words)
        if is_interrupted and len(brought) == 2:
            raise KafkaStorageException("interrupted")
        bring(*words)

    with monkeypatch.context() as patch:
        patch.setattr(ClusterQuorum, "commit", write_and_commit)
        patch.setattr(root_changes, "bring_files", bring_once)
        with pytest.raises(KafkaStorageException) if is_interrupted else nullcontext():
            changes(root).replace(f"{root}/c", f"{root}/d")
    changes(root).replace(f"{root}/c", f"{root}/d")
    move(root, "a")
    assert stage(root, "bda").read("part-1") == b"one"


@pytest.mark.parametrize("other", [b"other", None])
@pytest.mark.usefixtures("cluster")
def test_a_writer_that_slept_while_all_roots_changed_decides_nothing_twice(root, monkeypatch, other):
    late, run, asked = stage(root), ClusterQuorum._run, []

    def sleep_once(quorum, table, *words):
        if "query" in table and quorum is late.quorum and not asked:
            asked.append(table)
            replace_all(root)
            if other is not None:
                assert stage(root, "def").put_if_absent("batch-1", other) is not None
        return run(quorum, table, *words)

    monkeypatch.setattr(ClusterQuorum, "_run", sleep_once)
    assert (late.put_if_absent("batch-1", b"late") is None) == (other is not None)
    assert asked
    for order in ("def", "fed"):
        assert stage(root, order).read("batch-1") == (other or b"late")


@pytest.mark.usefixtures("cluster")
def test_roots_that_stay_when_others_are_removed_have_the_files(root):
    changes(root).add([f"{root}/d", f"{root}/e"])
    for name in "de":
        move(root, name)
    stage(root).write("part-1", b"one")
    for name in "de":
        move(root, name, BACK)
    changes(root).remove([f"{root}/a", f"{root}/b"])
    move(root, "c")
    assert stage(root, "dec").read("part-1") == b"one"


def test_a_root_that_is_added_gets_the_files_of_a_majority(root, cluster):
    move(root, "c")
    stage(root).put_if_absent("batch-1", b"one")
    move(root, "c", BACK)
    move(root, "a")  # only b has it
    fresh = QuorumMember(StorageRoot.of(f"{root}/a"))
    fresh.root.create_folder()
    kept = [QuorumMember(StorageRoot.of(f"{root}/{name}")).identity() for name in "bc"]
    quorum = storage_root(cluster.uri, "cluster", Config()).quorum
    root_changes.change_roots(quorum, ("cluster",), [fresh.format(), *kept])
    move(root, "b")
    assert stage(root).read("batch-1") == b"one"
