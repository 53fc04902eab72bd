from collections import Counter

import pytest

from lakelog.replication.errors import (
    InvalidPartitionsException,
    InvalidReplicaAssignmentException,
    InvalidReplicationFactorException,
)
from lakelog.replication.protocol.assignment import assign_replicas, check_assignment, cordoned_brokers
from lakelog.replication.protocol.topic import Entity

FIVE = dict.fromkeys(range(5))
SIX = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def test_tm_01_replicas_are_spread_without_racks():
    assert list(assign_replicas(FIVE, 10, 3, 0, 0).values()) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_tm_01_replicas_are_spread_over_racks():
    assert list(assign_replicas(SIX, 12, 3, 0, 0).values()) == [
        (0, 3, 1),
        (3, 1, 5),
        (1, 5, 4),
        (5, 4, 2),
        (4, 2, 0),
        (2, 0, 3),
        (0, 4, 2),
        (3, 2, 0),
        (1, 0, 3),
        (5, 3, 1),
        (4, 1, 5),
        (2, 5, 4),
    ]


@pytest.mark.parametrize(
    ("start_index", "shift", "expected"),
    [(0, 0, (0, 1, 2)), (3, 0, (3, 4, 0)), (0, 2, (0, 3, 4)), (4, 3, (4, 3, 0)), (0, 5, (0, 2, 3))],
)
def test_tm_01_an_assignment_starts_at_the_given_broker(start_index, shift, expected):
    assert assign_replicas(FIVE, 1, 3, start_index, shift) == {0: expected}


def test_tm_01_a_broker_without_rack_switches_racks_off():
    one_without = {**SIX, 5: None}
    assert assign_replicas(one_without, 12, 3, 1, 2) == assign_replicas(dict.fromkeys(SIX), 12, 3, 1, 2)


@pytest.mark.parametrize("replication_factor", range(1, 7))
@pytest.mark.parametrize("brokers", [SIX, dict.fromkeys(SIX), {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}])
def test_tm_02_replicas_on_different_brokers_and_racks(brokers, replication_factor):
    racks = len(set(brokers.values()))
    assignment = assign_replicas(brokers, 60, replication_factor, 4, 5)
    check_assignment(assignment, brokers)
    for replicas in assignment.values():
        assert len(set(replicas)) == replication_factor
        assert len({brokers[replica] for replica in replicas}) == min(racks, replication_factor)


def test_tm_01_leaders_are_spread_evenly():
    assignment = assign_replicas(SIX, 60, 3, 2, 1)
    assert set(Counter(replicas[0] for replicas in assignment.values()).values()) == {10}
    assert set(Counter(replica for replicas in assignment.values() for replica in replicas).values()) == {30}


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "brokers", "error", "text"),
    [
        (0, 1, FIVE, InvalidPartitionsException, "0 partitions"),
        (1, 0, FIVE, InvalidReplicationFactorException, "factor 0"),
        (1, 6, FIVE, InvalidReplicationFactorException, "replication factor 6 is larger than the 5 available brokers$"),
        (
            1,
            3,
            {1: None},
            InvalidReplicationFactorException,
            "replication factor 3 is larger than the 1 available broker$",
        ),
        (
            1,
            1,
            {},
            InvalidReplicationFactorException,
            "factor 1, but no broker is available: start brokers with `lakelog b",
        ),
    ],
)
def test_tm_01_an_impossible_spread_is_refused(partitions, replication_factor, brokers, error, text):
    with pytest.raises(error, match=text):
        assign_replicas(brokers, partitions, replication_factor, 0, 0)


@pytest.mark.parametrize("assignment", [{0: [1]}, {1: [2, 1], 0: [1, 3]}])
def test_tm_02_a_valid_assignment_is_accepted(assignment):
    check_assignment(assignment, {1, 2, 3})


@pytest.mark.parametrize(
    ("assignment", "error", "text"),
    [
        ({}, InvalidPartitionsException, "no partition"),
        ({0: [1], 2: [1]}, InvalidReplicaAssignmentException, "partitions 0, 2: they must be 0 to 1"),
        ({1: [1]}, InvalidReplicaAssignmentException, "partitions 1: they must be 0 to 0"),
        ({0: []}, InvalidReplicationFactorException, "partition 0 has no replica"),
        ({0: [1], 1: [2, 2]}, InvalidReplicaAssignmentException, r"partition 1 .*\[2, 2\]: 2 more than once"),
        ({0: [1, 9]}, InvalidReplicaAssignmentException, r"\[1, 9\]: 9 unknown; brokers: 1, 2, 3"),
        ({0: [1, 2], 1: [1]}, InvalidReplicaAssignmentException, r"partition 1 has 1 replicas \[1\]: .* has 2"),
    ],
)
def test_tm_02_an_invalid_assignment_is_refused(assignment, error, text):
    with pytest.raises(error, match=text):
        check_assignment(assignment, {1, 2, 3})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, set()),
        ({"2": {"cordoned.log.dirs": "*"}}, {2}),
        ({"2": {"cordoned.log.dirs": ""}}, set()),
        ({"2": {"message.max.bytes": "5"}}, set()),
        ({"9": {"cordoned.log.dirs": "*"}}, set()),
        ({"<default>": {"cordoned.log.dirs": "*"}}, {1, 2, 3}),
        ({"<default>": {"cordoned.log.dirs": "*"}, "2": {"cordoned.log.dirs": ""}}, {1, 3}),
        ({"<default>": {"cordoned.log.dirs": ""}, "2": {"cordoned.log.dirs": "*"}}, {2}),
        ({"2": {"cordoned.log.dirs": "/a,/b"}}, {2}),
    ],
    ids=[
        "none", "one", "an empty value", "another setting", "one that is not there", "all", "all but one",
        "the own setting goes before that of all", "a value of a newer version",
    ],
)  # fmt: skip
def test_tm_02_a_setting_of_the_broker_or_of_all_cordons(settings, expected):
    configs = {Entity("brokers", name): values for name, values in settings.items()}
    configs[Entity("topics", "2")] = {"cordoned.log.dirs": "*"}
    assert cordoned_brokers(configs, (1, 2, 3)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_tm_02_cordoned_brokers_are_left_out_as_if_they_were_not_there(seed):
    left = {broker: rack for broker, rack in SIX.items() if broker not in (1, 4)}
    assert assign_replicas(SIX, 12, 3, seed, seed // 4, {1, 4, 9}) == assign_replicas(left, 12, 3, seed, seed // 4)


@pytest.mark.parametrize(
    ("factor", "cordoned", "words"),
    [
        (4, {1, 3}, "larger than the 3 available brokers; cordoned, so without new replicas: 1, 3"),
        (2, {0, 1, 2, 3}, "larger than the 1 available broker; cordoned, so without new replicas: 0, 1, 2, 3 (cord"),
        (1, {0, 1, 2, 3, 4}, "replication factor 1 is larger than the 0 available brokers; cordoned, so without new "),
        (6, {7}, "replication factor 6 is larger than the 5 available brokers"),
    ],
)  # fmt: skip
def test_tm_02_too_few_brokers_that_are_not_cordoned_are_refused_by_name(factor, cordoned, words):
    with pytest.raises(InvalidReplicationFactorException) as caught:
        assign_replicas(FIVE, 1, factor, 0, 0, cordoned)
    assert words in str(caught.value)
