"""The page of a topic's records. It begins at an end, an offset, a time or a group's offset, and goes both ways.

A request reads little, whatever the records are: the records, the bytes of files and the seconds are limited. Batches
of several partitions come in the order of their largest timestamps, which are in their headers.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.web.page_kit import (
    Console,
    Content,
    PageError,
    PageRequest,
    Query,
    Sources,
    not_found,
    option,
    sql_text,
)
from lakelog.jobs.web.seen_cluster import SeenCluster
from lakelog.jobs.web.shared_readings import open_partitions
from lakelog.jobs.web.topic_pages import topic_of
from lakelog.replication.clients.consumer_fetch import read_rows
from lakelog.replication.clients.offset_lookup import offset_for
from lakelog.replication.clients.partition_reader import OpenPartition
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import OffsetRange

MOST_RECORDS, _DEFAULT_RECORDS = 500, 50
MOST_BYTES = 64 << 20  # of batches, and of the row groups around them, that a request reads
_SECONDS = 5.0  # the longest time that a request reads
_CHUNK_BYTES, _CHUNK_RECORDS = 8 << 20, 5_000  # read before it compares the time and the records with their limits
_LEAST_READ = 4 << 20  # bytes that the first read of a file reads beside the batch: its row group, about
_MOST_CURSOR = 64  # partitions whose places fit into a link
_CURSOR_LENGTH = 32 * _MOST_CURSOR

SHOWN_BYTES = 2_000  # of a key or value
_AT_LENGTH, _SHORT_BYTES = 100, 300  # on a page of more records than the first, the second is the limit instead
_HEX_BYTES = 96  # of a key or value that is no text
_JSON_BYTES, _ALL_JSON_BYTES = 16 << 10, 1 << 20  # of one value, and of all values, that are laid out as JSON
_HEADERS, _HEADER_BYTES = 20, 120  # headers of a record, and bytes of each name and value, that are shown

NEWEST, OLDEST, OFFSET, TIME, GROUP = "newest", "oldest", "offset", "time", "group"
_STARTS = (NEWEST, OLDEST, OFFSET, TIME, GROUP)
OLDER, NEWER = "older", "newer"
_PARAMETERS = ("partition", "start", "offset", "time", "group", "text", "limit", "at", "direction")


class Shown(NamedTuple):
    """A key or value. `text`: as text or hexadecimal digits, of a long one the beginning; None for null. `pretty`: it
    as JSON, laid out. `note`: whether it is binary, and how much is left out."""

    text: str | None
    size: int | None
    pretty: str | None = None
    note: str = ""


class RecordLine(NamedTuple):
    """A record. `timestamp`: in µs since the epoch; of a record that was not read, the largest of its batch."""

    partition: int
    offset: int
    timestamp: int
    key: Shown
    value: Shown
    headers: Sequence[tuple[Shown, Shown]]
    more_headers: int


class _Part(NamedTuple):
    """Offsets of one batch. Parts are read in ascending `order`."""

    order: int
    opened: OpenPartition
    batch: PlacedBatch
    offsets: OffsetRange

    @property
    def number(self) -> int:
        return self.opened.registration.partition

    @property
    def records(self) -> int:
        """The number of its records; at most, if the log cleaner has removed some."""
        return self.offsets.stop - self.offsets.start

    @property
    def bytes(self) -> int:
        return self.batch.header.retained_within(self.offsets)[1]

    def clipped(self, most: int, is_back: bool) -> _Part:
        """Its first records, or its last ones; all if the log cleaner has removed some, as nobody knows which."""
        start, stop = self.offsets
        if self.records <= most or self.batch.header.cleaned:
            return self
        return self._replace(offsets=OffsetRange(stop - most, stop) if is_back else OffsetRange(start, start + most))


class _Found(NamedTuple):
    """The result of a request. `places`: the offset that it has reached in each partition. `scanned`: how many records
    it has gone through. `is_end`: whether there are no more. `stopped`: the limit at which it has stopped, as text."""

    lines: Sequence[RecordLine]
    places: Mapping[int, int]
    scanned: int
    is_end: bool
    stopped: str


def messages(console: Console, request: PageRequest) -> Content:
    """Committed records of a topic."""
    query = request.query
    query.allow(*_PARAMETERS)
    seen = console.readings.cluster.get()
    topic, partitions = topic_of(seen, request.name)
    known = [p.registration.partition for p in partitions]
    number = query.optional("partition", whole_number(0, 2**31 - 1))
    if number is not None and number not in known:
        raise not_found(f"topic {topic.topic} has no partition {number}: it has 0 to {max(known, default=0)}")
    chosen = known if number is None else [number]
    limit = query.whole("limit", 1, MOST_RECORDS, _DEFAULT_RECORDS)
    start = query.choice("start", _STARTS)
    text, is_back = query.text("text"), _is_back(query, start)
    with console.readings.records() as view:
        opened, errors = _open(view, topic.topic, chosen)
        places = _places(seen, opened, query, start, chosen)
        found = _read(opened, places, limit, text, is_back)
    is_paged = len(chosen) <= _MOST_CURSOR
    cursors = _cursors(query, places, found, is_back) if is_paged else {OLDER: None, NEWER: None}
    facts = {
        "topic": topic, "numbers": known, "number": number, "limit": limit, "start": start, "text": text,
        "starts": _STARTS, "limits": sorted({20, 50, 100, 500, limit}), "most": MOST_RECORDS,
        "offset": query.text("offset"), "time": query.text("time"), "group": query.text("group"),
        "found": found, "errors": errors, "cursors": cursors, "is_back": is_back, "is_paged": is_paged,
        "groups": [line.name for line in seen.groups_of_topic(topic.topic)][:500],
    }  # fmt: skip
    sources = _sources(console, topic.topic, number)
    return Content("messages.html", f"Messages of {topic.topic}", seen.at, facts, sources)


def _sources(console: Console, topic: str, number: int | None) -> Sources:
    one = () if number is None else ("--partition", number)
    words = (*option("--topic", topic), *one, "--from-beginning", "--max-messages", _DEFAULT_RECORDS)
    shown = [word for name in ("key", "offset", "timestamp", "headers")
             for word in ("--formatter-property", f"print.{name}=true")]  # fmt: skip
    uri = json.dumps(console.readings.uri, ensure_ascii=False)
    of_partition = "" if number is None else f" WHERE partition = {number}"
    return Sources(
        [console.command("console-consumer", *words, *shown)],
        (
            f"lakelog.read_committed(spark, {uri}, {json.dumps(topic)}).createOrReplaceTempView('records')",
            f"SELECT partition, offset, timestamp, CAST(key AS STRING), CAST(value AS STRING), headers FROM records"
            f"{of_partition} ORDER BY timestamp DESC LIMIT {_DEFAULT_RECORDS}",
            f"SELECT * FROM log_files WHERE topic = {sql_text(topic)}",
        ),
    )


def _is_back(query: Query, start: str) -> bool:
    if query.text("at", _CURSOR_LENGTH):
        return query.choice("direction", (OLDER, NEWER)) == OLDER
    return start == NEWEST


def _open(view: TopicView, topic: str, numbers: Sequence[int]) -> tuple[dict[int, OpenPartition], dict[int, str]]:
    """The partitions at their leaders, and why others cannot be read."""
    opened, errors = dict[int, OpenPartition](), dict[int, str]()
    for (_, number), found in open_partitions(view, {topic: numbers}).items():
        if isinstance(found, UnknownTopicOrPartitionException):
            raise found
        if isinstance(found, LakelogException):
            errors[number] = f"{found.name}: {found}"
        else:
            opened[number] = found
    return opened, errors


def _places(
    seen: SeenCluster, opened: Mapping[int, OpenPartition], query: Query, start: str, chosen: Sequence[int]
) -> dict[int, int]:
    """The offset at which reading begins in each partition, within its committed records."""
    if query.text("at", _CURSOR_LENGTH):
        wanted = _cursor(query, chosen)
    elif start == NEWEST:
        wanted = {number: led.high_watermark for number, led in opened.items()}
    elif start == OFFSET:
        offset = query.optional("offset", whole_number(0, MAX_OFFSET))
        if offset is None:
            raise PageError(400, "parameter offset is missing: start=offset needs it")
        wanted = dict.fromkeys(opened, offset)
    elif start == TIME:
        wanted = _since(opened, query)
    elif start == GROUP:
        wanted = _committed(seen, query, opened)
    else:
        wanted = {}
    return {
        number: min(max(wanted.get(number, 0), led.log.log_start_offset), led.high_watermark)
        for number, led in opened.items()
    }


def _cursor(query: Query, chosen: Sequence[int]) -> dict[int, int]:
    form = "parameter at: allowed are places such as 0:120,1:7, each a partition and an offset"
    found = dict[int, int]()
    for word in query.text("at", _CURSOR_LENGTH).split(","):
        number, colon, offset = word.partition(":")
        if not colon or not all(each.isascii() and each.isdigit() and len(each) < 20 for each in (number, offset)):
            raise PageError(400, form)
        found[int(number)] = int(offset)
    if unknown := sorted(set(found) - set(chosen)):
        raise PageError(400, f"{form}; partition {unknown[0]} is none of those that are shown")
    return found


def _since(opened: Mapping[int, OpenPartition], query: Query) -> dict[int, int]:
    since = query.time("time")
    if since is None:
        raise PageError(400, "parameter time is missing: start=time needs it, such as 2025-01-31T12:00:00 in UTC")
    if len(opened) > _MOST_CURSOR:
        raise PageError(400, f"start=time reads each partition: choose one, as there are {len(opened)}")
    found = {number: offset_for(led, round(since * 1000)) for number, led in opened.items()}
    return {n: opened[n].high_watermark if offset is None else offset.offset for n, offset in found.items()}


def _committed(seen: SeenCluster, query: Query, opened: Mapping[int, OpenPartition]) -> dict[int, int]:
    """Where a group goes on; at the log start where it has committed nothing."""
    group = query.text("group")
    topic = next((led.registration.topic for led in opened.values()), "")
    found = {p.partition: p.committed for p in seen.partitions_of_group(group) if p.topic == topic}
    if opened and not found:
        raise PageError(400, f"parameter group is {group[:60]!r}: no such group has committed offsets of this topic")
    return {number: offset for number, offset in found.items() if offset is not None}


def _read(
    opened: Mapping[int, OpenPartition], places: Mapping[int, int], limit: int, text: str, is_back: bool
) -> _Found:
    """The records from these places on, or those before them, up to the limits of a request."""
    deadline, needle = time.monotonic() + _SECONDS, text.encode()
    parts = heapq.merge(*(_parts(led, places[n], is_back) for n, led in opened.items()), key=lambda part: part.order)
    reading, budget = _Reading(places, limit, needle, is_back), _Budget()
    chunk = list[_Part]()
    left = limit
    for part in parts:
        wanted = part.clipped(left if not needle else part.records, is_back)
        if not budget.allows(wanted):
            reading.take(chunk)
            return reading.found(f"after {MOST_BYTES >> 20} MiB")
        chunk.append(wanted)
        left -= 0 if wanted.batch.header.cleaned else wanted.records
        if left <= 0 and not needle:
            break
        if sum(p.bytes for p in chunk) >= _CHUNK_BYTES or sum(p.records for p in chunk) >= _CHUNK_RECORDS:
            reading.take(chunk)
            chunk = []
            if reading.is_full:
                return reading.found()
            if time.monotonic() > deadline:
                return reading.found(f"after {_SECONDS:g} s")
    reading.take(chunk)
    return reading.found()


class _Reading:
    """Collects the lines of a page from chunks of parts. `needle`: what a record must contain; empty for all."""

    def __init__(self, places: Mapping[int, int], limit: int, needle: bytes, is_back: bool) -> None:
        self._reached = dict(places)
        self._limit, self._needle, self._is_back = limit, needle, is_back
        self._lines: list[RecordLine] = []
        self._scanned = 0

    @property
    def is_full(self) -> bool:
        """Whether the page has all its lines."""
        return len(self._lines) >= self._limit

    def found(self, stopped: str = "") -> _Found:
        """The records that were found so far."""
        is_end = not self.is_full and not stopped
        return _Found(_in_order(self._lines, self._is_back), self._reached, self._scanned, is_end, stopped)

    def take(self, chunk: Sequence[_Part]) -> None:
        """Reads the parts, and goes through their records until the page is full."""
        read = [part for part in chunk if part.batch.header.retained.bytes <= MOST_BYTES]
        tables = read_rows({number: part.opened.rows(part.offsets) for number, part in enumerate(read)})
        rows = {id(part): tables[number] for number, part in enumerate(read)}
        style = _Style(self._limit)
        for part in chunk:
            records = rows.get(id(part))
            if isinstance(records, LakelogException):
                raise records
            offsets = range(*part.offsets) if records is None else records["offset"].to_pylist()
            numbers = range(len(offsets))
            for place in reversed(numbers) if self._is_back else numbers:
                if self.is_full:
                    return
                offset = offsets[place]
                self._scanned += 1
                self._reached[part.number] = offset if self._is_back else offset + 1
                if records is None:
                    self._lines.append(_unread(part, offset))
                elif (row := _row(records, place)) and _contains(row, self._needle):
                    self._lines.append(style.line(part.number, row))
            self._reached[part.number] = part.offsets.start if self._is_back else part.offsets.stop


def _in_order(lines: Sequence[RecordLine], is_back: bool) -> list[RecordLine]:
    """By time, the newest first when reading backwards; a partition's records stay in the order of their offsets."""
    latest, keyed = dict[int, int](), []
    for line in sorted(lines, key=lambda each: (each.partition, each.offset)):
        latest[line.partition] = max(line.timestamp, latest.get(line.partition, line.timestamp))
        keyed.append((latest[line.partition], line.partition, line.offset, line))
    return [line for *_, line in sorted(keyed, key=lambda each: each[:3], reverse=is_back)]


