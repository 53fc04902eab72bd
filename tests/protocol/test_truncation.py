import itertools
from dataclasses import dataclass, replace

import pytest

from lakelog.replication.errors import CorruptRecordException, FencedLeaderEpochException
from lakelog.replication.protocol.leader_epoch import EpochEntry, assign, end_offset_for, epoch_at
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, PlacedBatch, Role
from lakelog.replication.protocol.record_batch import LogEnd
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.truncation import Truncation, check_truncation, truncation_for, truncation_offset
from tests.protocol.chains import chained, one_by_one


def lineage(*entries):
    return tuple(EpochEntry(*entry) for entry in entries)


@pytest.mark.parametrize(
    ("follower", "leo", "leader", "offset"),
    [
        pytest.param(lineage(), 0, lineage((0, 0)), 0, id="an empty follower"),
        pytest.param(lineage(), 50, lineage((3, 0)), 50, id="an empty follower whose log starts at 50"),
        pytest.param(lineage((0, 0)), 7, lineage(), 7, id="a leader that says nothing"),
        pytest.param(lineage(), 0, lineage(), 0, id="both empty"),
        pytest.param(lineage((0, 0)), 10, lineage((0, 0)), 10, id="the same lineage"),
        pytest.param(lineage((0, 0)), 10, lineage((0, 0), (1, 10)), 10, id="the leader has a new epoch at our LEO"),
        pytest.param(lineage((0, 0)), 10, lineage((0, 0), (1, 30)), 10, id="we lag behind"),
        pytest.param(
            lineage((0, 0)), 10, lineage((0, 0), (1, 6)), 6, id="kip_101: we have more of the epoch than the leader"
        ),
        pytest.param(
            lineage((0, 0), (1, 4)), 9, lineage((0, 0), (2, 4)), 4, id="kip_101: another epoch wrote the same offsets"
        ),
        pytest.param(
            lineage((0, 0), (2, 4)), 9, lineage((0, 0), (1, 4)), 4, id="an epoch that the leader does not know"
        ),
        pytest.param(lineage((0, 0), (1, 4)), 9, lineage((0, 0), (1, 4), (2, 6)), 6, id="two epochs in common"),
        pytest.param(
            lineage((0, 0), (1, 10), (3, 20)),
            30,
            lineage((0, 0), (1, 10), (2, 15), (4, 25)),
            15,
            id="kip_279: both went on from epoch 1, each under its own",
        ),
        pytest.param(
            lineage((1, 0), (2, 10)),
            11,
            lineage((1, 0), (3, 10)),
            10,
            id="kip_279: fast fail-over, one record each",
        ),
        pytest.param(
            lineage((0, 0), (1, 10)), 12, lineage((0, 0), (2, 11)), 10, id="kip_279: the leader stayed at epoch 0"
        ),
        pytest.param(lineage((1, 0)), 9, lineage((2, 0)), 0, id="nothing in common"),
        pytest.param(
            lineage((0, 0), (5, 10)), 10, lineage((0, 0), (7, 10)), 10, id="an empty epoch of ours does not count"
        ),
        pytest.param(
            lineage((0, 0)), 10, lineage((0, 0), (9, 10)), 10, id="an empty epoch of the leader does not count"
        ),
        pytest.param(
            lineage((2, 50)), 60, lineage((0, 0), (1, 20), (2, 40)), 60, id="retention has taken our beginning"
        ),
        pytest.param(
            lineage((0, 0), (2, 40)), 60, lineage((2, 50)), 60, id="retention has taken the leader's beginning"
        ),
        pytest.param(lineage((0, 0)), 60, lineage((2, 50)), 50, id="what the leader kept is of another epoch"),
        pytest.param(
            lineage((0, 0)), 30, lineage((2, 50)), 30, id="the leader starts above our end: nothing to compare"
        ),
        pytest.param(
            lineage((3, 90)), 99, lineage((0, 0), (1, 20)), 90, id="our log starts above the leader's last epoch"
        ),
    ],
)
def test_tr_01_the_truncation_is_the_first_offset_of_another_epoch(follower, leo, leader, offset):
    assert truncation_offset(follower, leo, leader) == offset


