"""A reader detects wrong records. Repeated work ends when it is stopped, and reports the error that ended it."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.faults.number_producer import AcknowledgedRecord, RepeatedWork, Waits
from lakelog.verification.faults.soak_load import LoadReader
from tests.jobs.admin.one_partition import one_partition, publish, start_at, write
from tests.processes import wait_until
from tests.storage.logs import TOPIC


@pytest.fixture
def reader(tmp_path: Path) -> LoadReader:
    format_cluster(StorageRoot.of(str(tmp_path)), Config())
    return LoadReader(str(tmp_path), "t", 2)


def records(*offsets: int) -> pa.Table:
    return pa.table({"offset": offsets, "value": [str(100 + offset).encode() for offset in offsets]})


@pytest.mark.parametrize(
    ("batches", "out_of_order"),
    [
        pytest.param([(0, 1), (2, 3)], 0, id="in order"),
        pytest.param([(0, 1), (1, 2)], 1, id="one again"),
        pytest.param([(0, 1), (3, 4)], 1, id="a gap"),
        pytest.param([(0, 2, 1)], 2, id="out of order"),
        pytest.param([(1, 2)], 1, id="not from the beginning"),
    ],
)
def test_fe_01_each_record_is_the_next_one(
    reader: LoadReader, batches: list[tuple[int, ...]], out_of_order: int
) -> None:
    for batch in batches:
        reader.take(1, records(*batch))
    offsets = [offset for batch in batches for offset in batch]
    assert reader.out_of_order == out_of_order
    assert reader.seen == [AcknowledgedRecord(1, offset, 100 + offset) for offset in offsets]
    assert reader.positions == {0: 0, 1: offsets[-1] + 1}


def test_what_cannot_be_read_now_is_read_later(reader: LoadReader) -> None:
    assert not reader.work()
    assert dict(reader.errors) == {"UnknownTopicOrPartitionException": 2}
    assert reader.positions == {0: 0, 1: 0}


def test_fe_02_dr_01_a_reader_goes_on_where_the_log_begins_now(tmp_path: Path) -> None:
    """Only then: it does not follow a log end that has fallen back."""
    cluster = one_partition(tmp_path)
    write(cluster, 1, 10, 11, 12)
    start_at(cluster, 1, 2)
    publish(cluster, 3)
    reader = LoadReader(cluster.root.uri, TOPIC, 1)
    assert not reader.work()
    assert (reader.skipped, reader.seen) == (2, [])
    assert reader.work()
    assert (reader.out_of_order, reader.seen) == (0, [AcknowledgedRecord(0, 2, 12)])
    reader.positions[0] = 5
    reader.work()
    assert (reader.positions, reader.skipped) == ({0: 5}, 2)
    assert dict(reader.errors) == {"OffsetOutOfRangeException": 2}


class Counting(RepeatedWork):
    """Counts, and fails at a number."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__("counting", 0.001)
        self.count = 0
        self._fails_at = fails_at

    def work(self) -> bool:
        self.count += 1
        if self.count == self._fails_at:
            raise ArithmeticError(f"no {self.count}")
        return self.count % 2 == 0


def test_work_is_repeated_until_it_is_stopped() -> None:
    work = Counting()
    work.start()
    wait_until(lambda: work.count >= 3, "it was done three times")
    work.check()
    work.stop()
    done = work.count
    work.check()
    assert work.count == done
    assert len(work.waits.all) == (done + 1) // 2  # every other call fails


def test_what_ends_the_work_is_told_to_whoever_asks() -> None:
    work = Counting(fails_at=2)
    work.start()
    wait_until(lambda: work.count == 2, "it was done twice")
    with pytest.raises(ArithmeticError, match="no 2"):
        work.stop()
    with pytest.raises(ArithmeticError, match="no 2"):
        work.check()


@pytest.mark.parametrize(
    ("events", "longest"),
    [
        pytest.param("b0", None, id="nothing has happened yet"),
        pytest.param("b0 s1 b5 s9 b20 s22", (5, 4), id="the longest of several"),
        pytest.param("b0 s1 b5 f7 b8 f10 b11 s12 b13 s14", (5, 7), id="from the first try, which was in vain"),
        pytest.param("b0 s1 b5 f7 b8 f19", (5, 14), id="not over yet"),
    ],
)
def test_the_longest_wait_ends_with_a_success(events: str, longest: tuple[float, float] | None) -> None:
    waits = Waits()
    told = {"b": waits.begins, "f": waits.failed, "s": waits.succeeded}
    for event in events.split():
        told[event[0]](float(event[1:]))
    assert waits.longest == longest
