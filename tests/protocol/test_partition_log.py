"""The state of a partition's log from its batches, in whatever order they are added and removed."""

import itertools

import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_log import (
    FENCED,
    FOLLOWER,
    LEADER,
    NO_ROLE,
    STOPPED,
    PartitionLog,
    Role,
    closed_roles,
    may_become,
    role_of,
    role_version,
)
from lakelog.replication.protocol.producer_state import ProducerEntry, SequenceRun
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition
from tests.protocol.chains import GENESIS, chained, chained_log
from tests.protocol.chains import header as header_of


def header(base, last, epoch=0, producer=-1, sequence=-1):
    return BatchHeader("t", "id", 0, epoch, base, last, 0, 0, producer, 0 if producer >= 0 else -1, sequence)


# Epochs 0, 1 and 3; producer 7 wrote the first two batches and the last one, producer 8 the third.
BATCHES = dict(
    zip(
        "abcd",
        chained(header(0, 3, 0, 7, 0), header(4, 5, 1, 7, 4), header(6, 8, 1, 8, 0), header(9, 9, 3, 7, 6)),
        strict=True,
    )
)
A, B, C, D = (batch.chain for batch in BATCHES.values())
LINEAGE = (EpochEntry(0, 0, GENESIS), EpochEntry(1, 4, A), EpochEntry(3, 9, C))


def log_of(names="abcd", **fields):
    log = PartitionLog(start_chain=GENESIS, **fields)
    for name in names:
        log.add(BATCHES[name], name)
    return log


def test_ep_01_ep_05_the_state_of_a_log_follows_from_its_batches():
    log = log_of()
    assert (log.log_start_offset, log.log_end_offset, log.lineage) == (0, 10, LINEAGE)
    assert log.producers == {
        7: ProducerEntry(0, (SequenceRun(0, 5, 0), SequenceRun(6, 6, 9))),
        8: ProducerEntry(0, (SequenceRun(0, 2, 6),)),
    }


@pytest.mark.parametrize("rest", list(itertools.permutations("bcd")), ids="".join)
def test_ep_01_the_order_in_which_batches_arrive_does_not_matter(rest):
    assert log_of(("a", *rest)) == log_of()


@pytest.mark.parametrize("kept", ["", "a", "ab", "abc", "abcd"])
def test_tr_05_ep_04_a_truncated_log_equals_one_that_never_had_the_batches(kept):
    """Lineage and producers are those of the remaining batches. An epoch without records leaves no trace."""
    log = log_of()
    log.drop(set("abcd") - set(kept))
    assert log == log_of(kept)


def test_tr_05_a_rewritten_batch_takes_the_place_of_the_one_that_was_removed():
    log = log_of()
    log.drop({"b"})
    log.add(BATCHES["b"], "anew")
    assert [batch.segment for batch in log.batches] == ["a", "anew", "c", "d"]
    assert (log.lineage, log.producers) == (log_of().lineage, log_of().producers)


@pytest.mark.parametrize(
    ("role", "epoch_start", "lineage"),
    [
        pytest.param(Role(3, FOLLOWER), 0, LINEAGE, id="a follower: what its batches say"),
        pytest.param(Role(5, FOLLOWER), 10, LINEAGE, id="a follower's own epoch is nobody's"),
        pytest.param(Role(5, STOPPED), 10, LINEAGE, id="stopped"),
        pytest.param(Role(5, LEADER), 10, (*LINEAGE, EpochEntry(5, 10, D)), id="ep_05: a leader's, from its start on"),
        pytest.param(Role(3, LEADER), 9, LINEAGE, id="a leader that has written"),
        pytest.param(
            Role(5, LEADER), 9, (*LINEAGE[:2], EpochEntry(5, 9, C)), id="a leader whose epoch starts at an older one's"
        ),
    ],
)
def test_ep_02_ep_05_a_leaders_epoch_counts_from_its_start_records_or_not(role, epoch_start, lineage):
    assert log_of(role=role, epoch_start=epoch_start).lineage == lineage


def test_ep_05_a_leader_with_an_empty_log_has_its_epoch():
    log = PartitionLog(log_start_offset=5, start_chain="at 5", role=Role(2, LEADER), epoch_start=5)
    assert log.lineage == (EpochEntry(2, 5, "at 5"),)


