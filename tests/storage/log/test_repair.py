"""Repairs a broken replica: removes the broken batches and all after them, if they can be fetched again."""

from pathlib import Path

import pytest

from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, NO_REPAIR, STOPPED, Role
from lakelog.replication.storage.log.log_start import raise_log_starts
from lakelog.replication.storage.log.repair import note_repairs, repair_logs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import write_segment
from lakelog.replication.storage.log.truncate import delete_logs
from tests.storage.logs import (
    P0,
    P1,
    P2,
    PRODUCER,
    chain,
    fill,
    follow,
    header,
    leo,
    log_rows,
    new_log,
    offsets,
    request,
    send,
    values,
)

FOLLOWS = {P0: 1, P1: 1}


@pytest.fixture
def log(root):
    """P0: 0-1 | 2-3 | 4-5 | 6-7, the third in one file with P1 0-1; P1 2 has a file of its own. Both are followed."""
    made = new_log(root, P0, P1, P2)
    fill(made, P0, 2, 2)
    send(made, request(P0, 2, sequence=4), request(P1, 2))
    fill(made, P0, 2)
    fill(made, P1, 1)
    fill(made, P2, 3)
    follow(made, P0, P1, epoch=1)
    return made


def harm(log, partition, number):
    """Damages a file of the partition, and lets the log find out."""
    name = log.refresh().known(partition).batches[number].segment
    path = Path(log.root.path(name))
    path.write_bytes(b"x" * path.stat().st_size)
    log.report_broken(name, f"{name}: rotten")
    return name


def sound(log):
    """The offsets of each partition that is not refused."""
    state = log.refresh()
    return {p: offsets(log, p) for p in (P0, P1, P2) if state.fault(p) is None}


@pytest.mark.parametrize(
    ("number", "left"),
    [
        (0, {P0: [], P1: [0, 1, 2]}),
        (1, {P0: [0, 1], P1: [0, 1, 2]}),
        (2, {P0: [0, 1, 2, 3], P1: []}),
        (3, {P0: [0, 1, 2, 3, 4, 5], P1: [0, 1, 2]}),
    ],
)
def test_ol_01_a_partition_is_truncated_where_its_first_broken_batch_begins(log, number, left):
    name = harm(log, P0, number)
    assert repair_logs(log, FOLLOWS, "test") is not None
    for handle in (log, ReplicaLog.open(log.root)):
        assert sound(handle) == {**left, P2: [0, 1, 2]}
        assert (name in handle.refresh().segments, handle.refresh().broken) == (False, {})
    assert repair_logs(log, FOLLOWS, "test") is None


def test_ol_01_a_file_whose_headers_were_never_read_takes_all_that_it_may_hold(log):
    """Its content is unknown, so the log's beginning and end without it are unknown, too."""
    harm(log, P0, 1)
    opened = ReplicaLog.open(log.root)
    assert repair_logs(opened, FOLLOWS, "test") is not None
    assert sound(opened) == {P0: [], P1: [0, 1, 2], P2: [0, 1, 2]}
    assert opened.refresh().partition(P0).producers.get(PRODUCER) is None


@pytest.mark.parametrize(
    "follows",
    [
        pytest.param({}, id="nothing may be fetched again"),
        pytest.param({P1: 1}, id="another partition may be"),
        pytest.param({P0: 1}, id="the file holds one more"),
        pytest.param({P0: 0, P1: 0}, id="that was under another leader epoch"),
        pytest.param({P0: 2, P1: 2}, id="it does not follow at that epoch yet"),
    ],
)
def test_ol_01_what_others_may_not_have_stays(log, follows):
    name = harm(log, P0, 2)
    assert repair_logs(log, follows, "test") is None
    assert name in log.refresh().segments
    assert sound(log) == {P2: [0, 1, 2]}


def test_ol_01_what_is_led_stays(log):
    name = harm(log, P2, 0)
    assert repair_logs(log, {P2: 0}, "test") is None
    assert name in log.refresh().segments


def test_ol_01_a_file_that_also_holds_a_stopped_partition_may_go(log):
    harm(log, P0, 2)
    log.become({P1: Role(1, STOPPED)}, "test")
    assert repair_logs(log, {P0: 1}, "test") is not None
    assert sound(log)[P0] == [0, 1, 2, 3]


def test_ol_01_of_two_broken_files_the_one_that_may_go_goes(log):
    harm(log, P0, 1)
    kept = harm(log, P2, 0)
    assert repair_logs(log, FOLLOWS, "test") is not None
    assert sound(log) == {P0: [0, 1], P1: [0, 1, 2]}
    assert set(log.refresh().broken) == {kept}


def test_ol_01_a_log_of_which_nothing_is_left_above_its_start_starts_over(log):
    raise_log_starts(log, {P0: lambda _: 3}, "test", "test")
    harm(log, P0, 1)
    assert repair_logs(log, FOLLOWS, "test") is not None
    for handle in (log, ReplicaLog.open(log.root)):
        known = handle.refresh().partition(P0)
        assert (known.log_start_offset, known.log_end_offset) == (0, 0)
        assert known.log_end.chain == genesis(P0)


def append_nonsense(log, base, count, epoch=0):
    headers = [header(P0, base, base + count - 1, epoch, chain(log))]
    segment = write_segment(log.root, 1, log_rows(P0, base, count, epoch), headers)
    log._log.move()
    log._log.commit({"why": "nonsense"}, [segment.file])


