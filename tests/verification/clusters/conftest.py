"""For tests of single server processes: a formatted cluster root without servers."""

from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    uri = str(tmp_path / "cluster")
    format_cluster(StorageRoot.of(uri), Config())
    return Cluster.open(uri)