def lineages(length=5):
    """Every lineage of a log of that length whose epochs are among three."""
    for epochs in itertools.combinations_with_replacement(range(3), length):
        found = ()
        for offset, epoch in enumerate(epochs):
            found = assign(found, epoch, offset)
        yield found


def test_tr_03_what_is_kept_has_the_same_epochs_on_both_sides():
    """Looked at offset by offset, for all pairs of short lineages: nothing that agrees is truncated, nothing else is
    kept."""
    for follower, leader in itertools.product(lineages(), repeat=2):
        leader = assign(leader, 3, 5)  # as every leader's, it ends with its own epoch
        for leo in range(1, 8):
            differ = [o for o in range(leo) if epoch_at(follower, o) != epoch_at(leader, o)]
            assert truncation_offset(follower, leo, leader) == (differ[0] if differ else leo)


@dataclass(frozen=True)
class Kept:
    """A minimal replica: records with their epochs, and an epoch per start."""

    records: tuple[tuple[int, int], ...] = ()
    lineage: tuple[EpochEntry, ...] = ()

    @property
    def end(self):
        return len(self.records)

    def lead(self, epoch):
        return replace(self, lineage=assign(self.lineage, epoch, self.end))

    def append(self, number, epoch):
        return Kept((*self.records, (number, epoch)), assign(self.lineage, epoch, self.end))

    def truncate(self, offset):
        return Kept(self.records[:offset], tuple(entry for entry in self.lineage if entry.start_offset < offset))


def common(one, other):
    """The number of common records from the start."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.records, other.records, strict=False))
    return len(list(pairs))


def by_dialogue(follower, leader):
    """The result of Kafka's protocol: the follower asks for one epoch after the other, and truncates at each answer."""
    while follower.lineage:
        known, leader_end = end_offset_for(leader.lineage, leader.end, follower.lineage[-1].leader_epoch)
        own, own_end = end_offset_for(follower.lineage, follower.end, known)
        common_end = own_end if own != known else min(leader_end, own_end)
        follower = follower.truncate(min(common_end, follower.end))
        if own == known:
            break
    return follower.end


def histories(steps):
    """Every history of two replicas, of which now the one, now the other leads, in sync or not: (follower, leader).

    Someone is elected, the leader appends a record, or the follower truncates its log and copies one: all orders of
    these.
    """

    def walk(leader, follower, epoch, number, is_truncated, left):
        yield follower, leader
        if not left:
            return
        yield from walk(leader.lead(epoch + 1), follower, epoch + 1, number, False, left - 1)
        yield from walk(follower.lead(epoch + 1), leader, epoch + 1, number, False, left - 1)
        yield from walk(leader.append(number, epoch), follower, epoch, number + 1, is_truncated, left - 1)
        copier = follower if is_truncated else follower.truncate(common(follower, leader))
        copied = copier.append(*leader.records[copier.end]) if copier.end < leader.end else copier
        if copied != follower:
            yield from walk(leader, copied, epoch, number, True, left - 1)

    yield from walk(Kept().lead(0), Kept(), 0, 0, False, steps)


def test_tr_01_tr_03_tr_04_the_truncation_is_the_end_of_the_longest_common_history():
    """Compared with the records themselves, and with where Kafka's questions and answers end; over all short histories
    of unclean elections, several in a row, and leaders that wrote nothing."""
    pairs = set(histories(8))
    assert max(follower.end - common(follower, leader) for follower, leader in pairs) >= 3
    for follower, leader in pairs:
        truncation = truncation_offset(follower.lineage, follower.end, leader.lineage)
        assert truncation == common(follower, leader), (follower, leader)
        assert truncation == by_dialogue(follower, leader), (follower, leader)


FOLLOWS = Role(9, FOLLOWER)


