"""The owner of a root, and where a new root may lie: in an empty folder, apart from every other root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException, LakelogException
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.conditional_put import PROBE
from lakelog.replication.storage.delta.local_root import is_temporary
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import CLUSTER, OLDEST_FORMAT, QUORUM_FORMAT

CLUSTER_ROOT = -1

_CHECK = "Check that it is mounted there, that the URI is right, and whether somebody has moved it"
_BROKER_FOLDER = re.compile(r"broker-\d+")
_SHOWN = 5  # names in an error
_SCHEMES = {"s3a": "s3", "abfss": "abfs"}  # Hadoop's name for S3, and Azure's with TLS


def is_formatted(root: StorageRoot) -> bool:
    """Whether the folder has been made a root. Of several cluster roots one is enough, since others may have been
    emptied. Raises KafkaStorageException if it cannot be read."""
    errors = list[KafkaStorageException]()
    for part in root.parts:
        try:
            if last_version(part.child(CLUSTER.name)) >= 0:
                return True
        except KafkaStorageException as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return False


def read_identity(root: StorageRoot, broker_id: int | None = CLUSTER_ROOT) -> dict[str, Any]:
    """The cluster and the broker that a root belongs to. `broker_id`: the broker whose root it should be, None for any.

    Raises InconsistentClusterIdException if it is not formatted, or has a format that this code does not know, and
    KafkaStorageException if it cannot be read.
    """
    try:
        rows = StateTable.open_at(root.child(CLUSTER.name), CLUSTER).rows
    except InconsistentClusterIdException as error:
        raise InconsistentClusterIdException(_why_no_root(root, broker_id)) from error
    if not rows:
        raise InconsistentClusterIdException(
            f"{root.uri}: is not finished: run `lakelog recover` again if it was begun here, else empty the folder and "
            "format again"
        )
    found = rows[0]["format_version"]
    if not OLDEST_FORMAT <= found <= QUORUM_FORMAT:
        known = f"{OLDEST_FORMAT} to {QUORUM_FORMAT}"
        raise InconsistentClusterIdException(f"{root.uri}: has format {found}, this version of Lakelog knows {known}")
    return rows[0]


def _why_no_root(root: StorageRoot, broker_id: int | None) -> str:
    """Why there is no root, and what to check first. It names the command that makes one only if nothing is there and
    no brokers' roots lie beside it: an unmounted folder looks empty, too."""
    what, makes = "root of a broker", ""
    if broker_id == CLUSTER_ROOT:
        what, makes = "cluster", f". For a new cluster only: `lakelog format --cluster {root.uri}`"
    elif broker_id is not None:
        flags = f"--cluster URI --broker-id {broker_id} --root {root.uri}"
        what, makes = f"root of broker {broker_id}", f". For a new root only: `lakelog format {flags}`"
    for part in root.parts:
        check_is_folder(part)
        if found := part.list():
            there = "the folder" if part.uri == root.uri else part.uri
            return f"there is no {what} at {root.uri}: {there} holds {_names(found)}"
    why = "nothing is there"
    if all(part.is_local and os.path.isdir(part.uri) for part in root.parts):
        why = "the folder is empty" if len(root.parts) == 1 else "the folders are empty"
    said = f"there is no {what} at {root.uri}: {why}. {_CHECK}"
    beside = brokers_beside(root) if broker_id == CLUSTER_ROOT else {}
    return f"{said}{makes}" if not beside else f"{said}: {_clause(beside)}"


def brokers_beside(root: StorageRoot, others: Iterable[StorageRoot] = ()) -> dict[str, str]:
    """The ids of the clusters of brokers' roots, by the roots' URIs. The roots are those beside a cluster root in the
    usual layout, which is `cluster` and `broker-N` in one folder, and `others`. Roots that cannot be read are left
    out."""
    found: dict[str, str] = {}
    roots = list(others)
    for part in root.parts:
        with suppress(LakelogException):
            folder = replace(part, uri=part.uri.rpartition("/")[0], guard=None)
            roots += [folder.child(name) for name in folder.list() if _BROKER_FOLDER.fullmatch(name)]
    for each in {broker.uri: broker for broker in roots}.values():
        with suppress(LakelogException):
            identity = read_identity(each, None) if is_formatted(each) else None
            if identity is not None and identity["broker_id"] != CLUSTER_ROOT:
                found[each.uri] = identity["cluster_id"]
    return found


def check_is_new_cluster(root: StorageRoot, others: Iterable[StorageRoot] = ()) -> None:
    """Raises InconsistentClusterIdException if brokers' roots, those beside this one or `others`, belong to a cluster:
    its cluster root may have been here."""
    if found := describe_brokers_beside(root, others):
        raise InconsistentClusterIdException(f"{root.uri}: no new cluster is made here, as {found}. {_CHECK}")


def describe_brokers_beside(root: StorageRoot, others: Iterable[StorageRoot] = (), but_of: str | None = None) -> str:
    """The brokers' roots that `brokers_beside` finds, without those of the cluster `but_of`, as a clause; empty if
    there are none."""
    beside = {uri: cluster for uri, cluster in brokers_beside(root, others).items() if cluster != but_of}
    return _clause(beside) if beside else ""


def _clause(beside: Mapping[str, str]) -> str:
    clusters, some = sorted(set(beside.values())), sorted(beside)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return f"cluster {' and '.join(clusters)} has its brokers' roots at {_names(some)}{more}"


