"""Records to lines, with Kafka's properties."""

import pyarrow as pa
import pytest

from lakelog.jobs.console_consumer import RecordFormatter
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.schemas import LOG
from tests.storage.logs import NOON, log_rows

ROWS = [
    {"key": b"k", "value": b"v", "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]},
    {"key": None, "value": None, "headers": None},
]
TABLE = pa.Table.from_pylist([{**log_rows().to_pylist()[0], **row} for row in ROWS], LOG.arrow)
MS = int(NOON.timestamp() * 1000)
ALL = [(f"print.{name}", "true") for name in ("timestamp", "partition", "offset", "headers", "key", "value")]

LINES = [
    ([], b"v\nnull\n"),
    ([("print.value", "false")], b""),
    ([("print.key", "true")], b"k\tv\nnull\tnull\n"),
    ([("print.key", "true"), ("print.value", "false")], b"k\nnull\n"),
    ([("print.key", "true"), ("key.separator", ":"), ("line.separator", ";"), ("null.literal", "-")], b"k:v;-:-;"),
    ([("print.headers", "true"), ("headers.separator", "|")], b"a:1|b:null\tv\nNO_HEADERS\tnull\n"),
    (
        ALL,
        b"CreateTime:%d\tPartition:0\tOffset:0\ta:1,b:null\tk\tv\n" % MS
        + b"CreateTime:%d\tPartition:0\tOffset:0\tNO_HEADERS\tnull\tnull\n" % MS,
    ),
]


@pytest.mark.parametrize(("properties", "expected"), LINES)
def test_records_become_lines_by_the_properties(properties, expected):
    assert RecordFormatter(properties).lines(TABLE) == expected


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ([("print.keys", "true")], "there is no print.keys; did you mean print.key?"),
        ([("print.key", "1")], "print.key is '1', it must be true or false"),
    ],
)
def test_a_wrong_property_is_refused(properties, words):
    with pytest.raises(InvalidConfigurationException) as raised:
        RecordFormatter(properties)
    assert str(raised.value) == f"--formatter-property: {words}"


def test_a_header_without_a_key_that_is_in_a_log_is_shown():
    headers = [{"key": None, "value": b"1"}]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"headers": pa.array([headers], kind)})
    assert RecordFormatter([("print.headers", "true"), ("print.value", "false")]).lines(table) == b"null:1\n"
