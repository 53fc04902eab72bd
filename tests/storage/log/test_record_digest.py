"""The digest of records: the same in every layout, and different as soon as one record differs."""

import dataclasses
import datetime as dt
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.record_digest import check_digest, record_digest
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, rows_of, write_segment
from lakelog.replication.storage.log.truncate import delete_logs
from lakelog.schemas import LOG
from tests.storage.logs import COLUMNS, NOON, P0, P1, fill, header, log_rows, new_log, numbered, request, send

US = dt.timedelta(microseconds=1)
PAIR = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
ROWS = [
    {"key": b"k", "value": b"first", "timestamp": NOON, "headers": None},
    {"key": None, "value": b"", "timestamp": NOON + US, "headers": []},
    {"key": b"", "value": None, "timestamp": NOON, "headers": PAIR},
    {"key": b"long" * 99, "value": b"\x00\xff", "timestamp": NOON + 2 * US, "headers": [{"key": "", "value": b""}]},
]


def table(rows, schema=COLUMNS):
    return pa.Table.from_pylist(rows, schema)


WHOLE = record_digest(table(ROWS))


def in_parquet(rows, **options):
    content = io.BytesIO()
    pq.write_table(rows, content, **options)
    return pq.read_table(content)


def typed(rows, name, wanted):
    """A column of another type, as Spark may hand it over."""
    return rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(wanted))


def with_more_around(rows):
    """A slice of a larger table: its buffers hold also what is not in it."""
    other = table([{**ROWS[0], "value": b"around"}])
    return pa.concat_tables([other, rows, other]).combine_chunks().slice(1, rows.num_rows)


@pytest.mark.parametrize(
    "laid",
    [
        pytest.param(lambda rows: pa.concat_tables([rows.slice(n, 1) for n in range(4)]), id="a chunk a record"),
        pytest.param(lambda rows: pa.concat_tables([rows.slice(0, 3), rows.slice(3)]), id="in two chunks"),
        pytest.param(lambda rows: pa.concat_tables([rows.slice(0, 3), rows.slice(3)]).combine_chunks(), id="combined"),
        pytest.param(lambda rows: pa.concat_tables([rows.slice(0, 0), rows, rows.slice(4)]), id="empty chunks"),
        pytest.param(with_more_around, id="a slice of a larger table"),
        pytest.param(lambda rows: with_more_around(with_more_around(rows)), id="a slice of a slice"),
        pytest.param(lambda rows: rows.select(["headers", "timestamp", "value", "key"]), id="columns in another order"),
        pytest.param(lambda rows: rows.append_column("offset", pa.array(range(4))), id="with other columns"),
        pytest.param(in_parquet, id="out of a file"),
        pytest.param(lambda rows: in_parquet(rows, row_group_size=1), id="out of a file of small groups"),
        pytest.param(lambda rows: in_parquet(rows, use_dictionary=False, compression="none"), id="of another encoding"),
        pytest.param(lambda rows: rows.take([3, 2, 1, 0]).take([3, 2, 1, 0]), id="put in order again"),
        pytest.param(lambda rows: rows.filter(pa.array([True] * 4)), id="filtered"),
        pytest.param(lambda rows: typed(rows, "key", pa.large_binary()), id="keys of Arrow's large type"),
        pytest.param(lambda rows: typed(rows, "value", pa.large_binary()), id="values of Arrow's large type"),
        pytest.param(lambda rows: typed(rows, "timestamp", pa.timestamp("us", "Asia/Tokyo")), id="in another zone"),
    ],
)
def test_tr_08_the_same_records_have_one_digest_however_they_lie(laid):
    assert record_digest(laid(table(ROWS))) == WHOLE


