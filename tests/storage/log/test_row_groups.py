"""Row groups: a partition with many records has its own, and large batches are split."""

import dataclasses

import pytest

from lakelog.replication.storage.log.segment import row_groups
from tests.storage.logs import P0, P1, header

MIB = 1 << 20
# What: batches as (rows, bytes); the rows of each row group.
CASES = {
    "nothing": ([], []),
    "empty records": ([(3, 0), (2, 0)], [5]),
    "small batches share": ([(10, 100), (10, 100)], [20]),
    "one ends at 1 MiB": ([(10, MIB), (10, 100)], [10, 10]),
    "two reach 1 MiB together": ([(10, MIB // 2), (5, MIB // 2), (1, 1)], [15, 1]),
    "a large batch does not wait for a small one": ([(1, 9), (8, 4 * MIB)], [1, 8]),
    "a large batch is split": ([(10, 9 * MIB), (3, 10)], [3, 3, 4, 3]),
    "a record is not split": ([(1, 30 * MIB)], [1]),
    "two large records": ([(2, 30 * MIB)], [1, 1]),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_each_row_group(case):
    batches, expected = CASES[case]
    headers = [dataclasses.replace(header(P0, 0, rows - 1), bytes=size) for rows, size in batches]
    assert row_groups(headers, sum(rows for rows, _ in batches)) == expected


def test_no_row_is_left_out_if_headers_tell_too_few():
    assert row_groups([header(P0, 0, 1), header(P1, 0, 1)], 7) == [7]
