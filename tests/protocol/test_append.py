import dataclasses
import itertools

import pytest

from lakelog.replication.errors import (
    DuplicateSequenceException,
    FencedLeaderEpochException,
    InvalidRequiredAcksException,
    LakelogException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
    OutOfOrderSequenceException,
    ProducerFencedException,
    UnknownLeaderEpochException,
)
from lakelog.replication.protocol.append import (
    Appended,
    AppendPosition,
    PartitionAppend,
    check_append,
    check_follower_append,
    check_min_isr,
    parse_acks,
    place,
    position_of,
)
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.leader_epoch import epoch_at
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, NO_ROLE, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.producer_state import BATCHES_TO_RETAIN, forget
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition
from lakelog.replication.protocol.truncation import Truncation, check_truncation


@pytest.mark.parametrize("request_epoch", [5, None])
def test_ap_06_a_leader_accepts_an_append_at_its_epoch(request_epoch):
    check_append(Role(5, LEADER), request_epoch, "flights-3")


@pytest.mark.parametrize(
    ("is_leader", "request_epoch", "error"),
    [
        pytest.param(True, 4, FencedLeaderEpochException, id="older"),
        pytest.param(True, 6, UnknownLeaderEpochException, id="newer"),
        pytest.param(False, 5, NotLeaderOrFollowerException, id="follower"),
        pytest.param(False, None, NotLeaderOrFollowerException, id="follower, epoch not told"),
        pytest.param(False, 4, FencedLeaderEpochException, id="the epoch is looked at first: older"),
        pytest.param(False, 6, UnknownLeaderEpochException, id="the epoch is looked at first: newer"),
    ],
)
def test_ep_06_ap_06_an_append_under_another_role_or_epoch_is_refused(is_leader, request_epoch, error):
    with pytest.raises(error, match=r"flights-3: .*5"):
        check_append(Role(5, LEADER if is_leader else FOLLOWER), request_epoch, "flights-3")


@pytest.mark.parametrize(("acks", "isr_size", "min_isr"), [(-1, 2, 2), (-1, 3, 2), (1, 1, 2), (0, 1, 2)])
def test_ap_06_an_append_with_enough_in_sync_replicas_is_accepted(acks, isr_size, min_isr):
    check_min_isr(acks, isr_size, min_isr, "flights", 3)


def test_ap_06_an_append_with_too_few_in_sync_replicas_is_refused():
    with pytest.raises(NotEnoughReplicasException, match=r"flights-3: 1 .* needs 2"):
        check_min_isr(-1, 1, 2, "flights", 3)


@pytest.mark.parametrize(("acks", "expected"), [(0, 0), (1, 1), (-1, -1), ("0", 0), ("1", 1), ("-1", -1), ("all", -1)])
def test_ap_02_valid_acks_are_parsed(acks, expected):
    assert parse_acks(acks) == expected


@pytest.mark.parametrize("acks", [2, -2, "ALL", "", "01", None, True, 1.0, b"1"])
def test_ap_02_invalid_acks_are_refused(acks):
    with pytest.raises(InvalidRequiredAcksException, match="acks is"):
        parse_acks(acks)


def request(records, sequence, producer_epoch=0, leader_epoch=5):
    return PartitionAppend("flights", "id", 3, (1, 2), leader_epoch, records, 7, producer_epoch, sequence)


def placed_at(log, sent, kind="a"):
    """Where a leader puts records. The digest of some records has their kind, first sequence and number."""
    return place(log, sent, lambda parts: [digest(kind, sent.base_sequence + p.start, len(p)) for p in parts])


def digest(kind, sequence, records):
    return f"{kind}{sequence}+{records}"


def append(log, records, sequence, producer_epoch=0, leader_epoch=5):
    """Appends as a leader does. Each batch is a segment."""
    placed = placed_at(log, request(records, sequence, producer_epoch, leader_epoch))
    position = position_of(placed, log.log_end)
    if position:
        first = sequence + position.known
        header = BatchHeader(
            "flights", "id", 3, leader_epoch, position.base_offset, placed.last_offset, 0, 0, 7, producer_epoch, first,
            digest("a", first, records - position.known),
        )  # fmt: skip
        log.add(linked(header, position.chain), f"segment-{position.base_offset}")
    return placed


@pytest.fixture
def log():
    """Sequences 0 to 4 at offsets 0 to 4, then 5 to 7."""
    log = PartitionLog(role=Role(5, LEADER))
    append(log, 5, sequence=0)
    append(log, 3, sequence=5)
    return log


