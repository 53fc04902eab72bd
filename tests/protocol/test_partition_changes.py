"""The log line about changed leaders and ISRs."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.partition_changes import partition_changes
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
)


def led(leader=1, isr=(1, 2, 3), number=0):
    return PartitionRegistration("t", "id", number, (1, 2, 3), leader, 0, isr)


def many(**fields):
    return [led(number=number, **fields) for number in range(12)]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ([led()], [led()], ""),
        ([led()], [replace(led(), leader_epoch=1, partition_epoch=1)], ""),
        ([led()], [led(leader=2)], "1 partition has a new leader (t-0)"),
        ([led()], [led(leader=NO_LEADER)], "1 partition is offline (t-0)"),
        ([led(leader=NO_LEADER)], [led(leader=3)], "1 partition is online again (t-0)"),
        ([led(leader=NO_LEADER)], [led(leader=NO_LEADER)], ""),
        ([led()], [led(isr=(1, 3))], "broker 2 leaves 1 ISR (t-0)"),
        ([led(isr=(1,))], [led(isr=(1, 3, 2))], "broker 2 joins 1 ISR (t-0), broker 3 joins 1 ISR (t-0)"),
        ([led(isr=(1, 2))], [led(isr=(2, 1))], ""),
        (
            many(),
            many(leader=2, isr=(2, 3)),
            "12 partitions have new leaders (t-0, t-1, t-2 and 9 more), broker 1 leaves 12 ISRs (t-0, t-1, t-2 and 9 "
            "more)",
        ),
        ([led(leader=NO_LEADER)], [led(leader=LEADER_DURING_DELETE)], ""),
        ([led()], [led(leader=LEADER_DURING_DELETE, isr=())], ""),
        ([], [led()], ""),
        ([led()], [], ""),
    ],
)
def test_the_line_of_changes_is_empty_without_changes(before, after, line):
    by_partition = [{r.topic_id_partition: r for r in registrations} for registrations in (before, after)]
    assert partition_changes(*by_partition) == line
