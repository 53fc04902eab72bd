"""The open clusters of a process, which later reads find again."""

import shutil

import pytest

from lakelog.replication.clients import topic_view
from lakelog.replication.clients.topic_view import forget_view, open_view
from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.copied_roots import copied


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    copied(format_cluster, home, Config())
    return home


def test_open_view_opens_each_cluster_and_configuration_once(cluster):
    view = open_view(cluster.uri, Config())
    assert open_view(cluster.uri, Config()) is view
    assert open_view(cluster.uri, Config.from_properties({"request.timeout.ms": 1})) is not view
    forget_view(view)
    assert open_view(cluster.uri, Config()) is not view


def test_open_view_opens_a_cluster_that_was_formatted_again_anew(cluster):
    view = open_view(cluster.uri, Config())
    shutil.rmtree(cluster.uri)
    with pytest.raises(InconsistentClusterIdException, match="there is no cluster at"):
        open_view(cluster.uri, Config())
    cluster_id = format_cluster(cluster, Config())
    assert open_view(cluster.uri, Config()).cluster.cluster_id == cluster_id != view.cluster.cluster_id


def test_a_process_keeps_at_most_eight_open_views(cluster):
    for milliseconds in range(1, 20):
        open_view(cluster.uri, Config.from_properties({"request.timeout.ms": milliseconds}))
    assert len(topic_view._views) <= 8
