"""Deletes the beginning of logs: readable offsets, removed files, and remembered producers."""

import json
from pathlib import Path

import pytest

from lakelog.replication.errors import DuplicateSequenceException, OffsetOutOfRangeException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import FOLLOWER, STOPPED, Role
from lakelog.replication.protocol.producer_state import ProducerEntry, SequenceRun
from lakelog.replication.protocol.record_batch import LogEnd
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.data_file_name import is_snapshot
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_start import delete_old_segments, follow_log_starts, raise_log_starts
from lakelog.replication.storage.log.producer_snapshot import (
    SNAPSHOT_KEY,
    RememberedProducer,
    by_partition,
    from_footer,
    newest,
    to_footer,
)
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs, truncate_logs
from tests.storage.logs import (
    P0,
    P1,
    PRODUCER,
    epochs,
    facts,
    fill,
    filled_log,
    follow,
    leo,
    new_log,
    numbered,
    offsets,
    request,
    send,
)


@pytest.fixture
def log(root):
    """P0 has 0-3 | 4-7 | 8-11 (epoch 1); the second file holds P1 0-4 too."""
    return filled_log(root)


def start(log, partition, offset):
    return raise_log_starts(log, {partition: lambda _: offset}, "test", "test")[partition]


def clean(log, forget_before=0):
    return delete_old_segments(log, forget_before, "test")


def is_same_when_opened_anew(log):
    return facts(ReplicaLog.open(log.root)) == facts(log)


@pytest.mark.parametrize(
    ("offset", "removed", "added", "left"),
    [
        pytest.param(0, 0, 0, 3, id="nothing"),
        pytest.param(3, 0, 0, 3, id="within the first file"),
        pytest.param(4, 1, 0, 2, id="the first file"),
        pytest.param(7, 1, 0, 2, id="within the second"),
        pytest.param(8, 1, 0, 2, id="the second holds more of another partition"),
        pytest.param(12, 3, 1, 1, id="all, and the second is written again"),
    ],
)
def test_dr_01_segments_go_of_which_nothing_is_left(log, offset, removed, added, left):
    others = offsets(log, P1)
    assert start(log, P0, offset) == offset
    assert offsets(log) == list(range(offset, 12))
    version = clean(log)
    assert (version is not None) == bool(removed)
    if version is not None:
        commit = read_commit(log.root, version)
        rows = [file for file in commit.adds if not is_snapshot(file.name)]
        assert (len(commit.removes), len(rows)) == (removed, added)
        assert (any(f.data_change for f in commit.adds), all(f.data_change for f in commit.removes)) == (False, True)
    assert len([s for s in log.current().segments.values() if s.headers]) == left
    assert (offsets(log), offsets(log, P1), leo(log)) == (list(range(offset, 12)), others, 12)
    assert is_same_when_opened_anew(log)


def test_dr_01_a_segment_of_which_little_is_left_is_written_again(log):
    send(log, request(P0, 100, sequence=8, epoch=1), request(P1, 2, sequence=5))
    start(log, P0, 112)
    assert clean(log) is not None
    assert (offsets(log), offsets(log, P1)) == ([], list(range(7)))
    assert sum(h.records for s in log.current().segments.values() for h in s.headers) == 5 + 2
    assert is_same_when_opened_anew(log)


def test_dr_01_ep_04_nothing_is_read_or_told_below_the_log_start(log):
    start(log, P0, 9)
    with pytest.raises(OffsetOutOfRangeException, match="offset 8 is not within 9 to 12"):
        log.read(P0, 8)
    assert epochs(log) == [(1, 9)]
    (entry,) = log.current().partition(P0).lineage
    assert entry.chain == log.current().partition(P0).batches[2].header.previous, "of what lies before the batch"


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_ap_06_a_producer_is_still_known_when_its_batches_are_gone(log, offset):
    """A record that is sent once more is not taken for a new one, also by who opens the log later."""
    start(log, P0, offset)
    known = log.refresh().partition(P0).producers[PRODUCER].runs
    clean(log)
    assert clean(log) is None
    assert log.refresh().partition(P0).producers[PRODUCER].runs == known
    anew = ReplicaLog.open(log.root)
    assert anew.refresh().partition(P0).producers[PRODUCER].runs == known
    for sequence in (0, 8):
        (other,) = send(anew, request(P0, 4, sequence, epoch=1), tables={P0: numbered(4, first=4)})
        assert isinstance(other, DuplicateSequenceException)
    (again,) = send(anew, request(P0, 4, sequence=8, epoch=1))
    assert (again.base_offset, again.duplicate) == (8, True)
    (more,) = send(anew, request(P0, 1, sequence=12, epoch=1))
    assert isinstance(more, Appended)
    assert more.base_offset == 12


def test_ap_06_a_snapshot_of_an_older_version_has_no_digests(log):
    """It is read, and an older version reads a new one: that leaves out what it does not know."""
    start(log, P0, 12)
    clean(log)
    (snapshot,) = [s.producers for s in log.current().segments.values() if s.producers]
    footer = to_footer(snapshot)
    assert from_footer(footer) == snapshot
    assert [len(row) for row in json.loads(footer[SNAPSHOT_KEY])] == [6]
    (older,) = from_footer({SNAPSHOT_KEY: footer[SNAPSHOT_KEY]})
    assert (older.entry.runs, older.entry.batches) == (snapshot[0].entry.runs, ())


