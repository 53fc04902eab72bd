"""Makes a Parquet file of row groups and columns of other files. Their bytes are copied, and nothing is decoded.

The format is that of parquet-format's `parquet.thrift`. parquet-java does the same in `ParquetFileWriter.appendFile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakelog.replication.storage.parquet.compact_protocol import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    read_struct,
    write_struct,
)

_MAGIC = b"PAR1"
_TRAILER = len(_MAGIC) + 4  # the size of the footer, and the magic number
# The numbers of fields in FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, PageLocation.
_SCHEMA, _FILE_ROWS, _ROW_GROUPS, _KEY_VALUES = 2, 3, 4, 5
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_COMPRESSED = 1, 2, 3, 5, 6
_FILE_PATH, _CHUNK_OFFSET, _META, _OFFSET_INDEX, _OFFSET_INDEX_SIZE, _COLUMN_INDEX, _COLUMN_INDEX_SIZE = range(1, 8)
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE, _BLOOM, _BLOOM_SIZE = 3, 6, 7, 9, 11, 14, 15
_PAGES, _PAGE_OFFSET = 1, 1


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one column in one row group: where they lie in the bytes of their file."""

    content: memoryview
    struct: Struct

    @property
    def column(self) -> str:
        """The path of the column, with dots: `headers.list.element.key`."""
        return b".".join(self._meta[_PATH][1][1]).decode()

    @property
    def _meta(self) -> Struct:
        found: Struct = self.struct[_META][1]
        return found

    @property
    def compressed_size(self) -> int:
        """The size of its pages in bytes."""
        found: int = self._meta[_COMPRESSED][1]
        return found

    @property
    def uncompressed_size(self) -> int:
        """The size of its pages in bytes before they were compressed."""
        found: int = self._meta[_UNCOMPRESSED][1]
        return found

    @property
    def start(self) -> int:
        """Where its first page begins."""
        return min(self._meta[number][1] for number in self._places)

    @property
    def _places(self) -> list[int]:
        """The fields that say where pages lie. Some writers give 0 as the place of a dictionary that is not there."""
        return [_DATA_PAGE, *([_DICTIONARY_PAGE] if self._meta.get(_DICTIONARY_PAGE, (I64, 0))[1] > 0 else [])]

    def pages(self) -> memoryview:
        """Its pages."""
        return self.content[self.start : self.start + self.compressed_size]

    def moved(self, start: int) -> ColumnChunk:
        """The chunk in a file where its first page begins at `start`. It keeps no Bloom filter."""
        step = start - self.start
        meta = {number: each for number, each in self._meta.items() if number not in (_BLOOM, _BLOOM_SIZE)}
        meta |= {number: (I64, meta[number][1] + step) for number in self._places}
        return replace(self, struct={**self.struct, _CHUNK_OFFSET: (I64, 0), _META: (STRUCT, meta)})

    def index(self, place: int, size: int) -> memoryview | None:
        """One of its page indexes; None if it has none."""
        if place not in self.struct:
            return None
        start = self.struct[place][1]
        return self.content[start : start + self.struct[size][1]]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a file: a chunk for each column."""

    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its pages before they were compressed."""
        return sum(chunk.uncompressed_size for chunk in self.chunks)

    def with_columns_of(self, other: RowGroup, order: Sequence[str]) -> RowGroup:
        """The same rows with the columns of another row group too, in this order. Raises ValueError if it
        has another number of rows."""
        if other.rows != self.rows:
            raise ValueError(f"a row group of {other.rows} rows cannot give columns to one of {self.rows}")
        chunks = sorted((*self.chunks, *other.chunks), key=lambda chunk: order.index(chunk.column.split(".")[0]))
        return replace(self, chunks=tuple(chunks))