def changed(number, **fields):
    return [{**row, **fields} if index == number else row for index, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(changed(0, key=b"l"), id="a key"),
        pytest.param(changed(0, key=None), id="no key"),
        pytest.param(changed(0, key=b""), id="an empty key"),
        pytest.param(changed(1, key=b""), id="empty for no key"),
        pytest.param(changed(2, key=None), id="no key for an empty one"),
        pytest.param(changed(0, value=b"First"), id="a value"),
        pytest.param(changed(0, value=b"first\x00"), id="a longer value"),
        pytest.param(changed(1, value=None), id="no value for an empty one"),
        pytest.param(changed(2, value=b""), id="an empty value for none"),
        pytest.param(changed(0, key=b"kf", value=b"irst"), id="a byte moved from value to key"),
        pytest.param(changed(0, key=b"first", value=b"k"), id="key and value swapped"),
        pytest.param([{**ROWS[0], "value": b"firs"}, {**ROWS[1], "value": b"t"}, *ROWS[2:]], id="moved to the next"),
        pytest.param(changed(0, timestamp=NOON + US), id="a microsecond"),
        pytest.param(changed(0, headers=[]), id="empty headers for none"),
        pytest.param(changed(1, headers=None), id="no headers for empty ones"),
        pytest.param(changed(2, headers=PAIR[:1]), id="a header is missing"),
        pytest.param(changed(2, headers=PAIR[::-1]), id="headers swapped"),
        pytest.param(changed(2, headers=[{**PAIR[0], "key": "A"}, PAIR[1]]), id="a header's key"),
        pytest.param(changed(2, headers=[{**PAIR[0], "value": b"2"}, PAIR[1]]), id="a header's value"),
        pytest.param(changed(2, headers=[PAIR[0], {**PAIR[1], "value": b""}]), id="a header's empty value for none"),
        pytest.param(changed(2, headers=[{"key": "a1", "value": b""}, PAIR[1]]), id="a byte moved within a header"),
        pytest.param([ROWS[0], {**ROWS[1], "headers": PAIR}, {**ROWS[2], "headers": []}, ROWS[3]], id="to another's"),
        pytest.param([ROWS[1], ROWS[0], *ROWS[2:]], id="records swapped"),
        pytest.param(ROWS[:3], id="one is missing"),
        pytest.param([*ROWS, ROWS[3]], id="one is there twice"),
    ],
)
def test_tr_08_other_records_have_another_digest(rows):
    assert record_digest(table(rows)) != WHOLE


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([{**row, "headers": None} for row in ROWS], id="no headers"),
        pytest.param([{**row, "key": None, "value": None} for row in ROWS], id="neither keys nor values"),
        pytest.param([], id="no records"),
    ],
)
def test_tr_08_columns_that_hold_nothing_have_a_digest_too(rows):
    one = record_digest(table(rows))
    assert record_digest(in_parquet(table(rows))) == record_digest(with_more_around(table(rows))) == one
    assert one != WHOLE


def test_tr_08_the_digest_is_of_the_values_and_not_of_their_place():
    """Offset, topic and epoch stand in the header, and are part of the chain there."""
    assert record_digest(log_rows(P0, 7, 3, epoch=5)) == record_digest(log_rows(P1, 0, 3)) == record_digest(numbered(3))


def digests_hold(log, *partitions):
    """Whether each batch of a log has the records that its header was written for, as they are read from files."""
    state = log.refresh()
    for partition in partitions:
        for batch in state.partition(partition).batches:
            header = batch.header
            rows = rows_of(read_records(log.root, batch.segment), partition, header.base_offset, header.next_offset)
            check_digest(header, rows, batch.segment)
    return True


def test_tr_08_na_04_digests_hold_over_files_compaction_and_truncations(root):
    log = new_log(root, P0, P1)
    for number in range(4):
        send(log, request(P0, 3, 3 * number), request(P1, 2, 2 * number), tables={P0: table(ROWS[:3]), P1: numbered(2)})
    assert digests_hold(log, P0, P1)
    assert compact(log, 1 << 25, 2, 1 << 28, "test") == 4
    assert digests_hold(log, P0, P1)
    fill(log, P0, 2)
    log.become({P1: log.current().partition(P1).role._replace(kind=3)}, "test")
    delete_logs(log, [P1], "test")
    assert digests_hold(ReplicaLog.open(log.root), P0)


def test_tr_08_records_that_are_not_those_of_the_header_name_file_partition_and_offsets(root):
    storage, sound = StorageRoot.of(root), header(P0, 5, 6)
    rows = log_rows(P0, 5, 2)
    path = write_segment(storage, 1, rows, [sound]).name
    check_digest(sound, rows, path)
    with pytest.raises(CorruptRecordException, match="offsets 5 to 7 do not"):
        check_digest(dataclasses.replace(sound, last_offset=7), rows, path)
    other = rows.set_column(rows.schema.get_field_index("value"), LOG.arrow.field("value"), pa.array([b"0", b"!"]))
    for wrong in (other, rows.slice(0, 1), pa.concat_tables([rows, rows])):
        with pytest.raises(CorruptRecordException, match=f"{path}: flights-0: the records at offsets 5 to 6 do not"):
            check_digest(sound, wrong, path)
