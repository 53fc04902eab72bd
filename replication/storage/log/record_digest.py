"""The digest of a batch's records. Equal records have equal digests, in any layout of files, chunks and buffers.

It hashes one column after the other: timestamps, keys, values, then the keys and the values of headers. Of a column of
bytes it hashes all lengths (-1 for null), then all bytes. It leaves out the offsets: the batch header has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import HASH_BYTES
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.schemas import LOG

_NULL_LENGTH = pa.scalar(-1, pa.int64())
_HEADERS = LOG.arrow.field("headers").type


def record_digest(records: pa.Table) -> str:
    """The digest of a table of records with the columns `key`, `value`, `timestamp` and `headers`, as hex."""
    digest = blake3()
    for array in _hashed(records):
        for chunk in array.chunks:
            digest.update(_bytes(chunk))
    return str(digest.hexdigest(HASH_BYTES))


def check_digest(header: BatchHeader, records: pa.Table, path: str) -> None:
    """Raises CorruptRecordException, naming the file, if the records do not match their header."""
    retained = header.retained
    if records.num_rows != retained.records or record_digest(records) != retained.digest:
        raise CorruptRecordException(
            f"{path}: {header.name}: the records at offsets {header.base_offset} to "
            f"{header.last_offset} do not have the digest of their header"
        )


def _hashed(records: pa.Table) -> Iterator[pa.ChunkedArray]:
    """The numbers and the bytes to hash, in their order."""
    yield pc.cast(records["timestamp"], pa.int64())
    for name in ("key", "value"):
        yield from _lengths_and_values(records[name].cast(pa.binary()))
    headers = records["headers"].cast(_HEADERS)
    yield _with_nulls(pc.cast(pc.list_value_length(headers), pa.int64()))
    if headers.null_count < len(headers):
        pairs = pc.list_flatten(headers)
        yield from _lengths_and_values(pc.struct_field(pairs, "key").cast(pa.binary()))
        yield from _lengths_and_values(pc.struct_field(pairs, "value"))


def _lengths_and_values(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    yield _with_nulls(pc.cast(pc.binary_length(column), pa.int64()))
    yield pc.fill_null(column, b"") if column.null_count else column


def _with_nulls(lengths: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(lengths, _NULL_LENGTH) if lengths.null_count else lengths


def _bytes(chunk: pa.Array) -> Any:
    """The bytes of a chunk's values, one after the other; numbers as eight bytes, little-endian."""
    if pa.types.is_int64(chunk.type):
        start, stop, data = chunk.offset * 8, (chunk.offset + len(chunk)) * 8, chunk.buffers()[1]
    else:
        _, offsets, data = chunk.buffers()
        ends = memoryview(offsets).cast("i")[chunk.offset : chunk.offset + len(chunk) + 1] if offsets else (0,)
        start, stop = ends[0], ends[-1]
    return memoryview(data)[start:stop] if data is not None and stop > start else b""
