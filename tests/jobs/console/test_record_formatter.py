"""Records to lines, with Kafka's formatters and properties."""

import base64
import json

import pyarrow as pa
import pytest

from lakelog.jobs.console_consumer import formatter_of
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException
from lakelog.schemas import LOG
from tests.storage.logs import NOON, log_rows

ROWS = [
    {"key": b"k", "value": b"v", "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]},
    {"key": None, "value": None, "headers": None},
]
TABLE = pa.Table.from_pylist([{**log_rows().to_pylist()[0], **row} for row in ROWS], LOG.arrow)
MS = int(NOON.timestamp() * 1000)
ALL = [(f"print.{name}", "true") for name in ("timestamp", "partition", "offset", "epoch", "headers", "key", "value")]

LINES = [
    ([], b"v\nnull\n"),
    ([("print.value", "false")], b""),
    ([("print.key", "true")], b"k\tv\nnull\tnull\n"),
    ([("print.key", "true"), ("print.value", "false")], b"k\nnull\n"),
    ([("print.key", "true"), ("key.separator", ":"), ("line.separator", ";"), ("null.literal", "-")], b"k:v;-:-;"),
    ([("print.headers", "true"), ("headers.separator", "|")], b"a:1|b:null\tv\nNO_HEADERS\tnull\n"),
    (
        ALL,
        b"CreateTime:%d\tPartition:0\tOffset:0\tEpoch:0\ta:1,b:null\tk\tv\n" % MS
        + b"CreateTime:%d\tPartition:0\tOffset:0\tEpoch:0\tNO_HEADERS\tnull\tnull\n" % MS,
    ),
]


@pytest.mark.parametrize(("properties", "expected"), LINES)
def test_records_become_lines_by_the_properties(properties, expected):
    assert formatter_of("default", properties).lines(TABLE) == expected
    assert formatter_of("noop", properties).lines(TABLE) == b""


@pytest.mark.parametrize(
    ("name", "properties", "words"),
    [
        ("default", [("print.keys", "true")], "there is no print.keys; did you mean print.key?"),
        ("noop", [("print.key", "1")], "print.key is '1', it must be true or false"),
        ("json", [("print.key", "true")], "there is no print.key; known: encoding"),
        ("json", [("encoding", "hex")], "encoding is 'hex', it must be text or base64"),
    ],
)
def test_a_wrong_property_is_refused(name, properties, words):
    with pytest.raises(InvalidConfigurationException) as raised:
        formatter_of(name, properties)
    assert str(raised.value) == f"--formatter-property: {words}"


def test_a_header_without_a_key_that_is_in_a_log_is_shown():
    headers = [{"key": None, "value": b"1"}]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"headers": pa.array([headers], kind)})
    assert formatter_of("default", [("print.headers", "true"), ("print.value", "false")]).lines(table) == b"null:1\n"


def test_the_logging_formatter_also_tells_of_each_record_on_stderr(capsys):
    assert formatter_of("logging", [("print.key", "true")]).lines(TABLE) == b"k\tv\nnull\tnull\n"
    said = [f"CreateTime:{MS}, key:k, value:v", f"CreateTime:{MS}, key:null, value:null"]
    assert capsys.readouterr().err.splitlines() == said


PLACE = {"topic": "flights", "partition": 0, "offset": 0, "timestamp": "2026-01-01T12:00:00.000000Z", "leader_epoch": 0}


def b64(content):
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("properties", [[], [("encoding", "text")], [("encoding", "base64")]])
def test_json_has_an_object_for_each_record(properties):
    shown = b64 if ("encoding", "base64") in properties else bytes.decode
    headers = [{"key": "a", "value": shown(b"1")}, {"key": "b", "value": None}]
    assert [json.loads(line) for line in formatter_of("json", properties).lines(TABLE).splitlines()] == [
        {**PLACE, "headers": headers, "key": shown(b"k"), "value": shown(b"v")},
        {**PLACE, "headers": [], "key": None, "value": None},
    ]


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("key", {"key": b"\xff"}),
        ("value", {"value": b"\xc3"}),
        ("header", {"headers": [{"key": "a", "value": b"\x80"}]}),
    ],
)
def test_bytes_that_are_no_text_are_refused_as_text_and_taken_as_base64(part, changes):
    table = pa.Table.from_pylist([{**TABLE.to_pylist()[0], **changes}], LOG.arrow)
    words = f"flights-0, offset 0: the {part} is not UTF-8: give --formatter-property encoding=base64"
    with pytest.raises(InvalidRecordException, match=words):
        formatter_of("json", []).lines(table)
    assert formatter_of("json", [("encoding", "base64")]).lines(table).count(b"\n") == 1
