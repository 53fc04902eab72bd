"""Faults of one of several cluster roots: it is away, hangs, is deleted or emptied; then it is back, or a new one is
there."""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidRequestException, KafkaStorageException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot, root_uris
from lakelog.replication.storage.root_changes import RootChanges, RootStatus
from lakelog.verification.roots.roots import LocalRoots, Roots
from lakelog.verification.roots.wrong_roots import DELETED, EMPTIED

AWAY, HANGING = "away", "hanging"
LOSSES = AWAY, HANGING, DELETED, EMPTIED


def losses_that_end(uri: str) -> Sequence[str]:
    """The losses after which a root is as it was. A vote may land in an object store that was emptied: it would be lost
    if the former objects came back. Nothing lands in a folder that is not there."""
    return (AWAY, DELETED, EMPTIED) if StorageRoot.of(uri).is_local else (AWAY, HANGING)


def root_numbered(roots: Roots, number: int) -> str:
    """The URI of a cluster root; the first has number 1. Raises InvalidRequestException."""
    uris = root_uris(roots.uri("cluster"))
    if len(uris) < number or len(uris) == 1:
        raise InvalidRequestException(f"there is no cluster root {number} of several: {roots.uri('cluster')}")
    return uris[number - 1]


def lose_root(roots: Roots, number: int, by: str = AWAY) -> str:
    """Takes away a cluster root, until `roots.bring_back` is called, and returns its URI. `by`: one of `LOSSES`; in an
    object store it is deleted or emptied for good."""
    uri = root_numbered(roots, number)
    assert isinstance(roots, LocalRoots)  # as there are several
    if roots.is_away(uri):
        raise InvalidRequestException(f"{uri}: is away already; bring it back first")
    if by == AWAY:
        roots.take_away(uri)
    elif by == HANGING:
        roots.hang(uri)
    elif by not in losses_that_end(uri):
        roots.delete(uri)
    else:
        if by == EMPTIED:
            StorageRoot.of(f"{uri}.{by}").create_folder()
        roots.replace(uri, None if by == DELETED else f"{uri}.{by}")
    return uri


def put_new_root(roots: Roots, number: int, config: Config) -> str:
    """Gives up a cluster root that is lost, and lets a new one vote in its place; returns its URI."""
    uri = root_numbered(roots, number)
    assert isinstance(roots, LocalRoots)  # as there are several
    roots.delete(uri)
    RootChanges(Cluster.open(roots.uri("cluster"), config)).replace(uri, uri)
    return uri


def add_roots(roots: Roots, count: int, config: Config) -> str:
    """Lets so many more roots vote beside the only one of a cluster; returns the URIs of all. Raises
    InvalidRequestException."""
    alone = roots.uri("cluster")
    assert isinstance(roots, LocalRoots)
    roots.add_cluster_roots(1 + count)
    RootChanges(Cluster.open(alone, config)).add(root_uris(roots.uri("cluster"))[1:])
    return roots.uri("cluster")


def described(roots: Roots, number: int, config: Config) -> RootStatus:
    """What a cluster root is to the others. Raises KafkaStorageException."""
    uri = root_numbered(roots, number)
    for status in RootChanges(Cluster.open(roots.uri("cluster"), config)).describe():
        if status.uri == uri:
            return status
    raise KafkaStorageException(f"{uri}: is not known to the other cluster roots")
