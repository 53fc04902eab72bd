"""Copies a segment byte for byte: within a bucket the store copies it. Otherwise this process reads and writes the
bytes; a large file between folders of this machine goes in small pieces. `rewrite` copies some batches of a segment."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from blake3 import blake3

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import hex_digest, leader_of, named_digest, segment_name
from lakelog.replication.storage.delta.local_root import LocalRoot, temporary_file
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.record_digest import check_digest
from lakelog.replication.storage.log.segment import Segment, read_file, read_records, rows_of, write_file, write_segment

_LARGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 19  # it stays in the cache of a core between its read and its write

logger = logging.getLogger(__name__)


def copy_segment(source: StorageRoot, segment: Segment, target: StorageRoot) -> Segment:
    """Copies a segment into a new file at `target`; it commits nothing.

    The copy gets a new name with the same leader, so no name that the source chose can replace a file here. Raises
    CorruptRecordException, naming the source's file, if its bytes are not the committed ones, and
    KafkaStorageException.
    """
    name_of = partial(segment_name, leader_of(segment.name))
    file = _copied_between_folders(source, segment.file, target, name_of)
    if file is None:
        file = _copied_by_store(source, segment.file, target, name_of)
    if file is None:
        file = write_file(target, name_of, read_file(source, segment.file), segment.file.stats)
    return dataclasses.replace(segment, file=file)


def _copied_between_folders(
    source: StorageRoot, file: AddedFile, target: StorageRoot, name_of: Callable[[str], str]
) -> AddedFile | None:
    """A large file that was copied on local disks in pieces, which stay in the cache of the processor until they are
    hashed and written; None for another file, or if the bytes are not the committed ones."""
    digest = named_digest(file.name)
    if not (isinstance(source, LocalRoot) and isinstance(target, LocalRoot)):
        return None
    if digest is None or file.size < _LARGE_BYTES:
        return None
    copied, found = dataclasses.replace(file, name=name_of(digest)), blake3()
    pieces = _hashed_pieces(source.path(file.name), found)
    with suppress(OSError), temporary_file(target.uri, copied.name, pieces) as temporary:
        if hex_digest(found) == digest:
            target.rename(temporary, copied.name)
            return copied
    return None  # reading the source as a whole raises the error


def _hashed_pieces(path: str, digest: blake3) -> Iterator[memoryview]:
    """The content of a file, piece by piece in one buffer, with each piece added to the digest."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            yield buffer[:size]


def _copied_by_store(
    source: StorageRoot, file: AddedFile, target: StorageRoot, name_of: Callable[[str], str]
) -> AddedFile | None:
    """A copy that the store has made of a file; None if it cannot, or if the copy does not have the committed bytes.

    The copy is read once, because a store also copies a file that has rotted.
    """
    digest = named_digest(file.name)
    if digest is None or file.content:
        return None
    copied = dataclasses.replace(file, name=name_of(digest))
    if not target.copy_from(source, file.name, copied.name):
        return None
    try:
        read_file(target, copied)
    except (CorruptRecordException, KafkaStorageException) as error:  # reading the source finds whether it has rotted
        logger.warning("%s: the copy that the store has made is not used: %s", source.path(file.name), error)
        with suppress(KafkaStorageException):  # the file cleaner deletes it later
            target.delete(copied.name)
        return None
    return copied


def rewrite(
    source: StorageRoot, segment: Segment, target: StorageRoot, headers: Sequence[BatchHeader]
) -> Segment | None:
    """Writes some batches of a segment at `source` into a new one at `target`; None if there are no batches.

    A batch stays whole, because a part of one has no chain. Raises CorruptRecordException, naming the file, if the
    records do not match their headers, and KafkaStorageException.
    """
    if not headers:
        return None
    records = read_records(source, segment.name)
    parts = [rows_of(records, h.topic_id_partition, h.base_offset, h.next_offset) for h in headers]
    for header, rows in zip(headers, parts, strict=True):
        check_digest(header, rows, source.path(segment.name))
    return write_segment(target, leader_of(segment.name), pa.concat_tables(parts), headers)
