"""When a waiting request is answered, as tables of cases."""

import dataclasses

import pytest

from lakelog.replication.errors import (
    FencedLeaderEpochException,
    LeaderNotAvailableException,
    NotEnoughReplicasAfterAppendException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    TimeoutException,
)
from lakelog.replication.protocol.delayed_operation import (
    DONE,
    NOT_YET,
    Completion,
    batches_within,
    check_fetch_offset,
    check_log_leads,
    check_offset_available,
    fetch_outcome,
    produce_outcome,
)
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from tests.protocol.chains import GENESIS, chained, chained_log, header

ROW = ReplicaStatus("t", "id", 0, 1, 1, 5, LEADER_ROLE, "Fetching", 0, 30, 20, (EpochEntry(5, 0),), None, 1)
KEEPS = (EpochEntry(5, 0), EpochEntry(6, 20))
TRUNCATED = (EpochEntry(5, 0), EpochEntry(6, 19))
NEVER_HAD = (EpochEntry(4, 0), EpochEntry(6, 10))
NOT_LEADER = Completion(True, NotLeaderOrFollowerException)
NOT_ENOUGH = Completion(True, NotEnoughReplicasAfterAppendException)
TIMED_OUT = Completion(True, TimeoutException)

# Offsets 10 to 19 were appended under leader epoch 5; min ISR is 2.
# case: (the leader's row, None if there is none yet; ISR size; whether the time is over) -> outcome
PRODUCES = {
    "the HW has passed": (({}, 3, False), DONE),
    "the HW has passed, ISR at its least": (({}, 2, False), DONE),
    "the HW has passed at the last poll": (({}, 3, True), DONE),
    "the HW has passed all but the last record": (({"high_watermark": 19}, 3, False), NOT_YET),
    "the HW has passed, the ISR has become too small": (({}, 1, False), NOT_ENOUGH),
    "a small ISR may grow again": (({"high_watermark": 19}, 1, False), NOT_YET),
    "time over": (({"high_watermark": 19}, 3, True), TIMED_OUT),
    "time over, the ISR too small": (({"high_watermark": 19}, 1, True), NOT_ENOUGH),
    "no leader yet": ((None, 3, False), NOT_YET),
    "no leader, time over": ((None, 3, True), TIMED_OUT),
    "no leader, time over, the ISR too small": ((None, 1, True), NOT_ENOUGH),
    "a leader of the past": (({"leader_epoch": 4, "high_watermark": 99}, 3, False), NOT_YET),
    "a leader of the past, time over": (({"leader_epoch": 4, "high_watermark": 99}, 3, True), TIMED_OUT),
    "a new leader that has them, HW passed": (({"leader_epoch": 6, "epochs": KEEPS}, 3, False), DONE),
    "a new leader that has them, HW below": (
        ({"leader_epoch": 6, "epochs": KEEPS, "high_watermark": 10}, 3, False), NOT_YET,
    ),
    "a new leader that lacks the last": (({"leader_epoch": 6, "epochs": TRUNCATED}, 3, False), NOT_LEADER),
    "a new leader that never had them": (({"leader_epoch": 6, "epochs": NEVER_HAD}, 3, False), NOT_LEADER),
    "a new leader without a lineage": (({"leader_epoch": 6, "epochs": ()}, 3, False), NOT_LEADER),
    "another history outweighs a small ISR": (({"leader_epoch": 6, "epochs": TRUNCATED}, 1, True), NOT_LEADER),
}  # fmt: skip


@pytest.mark.parametrize("case", PRODUCES)
def test_ap_07_acks_all_is_answered_once_the_hw_is_above_the_records(case):
    (said, isr_size, time_is_over), expected = PRODUCES[case]
    row = None if said is None else dataclasses.replace(ROW, **said)
    assert produce_outcome(row, 5, 19, isr_size, 2, time_is_over) == expected


ERROR = FencedLeaderEpochException("t-0: over")
# case: (bytes or error of each partition, min bytes, max bytes, whether the time is over) -> answered now
FETCHES = {
    "enough in one": (([10], 10, 100, False), True),
    "enough together": (([4, 0, 6], 10, 100, False), True),
    "too few": (([4, 0, 5], 10, 100, False), False),
    "nothing": (([0, 0], 1, 100, False), False),
    "nothing is enough": (([0], 0, 100, False), True),
    "time over": (([0], 1, 100, True), True),
    "no partitions": (([], 1, 100, False), True),
    "an error": (([0, ERROR, 0], 1, 100, False), True),
    "an error and records": (([5, ERROR], 10, 100, False), True),
    "more is asked for than may be sent": (([10], 1000, 10, False), True),
    "more than may be sent is not there": (([9], 1000, 10, False), False),
}


