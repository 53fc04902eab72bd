"""The log cleaner leaves the records that a real Kafka has left, at their offsets. [LC-01]"""

import datetime as dt

import pyarrow as pa
import pytest

from lakelog.replication.protocol.log_cleaner import CleanerConfig, log_to_clean
from lakelog.replication.storage.log.log_cleaning import clean
from tests.cleanings import LIVES, Kept
from tests.storage.log.test_log_cleaning import MANY, rows
from tests.storage.logs import COLUMNS, NOON, P0, new_log, request, send

KAFKA = Kept.read()
NOW = int(NOON.timestamp() * 1_000_000)


def text(value):
    return None if value is None else value.decode()


def append(log, batches, age):
    """Appends batches whose records are so many ms old."""
    at = NOON - dt.timedelta(milliseconds=age)
    for each in batches:
        known = log.refresh().partition(P0).producers.get(7)
        records = [{"key": key, "value": value, "timestamp": at, "headers": None} for key, value in each]
        wanted = request(P0, len(each), known.next_sequence if known else 0)
        send(log, wanted, tables={P0: pa.Table.from_pylist(records, COLUMNS)})


@pytest.mark.parametrize("name", LIVES)
def test_lc_01_each_cleaning_leaves_what_it_leaves_in_kafka(root, name):
    life, log = LIVES[name], new_log(root, P0)
    config = CleanerConfig(0.0, life.lag, 2**63 - 1, life.retention)
    for number, expected in enumerate(KAFKA.rows[name]):
        append(log, life.batches(number), life.age(number))
        known = log.refresh().partition(P0)
        wanted = log_to_clean(known, known.log_end_offset, NOW + number, config)
        if wanted and number >= life.plain_rounds:
            assert clean(log, P0, wanted, life.retention, NOW + number, MANY, "test")
        assert [(offset, text(key), text(value)) for offset, key, value in rows(log)] == expected


def test_kafka_has_lived_all_lives():
    assert KAFKA.rows.keys() == LIVES.keys()
    assert all(len(KAFKA.rows[name]) == len(life.rounds) for name, life in LIVES.items())