@pytest.mark.parametrize(
    ("start", "base", "log_start", "log_end"),
    [
        pytest.param(0, None, 0, 0, id="empty"),
        pytest.param(50, None, 50, 50, id="empty, from further up"),
        pytest.param(0, 20, 0, 22, id="whatever its first batch says, which may follow one that is broken"),
        pytest.param(20, 20, 20, 22, id="as told"),
        pytest.param(21, 20, 21, 22, id="told to begin within the batch"),
    ],
)
def test_ap_03_a_log_begins_at_its_recorded_start(start, base, log_start, log_end):
    log = PartitionLog(log_start_offset=start)
    if base is not None:
        log.add(header(base, base + 1), "a")
    assert (log.log_start_offset, log.log_end_offset) == (log_start, log_end)


def test_tr_05_a_log_truncated_to_nothing_keeps_its_log_start():
    log = PartitionLog(log_start_offset=4)
    log.add(BATCHES["b"], "b")
    log.drop({"b"})
    assert (log.log_start_offset, log.log_end_offset, log.lineage, log.producers) == (4, 4, (), {})


ROLES = [Role(epoch, kind) for epoch in range(3) for kind in (FOLLOWER, LEADER, STOPPED)]


def test_bl_02_a_role_is_a_number_that_goes_up_with_the_epoch_and_within_it():
    """Within an epoch a follower may become leader, and both may be stopped, never the reverse."""
    versions = [role_version(role) for role in ROLES]
    assert versions == sorted(set(versions))
    assert [role_of(version) for version in versions] == ROLES
    assert role_version(NO_ROLE) < 0 <= min(versions)
    assert role_of(role_version(NO_ROLE)) == NO_ROLE


@pytest.mark.parametrize("before", ROLES)
def test_sr_02_bl_02_a_log_takes_later_roles_and_a_stray_one_its_old_role_again(before):
    later = {role for role in ROLES if role_version(role) > role_version(before)}
    assert {role for role in ROLES if may_become(before, role)} == later
    if before.kind != STOPPED:
        assert {role for role in ROLES if may_become(before.as_stray(), role)} == {before, *later}
        assert not may_become(before.as_stray(), before.as_stray())


@pytest.mark.parametrize(
    ("kind", "is_leader", "name"),
    [(1, False, "follower"), (2, True, "leader"), (3, False, "fenced"), (4, False, "stopped")],
)
def test_bl_12_each_role_has_a_name_for_log_lines(kind, is_leader, name):
    assert (Role(5, kind).is_leader, Role(5, kind).name) == (is_leader, name)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ("abcd", None),
        ("", None),
        ("b", "b begins at offset 4, but the log starts at 0"),
        ("acd", "c begins at offset 6, but a ends before 4"),
        ("abd", "d begins at offset 9, but b ends before 6"),
    ],
)
def test_ft_10_a_log_has_no_gaps(names, fault):
    log = log_of(names)
    if fault is None:
        log.check(TopicIdPartition("id", 0))
        return
    with pytest.raises(CorruptRecordException, match=fault):
        log.check(TopicIdPartition("id", 0))


def test_ft_10_a_log_has_no_offset_twice():
    log = log_of("a")
    log.add(header(3, 5), "doubled")
    with pytest.raises(CorruptRecordException, match="doubled begins at offset 3, but a ends before 4"):
        log.check(TopicIdPartition("id", 0))


def test_a_copy_changes_alone():
    log = log_of("ab")
    other = log.copy()
    assert other == log
    other.add(BATCHES["c"], "c")
    other.drop({"a"})
    assert log == log_of("ab")


@pytest.mark.parametrize(
    ("offset", "chain", "boundary"),
    [
        pytest.param(0, GENESIS, 0, id="the beginning"),
        pytest.param(1, GENESIS, 0, id="within the first batch"),
        pytest.param(3, GENESIS, 0, id="before its last record"),
        pytest.param(4, A, 4, id="between batches"),
        pytest.param(5, A, 4, id="within the second"),
        pytest.param(6, B, 6, id="between batches of one epoch"),
        pytest.param(8, B, 6, id="within the third"),
        pytest.param(9, C, 9, id="before the last"),
        pytest.param(10, D, 10, id="the LEO"),
        pytest.param(11, None, 10, id="above the LEO"),
        pytest.param(-1, None, 0, id="below the beginning"),
    ],
)
def test_tr_08_the_chain_at_an_offset_is_that_of_the_batches_that_end_there_or_before(offset, chain, boundary):
    log = log_of()
    assert (log.chain_at(offset), log.boundary_at(offset)) == (chain, boundary)