def at(offset):
    """A log's beginning. Its chain is named after the offset, so logs that begin there agree."""
    return LogEnd(offset, f"at {offset}")


def log_of(*entries, end, role=FOLLOWS):
    """A log of batches of one record, whose epochs start at the entries; without any it is empty, and begins where it
    ends."""
    start = entries[0][1] if entries else end
    log = PartitionLog(log_start_offset=start, start_chain=at(start).chain, role=role)
    ends = [*(base for _, base in entries[1:]), end]
    written = (one_by_one(stop, base, epoch) for (epoch, base), stop in zip(entries, ends, strict=False))
    placed = chained(*itertools.chain.from_iterable(written), previous=log.start_chain)
    log.place(PlacedBatch(batch.base_offset, batch, f"segment-{batch.base_offset}") for batch in placed)
    return log


def leader_of(*entries, end, start=0):
    epochs = tuple(EpochEntry(epoch, *at(offset)) for epoch, offset in (*entries, (9, end)))
    return ReplicaStatus("t", "id", 0, 1, 1, 9, LEADER_ROLE, "Fetching", start, end, 0, epochs, None, 1)


EMPTY = leader_of(end=0)


@pytest.mark.parametrize(
    ("own", "leader", "truncation"),
    [
        pytest.param(log_of((0, 0), end=10), leader_of((0, 0), end=10), Truncation(9, 10), id="nothing to truncate"),
        pytest.param(log_of((0, 0), end=6), leader_of((0, 0), end=10), Truncation(9, 6),
        id="behind: nothing to truncate"),
        pytest.param(log_of((0, 0), end=10), leader_of((0, 0), end=6), Truncation(9, 6), id="kip_101: ahead"),
        pytest.param(
            log_of((0, 0), (1, 4), end=9), leader_of((0, 0), (2, 4), end=7), Truncation(9, 4),
            id="unclean: below the HW too"
        ),
        pytest.param(
            log_of((0, 0), (2, 3), end=9), leader_of((1, 0), end=7), Truncation(9, 0),
            id="nothing in common: all, from 0 on"
        ),
        pytest.param(log_of((0, 0), end=10), EMPTY, Truncation(9, 0), id="a leader with an empty log"),
        pytest.param(log_of(end=0), EMPTY, Truncation(9, 0), id="both empty"),
        pytest.param(log_of(end=0), leader_of((0, 0), end=10), Truncation(9, 0), id="ap_03: a new replica"),
        pytest.param(
            log_of(end=0), leader_of((0, 20), end=50, start=20), Truncation(9, 0, at(20)),
            id="a new replica begins with it"
        ),
        pytest.param(
            log_of((0, 0), end=19), leader_of((0, 20), end=50, start=20), Truncation(9, 0, at(20)),
            id="tr_07: the leader's "
            "log starts after our end",
        ),
        pytest.param(
            log_of((0, 0), end=20), leader_of((0, 20), end=50, start=20), Truncation(9, 20),
            id="tr_07: it starts at our end"
        ),
        pytest.param(
            log_of((0, 0), end=90), leader_of(end=50, start=50), Truncation(9, 50),
            id="an empty leader that starts at 50"
        ),
        pytest.param(
            log_of((3, 60), end=90), leader_of((0, 0), end=40), Truncation(9, 60, at(0)),
            id="tr_07: our log starts after the leader's end",
        ),
        pytest.param(
            log_of((3, 60), end=90), leader_of((0, 0), (4, 50), end=99), Truncation(9, 60, at(0)),
            id="nothing of ours is the leader's",
        ),
        pytest.param(
            log_of((3, 60), end=90), leader_of((4, 70), end=99, start=70), Truncation(9, 70),
            id="what the leader has not kept"
            " is not compared",
        ),
        pytest.param(log_of(end=60), leader_of((0, 0), end=40), Truncation(9, 60, at(0)), id="an empty log above"),
        pytest.param(log_of(end=60), leader_of((0, 0), end=80), Truncation(9, 60, at(0)), id="an empty log within"),
    ],
)  # fmt: skip
def test_tr_03_tr_06_tr_07_ap_03_the_truncation_under_a_new_leader(own, leader, truncation):
    assert truncation_for(own, leader) == truncation


