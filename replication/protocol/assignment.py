"""Spreads the replicas of a new topic over brokers, and checks assignments that were given by hand. Says which brokers
are cordoned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, zip_longest

from lakelog.replication.errors import (
    InvalidPartitionsException,
    InvalidReplicaAssignmentException,
    InvalidReplicationFactorException,
)
from lakelog.replication.protocol.topic import BROKER_TYPE, DEFAULT_NAME, Configs, Entity

CORDONED_LOG_DIRS = "cordoned.log.dirs"

_ONE_RACK = ""
_SHOWN = 20  # the most numbers that an error text lists


def cordoned_brokers(configs: Configs, brokers: Iterable[int]) -> frozenset[int]:
    """The cordoned ones of these brokers: they get no new replica, and keep those that they have. A broker's own
    setting counts before that of all brokers. A broker has one root here, so any value but an empty one cordons it: a
    newer version may name directories.

    Kafka: `ClusterControlManager.updateCordonedLogDirs`, for a broker of which all log directories are cordoned.
    KIP-1066. [TM-02]
    """
    of_all = configs.get(Entity(BROKER_TYPE, DEFAULT_NAME), {}).get(CORDONED_LOG_DIRS, "")

    def is_cordoned(broker: int) -> bool:
        return configs.get(Entity(BROKER_TYPE, str(broker)), {}).get(CORDONED_LOG_DIRS, of_all) != ""

    return frozenset(filter(is_cordoned, brokers))


def assign_replicas(
    brokers: Mapping[int, str | None], partitions: int, replication_factor: int, start_index: int, shift: int,
    cordoned: Collection[int] = (),
) -> dict[int, tuple[int, ...]]:  # fmt: skip
    """Spreads the replicas of partitions 0 to `partitions` - 1 over brokers, and over racks if every broker has a rack.

    The first replicas go round the brokers, which spreads leadership evenly. The other replicas follow at a distance
    that grows by one with each round. So the partitions of a failed broker do not all move to the same neighbour. A
    partition has two replicas on one rack only if it has one on every rack.

    Args:
        brokers: the rack of each broker id; racks are ignored if any broker has none.
        partitions: number of partitions.
        replication_factor: number of replicas of each partition.
        start_index: index of the broker with the first partition's first replica; the caller draws it at random, below
            the number of brokers.
        shift: distance from the first replica to the second, minus one; the caller draws it in the same way.
        cordoned: those of the brokers that get no replica.

    Kafka: `AdminUtils.assignReplicasToBrokers`. KIP-36, KIP-1066. Brokers without racks are treated as one rack;
    then the rack-aware rule equals the plain one. [TM-01] [TM-02]

    Raises:
        InvalidPartitionsException: `partitions` is below 1.
        InvalidReplicationFactorException: `replication_factor` is below 1 or above the number of brokers that are not
            cordoned; the text names those that are.
    """
    available = {broker: rack for broker, rack in brokers.items() if broker not in cordoned}
    _check_numbers(partitions, replication_factor, len(available), brokers.keys() - available.keys())
    racks = _racks(available)
    arranged = _alternate_racks(racks)
    assignment = {}
    for partition in range(partitions):
        first = (partition + start_index) % len(arranged)
        round_shift = shift + partition // len(arranged)
        assignment[partition] = _replicas(arranged, racks, replication_factor, first, round_shift)
    return assignment


def _racks(brokers: Mapping[int, str | None]) -> dict[int, str]:
    known = {broker: rack for broker, rack in brokers.items() if rack is not None}
    return known if len(known) == len(brokers) else dict.fromkeys(brokers, _ONE_RACK)


def _alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """The brokers, ordered so that neighbours are on different racks as long as two racks have brokers left.

    Kafka: `AdminUtils.getRackAlternatedBrokerList`.
    """
    by_rack = [sorted(broker for broker in racks if racks[broker] == rack) for rack in sorted(set(racks.values()))]
    return [broker for broker in chain.from_iterable(zip_longest(*by_rack)) if broker is not None]


def _replicas(
    arranged: Sequence[int], racks: Mapping[int, str], replication_factor: int, first: int, shift: int
) -> tuple[int, ...]:
    """The replicas of one partition, `first` in front. No broker repeats, and no rack repeats before every rack has
    one."""
    replicas = [arranged[first]]
    number_of_racks = len(set(racks.values()))
    candidates = _candidates(arranged, first, shift * number_of_racks)
    while len(replicas) < replication_factor:
        candidate = next(candidates)
        racks_used = {racks[replica] for replica in replicas}
        rack_is_free = racks[candidate] not in racks_used or len(racks_used) == number_of_racks
        if rack_is_free and candidate not in replicas:
            replicas.append(candidate)
    return tuple(replicas)


def _candidates(arranged: Sequence[int], first: int, shift: int) -> Iterator[int]:
    """The other brokers, again and again, beginning `shift` + 1 places after `first`. Never yields `first` itself.

    Kafka: `AdminUtils.replicaIndex`.
    """
    others = len(arranged) - 1
    return (arranged[(first + 1 + (shift + step) % others) % len(arranged)] for step in count())


def _check_numbers(partitions: int, replication_factor: int, brokers: int, cordoned: Collection[int]) -> None:
    if partitions < 1:
        raise InvalidPartitionsException(f"{partitions} partitions: a topic has 1 or more")
    if replication_factor < 1:
        raise InvalidReplicationFactorException(f"replication factor {replication_factor}: it must be 1 or more")
    if brokers == 0 and not cordoned:
        raise InvalidReplicationFactorException(
            f"replication factor {replication_factor}, but no broker is available: start brokers with `lakelog broker`"
        )
    if replication_factor > brokers:
        available = f"{brokers} available broker" + ("" if brokers == 1 else "s")
        but = f"; cordoned, so without new replicas: {_list(cordoned)} ({CORDONED_LOG_DIRS})" if cordoned else ""
        raise InvalidReplicationFactorException(
            f"replication factor {replication_factor} is larger than the {available}{but}"
        )


def check_assignment(assignment: Mapping[int, Sequence[int]], brokers: Collection[int]) -> None:
    """An assignment numbers its partitions from 0 without gaps, and gives each the same number of different brokers.

    Kafka: `AdminZkClient.validateTopicCreate`, `ReplicationControlManager.validateManualPartitionAssignment`. [TM-02]

    Raises:
        InvalidPartitionsException: the assignment has no partition.
        InvalidReplicationFactorException: a partition has no replica.
        InvalidReplicaAssignmentException: the partitions are not 0 to n - 1; or a broker is unknown or appears twice in
            a partition; or two partitions have different numbers of replicas.
    """
    if not assignment:
        raise InvalidPartitionsException("the assignment has no partition: a topic has 1 or more")
    if sorted(assignment) != list(range(len(assignment))):
        raise InvalidReplicaAssignmentException(
            f"the assignment is of partitions {_list(assignment)}: they must be 0 to {len(assignment) - 1}, no gaps"
        )
    for partition in sorted(assignment):
        check_replicas(partition, assignment[partition], brokers)
        _check_same_factor(partition, assignment)


def check_replicas(partition: int, replicas: Sequence[int], brokers: Collection[int]) -> None:
    """A partition has at least one replica, and all are on different, known brokers. [TM-02]

    Raises:
        InvalidReplicationFactorException: the partition has no replica.
        InvalidReplicaAssignmentException: a broker is unknown or appears twice.
    """
    if not replicas:
        raise InvalidReplicationFactorException(f"partition {partition} has no replica: it needs 1 or more")
    twice = [broker for broker, times in Counter(replicas).items() if times > 1]
    if twice:
        raise InvalidReplicaAssignmentException(
            f"partition {partition} has replicas {list(replicas)}: {_list(twice)} more than once; brokers must differ"
        )
    unknown = [broker for broker in replicas if broker not in brokers]
    if unknown:
        raise InvalidReplicaAssignmentException(
            f"partition {partition} has replicas {list(replicas)}: {_list(unknown)} unknown; brokers: {_list(brokers)}"
        )


def check_alive(partition: int, added: Collection[int], alive: Collection[int]) -> None:
    """New replicas must be on live brokers. Otherwise the reassignment would wait for the dead ones. [RA-01]

    Raises InvalidReplicaAssignmentException if a broker in `added` is not alive.
    """
    dead = [broker for broker in added if broker not in alive]
    if dead:
        raise InvalidReplicaAssignmentException(
            f"partition {partition} gets replicas on {_list(added)}: {_list(dead)} not alive; alive: {_list(alive)}"
        )


def check_not_cordoned(partition: int, added: Collection[int], cordoned: Collection[int]) -> None:
    """New replicas must not be on cordoned brokers. Kafka: `ReplicationControlManager`. KIP-1066. [TM-02, RA-01]

    Raises InvalidReplicaAssignmentException if a broker in `added` is cordoned.
    """
    closed = [broker for broker in added if broker in cordoned]
    if closed:
        raise InvalidReplicaAssignmentException(
            f"partition {partition} gets replicas on {_list(added)}: {_list(closed)} cordoned ({CORDONED_LOG_DIRS}), "
            "so without new replicas; choose other brokers, or remove that setting first"
        )


def _check_same_factor(partition: int, assignment: Mapping[int, Sequence[int]]) -> None:
    given, expected = len(assignment[partition]), len(assignment[0])
    if given != expected:
        raise InvalidReplicaAssignmentException(
            f"partition {partition} has {given} replicas {list(assignment[partition])}: partition 0 has {expected}, "
            "and all partitions of a topic have the same number"
        )


def _list(numbers: Collection[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_SHOWN]) or "none"
    return f"{shown} and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else shown
