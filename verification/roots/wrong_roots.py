"""The wrong roots that may lie in the place of a cluster root: none, a new one, an older copy, another cluster's."""

from __future__ import annotations

import uuid
from dataclasses import replace

from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.roots.roots import Roots

DELETED, EMPTIED, FORMATTED, OLDER, ANOTHER = "deleted", "emptied", "formatted", "older", "another"
WRONG_ROOTS = DELETED, EMPTIED, FORMATTED, OLDER, ANOTHER

_CAUSE = {"who": "another cluster", "why": "its topics have the same names"}


def copy_cluster_root(roots: Roots) -> None:
    """Copies the cluster root, which is in use: the copy may take its place later, as an `OLDER` one."""
    uri = roots.uri("cluster")
    roots.copy(uri, _older(uri))


def replace_cluster_root(roots: Roots, by: str, config: Config) -> None:
    """Puts the cluster root aside, and a wrong one in its place, until `roots.bring_back` is called.

    A root is made beside the cluster root and then moved, as if another machine had made it there. `ANOTHER` is that of
    a cluster whose topics have the same names, settings and replicas. Raises InvalidRequestException if the root has
    been replaced already, or if there is no copy of it.
    """
    uri = roots.uri("cluster")
    if roots.is_away(uri):
        raise InvalidRequestException(f"{uri}: has been replaced already; bring it back first")
    if by == OLDER:
        if not storage_root(_older(uri), "cluster", config).list():
            raise InvalidRequestException(f"{uri}: has no older copy; copy it first")
        roots.replace(uri, _older(uri))
        return
    made = storage_root(f"{uri}.{by}", "cluster", config)
    if by == EMPTIED:
        made.create_folder()
    elif by == FORMATTED:
        format_cluster(made, config)
    elif by == ANOTHER:
        _format_another(made, Cluster.open(uri, config), config)
    roots.replace(uri, None if by == DELETED else made.uri)


def _older(uri: str) -> str:
    return f"{uri}.{OLDER}"


def _format_another(root: StorageRoot, like: Cluster, config: Config) -> None:
    format_cluster(root, config)
    other, ids = Cluster.open(root.uri, config), {topic: uuid.uuid4().hex for topic in like.topics.topics}
    other.topics.change([replace(topic, topic_id=ids[name]) for name, topic in like.topics.topics.items()], (), _CAUSE)
    found = [r for r in like.metadata.partitions.values() if r.topic in ids]
    other.metadata.put([replace(r, topic_id=ids[r.topic]) for r in found], _CAUSE)
