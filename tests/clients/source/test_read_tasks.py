"""How planned rows are split into tasks, and how a task goes on after a file that is broken."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakelog.replication.clients.source.read_plan import PlannedRows, tasks_of
from lakelog.replication.clients.source.topic_reader import read_task
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import segment
from lakelog.replication.storage.log.partition_rows import RowRange, SegmentFile
from lakelog.replication.storage.log.segment import write_segment
from lakelog.schemas import LOG
from tests.storage.log.test_partition_rows import HEADERS, ROWS, break_row_group, rows_in
from tests.storage.logs import P0, P1

MB = 1024 * 1024
END = LogEnd(1_000, "chain")


def planned(*sizes, segment="s", size=MB):
    """Rows of a partition each, one after the other in a segment."""
    file = SegmentFile(StorageRoot.of("/r"), segment, 1, sum(sizes))
    found, row = [], 0
    for number, records in enumerate(sizes):
        rows = RowRange(file, TopicIdPartition("id", number), 100, 100 + records, row, records)
        found.append(PlannedRows(rows, "t", size, END))
        row += records
    return found


def read(tasks):
    """The records of tasks: segment, row, partition and offset of each."""
    return [
        (each.file.name, each.row + index, each.topic_id_partition.partition, each.start + index)
        for task in tasks
        for each in (found.rows for found in task)
        for index in range(each.offsets)
    ]


@pytest.mark.parametrize(
    ("sizes", "least", "most", "expected"),
    [
        ((10,), None, None, [10]),
        ((5, 5), 2, None, [5, 5]),
        ((10,), 3, None, [3, 3, 4]),
        ((7, 4), 3, None, [3, 4, 4]),
        ((10,), None, 4, [3, 3, 4]),
        ((10,), 5, 4, [2, 2, 2, 2, 2]),
        ((2,), 5, None, [1, 1]),
        ((), 5, None, []),
        ((), None, None, []),
    ],
)
def test_tasks_have_each_record_once_and_the_wanted_size(sizes, least, most, expected):
    given = planned(*sizes)
    tasks = tasks_of(given, least, most)
    assert [sum(each.rows.offsets for each in task) for task in tasks] == expected
    assert read(tasks) == read([given])


def test_a_segment_is_read_by_one_task_and_a_task_has_about_64_mb():
    given = [each for name in "cab" for each in planned(3, 4, segment=name, size=20 * MB)]
    tasks = tasks_of(given)
    assert [sorted({each.rows.file.name for each in task}) for task in tasks] == [["a", "b"], ["c"]]
    assert sorted(read(tasks)) == sorted(read([given]))


def test_records_after_a_broken_row_group_are_planned_anew_and_those_before_are_given_once(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "row_groups", lambda *_: [2, 3, 2, 1])
    broken, other = (StorageRoot.of(str(tmp_path / name)) for name in ("broken", "other"))
    for root in (broken, other):
        Path(root.uri).mkdir()
    written = {root: write_segment(root, 1, ROWS, HEADERS) for root in (broken, other)}
    break_row_group(broken, written[broken], 1)

    def plan(root):
        found = [rows for key in (P0, P1) for rows in rows_in(root, written[root], key)]
        return [PlannedRows(rows, "t", MB, END) for rows in found]

    def moved(rows):
        return rows._replace(file=SegmentFile.of(other, written[other]))

    asked = []

    def find_again(lost):
        asked.append((lost.topic_partition.partition, lost.rows.start, lost.rows.stop))
        (found,) = (each for each in plan(other) if each.rows.part(lost.rows.start, lost.rows.stop) == moved(lost.rows))
        return [found.part(lost.rows.start, lost.rows.stop)]

    schema = pa.schema([LOG.arrow.field(name) for name in ("partition", "offset", "value")])
    batches = list(read_task(plan(broken), schema, find_again))
    assert pa.Table.from_batches(batches).to_pylist() == ROWS.select(schema.names).to_pylist()
    assert asked == [(0, 4, 6), (0, 9, 10), (1, 0, 3)]


def test_a_file_with_fewer_rows_than_its_headers_say_is_an_error_that_names_it(tmp_path):
    root = StorageRoot.of(str(tmp_path))
    written = write_segment(root, 1, ROWS.slice(0, 7), HEADERS)
    planned = [PlannedRows(rows, "t", MB, END) for rows in rows_in(root, written, P1)]
    with pytest.raises(CorruptRecordException, match=f"{written.name}: has 0 of the records 2 to 2 of t-1"):
        list(read_task(planned, LOG.arrow, lambda _: planned, moves=1))
