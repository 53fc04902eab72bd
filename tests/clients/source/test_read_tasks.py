"""How planned rows are split into tasks."""

import pytest

from lakelog.replication.clients.source.read_plan import PlannedRows, tasks_of
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.partition_rows import RowRange, SegmentFile

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


def test_a_segment_is_read_by_one_task_and_a_task_has_about_32_mb():
    given = [each for name in "cab" for each in planned(3, 4, segment=name, size=10 * MB)]
    tasks = tasks_of(given)
    assert [sorted({each.rows.file.name for each in task}) for task in tasks] == [["a", "b"], ["c"]]
    assert sorted(read(tasks)) == sorted(read([given]))
