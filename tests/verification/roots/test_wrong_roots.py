"""What may lie where the cluster root was: a process that has seen the right one tells them apart."""

from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterRootException, InvalidRequestException
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.verification.roots.roots import STORES
from lakelog.verification.roots.wrong_roots import (
    ANOTHER,
    DELETED,
    EMPTIED,
    FORMATTED,
    OLDER,
    WRONG_ROOTS,
    copy_cluster_root,
    replace_cluster_root,
)

CAUSE = {"who": "test"}
SEEN = {
    DELETED: "is gone: nothing is there",
    EMPTIED: "is an empty folder|is gone: nothing is there",  # an object store has no folders
    FORMATTED: "is the root of cluster",
    OLDER: "is an older copy: metadata has version",
    ANOTHER: "is the root of cluster",
}


@pytest.mark.parametrize("store", STORES)
def test_each_wrong_root_is_told_from_the_right_one_which_comes_back(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store each check asks the store."""
    monkeypatch.setattr("lakelog.replication.storage.delta.root_guard._AGAIN_SECONDS", 0.0)
    roots, config = STORES[store](tmp_path, 0), Config()
    uri = roots.uri("cluster")
    with roots.running():
        format_cluster(storage_root(uri, "cluster", config), config)
        cluster = Cluster.open(uri, config)
        copy_cluster_root(roots)
        cluster.topics.change([Topic("orders", "id", 1)], (), CAUSE)
        cluster.metadata.put([new_partition("orders", "id", 0, (1, 2), {1, 2})], CAUSE)
        for by in WRONG_ROOTS:
            replace_cluster_root(roots, by, config)
            with pytest.raises(InconsistentClusterRootException, match=SEEN[by]):
                cluster.guard.check()
            if by == ANOTHER:
                assert [r.name for r in Cluster.open(uri, config).metadata.partitions.values()] == ["orders-0"]
            with pytest.raises(InvalidRequestException, match="has been replaced already"):
                replace_cluster_root(roots, by, config)
            for _ in range(2):
                roots.bring_back(uri)
                assert not roots.is_away(uri)
            cluster.guard.check()
            assert Cluster.open(uri, config).cluster_id == cluster.cluster_id
        with pytest.raises(InvalidRequestException, match="has no older copy"):
            replace_cluster_root(roots, OLDER, config)
