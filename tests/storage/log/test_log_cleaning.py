"""The log cleaner: the newest record of each key stays, at its offset, and nobody notices that others have gone."""

import json
import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.log_cleaner import CleanerConfig, log_to_clean
from lakelog.replication.protocol.partition_log import STOPPED, Role
from lakelog.replication.protocol.record_batch import LogEnd, OffsetRange
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.log import log_cleaning
from lakelog.replication.storage.log.broken_segments import SoughtRange
from lakelog.replication.storage.log.log_cleaning import LatestOffsets, clean
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.partition_rows import read_row_ranges, row_ranges
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, read_segment
from lakelog.replication.storage.log.truncate import delete_logs, truncate_logs
from tests.storage.delta.answers import lose_an_answer
from tests.storage.logs import (
    NOON,
    P0,
    P1,
    TOPIC,
    chain,
    facts,
    follow,
    keyed,
    leo,
    new_log,
    replicate,
    request,
    send,
    truncate,
)

HOUR = 3_600_000
NOW = int(NOON.timestamp() * 1_000_000) + HOUR * 1000
MANY = 2**40
ALWAYS = CleanerConfig(0.0, 0, 2**63 - 1, HOUR)


def put(log, *pairs, partition=P0):
    """Appends a batch of keys and values."""
    entry = log.refresh().partition(partition).producers.get(7)
    wanted = request(partition, len(pairs), entry.next_sequence if entry else 0)
    send(log, wanted, tables={partition: keyed(*pairs)})


def scrub(log, high_watermark=None, now=NOW, config=ALWAYS, keys=MANY, **others):
    """Cleans P0 once, as far as the rule says; False if there is nothing to clean."""
    known = log.refresh().partition(P0)
    found = log_to_clean(known, known.log_end_offset if high_watermark is None else high_watermark, now, config)
    return found and clean(log, P0, found, config.delete_retention_ms, now, keys, "test", **others)


def rows(log, partition=P0, start=0):
    """What readers get: offset, key and value of each record."""
    state = log.refresh()
    wanted = OffsetRange(start, state.partition(partition).log_end_offset)
    found = []
    for segment in state.segments_with(partition, wanted):
        ranges = row_ranges(log.root, segment, partition, wanted)
        for table in read_row_ranges(ranges[0].file, ranges):
            found += zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    return sorted(found)


@pytest.fixture
def log(root):
    log = new_log(root, P0, P1)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"), (b"c", b"1"))
    put(log, (b"a", b"3"))
    return log