class ParquetContent:
    """A Parquet file in memory. Raises ValueError, whose text goes on after the file's name, if it is not Parquet, is
    encrypted, or refers to bytes outside of itself."""

    def __init__(self, content: pa.Buffer) -> None:
        view = memoryview(content).cast("B")
        size = int.from_bytes(view[-_TRAILER : -len(_MAGIC)], "little")
        if bytes(view[:4]) != _MAGIC or bytes(view[-4:]) != _MAGIC or size > len(view) - _TRAILER - len(_MAGIC):
            raise ValueError("is not Parquet, or encrypted")
        try:
            self._footer = read_struct(view[-_TRAILER - size : -_TRAILER])
            self.schema: list[Struct] = self._footer[_SCHEMA][1][1]
            self.row_groups = [_row_group(view, group) for group in self._footer[_ROW_GROUPS][1][1]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"has a footer that lacks a field: {error!r}") from error

    def footer(self, groups: Sequence[Struct], rows: int, metadata: Mapping[bytes, bytes]) -> bytes:
        """The footer of a file with this one's schema. `metadata` replaces values of the same key."""
        pairs = {each[1][1]: each for each in self._footer.get(_KEY_VALUES, (LIST, (STRUCT, [])))[1][1]}
        pairs |= {key: {1: (BINARY, key), 2: (BINARY, value)} for key, value in metadata.items()}
        new = {_FILE_ROWS: (I64, rows), _ROW_GROUPS: _list(groups), _KEY_VALUES: _list(list(pairs.values()))}
        footer = write_struct(dict(sorted({**self._footer, **new}.items())))
        return footer + len(footer).to_bytes(4, "little") + _MAGIC


def _list(structs: Sequence[Struct]) -> tuple[int, Any]:
    return LIST, (STRUCT, structs)


def _row_group(content: memoryview, group: Struct) -> RowGroup:
    chunks = tuple(ColumnChunk(content, chunk) for chunk in group[_COLUMNS][1][1])
    for chunk in chunks:
        if _FILE_PATH in chunk.struct or not 0 < chunk.start < chunk.start + chunk.compressed_size < len(content):
            raise ValueError("has a column whose bytes are not in it")
    return RowGroup(group[_GROUP_ROWS][1], chunks)


class _FileParts:
    """The parts of a new file. They are joined once."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = [_MAGIC]
        self._size = len(_MAGIC)

    def put(self, part: bytes | memoryview) -> int:
        """Adds a part, and returns where it begins."""
        start = self._size
        self.parts.append(part)
        self._size += len(part)
        return start


def assemble(groups: Sequence[RowGroup], like: ParquetContent, metadata: Mapping[bytes, bytes]) -> pa.Buffer:
    """The content of a file with these row groups, and the schema and metadata of `like`, with `metadata` in it.

    The row groups must have that schema. It writes the bytes of all chunks, then their page indexes, then the footer.
    """
    out = _FileParts()
    moved = [[chunk.moved(out.put(chunk.pages())) for chunk in group.chunks] for group in groups]
    for place, size, index_of in (
        (_COLUMN_INDEX, _COLUMN_INDEX_SIZE, _column_index),
        (_OFFSET_INDEX, _OFFSET_INDEX_SIZE, _offset_index),
    ):
        for group, chunks in zip(groups, moved, strict=True):
            for number, chunk in enumerate(chunks):
                index = index_of(group.chunks[number], chunk)
                struct = {at: each for at, each in chunk.struct.items() if at not in (place, size)}
                if index is not None:
                    struct |= {place: (I64, out.put(index)), size: (I32, len(index))}
                chunks[number] = replace(chunk, struct=dict(sorted(struct.items())))
    structs = [_group_struct(group.rows, chunks) for group, chunks in zip(groups, moved, strict=True)]
    out.put(like.footer(structs, sum(group.rows for group in groups), metadata))
    return pa.py_buffer(b"".join(out.parts))


def _column_index(chunk: ColumnChunk, _: ColumnChunk) -> memoryview | None:
    """The ranges of the pages' values, which do not change."""
    return chunk.index(_COLUMN_INDEX, _COLUMN_INDEX_SIZE)


def _offset_index(chunk: ColumnChunk, moved: ColumnChunk) -> bytes | None:
    """Where the pages lie."""
    found = chunk.index(_OFFSET_INDEX, _OFFSET_INDEX_SIZE)
    if found is None:
        return None
    pages = read_struct(found)
    for page in pages[_PAGES][1][1]:
        page[_PAGE_OFFSET] = I64, page[_PAGE_OFFSET][1] + moved.start - chunk.start
    return write_struct(pages)


def _group_struct(rows: int, chunks: Sequence[ColumnChunk]) -> Struct:
    return {
        _COLUMNS: _list([chunk.struct for chunk in chunks]),
        _GROUP_BYTES: (I64, sum(chunk.uncompressed_size for chunk in chunks)),
        _GROUP_ROWS: (I64, rows),
        _GROUP_OFFSET: (I64, chunks[0].start),
        _GROUP_COMPRESSED: (I64, sum(chunk.compressed_size for chunk in chunks)),
    }
