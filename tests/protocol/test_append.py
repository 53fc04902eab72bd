import pytest

from replication.errors import (
    FencedLeaderEpochException,
    InvalidRequiredAcksException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
    UnknownLeaderEpochException,
)
from replication.protocol.append import check_append, check_min_isr, parse_acks
from replication.protocol.partition_log import FOLLOWER, LEADER, Role


@pytest.mark.parametrize("request_epoch", [5, None])
def test_ap_06_the_leader_takes_it(request_epoch):
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
def test_ep_06_and_ap_06_refused(is_leader, request_epoch, error):
    with pytest.raises(error, match=r"flights-3: .*5"):
        check_append(Role(5, LEADER if is_leader else FOLLOWER), request_epoch, "flights-3")


@pytest.mark.parametrize(("acks", "isr_size", "min_isr"), [(-1, 2, 2), (-1, 3, 2), (1, 1, 2), (0, 1, 2)])
def test_ap_06_enough_replicas(acks, isr_size, min_isr):
    check_min_isr(acks, isr_size, min_isr, "flights", 3)


def test_ap_06_not_enough_replicas():
    with pytest.raises(NotEnoughReplicasException, match=r"flights-3: 1 .* needs 2"):
        check_min_isr(-1, 1, 2, "flights", 3)


@pytest.mark.parametrize(("acks", "expected"), [(0, 0), (1, 1), (-1, -1), ("0", 0), ("1", 1), ("-1", -1), ("all", -1)])
def test_ap_02_acks(acks, expected):
    assert parse_acks(acks) == expected


@pytest.mark.parametrize("acks", [2, -2, "ALL", "", "01", None, True, 1.0, b"1"])
def test_ap_02_acks_refused(acks):
    with pytest.raises(InvalidRequiredAcksException, match="acks is"):
        parse_acks(acks)