def test_lc_01_the_newest_record_of_each_key_stays_at_its_offset(log):
    assert scrub(log)
    assert rows(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
    assert leo(log) == 5
    assert rows(log, start=2) == [(3, b"c", b"1"), (4, b"a", b"3")]


def test_lc_01_headers_chains_and_producers_stay_for_those_who_open_the_log_anew(log):
    before, headers = facts(log, P0)[3], [b.header for b in log.current().partition(P0).batches]
    assert scrub(log)
    opened = ReplicaLog.open(log.root)
    assert [b.header for b in opened.current().partition(P0).batches] == headers
    for found in (log, opened):
        after = facts(found, P0)[3][P0]
        assert replace(after, batches=[], cleaned_to=0) == replace(before[P0], batches=[])
        assert [b.header.retained.records for b in after.batches] == [1, 1, 1]
        assert after.cleaned_to == 5
    assert rows(opened) == rows(log)


def test_lc_01_a_record_is_not_removed_for_one_that_is_not_committed(log):
    assert scrub(log, high_watermark=4)
    assert [offset for offset, *_ in rows(log)] == [1, 2, 3, 4]
    assert log.current().partition(P0).cleaned_to == 4


def test_lc_01_other_partitions_in_the_same_file_keep_their_records(root):
    log = new_log(root, P0, P1)
    both = {p: keyed((b"a", b"1"), (b"a", b"2")) for p in (P0, P1)}
    send(log, request(P0, 2), request(P1, 2), tables=both)
    assert len(log.refresh().segments) == 1
    assert scrub(log)
    assert (rows(log), rows(log, P1)) == ([(1, b"a", b"2")], [(0, b"a", b"1"), (1, b"a", b"2")])


def test_lc_01_records_without_a_key_go(root):
    log = new_log(root, P0)
    put(log, (None, b"1"), (b"", b"2"), (None, None))
    assert scrub(log)
    assert rows(log) == [(1, b"", b"2")]


def test_lc_01_a_tombstone_stays_for_delete_retention_ms_after_its_first_cleaning(log):
    put(log, (b"b", None))
    assert scrub(log)
    assert (5, b"b", None) in rows(log)
    put(log, (b"c", b"2"))
    assert scrub(log, now=NOW + HOUR * 1000 - 1)
    assert (5, b"b", None) in rows(log)
    put(log, (b"c", b"3"))
    assert scrub(log, now=NOW + HOUR * 1000)
    assert [key for _, key, _ in rows(log)] == [b"a", b"c"]
    assert rows(ReplicaLog.open(log.root)) == rows(log)


def test_lc_01_the_records_of_a_key_go_with_or_before_its_tombstone(root):
    """A follower takes over a tombstone whose time is over, while its own older records are still there."""
    log, other = new_log(root, P0), new_log(f"{root}/other")
    follow(other, P0, epoch=0)
    put(log, (b"a", b"1"))
    replicate(log, other)
    put(log, (b"a", None))
    assert scrub(log)
    replicate(log, other)
    assert rows(other) == [(0, b"a", b"1"), (1, b"a", None)]
    assert scrub(other, now=NOW + HOUR * 1000)
    assert rows(other) == []
    assert chain(other) == chain(log)


def test_lc_01_batches_without_records_stay_in_the_log_and_can_be_merged_and_copied(root):
    log, other = new_log(root, P0), new_log(f"{root}/other")
    follow(other, P0, epoch=0)
    for number in range(6):
        put(log, (b"a", str(number).encode()))
    assert scrub(log)
    assert [b.header.retained.records for b in log.current().partition(P0).batches] == [0, 0, 0, 0, 0, 1]
    replicate(log, other)
    assert compact(log, 1 << 20, 2, MANY, "test")
    assert len(log.current().segments) == 1
    for found in (log, other, ReplicaLog.open(log.root), ReplicaLog.open(other.root)):
        assert rows(found) == [(5, b"a", b"5")]
        assert (leo(found), chain(found)) == (6, chain(log))


def test_lc_01_a_segment_says_what_is_left_of_its_batches(log):
    scrub(log)
    for segment in log.current().segments.values():
        read = read_segment(log.root, segment.file)
        assert [header.cleaned for header in read.headers] == [header.cleaned for header in segment.headers]
        rows = read_records(log.root, segment.name)
        stats, ends = json.loads(read.file.stats), pc.min_max(rows["offset"]).as_py()
        assert stats["numRecords"] == rows.num_rows
        are_tight = ends == {"min": read.headers[0].base_offset, "max": read.headers[-1].last_offset}
        assert ("offset" in stats["minValues"], "offset" in stats["maxValues"]) == (are_tight, are_tight)
        assert stats["minValues"].get("topic", TOPIC) == TOPIC
        sought = [SoughtRange(header.last_offset, (0, 0), (TOPIC, TOPIC)) for header in read.headers]
        assert all(each.may_meet(read.file) for each in sought), "a follower finds each header"


def test_lc_01_a_log_that_was_truncated_is_cleaned_again_from_there(log):
    assert scrub(log)
    truncate(log, {P0: 2})
    assert log.current().partition(P0).cleaned_to == 2
    assert ReplicaLog.open(log.root).current().partition(P0).cleaned_to == 2
    put(log, (b"b", b"2"))
    assert scrub(log)
    assert rows(log) == [(2, b"b", b"2")]


def test_lc_01_a_log_that_starts_over_is_cleaned_from_its_start(log):
    """Also from below its former start: tombstones must not go before older records that are fetched again."""
    assert scrub(log)
    raise_log_starts(log, {P0: lambda _: 3}, "test", "test")
    follow(log, P0, epoch=1)
    truncate_logs(log, {P0: Truncation(1, 0, restart=LogEnd(0, genesis(P0)))}, "test")
    assert (leo(log), log.current().partition(P0).cleaned_to) == (0, 0)
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_lc_01_a_replica_that_comes_back_after_its_deletion_is_cleaned_from_its_start(log):
    assert scrub(log)
    raise_log_starts(log, {P0: lambda _: 3}, "test", "test")
    log.become({P0: Role(1, STOPPED)}, "test")
    delete_logs(log, [P0], "test")
    follow(log, P0, epoch=2)
    assert log.refresh().partition(P0).cleaned_to == 0
    assert facts(ReplicaLog.open(log.root)) == facts(log)


@pytest.mark.parametrize("removal", ["truncated", "deleted"])
def test_lc_01_a_cleaning_gives_up_if_the_log_has_changed_meanwhile(log, monkeypatch, removal):
    """The later record of a key, for which an earlier one was to go, is no longer there; or a file is not."""
    first = rows(log)
    written = log_cleaning.write_segment

    def change(*given):
        monkeypatch.setattr(log_cleaning, "write_segment", written)
        if removal == "truncated":
            truncate(log, {P0: 4})
        else:
            raise_log_starts(log, {P0: lambda _: 2}, "test", "test")
            delete_old_segments(log, 0, "test")
        return written(*given)

    monkeypatch.setattr(log_cleaning, "write_segment", change)
    assert scrub(log) is None
    assert rows(log, start=2) == [row for row in first if row[0] >= 2 and (removal == "deleted" or row[0] < 4)]
    assert {n for n in log.root.list() if n.endswith(".parquet")} >= set(log.current().segments)
    assert log.current().partition(P0).cleaned_to == 0


@pytest.mark.parametrize("end", [0, 2])
def test_lc_01_a_log_that_was_truncated_before_its_cleaning_stays_as_it_is(log, end):
    found = log_to_clean(log.refresh().partition(P0), 5, NOW, ALWAYS)
    truncate(log, {P0: end})
    before = facts(log)
    assert clean(log, P0, found, HOUR, NOW, MANY, "test") is None
    assert facts(log) == before


def test_lc_01_keys_that_take_too_much_memory_are_cleaned_in_parts(log):
    put(log, (b"b", b"2"))
    assert scrub(log, keys=1).stop == 2
    assert scrub(log, keys=1).stop == 4
    while found := scrub(log, keys=1):
        assert found.stop <= 6
    assert [offset for offset, *_ in rows(log)] == [3, 4, 5]


def test_lc_01_all_keys_are_gone_through_once_for_a_file_and_not_for_each_batch(root, monkeypatch):
    log, calls = new_log(root, P0), []
    for number in range(12):
        put(log, (b"a", b"1") if number % 2 else (f"{number}".encode(), b"1"))
    compact(log, 1 << 20, 2, MANY, "test")
    are_latest = LatestOffsets.are_latest
    monkeypatch.setattr(LatestOffsets, "are_latest", lambda *given: calls.append(1) or are_latest(*given))
    assert scrub(log)
    put(log, (b"0", b"2"))
    assert scrub(log)
    assert [offset for offset, *_ in rows(log)] == [2, 4, 6, 8, 10, 11, 12]
    assert len(calls) == 1 + 3, "the second time for the keys of the file, for its records, and for the new file"


def test_lc_01_keys_are_merged_rarely(monkeypatch):
    merges, latest, merge = [], LatestOffsets(), LatestOffsets.merge
    monkeypatch.setattr(LatestOffsets, "merge", lambda self: merges.append(1) or merge(self))
    for number in range(256):
        latest.add(pa.table({"key": pa.array([f"{number}".encode(), b"a"]), "offset": [2 * number, 2 * number + 1]}))
    latest.merge()
    assert len(merges) < 16
    asked = pa.table({"key": pa.array([b"a", b"a", b"0", b"new", None]), "offset": [510, 511, 0, 0, 600]})
    assert latest.are_latest(asked).to_pylist() == [False, True, True, True, False]


def test_lc_01_a_rotten_file_stays_as_it_is(log):
    name = next(iter(log.current().segments))
    content = bytearray(log.root.read(name))
    content[40] ^= 1
    log.root.delete(name)
    log.root.put(name, bytes(content))
    with pytest.raises(CorruptRecordException, match=name):
        scrub(log)
    assert name in log.current().segments
    assert log.current().partition(P0).cleaned_to == 0


@pytest.mark.parametrize("landed", [True, False])
def test_lc_01_a_cleaning_whose_answer_is_lost_is_found_or_made_again(log, monkeypatch, landed):
    lost = lose_an_answer(monkeypatch, landed=landed)
    assert scrub(log)
    assert len(lost) == 1
    assert rows(log) == rows(ReplicaLog.open(log.root)) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]