@pytest.mark.parametrize(("base", "count"), [(1000, 1), (7, 3)], ids=["a gap", "an overlap"])
def test_ol_01_batches_that_make_no_log_go_with_the_one_before_them(log, base, count):
    """Two batches overlap. Only the leader knows which one is right."""
    append_nonsense(log, base, count)
    assert log.refresh().fault(P0) is not None
    assert repair_logs(log, FOLLOWS, "test") is not None
    for handle in (log, ReplicaLog.open(log.root)):
        assert sound(handle) == {P0: list(range(6)), P1: [0, 1, 2], P2: [0, 1, 2]}


def test_ol_01_an_epoch_that_falls_goes_with_the_batch_before_it(log):
    append_nonsense(log, 8, 1, epoch=1)
    append_nonsense(log, 9, 1, epoch=0)
    assert "it has leader epoch 0 after 1" in log.refresh().fault(P0)
    assert repair_logs(log, FOLLOWS, "test") is not None
    assert sound(log)[P0] == list(range(8))


def test_ol_01_a_log_without_its_beginning_starts_over(log):
    first = log.refresh().segments[log.refresh().known(P0).batches[0].segment]
    log._log.commit({"why": "nonsense"}, removes=[first.file])
    assert "the log starts at 0" in log.refresh().fault(P0)
    assert repair_logs(log, FOLLOWS, "test") is not None
    assert sound(log)[P0] == []


def test_ol_01_its_role_is_what_it_was(log):
    """The rest is fetched as usual: under the role, from the log's end on."""
    harm(log, P0, 1)
    repair_logs(log, FOLLOWS, "test")
    assert (log.refresh().known(P0).role, leo(log), values(log)) == (Role(1, FOLLOWER), 2, [b"0", b"1"])


def test_ol_01_a_file_that_may_hold_a_replica_that_nobody_has_asked_for_stays(root):
    """Only the broken file and the metadata have its name."""
    made = new_log(root, P0, P1)
    fill(made, P0, 2)
    send(made, request(P0, 2, sequence=2), request(P1, 2))
    follow(made, P0, P1, epoch=1)
    name = harm(made, P1, 0)
    opened = ReplicaLog.open(made.root)
    assert opened.refresh().partitions() == [P0]
    assert repair_logs(opened, {P0: 1}, "test", [P0, P1]) is None
    opened = ReplicaLog.open(made.root)
    opened.become({P0: Role(2, STOPPED)}, "test")
    delete_logs(opened, [P0], "test", [P0, P1])
    assert name in opened.refresh().segments


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, []), (2, [0, 1]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3]), (8, list(range(8))), (99, list(range(8)))],
)
def test_ol_01_a_log_is_truncated_at_the_offset_that_an_operator_has_noted(log, offset, left):
    """Up to the batch boundary below it; the note outlives its process, and goes with the records."""
    assert note_repairs(log, {P0: (1, offset)}, "test") == [P0]
    opened = ReplicaLog.open(log.root)
    assert opened.current().to_repair == {P0}
    assert sound(opened) == {P0: list(range(8)), P1: [0, 1, 2], P2: [0, 1, 2]}, "it is used until then"
    assert repair_logs(opened, FOLLOWS, "test") is not None
    for handle in (opened, log, ReplicaLog.open(log.root)):
        assert sound(handle) == {P0: left, P1: [0, 1, 2], P2: [0, 1, 2]}
        assert (handle.refresh().to_repair, handle.refresh().faulty()) == (frozenset(), frozenset())
    assert repair_logs(opened, FOLLOWS, "test") is None


def test_ol_01_of_two_notes_the_lower_offset_counts(log):
    for offset in (4, 2, 6):
        note_repairs(log, {P0: (1, offset)}, "test")
    assert log.refresh().known(P0).repair_from == 2


@pytest.mark.parametrize(
    ("wrong", "noted"),
    [
        pytest.param({P2: (0, 0)}, [], id="it is led"),
        pytest.param({P0: (2, 0)}, [], id="it does not follow at that epoch yet"),
        pytest.param({P0: (0, 0), P1: (1, 0)}, [P1], id="one of two"),
    ],
)
def test_ol_01_only_a_follower_gets_a_note(log, wrong, noted):
    assert note_repairs(log, wrong, "test") == noted
    assert log.refresh().to_repair == set(noted)


@pytest.mark.parametrize("follows", [{}, {P1: 1}, {P0: 0}, {P0: 2}])
def test_ol_01_noted_records_stay_where_they_may_not_be_fetched_again(log, follows):
    note_repairs(log, {P0: (1, 0)}, "test")
    assert repair_logs(log, follows, "test") is None
    assert sound(log)[P0] == list(range(8))


@pytest.mark.parametrize("role", [Role(2, LEADER), Role(2, STOPPED), Role(1, FOLLOWER).as_stray()])
def test_ol_01_a_replica_that_is_no_follower_any_more_has_no_note(log, role):
    note_repairs(log, {P0: (1, 0)}, "test")
    log.become({P0: role}, "test")
    log.become({P0: Role(3, FOLLOWER)}, "test")
    for handle in (log, ReplicaLog.open(log.root)):
        assert handle.refresh().known(P0).repair_from == NO_REPAIR
        assert handle.refresh().to_repair == frozenset()
