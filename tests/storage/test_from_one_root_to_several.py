"""A cluster with one root that is stopped goes on with three: `lakelog recover` makes them."""

import shutil

import pytest

from lakelog.jobs import recover as recover_verb
from lakelog.replication.errors import FencedClusterRootException, KafkaStorageException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import read_identity
from lakelog.schemas import QUORUM_FORMAT
from tests.storage.logs import TOPIC
from tests.storage.test_root_recovery import OFFSETS


def uris(lake, names):
    return ",".join(lake.root(f"cluster-{name}").uri for name in names)


def recover(lake, names, *words):
    roots = [lake.root(f"broker-{broker}").uri for broker in (1, 2, 3)]
    return recover_verb.main(["--cluster", uris(lake, names), *words, "--roots", *roots])


def check_is_whole(lake, names):
    cluster = Cluster.open(uris(lake, names))
    assert [topic.topic for topic in cluster.topics.topics.values()] == [TOPIC]
    assert cluster.groups.read() == OFFSETS
    assert sorted(cluster.refresh_brokers()) == [1, 2, 3]
    assert read_identity(StorageRoot.of(lake.root(f"cluster-{names[1]}").uri))["format_version"] == QUORUM_FORMAT
    return cluster


def test_a_cluster_with_one_root_that_is_stopped_goes_on_with_three(lake, capsys):
    old = Cluster.open(lake.root("cluster").uri)
    assert recover(lake, "abc") == 1
    assert "--force" in capsys.readouterr().err
    assert recover(lake, "abc", "--force") == 0
    cluster = check_is_whole(lake, "abc")
    assert (cluster.cluster_id, cluster.generation) == (old.cluster_id, 1)
    with pytest.raises(FencedClusterRootException, match="the cluster root was recovered elsewhere"):
        old.note_what_was_seen(lake.root("broker-1"))
    shutil.rmtree(lake.folder / "cluster-a")
    check_is_whole(lake, "cba")


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5])
def test_a_recovery_that_was_interrupted_while_it_made_the_roots_is_finished_by_the_same_command(
    lake, monkeypatch, capsys, after
):
    left = after

    def interrupted(call):
        def work(self, name, *words):
            nonlocal left
            if name in ("recovery.json", "_quorum/_root.json"):
                left -= 1
                if left < 0:
                    raise KafkaStorageException("interrupted")
            return call(self, name, *words)

        return work

    with monkeypatch.context() as patch:
        for call in ("put", "put_if_absent"):
            patch.setattr(LocalRoot, call, interrupted(getattr(LocalRoot, call)))
        assert recover(lake, "abc", "--force") == 1
    assert "interrupted" in capsys.readouterr().err
    assert recover(lake, "abc", "--force") == 0
    check_is_whole(lake, "abc")


def test_a_list_with_a_root_that_holds_something_is_no_place_for_a_recovery(lake, capsys):
    (lake.folder / "cluster-c").mkdir()
    (lake.folder / "cluster-c" / "notes.txt").touch()
    assert recover(lake, "abc", "--force") == 1
    assert "cluster-c: must be empty" in capsys.readouterr().err