@pytest.mark.parametrize(
    ("records", "sequence", "producer_epoch", "placed"),
    [
        pytest.param(4, 8, 0, Appended(8, 11), id="next: at the LEO"),
        pytest.param(3, 5, 0, Appended(5, 7, duplicate=True, leader_epoch=5), id="sent again: where it lies"),
        pytest.param(5, 0, 0, Appended(0, 4, duplicate=True, leader_epoch=5), id="an earlier one sent again"),
        pytest.param(8, 0, 0, Appended(0, 7, duplicate=True, leader_epoch=5), id="two batches that are there"),
        pytest.param(4, 5, 0, Appended(5, 8, known=3), id="its first records are there: the rest at the LEO"),
        pytest.param(10, 0, 0, Appended(0, 9, known=8), id="its first two batches are there"),
        pytest.param(1, 0, 1, Appended(8, 8), id="a new producer epoch begins at 0"),
    ],
)
def test_ap_06_a_leader_appends_at_its_leo_or_recognises_a_duplicate(log, records, sequence, producer_epoch, placed):
    assert placed_at(log, request(records, sequence, producer_epoch)) == placed


@pytest.mark.parametrize(
    ("records", "sequence"),
    [
        pytest.param(3, 5, id="as many records"),
        pytest.param(8, 0, id="the records of two batches"),
        pytest.param(4, 5, id="more records: the first ones are others"),
        pytest.param(2, 5, id="the first records of a batch"),
        pytest.param(2, 6, id="the last records of a batch"),
        pytest.param(4, 3, id="parts of two batches"),
        pytest.param(9, 3, id="a part of a batch, and more"),
    ],
)
def test_ap_06_other_records_under_the_same_sequence_are_no_repeat(log, records, sequence):
    """A copy of the producer has the same sequences. Its records would be acknowledged and be in no log."""
    with pytest.raises(DuplicateSequenceException, match=r"flights-3: .* producer 7 .*another process"):
        placed_at(log, request(records, sequence), kind="b")
    assert append(log, 2, sequence=8) == Appended(8, 9)


def test_ap_06_of_two_batches_each_one_is_compared(log):
    with pytest.raises(DuplicateSequenceException):
        place(log, request(8, 0), lambda _: [digest("a", 0, 5), digest("b", 5, 3)])


def deleted(log, offset):
    """Deletes the batches below an offset, and keeps the memory of their producer."""
    entry = log.forgotten.get(7)
    for batch in log.batches:
        entry = forget(entry, batch.header) if batch.base_offset < offset else entry
    log.start_at(offset)
    log.drop({batch.segment for batch in log.batches if batch.base_offset < offset})
    log.remember({7: entry})


@pytest.mark.parametrize("offset", [5, 8])
@pytest.mark.parametrize("more", [0, 2])
def test_ap_06_deleted_records_are_compared_too(log, offset, more):
    deleted(log, offset)
    known = {"known": 8} if more else {"duplicate": True, "leader_epoch": epoch_at(log.lineage, 7)}
    assert placed_at(log, request(8 + more, 0)) == Appended(0, 7 + more, **known)
    with pytest.raises(DuplicateSequenceException):
        placed_at(log, request(8 + more, 0), kind="b")


def test_ap_06_records_that_were_deleted_long_ago_are_no_repeat(log):
    """The log knows the digests of the last batches only. Kafka: `ProducerStateEntry`, five batches."""
    for sequence in range(8, 8 + BATCHES_TO_RETAIN):
        append(log, 1, sequence)
    deleted(log, log.log_end_offset)
    assert placed_at(log, request(BATCHES_TO_RETAIN, 8)).duplicate
    assert placed_at(log, request(BATCHES_TO_RETAIN + 3, 5)).duplicate, "its last records are known"
    with pytest.raises(OutOfOrderSequenceException, match="were deleted, and the log does not know any more"):
        placed_at(log, request(3, 5))


def test_ap_06_what_an_older_version_remembers_has_no_digests(log):
    deleted(log, 8)
    log.remember({7: dataclasses.replace(log.forgotten[7], batches=())})
    assert placed_at(log, request(3, 5)).duplicate


def test_tr_05_ap_06_digests_of_deleted_batches_are_truncated_with_them(log):
    deleted(log, 8)
    log.start_at(5)
    assert append(log, 3, sequence=5) == Appended(5, 7)


@pytest.mark.parametrize("follows", [True, False])
def test_ap_06_records_behind_others_in_flight_need_a_log_that_knows_their_producer(log, follows):
    """A new leader may lack all earlier records. They are sent again first."""
    unknown = dataclasses.replace(request(1, sequence=4), producer_id=99, follows=follows)
    if not follows:
        assert placed_at(log, unknown) == Appended(8, 8)
        return
    with pytest.raises(OutOfOrderSequenceException, match="the log does not know producer 99, whose earlier records"):
        placed_at(log, unknown)


