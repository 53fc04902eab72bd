"""The page of records: where it begins, how it goes on, what it refuses to read, and that no text becomes HTML."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from lakelog.jobs.web import record_pages
from lakelog.jobs.web.record_pages import shown_value
from lakelog.replication.protocol.log_cleaner import CleanerConfig, log_to_clean
from lakelog.replication.storage.log.log_cleaning import clean
from tests.clients.world import World
from tests.jobs.web.conftest import BIG, DOCUMENT, EVIL, RECORDS, Open, client_of, opened, table
from tests.jobs.web.html_page import HtmlPage
from tests.storage.logs import NOON, P0, fill, replicate, request, send

END = 3 + len(RECORDS)
PAGE = "/topics/flights/messages"


def offsets(page: HtmlPage) -> list[tuple[int, int]]:
    return [(int(row[0]), int(row[1])) for row in page.rows[1:]]


def next_page(client: TestClient, page: HtmlPage, rel: str) -> HtmlPage:
    return opened(client, next(each["href"] for each in page.of("a") if each.get("rel") == rel))


def test_only_committed_records_are_shown_the_newest_first(open_page: Open) -> None:
    page = open_page(f"{PAGE}?partition=0")
    assert offsets(page) == [(0, offset) for offset in reversed(range(END))]
    assert "uncommitted" not in page.text
    times = [row[2] for row in open_page(PAGE).rows[1:]]
    assert times == sorted(times, reverse=True)
    assert {row[0] for row in open_page(PAGE).rows[1:]} == {"0", "1"}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("start=oldest", list(range(END))),
        ("start=oldest&limit=2", [0, 1]),
        ("start=newest&limit=2", [END - 1, END - 2]),
        ("start=offset&offset=4&limit=2", [4, 5]),
        ("start=offset&offset=999", []),
        ("start=group&group=billing&limit=3", [1, 2, 3]),
        ("start=time&time=2026-01-01T13:00:01", list(range(4, END))),
        (f"start=time&time={int((NOON + dt.timedelta(hours=2)).timestamp() * 1000)}", []),
        ("text=plain", [4]),
        ("text=trace", [6]),
        ("text=%3Cscript", [6, 4, 3]),
        ("text=nothing+has+this", []),
        ("at=0:5&direction=older&limit=2", [4, 3]),
        ("at=0:5&direction=newer&limit=2", [5, 6]),
    ],
)
def test_records_begin_where_the_query_says(open_page: Open, query: str, expected: list[int]) -> None:
    assert [offset for _, offset in offsets(open_page(f"{PAGE}?partition=0&{query}"))] == expected


def test_pages_of_all_partitions_have_each_record_once(console: TestClient) -> None:
    everything = {(0, offset) for offset in range(END)} | {(1, 0), (1, 1)}
    for first, rel in ((f"{PAGE}?limit=2", "prev"), (f"{PAGE}?start=oldest&limit=2", "next")):
        page, seen = opened(console, first), list[tuple[int, int]]()
        while found := offsets(page):
            seen += found
            if not any(each.get("rel") == rel for each in page.of("a")):
                break
            page = next_page(console, page, rel)
        assert len(seen) == len(everything)
        assert set(seen) == everything


def test_one_goes_back_to_the_page_where_one_was(console: TestClient) -> None:
    first = opened(console, f"{PAGE}?partition=0&limit=3")
    back = next_page(console, next_page(console, first, "prev"), "next")
    assert sorted(offsets(back)) == sorted(offsets(first))


def test_nothing_that_a_record_or_a_group_says_becomes_html(console: TestClient) -> None:
    for path in (f"{PAGE}?limit=500", f"{PAGE}?text={EVIL.split('<')[1]}", "/groups", "/topics/flights/consumers",
                 "/topics?search=%3Cscript%3Ealert(1)%3C/script%3E", "/groups?search=%3Cimg%20src=x%3E"):  # fmt: skip
        source = console.get(path).text
        assert "<script>" not in source
        assert "<img" not in source
        assert HtmlPage(source).faults == []
    page = opened(console, f"{PAGE}?limit=500")
    assert EVIL in page.text, "it is shown as text"


def test_of_long_values_the_beginning_is_shown(open_page: Open) -> None:
    rows = {row[1]: row for row in open_page(f"{PAGE}?partition=0").rows[1:]}
    assert rows["5"][3:5] == ["null", "null"]
    assert rows["7"][3] == "00 01 fe (binary, 3 bytes)"
    assert rows["7"][4].endswith("(binary, the first 96 of 512 bytes)")
    folded, whole = BIG[:160].decode(), BIG[:2000].decode()
    assert rows["8"][4] == f"{folded}…{whole} (the first 2,000 of 200,000 bytes)"
    assert rows["8"][5].endswith("h19: v and 10 more")
    assert rows["8"][6] == "195 KiB"
    assert "none: null" in rows["3"][5]
    assert "trace: 00 ff (binary, 2 bytes)" in rows["6"][5]
    many = {row[1]: row for row in open_page(f"{PAGE}?partition=0&limit=500").rows[1:]}
    assert many["8"][4] == f"{BIG[:300].decode()} (the first 300 of 200,000 bytes)"


def test_json_is_laid_out(console: TestClient) -> None:
    source = console.get(f"{PAGE}?partition=0&start=offset&offset=6&limit=1").text
    pretty = HtmlPage.plain(source[source.index("<pre ") : source.index("</pre>")])
    assert json.loads(pretty) == DOCUMENT
    assert 'data-key="0-6"' in source


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (rb'["\ud800"]', r'["\ud800"] [ "\ud800" ]'),
        (rb'["\u202egnp.exe"]', r'["\u202egnp.exe"] [ "\u202egnp.exe" ]'),
        (rb'["\u00e4"]', r'["\u00e4"] [ "ä" ]'),
        (rb'{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ],
)
def test_json_that_is_laid_out_hides_nothing(changing_world: World, value: bytes, words: str) -> None:
    send(changing_world.logs[1], request(P0, 1, 3), tables={P0: table([(b"k", value, [("\u202ee\x00", b"v")])])})
    changing_world.say(4)
    with client_of(changing_world.uri) as client:
        row = opened(client, f"{PAGE}?partition=0").rows[1]
    assert row[4].replace("][", "] [") == words
    assert row[5] == "e2 80 ae 65 00 (binary, 5 bytes): v"


@pytest.mark.parametrize(
    ("value", "most", "text", "note"),
    [
        (b"", 10, "", ""),
        (b"abc", 10, "abc", ""),
        ("ä".encode() * 3, 5, "ää", "the first 5 of 6 bytes"),
        ("🍞🍞".encode(), 7, "🍞", "the first 7 of 8 bytes"),
        ("ä".encode()[:1], 10, "c3", "binary, 1 bytes"),
        (b"a\tb\n", 10, "a\tb\n", ""),
        (b"\x1b[2J", 10, "1b 5b 32 4a", "binary, 4 bytes"),
        ("\u202egnp.exe".encode(), 100, "e2 80 ae 67 6e 70 2e 65 78 65", "binary, 10 bytes"),
    ],
)
def test_bytes_are_text_if_all_of_it_can_be_seen(value: bytes, most: int, text: str, note: str) -> None:
    found = shown_value(value, most)
    assert (found.text, found.note, found.size) == (text, note, len(value))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=501", "Parameter limit: '501' is not a whole number from 1 to 500."),
        ("limit=0", "Parameter limit: '0' is not a whole number from 1 to 500."),
        ("start=never", "Parameter start is 'never': allowed are 'newest', 'oldest', 'offset', 'time', 'group'."),
        ("start=offset", "Parameter offset is missing: start=offset needs it."),
        ("start=offset&offset=-1", "Parameter offset: '-1' is not a whole number from 0 to 9223372036854775807."),
        ("start=time", "Parameter time is missing: start=time needs it, such as 2025-01-31T12:00:00 in UTC."),
        ("start=time&time=noon", "Parameter time: 'noon' is neither a time such as 2025-01-31T12:00:00 nor"),
        ("start=group&group=nobody", "Parameter group is 'nobody': no such group has committed offsets of this topic."),
        ("at=x", "Parameter at: allowed are places such as 0:120,1:7, each a partition and an offset."),
        ("at=7:1", "Parameter at: allowed are places such as 0:120,1:7, each a partition and an offset; partition 7"),
        ("at=0:1&direction=up", "Parameter direction is 'up': allowed are 'older', 'newer'."),
        ("partition=x", "Parameter partition: 'x' is not a whole number from 0 to 2147483647."),
    ],
)
def test_a_wrong_query_is_one_sentence(open_page: Open, query: str, words: str) -> None:
    assert open_page(f"{PAGE}?{query}", 400).problem().startswith(words)


def test_a_request_reads_so_many_bytes_and_says_where_it_has_stopped(
    changing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        send(changing_world.logs[1], request(P0, 1, 3 + number), tables={P0: big_record(number)})
    replicate(changing_world.logs[1], changing_world.logs[2], P0)
    changing_world.say(9)
    monkeypatch.setattr(record_pages, "MOST_BYTES", 50_000)
    monkeypatch.setattr(record_pages, "_LEAST_READ", 0)
    with client_of(changing_world.uri) as client:
        page = opened(client, f"{PAGE}?partition=0")
        assert offsets(page) == [(0, 8), (0, 7)], "2 of 20,000 bytes fit into 50,000"
        assert "Reading has stopped after 0 MiB" in page.text
        seen = [offset for _, offset in offsets(page)]
        while seen[-1] > 0:
            page = next_page(client, page, "prev")
            seen += [offset for _, offset in offsets(page)]
        assert seen == list(range(8, -1, -1))


def test_lc_01_a_page_reads_no_batch_of_which_nothing_is_left(
    changing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = changing_world.logs[1]
    for number in range(6):
        send(log, request(P0, 1, 3 + number), tables={P0: table([(b"k", b"%d" % number, [])])})
    changing_world.say(9)
    to_clean = log_to_clean(log.refresh().partition(P0), 9, 0, CleanerConfig(0.0, 0, 2**63 - 1, 0))
    assert to_clean is not None
    assert clean(log, P0, to_clean, 0, 0, 2**40, "test")
    monkeypatch.setattr(record_pages, "MOST_BYTES", 12_000)  # the size of two files
    with client_of(changing_world.uri) as client:
        for start in ("newest", "oldest"):
            page = opened(client, f"{PAGE}?partition=0&start={start}")
            assert offsets(page) == [(0, 8)]
            assert "Reading has stopped" not in page.text


def big_record(number: int) -> pa.Table:
    return table([(b"k", bytes([65 + number]) * 20_000, [])])


def test_a_batch_that_is_too_large_is_named_and_not_read(
    changing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(changing_world.logs[1], request(P0, 1, 3), tables={P0: big_record(0)})
    changing_world.say(4)
    monkeypatch.setattr(record_pages, "MOST_BYTES", 10_000)
    with client_of(changing_world.uri) as client:
        rows = opened(client, f"{PAGE}?partition=0").rows[1:]
    assert [row[1] for row in rows] == ["3", "2", "1", "0"]
    assert rows[0][4] == "(not read: its batch has 20,001 bytes, and a page reads 10,000)"


def test_a_search_stops_when_its_time_is_over(changing_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(changing_world.logs[1], P0, 2, 2, 2)
    changing_world.say(9)
    monkeypatch.setattr(record_pages, "_SECONDS", -1.0)
    monkeypatch.setattr(record_pages, "_CHUNK_RECORDS", 2)
    with client_of(changing_world.uri) as client:
        page = opened(client, f"{PAGE}?partition=0&text=none")
        assert "Reading has stopped after -1 s. 2 records were looked at." in page.text
        assert "of 2 that were looked at" in next_page(client, page, "prev").text
