"""Which records replicas lack, as tables of cases: rows of a partition that broker 1 has led last."""

import pytest

from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_loss import MissingRecords, missing_records
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus

OLD, NEW = EpochEntry(0, 0), EpochEntry(3, 6)
NOTHING = range(0)


def row(broker, end, high_watermark, role=FOLLOWER_ROLE, epoch=3, state="Fetching", start=0, epochs=(OLD, NEW)):
    return ReplicaStatus("t", "id", 0, broker, 1, epoch, role, state, start, end, high_watermark, epochs, None, 0)


def led(end=10, high_watermark=8, start=0):
    return row(1, end, high_watermark, LEADER_ROLE, start=start)


def rows(*found):
    return {each.broker_id: each for each in found}


def partition(leader=1, isr=(1,)):
    return PartitionRegistration("t", "id", 0, (1, 2, 3), leader, 3, isr)


CASES = {
    "a follower in sync has all that is committed": (
        partition(isr=(1, 2)), rows(led(), row(2, 9, 8)), {2}, (), range(8, 8), range(9, 10)),
    "even if its row is older than the leader's": (
        partition(isr=(1, 2)), rows(led(), row(2, 7, 7)), {2}, (), range(8, 8), range(8, 10)),
    "a follower out of sync": (partition(), rows(led(), row(2, 5, 5)), {2}, (), range(5, 8), range(8, 10)),
    "the furthest of two": (
        partition(), rows(led(), row(2, 5, 5), row(3, 7, 5)), {2, 3}, (), range(7, 8), range(8, 10)),
    "nobody": (partition(), rows(led()), set(), (), range(8), range(8, 10)),
    "nobody, and older records were deleted": (partition(), rows(led(start=6)), set(), (), range(6, 8), range(8, 10)),
    "a broker that has no row": (partition(), rows(led()), {2}, (), range(8), range(8, 10)),
    "records of another branch do not count": (
        partition(), rows(led(), row(2, 9, 5, epochs=(OLD,))), {2}, (), range(6, 8), range(8, 10)),
    "a row that says Truncating proves nothing": (
        partition(), rows(led(), row(2, 9, 8, state="Truncating")), {2}, (), range(8), range(8, 10)),
    "a delayed follower has what its row says": (
        partition(), rows(led(), row(2, 5, 5, state="Delayed")), {2}, (), range(5, 8), range(8, 10)),
    "a member that has lost its log": (
        partition(isr=(1, 2)), rows(led(), row(2, 0, 0, epochs=())), {2}, (2,), range(8), range(8, 10)),
    "the leader itself": (partition(), rows(led(), row(2, 5, 5)), {1, 2}, (), range(8, 8), range(10, 10)),
    "a follower that knows a higher HW than an older row of the leader": (
        partition(), rows(led(high_watermark=6), row(2, 8, 8)), {2}, (), range(8, 8), range(8, 10)),
    "a partition without a leader": (
        partition(leader=-1), rows(led(), row(2, 5, 5)), {2, 3}, (), range(5, 8), range(8, 10)),
    "a leader of before has an older row": (
        partition(leader=2, isr=(2,)), rows(row(1, 9, 7, LEADER_ROLE, 2), row(2, 8, 7, LEADER_ROLE)), {3}, (),
        range(7), range(7, 8)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_holders_lack(case):
    registration, known, holders, without_log, committed, uncommitted = CASES[case]
    found = missing_records(registration, known, holders, without_log)
    assert found is not None
    assert (list(found.committed), list(found.uncommitted)) == (list(committed), list(uncommitted))


@pytest.mark.parametrize(
    ("registration", "known"),
    [
        (partition(), rows(row(2, 5, 5))),  # the leader's row cannot be read
        (partition(leader=-1, isr=(3,)), rows(led(), row(2, 5, 5))),
        (partition(), {}),
    ],
)
def test_without_the_row_of_who_led_it_is_not_known(registration, known):
    assert missing_records(registration, known, {2}) is None


def test_numbers_are_lengths():
    found = missing_records(partition(), rows(led(), row(2, 5, 5)), {2})
    assert found == MissingRecords(range(5, 8), range(8, 10))
    assert (len(found.committed), len(found.uncommitted)) == (3, 2)
