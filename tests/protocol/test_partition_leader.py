"""A partition is available once its leader has taken up its role."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import KafkaStorageException, LeaderNotAvailableException
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, Leadership, ReplicaStatus

LED = PartitionRegistration("flights", "id", 3, (1, 2), 1, 5, (1, 2))
ROW = ReplicaStatus("flights", "id", 3, 1, 1, 5, LEADER_ROLE, "Fetching", 0, 30, 20, (EpochEntry(5, 0),), None, 1)


def test_the_row_of_a_leader_that_has_taken_up_its_role():
    assert Leadership(LED, ROW).available_row() == ROW


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        (Leadership(replace(LED, leader=NO_LEADER)), LeaderNotAvailableException, r"no leader; replicas are \(1, 2\)"),
        (Leadership(LED), LeaderNotAvailableException, "broker 1 has not taken up its role under leader epoch 5"),
        (Leadership(LED, replace(ROW, role=FOLLOWER_ROLE)), LeaderNotAvailableException, "has not taken up its role"),
        (Leadership(LED, replace(ROW, leader_epoch=4)), LeaderNotAvailableException, "under leader epoch 5"),
        (Leadership(LED, ROW, KafkaStorageException("flights-3: hangs")), KafkaStorageException, "hangs"),
    ],
    ids=["no leader", "no row", "a follower", "an older epoch", "a row that cannot be read"],
)
def test_an_error_names_why_a_partition_has_no_readable_leader(found, error, words):
    with pytest.raises(error, match=f"flights-3: (.* )?{words}"):
        found.available_row()