def describe_wrong_root(root: StorageRoot, expected: str) -> str:
    """Describes what lies at an address where the root of the cluster `expected` should be. The text completes a
    sentence that begins with the address. Raises KafkaStorageException."""
    if not is_formatted(root):
        found = root.list()
        if found:
            return f"lacks its table cluster, and holds {_names(found)}"
        is_folder = root.is_local and os.path.isdir(root.uri)
        return "is an empty folder" if is_folder else "is gone: nothing is there"
    return f"is the root of {_owner(root) or 'somebody else'}, and that of cluster {expected} is expected"


def check_identity(root: StorageRoot, cluster_id: str, broker_id: int) -> None:
    """Raises InconsistentClusterIdException unless the root is that broker's, of that cluster."""
    identity = read_identity(root, broker_id)
    if identity["broker_id"] == CLUSTER_ROOT:
        raise InconsistentClusterIdException(f"{root.uri}: is the root of a cluster, no root of a broker")
    if (identity["cluster_id"], identity["broker_id"]) != (cluster_id, broker_id):
        raise InconsistentClusterIdException(
            f"{root.uri}: belongs to broker {identity['broker_id']} of cluster {identity['cluster_id']}, "
            f"not to broker {broker_id} of cluster {cluster_id}"
        )


def check_is_folder(root: StorageRoot) -> None:
    """Raises KafkaStorageException if there is a file of this name."""
    if root.is_local and os.path.isfile(root.uri):
        raise KafkaStorageException(f"{root.uri}: is a file, and a root is a folder")


def check_new(root: StorageRoot, may_be_nested: bool = False) -> None:
    """Raises InconsistentClusterIdException if a folder holds anything, or lies in a root: it cannot become a root
    then. Unfinished files that a killed `recover` or `format` has left do not count."""
    for number, part in enumerate(root.parts if len(root.parts) > 1 else ()):
        check_new(part, may_be_nested)
        for other in root.parts[:number]:
            check_apart(part, other.uri, "the cluster")
    if len(root.parts) > 1:
        return
    check_is_folder(root)
    found = [name for name in root.list() if not is_temporary(name) and not name.startswith(PROBE)]
    if found and (owner := _owner(root)):
        raise InconsistentClusterIdException(
            f"{root.uri}: is the root of {owner} already, and stays as it is. A new cluster needs an empty folder, and "
            "so does the --root of a new broker"
        )
    if found:
        raise InconsistentClusterIdException(f"{root.uri}: must be empty to be formatted, it holds {_names(found)}")
    for parent in () if may_be_nested else _parents(root):
        owner = _owner(parent)
        if owner is not None:
            check_apart(root, parent.uri, owner)


def check_apart(root: StorageRoot, other: str, owner: str, way_out: str = "") -> None:
    """Raises InconsistentClusterIdException if two roots are the same, or one lies in the other.

    `other`: the URI of the other root, which belongs to `owner`. `way_out`: the end of the error's text, with another
    way to solve the problem.
    """
    here, there = _comparable(root.uri), _comparable(other)
    if here.startswith(there) or there.startswith(here):
        place = "is" if here == there else f"lies in {other}," if len(there) < len(here) else f"contains {other},"
        raise InconsistentClusterIdException(
            f"{root.uri}: {place} the root of {owner}; give each root a folder of its own{way_out}"
        )


def _comparable(uri: str) -> str:
    """A URI in a form that begins with the same form of each folder around it: links are resolved, and both names of a
    store's scheme become one."""
    if uri.startswith("/"):
        return os.path.realpath(uri).rstrip("/") + "/"
    scheme, slashes, path = uri.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{slashes}{path}/"


def _parents(root: StorageRoot) -> Iterator[StorageRoot]:
    """The folders around a root, with links resolved: the nearest first, and last a bucket or `/`."""
    scheme, slashes, path = (os.path.realpath(root.uri) if root.is_local else root.uri).rpartition("://")
    names = path.split("/")
    for length in range(len(names) - 1, 0, -1):
        folder = "/".join(names[:length])
        if folder or root.is_local:
            yield replace(root, uri=f"{scheme}{slashes}{folder}" or "/", guard=None)


def _owner(folder: StorageRoot) -> str | None:
    """The owner of the root in a folder; None if there is none, or it cannot be read."""
    try:
        identity = read_identity(folder) if is_formatted(folder) else None
    except InconsistentClusterIdException as error:
        return f"a cluster or a broker ({str(error).removeprefix(f'{folder.uri}: ')})"
    except LakelogException:
        return None
    if identity is None:
        return None
    broker = "" if identity["broker_id"] == CLUSTER_ROOT else f"broker {identity['broker_id']} of "
    return f"{broker}cluster {identity['cluster_id']}"


def lies_in(uri: str, folder: str) -> bool:
    """Whether a root is this folder or bucket, or lies in it: then it is lost with it."""
    return _comparable(uri).startswith(_comparable(folder.rstrip("/") or "/"))


def share_a_store(root: StorageRoot, other: StorageRoot) -> bool:
    """Whether two roots are lost together: they lie on one device, or in one bucket."""
    if root.is_local and other.is_local:
        return _device(root.uri) == _device(other.uri)
    return _bucket(root.uri) == _bucket(other.uri)


def _device(path: str) -> int:
    """The device that a folder lies on, or will."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev


def _bucket(uri: str) -> str:
    return "/".join(_comparable(uri).split("/")[:3])


def _names(found: list[str]) -> str:
    return ", ".join(found[:_SHOWN])