def test_ap_06_snapshots_are_joined_and_there_is_only_one(log):
    for offset in (4, 12):
        start(log, P0, offset)
        clean(log)
    start(log, P1, 5)
    clean(log)
    snapshots = [s for s in log.current().segments.values() if s.producers]
    assert [sorted((p.topic_id_partition, p.producer_id) for p in s.producers) for s in snapshots] == [
        [(P0, PRODUCER), (P1, PRODUCER)]
    ]
    assert log.current().partition(P0).forgotten[PRODUCER].runs == (SequenceRun(0, 11, 0),)
    assert is_same_when_opened_anew(log)


def remembered(epoch, *runs, latest=0):
    return RememberedProducer(P0, PRODUCER, ProducerEntry(epoch, tuple(SequenceRun(*run) for run in runs)), latest)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        pytest.param(remembered(0, (0, 3, 0)), remembered(0, (0, 5, 0)), id="its last run is longer"),
        pytest.param(remembered(0, (0, 3, 0)), remembered(0, (4, 5, 4)), id="it has begun after a gap in its memory"),
        pytest.param(remembered(0, (7, 9, 0)), remembered(0, (0, 0, 3)), id="its sequences began again"),
        pytest.param(remembered(0, (0, 3, 0)), remembered(1, (0, 0, 4)), id="another epoch"),
        pytest.param(remembered(0, (0, 3, 0)), remembered(0, (0, 3, 0)), id="the same"),
    ],
)
def test_ap_06_of_two_snapshots_the_newer_state_of_a_producer_counts_in_any_order(older, newer):
    older, newer = older._replace(max_timestamp=9), newer._replace(max_timestamp=5)
    other = newer._replace(topic_id_partition=P1, max_timestamp=1)
    for given in ([older, newer, other], [other, newer, older]):
        assert by_partition(given) == {P0: {PRODUCER: newer.entry}, P1: {PRODUCER: newer.entry}}
        assert sorted(newest(given)) == [newer._replace(max_timestamp=9), other]


def test_ol_01_ap_06_a_snapshot_that_is_readable_again_does_not_take_the_log_back(root):
    """Meanwhile the log has written another one beside it. A reader had the first one all the time."""
    log = new_log(root, P0)
    fill(log, P0, 2, 2)
    fill(log, P0, 1, producer_id=8)
    start(log, P0, 5)
    clean(log)
    (first,) = map(Path, [log.root.path(name) for name in log.current().segments])
    reader = ReplicaLog.open(log.root)
    hidden = first.rename(first.with_suffix(".away"))
    log = ReplicaLog.open(log.root)
    (outcome,) = send(log, request(P0, 2, sequence=4))
    assert outcome == Appended(5, 6)
    start(log, P0, 7)
    clean(log)
    hidden.rename(first)
    log.heal()
    opened = ReplicaLog.open(log.root)
    for each in (log, reader, opened):
        producers = each.refresh().partition(P0).producers
        assert {p: entry.runs for p, entry in producers.items()} == {
            7: (SequenceRun(4, 5, 5),),
            8: (SequenceRun(0, 0, 4),),
        }
    (outcome,) = send(opened, request(P0, 2, sequence=4))
    assert outcome == Appended(5, 6, duplicate=True)
    fill(opened, P0, 1)
    start(opened, P0, 8)
    clean(opened)
    assert [is_snapshot(name) for name in opened.current().segments] == [True], "one that has all"
    assert set(reader.refresh().partition(P0).producers) == set(opened.current().partition(P0).producers) == {7, 8}
    assert is_same_when_opened_anew(opened)


def test_ap_06_a_producer_that_has_been_silent_for_long_is_forgotten(log):
    start(log, P0, 12)
    clean(log, forget_before=2**62)
    assert log.current().partition(P0).producers == {}
    assert is_same_when_opened_anew(log)


def test_dr_02_a_follower_follows_the_log_start_in_its_role_only(log):
    follow(log, P0, epoch=2)
    follow_log_starts(log, {P0: (1, 6)}, "test")
    assert log.refresh().partition(P0).log_start_offset == 0
    follow_log_starts(log, {P0: (2, 6)}, "test")
    follow_log_starts(log, {P0: (2, 5)}, "test")
    assert log.refresh().partition(P0).log_start_offset == 6


@pytest.mark.parametrize("left", [20, 2])
def test_tr_07_a_log_that_starts_over_has_nothing_of_what_was_below_its_start(log, left):
    start(log, P0, 8)
    clean(log)
    follow(log, P0, epoch=2)
    restart = LogEnd(left, genesis(P1))
    truncate_logs(log, {P0: Truncation(2, 8, restart)}, "test")
    found = log.refresh().partition(P0)
    assert (found.log_start_offset, found.log_end, found.producers, found.batches) == (left, restart, {}, [])
    assert offsets(log, P1) == list(range(5))
    assert is_same_when_opened_anew(log)


def test_sr_02_a_deleted_partition_takes_the_memory_of_its_producers_along(log):
    start(log, P0, 8)
    start(log, P1, 5)
    clean(log)
    log.become({P0: Role(2, STOPPED)}, "test")
    delete_logs(log, [P0], "test")
    assert [p.topic_id_partition for s in log.current().segments.values() for p in s.producers] == [P1]
    assert is_same_when_opened_anew(log)


def test_tr_05_a_truncation_leaves_what_is_remembered_alone(log):
    start(log, P0, 4)
    clean(log)
    log.become({P0: Role(2, FOLLOWER)}, "test")
    truncate_logs(log, {P0: Truncation(2, 9)}, "test")
    assert log.refresh().partition(P0).producers[PRODUCER].runs == (SequenceRun(0, 7, 0),)
    assert is_same_when_opened_anew(log)