@pytest.mark.parametrize(("cleaned_to", "offset"), [(0, 4), (4, 4), (5, 0), (9, 0)])
def test_lc_01_a_log_that_loses_records_which_were_cleaned_starts_over(cleaned_to, offset):
    own = replace(log_of((0, 0), (1, 4), end=9), cleaned_to=cleaned_to)
    assert truncation_for(own, leader_of((0, 0), (2, 4), end=7)) == Truncation(9, offset)
    assert truncation_for(own, leader_of((0, 0), (1, 4), end=20)) == Truncation(9, 9), "nothing goes"


def test_tr_07_after_the_truncation_every_log_joins_its_leaders():
    """Over all small logs on both sides, wherever they begin: what is left agrees, and the leader's log goes on."""
    ranges = [(first, last) for last in range(5) for first in range(last + 1)]
    for (own_start, own_end), (start, end) in itertools.product(ranges, repeat=2):
        for epochs, leaders in itertools.product((0, 1), repeat=2):
            own = log_of((epochs, own_start), end=own_end) if own_end > own_start else log_of(end=own_end)
            leader = leader_of(*([(leaders, start)] if end > start else []), end=end, start=start)
            truncation = truncation_for(own, leader)
            kept = max(min(truncation.offset, own.log_end_offset), own_start)
            left = (
                range(own_start, kept)
                if truncation.restart is None
                else range(truncation.restart.offset, truncation.restart.offset)
            )
            case = (own_start, own_end, start, end, epochs, leaders, truncation)
            assert start <= left.stop <= end, case
            assert all(epochs == leaders for offset in left if offset >= start), case
            assert truncation.restart is None or kept == own_start, case
            if epochs == leaders and own_start < own_end and start < end and own_start < end and start <= own_end:
                assert left.stop == min(own_end, end), case


def test_ep_04_tr_05_an_epoch_of_which_a_truncation_leaves_nothing_is_forgotten():
    own = log_of((0, 0), (1, 4), (3, 7), end=9)
    truncation = truncation_for(own, leader_of((0, 0), (1, 4), (2, 6), end=8))
    assert truncation == Truncation(9, 6)
    own.drop({batch.segment for batch in own.batches if batch.header.next_offset > truncation.offset})
    assert own.lineage == log_of((0, 0), (1, 4), end=6).lineage
    to_the_start_of_an_epoch = log_of((0, 0), (1, 4), end=9)
    to_the_start_of_an_epoch.drop({f"segment-{offset}" for offset in range(4, 9)})
    assert to_the_start_of_an_epoch.lineage == log_of((0, 0), end=4).lineage


def test_tr_02_nothing_is_truncated_to_a_negative_offset():
    """It would remove the whole log."""
    with pytest.raises(CorruptRecordException, match="flights-0: not truncated to -1: no log has that offset"):
        check_truncation(log_of((0, 0), end=10, role=Role(9, FOLLOWER)), Truncation(9, -1), "flights-0")


@pytest.mark.parametrize(
    ("role", "is_made"),
    [
        (Role(9, FOLLOWER), True),
        (Role(9, LEADER), False),
        (Role(9, STOPPED), False),
        (Role(8, FOLLOWER), False),
        (Role(10, FOLLOWER), False),
        (Role(10, LEADER), False),
    ],
    ids=str,
)
def test_tr_02_a_truncation_is_made_in_the_role_it_was_decided_in(role, is_made):
    log = log_of((0, 0), end=10, role=role)
    if is_made:
        check_truncation(log, Truncation(9, 5), "flights-0")
        return
    with pytest.raises(FencedLeaderEpochException, match=r"flights-0: not truncated to 5: .* leader epoch 9"):
        check_truncation(log, Truncation(9, 5), "flights-0")