@pytest.mark.parametrize(
    ("role", "producer_epoch", "sequence", "leader_epoch", "error"),
    [
        pytest.param(Role(5, LEADER), 0, 9, 5, OutOfOrderSequenceException, id="one is missing"),
        pytest.param(Role(5, FOLLOWER), 0, 5, 5, NotLeaderOrFollowerException, id="a follower, though it has it"),
        pytest.param(Role(5, STOPPED), 0, 8, 5, NotLeaderOrFollowerException, id="stopped"),
        pytest.param(Role(6, LEADER), 0, 5, 5, FencedLeaderEpochException, id="the epoch is over, though it has it"),
        pytest.param(Role(5, LEADER), 0, 9, 6, UnknownLeaderEpochException, id="the epoch comes before the sequence"),
    ],
)
def test_ap_06_ep_06_role_and_epoch_are_asked_before_the_sequence(
    log, role, producer_epoch, sequence, leader_epoch, error
):
    log.role = role
    with pytest.raises(error):
        placed_at(log, request(1, sequence, producer_epoch, leader_epoch))


def test_kip_98_an_older_producer_is_fenced(log):
    append(log, 1, sequence=0, producer_epoch=1)
    with pytest.raises(ProducerFencedException):
        placed_at(log, request(3, 8))


@pytest.mark.parametrize(
    ("truncation", "records", "sequence", "placed"),
    [
        pytest.param(5, 3, 5, Appended(5, 7), id="what was truncated is appended anew"),
        pytest.param(5, 5, 0, Appended(0, 4, duplicate=True, leader_epoch=5), id="what was kept is still known"),
        pytest.param(0, 3, 5, Appended(0, 2), id="of an empty log nothing is known: the producer may begin anywhere"),
    ],
)
def test_tr_05_ap_06_producer_states_follow_a_truncation(log, truncation, records, sequence, placed):
    """A follower truncates records that its leader never had, and leads later. The producer sends them again."""
    log.drop({batch.segment for batch in log.batches if batch.base_offset >= truncation})
    log.role, log.epoch_start = Role(6, LEADER), log.log_end_offset
    assert placed_at(log, request(records, sequence, leader_epoch=6)) == placed


def test_tr_05_ap_06_a_batch_that_was_truncated_is_gone_as_a_whole_and_makes_neither_a_double_nor_a_hole(log):
    log.drop({"segment-5"})
    with pytest.raises(OutOfOrderSequenceException, match="5 comes next"):
        placed_at(log, request(2, 6))
    assert append(log, 3, sequence=5) == Appended(5, 7)
    assert placed_at(log, request(3, 5)) == Appended(5, 7, duplicate=True, leader_epoch=5)


def test_ap_06_a_send_that_lies_there_in_parts_is_a_duplicate_over_all_of_them(log):
    """Others wrote in between, and each new leader appended the rest that it lacked."""
    log.add(BatchHeader("flights", "id", 3, 5, 8, 9, 0, 0), "another producer's")
    log.role, log.epoch_start = Role(6, LEADER), 10
    assert append(log, 6, sequence=5, leader_epoch=6) == Appended(5, 12, known=3)
    log.add(BatchHeader("flights", "id", 3, 6, 13, 13, 0, 0), "another producer's again")
    assert append(log, 8, sequence=5, leader_epoch=6) == Appended(5, 15, known=6)
    assert placed_at(log, request(8, 5, leader_epoch=6)) == Appended(5, 15, duplicate=True, leader_epoch=6)


@pytest.mark.parametrize(
    ("appended", "position"),
    [
        (Appended(8, 11), AppendPosition(8, 0, "chain")),
        (Appended(2, 8, known=3), AppendPosition(8, 3, "chain")),
        (Appended(2, 5, duplicate=True), None),
    ],
)
def test_ap_06_only_the_new_records_of_a_request_are_appended(appended, position):
    assert position_of(appended, LogEnd(8, "chain")) == position


def test_tr_05_ap_06_a_truncated_producer_epoch_does_not_fence_older_ones(log):
    append(log, 1, sequence=0, producer_epoch=1)
    log.drop({"segment-8"})
    assert append(log, 2, sequence=8) == Appended(8, 9)


WRITERS = {
    "producer": lambda log: placed_at(log, request(1, 0, leader_epoch=5)),
    "follower's fetch": lambda log: check_follower_append(log, 5, "chain", "flights-3"),
    "follower's truncation": lambda log: check_truncation(log, Truncation(5, 0), "flights-3"),
}


def may_write(name, role):
    try:
        WRITERS[name](PartitionLog(role=role, start_chain="chain"))
    except LakelogException:
        return False
    return True


def test_ap_01_ap_03_ap_06_only_a_leader_appends_sends_and_only_a_follower_appends_fetches():
    """Producers and followers write to one log table, but never to a partition in the same role."""
    roles = [NO_ROLE, *(Role(epoch, kind) for epoch in (4, 5, 6) for kind in (FOLLOWER, LEADER, STOPPED))]
    allowed = {(name, role) for name, role in itertools.product(WRITERS, roles) if may_write(name, role)}
    assert allowed == {
        ("producer", Role(5, LEADER)),
        ("follower's fetch", Role(5, FOLLOWER)),
        ("follower's truncation", Role(5, FOLLOWER)),
    }


def test_a_request_knows_its_partition():
    assert request(1, 0).topic_id_partition == TopicIdPartition("id", 3)
