import pytest

from replication.protocol.leader_election import new_partition
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration


@pytest.mark.parametrize(
    ("live", "leader", "isr"),
    [
        pytest.param({1, 2, 3}, 2, (2, 3, 1), id="preferred replica leads"),
        pytest.param({1, 3}, 3, (3, 1), id="first live one leads, the order of AR is kept"),
        pytest.param({1, 9}, 1, (1,), id="a live broker outside AR has no part"),
        pytest.param((), NO_LEADER, (), id="nobody alive"),
    ],
)
def test_le_03_new_partition(live, leader, isr):
    assert new_partition("flights", "id-1", 4, [2, 3, 1], live) == PartitionRegistration(
        topic="flights",
        topic_id="id-1",
        partition=4,
        replicas=(2, 3, 1),
        leader=leader,
        leader_epoch=0,
        isr=isr,
        partition_epoch=0,
    )