class Killed(Exception):
    """The process ends here."""


def test_lc_01_a_cleaning_that_is_stopped_leaves_no_file_behind(log):
    before, files = facts(log), set(log.root.list())
    left = [5]  # after the keys of three files the second file is written

    def pace(size):
        left[0] -= size > 0
        if not left[0]:
            raise Killed

    with pytest.raises(Killed):
        scrub(log, pace=pace)
    assert (facts(log), set(log.root.list())) == (before, files)


class Written:
    """All that was written to a log, and what a cleaning of it must leave."""

    def __init__(self):
        self.records, self.stop = [], 0
        self._horizons, self._gone = {}, set()

    def cleaned(self, stop, now):
        """The log was cleaned up to an offset."""
        passed = {offset for offset, horizon in self._horizons.items() if now >= horizon and offset < stop}
        first, self.stop = self.stop, stop
        kept = self._newest()
        self._gone |= passed & kept
        new = {offset for offset in kept if offset >= first and self.records[offset][1] is None}
        self._horizons |= dict.fromkeys(new, now + HOUR * 1000)

    def _newest(self):
        return {*{key: offset for offset, (key, _) in enumerate(self.records[: self.stop])}.values()}

    @property
    def left(self):
        offsets = self._newest() - self._gone | {*range(self.stop, len(self.records))}
        return [(offset, *self.records[offset]) for offset in sorted(offsets)]