@pytest.mark.parametrize(
    ("names", "start", "chains", "boundaries"),
    [
        pytest.param("bcd", 4, {3: None, 4: A, 5: A, 6: B, 10: D}, {4: 4, 5: 4, 6: 6}, id="from a batch on"),
        pytest.param("bcd", 5, {4: A, 5: A, 6: B, 10: D}, {4: 4, 5: 4, 6: 6}, id="from within a batch on"),
        pytest.param("abcd", 5, {0: GENESIS, 4: A, 5: A, 6: B}, {3: 0, 5: 4}, id="what lies below is still here"),
        pytest.param("cd", 10, {6: B, 9: C, 10: D, 11: None}, {10: 10, 9: 9, 8: 6}, id="all of it lies below"),
        pytest.param("b", 7, {4: A, 5: A, 6: B, 7: B, 8: None}, {7: 6}, id="the log starts above its last batch"),
    ],
)
def test_dr_01_tr_08_chains_of_a_log_whose_start_was_raised(names, start, chains, boundaries):
    log = log_of(names, log_start_offset=start)
    assert {offset: log.chain_at(offset) for offset in chains} == chains
    assert {offset: log.boundary_at(offset) for offset in boundaries} == boundaries
    assert log.lineage[0] == EpochEntry(log.lineage[0].leader_epoch, start, chains[start])


@pytest.mark.parametrize("start", [0, 50])
def test_tr_08_an_empty_log_knows_the_chain_that_is_recorded_for_it_and_no_other(start):
    log = PartitionLog(log_start_offset=start, start_chain="recorded")
    assert [log.chain_at(offset) for offset in (start - 1, start, start + 1)] == [None, "recorded", None]
    assert (log.log_end, log.first_offset, log.boundary_at(start)) == (LogEnd(start, "recorded"), start, start)


@pytest.mark.parametrize(
    ("names", "start", "end", "first"),
    [
        pytest.param("abcd", 0, LogEnd(10, D), 0, id="whole"),
        pytest.param("ab", 0, LogEnd(6, B), 0, id="a part"),
        pytest.param("abcd", 5, LogEnd(10, D), 0, id="the start lies within a batch"),
        pytest.param("abcd", 10, LogEnd(10, D), 0, id="all of it lies below the start"),
        pytest.param("ab", 8, LogEnd(8, B), 0, id="never below the log start"),
        pytest.param("", 8, LogEnd(8, GENESIS), 8, id="empty"),
    ],
)
def test_dr_01_the_log_end_is_never_below_the_log_start(names, start, end, first):
    log = log_of(names)
    log.start_at(start)
    assert (log.log_end, log.log_end_offset, log.first_offset) == (end, end.offset, first)


def test_tr_08_two_logs_with_one_chain_have_the_same_batches():
    """A different record in any batch changes all chains from there on, and none before."""
    batches = [header_of(0, 3), header_of(4, 5), header_of(6, 8)]
    log = chained_log(*batches)
    for number, batch in enumerate(batches):
        changed = [*batches[:number], header_of(batch.base_offset, batch.last_offset, digest="other")]
        other = chained_log(*changed, *batches[number + 1 :])
        same = [end for end in (0, 4, 6, 9) if log.chain_at(end) == other.chain_at(end)]
        assert same == [end for end in (0, 4, 6, 9) if end <= batch.base_offset]


def test_leaders_are_closed_under_their_own_epoch():
    logs = {
        TopicIdPartition("id", number): PartitionLog(role=Role(4, kind))
        for number, kind in enumerate((LEADER, FOLLOWER, STOPPED))
    }
    assert closed_roles(logs) == {TopicIdPartition("id", 0): Role(4, FENCED)}
