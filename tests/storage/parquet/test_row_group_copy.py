"""Row groups and columns go from file to file as they are, and every reader finds them."""

import itertools
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lakelog.replication.storage.parquet.compact_protocol import BINARY, I64, read_struct, write_struct
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, assemble

ROWS, PER_GROUP = 3000, 1000


def table(seed: int) -> pa.Table:
    """Columns of all kinds of pages: dictionary, plain, delta, nested, with and without nulls."""
    random = Random(seed)
    return pa.table(
        {
            "offset": pa.array(range(seed * ROWS, (seed + 1) * ROWS)),
            "value": pa.array([random.randbytes(random.randrange(300)) or None for _ in range(ROWS)], pa.binary()),
            "topic": pa.array([random.choice("abc") for _ in range(ROWS)]),
            "headers": pa.array(
                [[{"key": "k", "value": random.randbytes(3)}] * random.randrange(3) or None for _ in range(ROWS)],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def written(rows: pa.Table, **options: object) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pq.write_table(
        rows, out, row_group_size=PER_GROUP, use_dictionary=["topic"], data_page_size=4096, write_batch_size=100,
        column_encoding={"offset": "DELTA_BINARY_PACKED"}, write_page_checksum=True,
        **{"compression": "zstd", "write_page_index": True, **options},
    )  # fmt: skip
    return out.getvalue()


def read(content: pa.Buffer) -> pa.Table:
    return pq.read_table(pa.BufferReader(content), page_checksum_verification=True)


@pytest.mark.parametrize("options", [{}, {"write_page_index": False}, {"compression": "none"}], ids=str)
def test_row_groups_of_several_files_are_one_file(options):
    tables = [table(seed) for seed in range(3)]
    files = [ParquetContent(written(each, **options)) for each in tables]
    content = assemble([group for file in files for group in file.row_groups], files[0], {b"key": b"value"})
    assert read(content).equals(pa.concat_tables(tables))
    footer = pq.read_metadata(pa.BufferReader(content))
    assert (footer.num_rows, footer.num_row_groups, footer.metadata[b"key"]) == (9000, 9, b"value")
    assert footer.row_group(8).column(0).statistics.max == 8999


def test_any_row_groups_in_any_order():
    first, second = (ParquetContent(written(table(seed))) for seed in (0, 1))
    content = assemble([second.row_groups[2], first.row_groups[1]], first, {})
    assert read(content)["offset"].to_pylist() == [*range(5000, 6000), *range(1000, 2000)]
    again = ParquetContent(content)
    assert read(assemble(again.row_groups[1:], again, {})).equals(table(0).slice(1000, 1000))


def test_the_page_index_leads_to_the_pages(spark, tmp_path):
    """Spark skips pages by it, and so reads wrong bytes if it is wrong."""
    files = [ParquetContent(written(table(seed))) for seed in range(3)]
    content = assemble([group for file in files for group in file.row_groups], files[0], {})
    (tmp_path / "a.parquet").write_bytes(content)
    wanted = "offset in (5, 1500, 4321, 4322, 8999) or offset between 7100 and 7110"
    found = spark.read.parquet(str(tmp_path)).where(wanted).orderBy("offset").toArrow()
    rows = pa.concat_tables(table(seed) for seed in range(3))
    expected = rows.take([5, 1500, 4321, 4322, *range(7100, 7111), 8999])
    assert found.to_pylist() == expected.to_pylist()
    assert (
        ds.dataset(tmp_path).to_table(filter=pc.field("offset") == 4321).to_pylist() == rows.slice(4321, 1).to_pylist()
    )


def test_columns_of_two_files_lie_beside_each_other():
    rows, others = table(0), table(7)
    names, whole = rows.column_names, ParquetContent(written(rows))
    file, other = (
        ParquetContent(written(others.select(["headers", "value"]))),
        ParquetContent(written(rows.select(["topic", "offset"]))),
    )
    pairs = zip(file.row_groups, other.row_groups, strict=True)
    content = assemble([ours.with_columns_of(theirs, names) for ours, theirs in pairs], whole, {})
    expected = rows.set_column(1, "value", others["value"]).set_column(3, "headers", others["headers"])
    assert read(content).equals(expected)


def test_columns_with_another_number_of_rows_are_refused():
    file, shorter = (ParquetContent(written(table(0).slice(start))) for start in (0, 2500))
    with pytest.raises(ValueError, match="of 500 rows cannot give columns to one of 1000"):
        file.row_groups[0].with_columns_of(shorter.row_groups[0], table(0).column_names)


def changed(content: bytes, change) -> bytes:
    """A file with another footer."""
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = read_struct(content[start:])
    change(footer)
    new = write_struct(footer)
    return content[:start] + new + len(new).to_bytes(4, "little") + b"PAR1"


def first_chunk(footer):
    return footer[4][1][1][0][1][1][1][0]


def with_field(field, value):
    """A file whose first column chunk has another ColumnMetaData."""
    return lambda content: changed(content, lambda footer: first_chunk(footer)[3][1].update({field: (I64, value)}))


NO_PARQUET, OUTSIDE = "is not Parquet", "has a column whose bytes are not in it"
FAULTS = {
    "nothing": (lambda _: b"", NO_PARQUET),
    "another beginning": (lambda content: b"x" * 4 + content[4:], NO_PARQUET),
    "another end": (lambda content: content[:-4] + b"x" * 4, NO_PARQUET),
    "encrypted": (lambda content: b"PARE" + content[4:-4] + b"PARE", NO_PARQUET),
    "a footer larger than the file": (lambda content: content[:-8] + b"\xff\xff\xff\x7f" + content[-4:], NO_PARQUET),
    "a torn footer": (lambda content: content[:-40] + content[-8:], "struct|type|follow|field"),
    "no rows in a row group": (
        lambda content: changed(content, lambda footer: footer[4][1][1][0].pop(3)), "lacks a field: KeyError.3",
    ),
    "a column in another file": (
        lambda content: changed(content, lambda footer: first_chunk(footer).update({1: (BINARY, b"/a")})), OUTSIDE,
    ),
    "a column outside of the file": (with_field(9, 1 << 40), OUTSIDE),
    "a column before the file": (with_field(9, -5), OUTSIDE),
    "a column of a negative size": (with_field(7, -5), OUTSIDE),
}  # fmt: skip


@pytest.mark.parametrize("place", [0, -1])
def test_a_dictionary_that_is_not_there_may_have_a_place(place):
    """Some writers give 0 instead of leaving the field out, and readers take that."""
    content = written(table(0)).to_pybytes()
    file = ParquetContent(
        pa.py_buffer(changed(content, lambda footer: first_chunk(footer)[3][1].update({11: (I64, place)})))
    )
    assert read(assemble(file.row_groups, file, {})).equals(table(0))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_whose_parts_cannot_be_copied_is_refused(fault):
    spoil, text = FAULTS[fault]
    with pytest.raises(ValueError, match=text):
        ParquetContent(pa.py_buffer(spoil(written(table(0)).to_pybytes())))


def test_a_footer_says_of_copied_row_groups_what_arrow_says_of_written_ones():
    """parquet-java plans its reads by the place and the size of row groups."""
    file = ParquetContent(written(table(0)))
    contents = assemble(file.row_groups, file, {}), written(table(0))
    copied, arrow = (pq.read_metadata(pa.BufferReader(content)) for content in contents)
    assert [facts(copied, number) for number in range(3)] == [facts(arrow, number) for number in range(3)]
    assert copied.metadata == arrow.metadata
    places = [[(group[5], group[6]) for group in ParquetContent(content)._footer[4][1][1]] for content in contents]
    assert places[0] == places[1]


def facts(footer, number):
    group = footer.row_group(number)
    columns = (group.column(n) for n in range(group.num_columns))
    return group.to_dict() | {"indexes": [(each.has_column_index, each.has_offset_index) for each in columns]}


def test_spark_splits_a_file_of_copied_row_groups(spark, tmp_path):
    files = [ParquetContent(written(table(seed))) for seed in range(3)]
    content = assemble([group for file in files for group in file.row_groups], files[0], {})
    (tmp_path / "a.parquet").write_bytes(content)
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(content.size // 5))
    try:
        rows = spark.read.parquet(str(tmp_path))
        assert rows.rdd.getNumPartitions() > 3
        assert rows.orderBy("offset").toArrow()["offset"].to_pylist() == list(range(3 * ROWS))
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_a_file_whose_footer_is_unlike_arrows_is_read(spark, tmp_path):
    """Spark's files have other optional fields."""
    rows = table(3)
    spark.createDataFrame(rows).coalesce(1).write.parquet(str(tmp_path / "spark"))
    (path,) = (tmp_path / "spark").glob("*.parquet")
    file = ParquetContent(pa.py_buffer(path.read_bytes()))
    content = assemble(list(itertools.chain(file.row_groups, file.row_groups)), file, {})
    assert read(content).to_pylist() == rows.to_pylist() * 2