@pytest.mark.parametrize("case", FETCHES)
def test_fe_02_a_fetch_is_answered_now_or_waits(case):
    arguments, expected = FETCHES[case]
    assert fetch_outcome(*arguments) == (DONE if expected else NOT_YET)


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "is_first", "expected"),
    [
        ([5, 5, 5], 15, True, 3),
        ([5, 5, 5], 14, True, 2),
        ([5, 5, 5], 14, False, 2),
        ([50, 1], 10, True, 1),
        ([50, 1], 10, False, 0),
        ([5, 50, 1], 10, True, 1),
        ([1], 0, True, 1),
        ([1], 0, False, 0),
        ([], 10, True, 0),
    ],
)
def test_fe_02_the_first_batch_ignores_the_limit(sizes, max_bytes, is_first, expected):
    assert batches_within(sizes, max_bytes, is_first) == expected


@pytest.mark.parametrize(
    ("role", "leads"),
    [
        (Role(5, LEADER), True),
        (Role(5, FOLLOWER), False),
        (Role(5, STOPPED), False),
        (Role(6, FOLLOWER), False),
        (Role(6, LEADER), False),
        (Role(4, LEADER), False),
    ],
)
def test_do_02_the_log_of_a_deposed_leader_answers_no_reader(role, leads):
    log, row = PartitionLog(role=role), dataclasses.replace(ROW, log_end_offset=0)
    if leads:
        check_log_leads(log, row, "t-0")
        return
    with pytest.raises(NotLeaderOrFollowerException, match=rf"t-0: leader epoch 5 .* leader epoch {role.leader_epoch}"):
        check_log_leads(log, row, "t-0")


WHOLE = chained(header(0, 4), header(5, 9), header(10, 14))
AT_10, AT_15 = (batch.chain for batch in WHOLE[1:])
OTHERS = header(10, 14, digest="others")


@pytest.mark.parametrize(
    ("batches", "start", "has_them"),
    [
        pytest.param(WHOLE, 0, True, id="as the row says"),
        pytest.param([*WHOLE, header(15, 19)], 0, True, id="and more since"),
        pytest.param(WHOLE[:2], 0, False, id="its end is lost"),
        pytest.param([*WHOLE[:2], header(10, 12, digest="others")], 0, False, id="lost, and written to since"),
        pytest.param([*WHOLE[:2], OTHERS], 0, False, id="written to since, to the same end"),
        pytest.param([*WHOLE[:2], OTHERS, header(15, 19)], 0, False, id="written to since, beyond it"),
        pytest.param([], 0, False, id="all is lost"),
        pytest.param(WHOLE[2:], 12, True, id="its beginning is deleted"),
        pytest.param([], 15, True, id="all is deleted"),
        pytest.param([header(20, 24)], 20, True, id="all that the row tells of is deleted, and more"),
    ],
)  # fmt: skip
def test_fe_02_tr_08_a_leaders_row_counts_only_with_a_log_that_has_its_chain(batches, start, has_them):
    """Otherwise its HW belongs to other records."""
    first = batches[0] if batches else None
    before = {0: GENESIS, 10: AT_10, 15: AT_15, 20: "later"}[first.base_offset if first else start]
    log = chained_log(*batches, role=Role(5, LEADER), log_start_offset=start, start_chain=before)
    row = dataclasses.replace(ROW, log_end_offset=15, chain=AT_15)
    if has_them:
        check_log_leads(log, row, "t-0")
        return
    with pytest.raises(LeaderNotAvailableException, match=r"t-0: the log of broker 1 has lost its end, .* offset 15 "):
        check_log_leads(log, row, "t-0")


@pytest.mark.parametrize(("offset", "in_range"), [(6, False), (7, True), (8, False), (-1, False)])
def test_fe_02_an_offset_lies_between_log_start_and_leo(offset, in_range):
    log = PartitionLog(log_start_offset=7)
    if in_range:
        check_fetch_offset(offset, log, "t-0")
        return
    with pytest.raises(OffsetOutOfRangeException, match=f"t-0: offset {offset} .* has 7 to 7"):
        check_fetch_offset(offset, log, "t-0")


@pytest.mark.parametrize(
    ("offset", "high_watermark", "epoch_start", "is_known"),
    [
        (None, 5, 5, True),
        (None, 7, 5, True),
        (None, 4, 5, False),
        (5, 4, 5, False),
        (4, 4, 5, True),
        (6, 4, 5, True),
        (6, 5, 5, True),
    ],
)
def test_kip_207_how_much_is_committed_is_known_from_the_start_of_the_leaders_epoch_on(
    offset, high_watermark, epoch_start, is_known
):
    """Offsets below a lower HW are committed, offsets above the epoch's start are not, and others are unknown."""
    if is_known:
        check_offset_available(offset, high_watermark, epoch_start, "flights-3")
        return
    with pytest.raises(OffsetNotAvailableException, match="flights-3: the high watermark 4 is below 5") as raised:
        check_offset_available(offset, high_watermark, epoch_start, "flights-3")
    assert raised.value.retriable
