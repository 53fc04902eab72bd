"""Lines to records, with Kafka's properties."""

import pytest

from lakelog.jobs.console_producer import LineReader, LineRecord
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException

KEY, HEADERS = ("parse.key", "true"), ("parse.headers", "TRUE")
BOTH = [KEY, HEADERS]
# Properties and a line; the value, the key and the headers of its record.
LINES = [
    ([], b"v\n", (b"v", None, None)),
    ([], b"v\r\n", (b"v", None, None)),
    ([], b"\n", (b"", None, None)),
    ([], b"\xff\tk", (b"\xff\tk", None, None)),
    ([KEY], b"k\tv\tw\n", (b"v\tw", b"k", None)),
    ([KEY], b"\tv", (b"v", b"", None)),
    ([KEY, ("key.separator", "::")], b"k:::v", (b":v", b"k", None)),
    ([HEADERS], b"a:1,b:\tv", (b"v", None, [("a", b"1"), ("b", b"")])),
    (BOTH, b"a:1:2\tk\tv", (b"v", b"k", [("a", b"1:2")])),
    (
        [*BOTH, ("headers.delimiter", "|"), ("headers.separator", ";"), ("headers.key.separator", "=")],
        b"a=1;b=2|k\tv",
        (b"v", b"k", [("a", b"1"), ("b", b"2")]),
    ),
    ([*BOTH, ("null.marker", "-")], b"-\t-\t-", (None, None, None)),
    ([*BOTH, ("null.marker", "-")], b"a:-\tk\tv", (b"v", b"k", [("a", None)])),
    ([KEY, ("ignore.error", "true")], b"v", (b"v", None, None)),
    ([*BOTH, ("ignore.error", "true")], b"a\tv", (b"v", None, [("a", None)])),
]


@pytest.mark.parametrize(("properties", "line", "expected"), LINES)
def test_a_line_becomes_a_record_by_the_properties(properties, line, expected):
    value, key, headers = expected
    assert list(LineReader(properties).records([line])) == [LineRecord(value, key, headers)]


WRONG_LINES = [
    ([KEY], b"x", "line 2 has no key.separator: 'x'"),
    ([HEADERS], b"a:1", "line 2 has no headers.delimiter: 'a:1'"),
    ([HEADERS], b"a\tv", "line 2: a header has no headers.key.separator: 'a'"),
    ([HEADERS, ("null.marker", "-")], b"-:1\tv", "line 2: the name of a header is the null.marker: '-:1'"),
    ([HEADERS], b"\xff:1\tv", r"line 2: the name of a header is not UTF-8: '\\xff:1'"),
]


@pytest.mark.parametrize(("properties", "line", "words"), WRONG_LINES)
def test_a_wrong_line_is_named_after_the_records_before_it(properties, line, words):
    records = LineReader(properties).records([b"a:1\tk\tv", line])
    assert next(records).value in (b"k\tv", b"v")
    with pytest.raises(InvalidRecordException) as raised:
        next(records)
    assert str(raised.value) == words


WRONG_PROPERTIES = [
    ([("parse.keys", "true")], "there is no parse.keys; did you mean parse.key?"),
    ([("x", "true")], "there is no x; known: parse.key, key.separator"),
    ([("parse.key", "yes")], "parse.key is 'yes', it must be true or false"),
    ([("headers.delimiter", ",")], "headers.delimiter and headers.separator may not be equal"),
    ([("null.marker", "\t")], "null.marker and key.separator may not be equal"),
    ([("key.separator", "")], "key.separator is empty"),
]


@pytest.mark.parametrize(("properties", "words"), WRONG_PROPERTIES)
def test_a_wrong_property_is_refused(properties, words):
    with pytest.raises(InvalidConfigurationException) as raised:
        LineReader(properties)
    assert str(raised.value).startswith(f"--reader-property: {words}")