class _Budget:
    """The bytes that a request may read. The first batch is always allowed: otherwise none would get past it."""

    def __init__(self) -> None:
        self._left = MOST_BYTES
        self._files = set[tuple[str, str]]()

    def allows(self, part: _Part) -> bool:
        if part.batch.header.retained.bytes > MOST_BYTES:  # it is not read
            return True
        cost, file = part.bytes, (part.opened.root.uri, part.batch.segment)
        if file not in self._files:
            segment = part.opened.state.segments.get(part.batch.segment)
            cost += min(_LEAST_READ, segment.file.size if segment else 0)
        is_first = self._left == MOST_BYTES
        if cost > self._left and not is_first:
            return False
        self._files.add(file)
        self._left -= cost
        return True


def _parts(led: OpenPartition, place: int, is_back: bool) -> Iterator[_Part]:
    """The batches of a partition from a place on, or those before it, but those of which the log cleaner has left
    nothing. Their `order` never falls, so that `merge` keeps the order of offsets."""
    start, stop = (led.log.log_start_offset, place) if is_back else (place, led.high_watermark)
    batches = led.log.batches_between(start, stop)
    order: int | None = None
    for batch in reversed(batches) if is_back else batches:
        if not batch.header.retained.records:
            continue
        own = -batch.header.max_timestamp if is_back else batch.header.max_timestamp
        order = own if order is None else max(order, own)
        offsets = OffsetRange(max(start, batch.base_offset), min(stop, batch.header.next_offset))
        yield _Part(order, led, batch, offsets)