@pytest.mark.parametrize("seed", range(40))
def test_lc_01_the_newest_records_survive_whatever_happens(root, seed, monkeypatch):
    """Batches, merges, copies and kills before any write, against a list of all that was written."""
    chance = random.Random(seed)
    log, written, now = new_log(root, P0, P1), Written(), NOW
    keys = [b"a", b"b", b"c", b"", b"a long key"][: chance.randint(1, 5)]
    for _ in range(30):
        action = chance.choice(["put"] * 4 + ["clean"] * 2 + ["kill", "merge", "wait", "open", "other"])
        if action == "put":
            batch = [(chance.choice(keys), chance.choice([None, b"x" * chance.randint(0, 9)])) for _ in range(4)]
            put(log, *batch[: (size := chance.randint(1, 4))])
            written.records += batch[:size]
        elif action == "other":
            put(log, (b"a", b"other"), partition=P1)
        elif action == "merge":
            compact(log, 1 << 20, 2, MANY, "test")
        elif action == "wait":
            now += chance.randint(0, HOUR) * 1000
        elif action == "open":
            log = ReplicaLog.open(log.root)
        else:
            high_watermark = chance.randint(written.stop, len(written.records))
            with monkeypatch.context() as patch:
                if action == "kill":
                    kill_before_a_write(patch, chance)
                try:
                    done = scrub(log, high_watermark, now, keys=chance.choice([1, MANY]))
                except Killed:
                    log, done = ReplicaLog.open(log.root), None
            if done:
                written.cleaned(done.stop, now)
        assert rows(log) == written.left
        assert leo(log) == len(written.records)
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def kill_before_a_write(patch, chance):
    """Ends the process before one of its next writes."""
    left = [chance.randint(0, 3)]

    def kills(call):
        def before(*args, **named):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return call(*args, **named)

        return before

    patch.setattr(log_cleaning, "write_segment", kills(log_cleaning.write_segment))
    patch.setattr(DeltaLog, "commit", kills(DeltaLog.commit))
