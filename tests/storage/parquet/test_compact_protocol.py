"""Thrift's compact protocol: what is read and written again has the same bytes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.storage.parquet.compact_protocol import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    read_struct,
    write_struct,
)

# A struct, and its bytes by the specification of the protocol.
CASES = {
    "no field": ({}, "00"),
    "integers are zigzag": ({1: (I32, 1), 2: (I64, -1), 3: (I16, 64)}, "150216011480010" + "0"),
    "the least and the greatest integer": (
        {1: (I64, -(2**63)), 2: (I64, 2**63 - 1)},
        "16ffffffffffffffffff01" + "16feffffffffffffffff01" + "00",
    ),
    "a boolean lies in its type": ({1: (TRUE, True), 2: (FALSE, False)}, "111200"),
    "a byte": ({1: (BYTE, 7)}, "130700"),
    "a double": ({1: (DOUBLE, bytes(7) + b"\x40")}, "17000000000000004000"),
    "bytes": ({1: (BINARY, b"ab")}, "1802616200"),
    "a step of fifteen": ({15: (I32, 0)}, "f50000"),
    "a longer step": ({16: (I32, 0)}, "05200000"),
    "a list": ({1: (LIST, (I32, [1, 2]))}, "1925020400"),
    "a long list": ({1: (LIST, (I32, [0] * 15))}, "19f50f" + "00" * 15 + "00"),
    "a list of booleans": ({1: (LIST, (TRUE, [1, 2]))}, "1921010200"),
    "a struct in a struct": ({2: (STRUCT, {1: (I32, 3)}), 3: (I32, 0)}, "2c150600150000"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_struct_has_the_bytes_of_the_protocol(case):
    struct, content = CASES[case]
    assert write_struct(struct).hex() == content
    assert read_struct(bytes.fromhex(content)) == struct


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="nothing"),
        pytest.param("15", id="no value"),
        pytest.param("1502", id="no end"),
        pytest.param("18ff", id="no size"),
        pytest.param("18026100", id="too few bytes"),
        pytest.param("19f5ffffffffff0f", id="too few elements"),
        pytest.param("1b00", id="a map"),
        pytest.param("1e00", id="no type"),
        pytest.param("1c" * 100_000, id="too deep"),
    ],
)
def test_what_is_no_struct_is_refused(content):
    with pytest.raises(ValueError, match=r"struct|type|should follow"):
        read_struct(bytes.fromhex(content))


def test_a_footer_of_arrow_is_written_as_it_was_read():
    table = pa.table({"a": [1, None, 3], "b": [["x"], None, []], "c": [1.5, 2.5, None], "d": [True, False, None]})
    out = io.BytesIO()
    pq.write_table(table, out, write_page_index=True, sorting_columns=[pq.SortingColumn(0)])
    content = out.getvalue()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    assert write_struct(read_struct(footer)) == footer