def _row(records: pa.Table, place: int) -> dict[str, Any]:
    row = {name: records[name][place].as_py() for name in ("offset", "key", "value", "headers")}
    return {**row, "timestamp": pc.cast(records["timestamp"].slice(place, 1), pa.int64())[0].as_py()}


def _contains(row: Mapping[str, Any], needle: bytes) -> bool:
    """Whether a record's key, value or headers have the text."""
    texts = [row["key"], row["value"]]
    texts += [part for header in row["headers"] or () for part in (header["key"].encode(), header["value"])]
    return not needle or any(needle in text for text in texts if text is not None)


def _unread(part: _Part, offset: int) -> RecordLine:
    header = part.batch.header
    size = header.bytes if header.records == 1 else None
    note = f"not read: its batch has {header.retained.bytes:,} bytes, and a page reads {MOST_BYTES:,}"
    return RecordLine(part.number, offset, header.max_timestamp, Shown("", None), Shown("", size, None, note), (), 0)


class _Style:
    """Makes the lines of a page, and limits how much of each value they show."""

    def __init__(self, limit: int) -> None:
        self._most = SHOWN_BYTES if limit <= _AT_LENGTH else _SHORT_BYTES
        self._json_left = _ALL_JSON_BYTES

    def line(self, number: int, row: Mapping[str, Any]) -> RecordLine:
        headers = row["headers"] or ()
        shown = [
            (shown_value(header["key"].encode(), _HEADER_BYTES), shown_value(header["value"], _HEADER_BYTES))
            for header in headers[:_HEADERS]
        ]
        value = row["value"]
        pretty = self._pretty(value)
        return RecordLine(
            number, row["offset"], row["timestamp"], shown_value(row["key"], self._most),
            shown_value(value, self._most)._replace(pretty=pretty), shown, len(headers) - len(shown),
        )  # fmt: skip

    def _pretty(self, value: bytes | None) -> str | None:
        if value is None or len(value) > min(_JSON_BYTES, self._json_left) or value[:1] not in (b"{", b"["):
            return None
        try:
            parsed = json.loads(value, object_pairs_hook=_without_duplicates)
            found = json.dumps(parsed, indent=2, ensure_ascii=False)
            if not _is_visible(found):  # an escaped character that hides others, or half of a surrogate pair
                found = json.dumps(parsed, indent=2)
        except (ValueError, RecursionError):
            return None
        self._json_left -= len(found)
        return found


