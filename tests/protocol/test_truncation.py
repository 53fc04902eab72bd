import itertools

import pytest

from replication.protocol.leader_epoch import EpochEntry, assign, epoch_at
from replication.protocol.truncation import truncation_offset


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
def test_tr_01_the_cut_is_the_first_offset_of_another_epoch(follower, leo, leader, offset):
    assert truncation_offset(follower, leo, leader) == offset


def lineages(length=5):
    """Every lineage of a log of that length whose epochs are among three."""
    for epochs in itertools.combinations_with_replacement(range(3), length):
        found = ()
        for offset, epoch in enumerate(epochs):
            found = assign(found, epoch, offset)
        yield found


def test_tr_03_what_is_kept_has_the_same_epochs_on_both_sides():
    """Looked at offset by offset, for all pairs of short lineages: nothing that agrees is cut, nothing else is kept."""
    for follower, leader in itertools.product(lineages(), repeat=2):
        leader = assign(leader, 3, 5)  # as every leader's, it ends with its own epoch
        for leo in range(1, 8):
            differ = [o for o in range(leo) if epoch_at(follower, o) != epoch_at(leader, o)]
            assert truncation_offset(follower, leo, leader) == (differ[0] if differ else leo)
