"""The open clusters of this process. Spark reuses its Python workers, so a later plan need not replay the logs."""

from __future__ import annotations

import threading
from dataclasses import replace

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import check_no_fork
from lakelog.replication.storage.root_identity import read_identity

_MOST = 8
_lock = threading.Lock()
_views: dict[tuple[str, Config], TopicView] = {}


def open_view(cluster_uri: str, config: Config) -> TopicView:
    """A view of the cluster. Raises as `Cluster.open`, also in a fork that has the views of its parent."""
    check_no_fork()
    key = cluster_uri, config
    with _lock:
        known = _views.get(key)
    if known is not None:  # each plan names the URI anew, so it means the cluster that is there now
        identity = read_identity(replace(known.cluster.root, guard=None))
        if known.cluster.cluster_id == identity["cluster_id"]:
            return known
    view = TopicView(Cluster.open(cluster_uri, config))
    with _lock:
        _views.pop(key, None)
        _views[key] = view
        if len(_views) > _MOST:
            del _views[next(iter(_views))]
    return view


def forget_view(view: TopicView) -> None:
    """Opens the tables again at the next use. For a view that has met an error: a root may have been replaced."""
    with _lock:
        for key in [key for key, known in _views.items() if known is view]:
            del _views[key]