def _without_duplicates(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON. Raises ValueError if it has a name twice: laid out, it would lack a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _is_visible(text: str) -> bool:
    return all(letter.isprintable() or letter in "\t\n\r" for letter in text)


def shown_value(value: bytes | None, most: int) -> Shown:
    """The first `most` bytes, as text if they are printable UTF-8, else in hexadecimal digits."""
    if value is None:
        return Shown(None, None)
    size, head = len(value), value[:most]
    text = _printable(head, is_part=size > most)
    if text is not None:
        return Shown(text, size, None, f"the first {most:,} of {size:,} bytes" if size > most else "")
    head = value[: min(most, _HEX_BYTES)]
    note = f"binary, {size:,} bytes" if size <= len(head) else f"binary, the first {len(head)} of {size:,} bytes"
    return Shown(head.hex(" "), size, None, note)


def _printable(head: bytes, is_part: bool) -> str | None:
    for end in range(len(head), max(-1, len(head) - (4 if is_part else 1)), -1):  # the end may be within a character
        try:
            text = head[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if _is_visible(text) else None
    return None


def _cursors(query: Query, places: Mapping[int, int], found: _Found, is_back: bool) -> dict[str, str | None]:
    """The queries of the pages before and after this one. There may always be newer records."""
    before, after = (found.places, places) if is_back else (places, found.places)

    def link(at: Mapping[int, int], direction: str) -> str:
        return query.changed(at=",".join(f"{n}:{offset}" for n, offset in sorted(at.items())), direction=direction)

    has_older = not (is_back and found.is_end)
    return {OLDER: link(before, OLDER) if has_older else None, NEWER: link(after, NEWER)}
