"""A backup of a cluster root in one file: a `tar.gz` of `backup.json` and a Parquet file for each of the small tables.

Records are not in it: they are in the roots of the brokers. `topics` and `metadata` are from one moment, so that no
topic lacks its partitions, and no partition its topic. `groups` and `producers` are read before: offsets that were
committed later are beyond them, and each of them is right without the others.

gzip's checksum covers the whole file. Kafka has no such tool.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentClusterIdException,
    InvalidRequestException,
    KafkaStorageException,
)
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.tables.cluster_copy import COPIED, CopiedRows, CopySource
from lakelog.replication.storage.tables.state_table import conformed
from lakelog.schemas import CLUSTER, CONFIGS, GROUPS, METADATA, PRODUCERS, TOPICS

_HEAD = "backup.json"
_FORMAT = 1
_ATTEMPTS = 100  # to read two tables while neither of them moves


class Backup(NamedTuple):
    """The file, the cluster whose root it is of, and the rows of the tables, by name."""

    path: str
    cluster_id: str
    tables: Mapping[str, CopiedRows]


def take_backup(cluster: Cluster, path: str) -> Backup:
    """Writes a backup of a cluster root, which may be in use. The file is there when it is whole.

    Raises InvalidRequestException if the file is there already or cannot be written, and KafkaStorageException if the
    tables cannot be read, or move all the time.
    """
    if os.path.lexists(path):
        raise InvalidRequestException(f"{path}: is there already; give the backup another name")
    tables = _read_tables(cluster)
    head = {
        "format": _FORMAT,
        "cluster_id": cluster.cluster_id,
        "tables": {
            name: {"uri": copied.source.uri, "generation": copied.source.generation,
                   "controller_epoch": copied.source.controller_epoch, "version": copied.version,
                   "copied_at": copied.copied_at}
            for name, copied in tables.items()
        },
    }  # fmt: skip
    files = {_HEAD: json.dumps(head, indent=1).encode()}
    files |= {f"{table.name}.parquet": _parquet(tables[table.name].rows, table.arrow) for table in COPIED}
    _write(path, _archive(files))
    return Backup(path, cluster.cluster_id, tables)


def _read_tables(cluster: Cluster) -> dict[str, CopiedRows]:
    now = time.time()
    for table in (cluster.groups, cluster.producers, cluster.configs):
        table.refresh()
    found = {
        CLUSTER: (0, [cluster.identity]),
        GROUPS: cluster.groups.snapshot(),
        PRODUCERS: cluster.producers.snapshot(),
        CONFIGS: cluster.configs.snapshot(),
    }
    for _ in range(_ATTEMPTS):  # if neither has moved while both were read, they are from one moment
        has_moved = [table.refresh() for table in (cluster.topics, cluster.metadata, cluster.topics)]
        if not has_moved[-1]:
            break
    else:
        raise KafkaStorageException(f"{cluster.root.uri}: its topics change all the time; try again later")
    found |= {TOPICS: cluster.topics.snapshot(), METADATA: cluster.metadata.snapshot()}
    lease = cluster.lease.read()  # after the tables: no copy of an earlier controller is newer
    source = CopySource(cluster.root.uri, cluster.generation, lease.controller_epoch if lease else 0)
    return {table.name: CopiedRows(rows, source, version, now) for table, (version, rows) in found.items()}


def _parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return buffer.getvalue()


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _write(path: str, content: bytes) -> None:
    folder, name = os.path.split(os.path.abspath(path))
    root = LocalRoot(folder, fsync=True)
    if os.path.lexists(path):
        raise InvalidRequestException(f"{path}: is there already; give the backup another name")
    try:
        root.put(name, content)
    except KafkaStorageException as error:
        raise InvalidRequestException(str(error)) from error


def read_backup(path: str) -> Backup:
    """Reads a backup. Raises InvalidRequestException if the file cannot be read or is no backup, CorruptRecordException
    if it is damaged, and InconsistentClusterIdException if a newer version of Lakelog has written it."""
    try:
        with open(path, "rb") as file:
            packed = file.read()
    except OSError as error:
        raise InvalidRequestException(f"{path}: cannot be read: {error.strerror or error}") from error
    if packed[:2] != b"\x1f\x8b":
        raise InvalidRequestException(f"{path}: is no backup of a cluster root")
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
            files = {entry.name: _content(archive, entry) for entry in archive}
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise CorruptRecordException(f"{path}: is damaged: {error}") from error
    if _HEAD not in files:
        raise InvalidRequestException(f"{path}: is no backup of a cluster root: it has no {_HEAD}")
    try:
        return _backup(path, json.loads(files[_HEAD]), files)
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise CorruptRecordException(f"{path}: is damaged: {error!r}") from error


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    return file.read() if file else b""


def _backup(path: str, head: Mapping[str, Any], files: Mapping[str, bytes]) -> Backup:
    if int(head["format"]) > _FORMAT:
        raise InconsistentClusterIdException(
            f"{path}: has format {head['format']}, this version of Lakelog knows {_FORMAT}"
        )
    tables = {}
    for table in COPIED:
        of = head["tables"][table.name]
        columns = pq.read_table(io.BytesIO(files[f"{table.name}.parquet"]))
        source = CopySource(str(of["uri"]), int(of["generation"]), int(of["controller_epoch"]))
        rows = conformed(columns, table.arrow).to_pylist()
        tables[table.name] = CopiedRows(rows, source, int(of["version"]), float(of["copied_at"]))
    return Backup(path, str(head["cluster_id"]), tables)
