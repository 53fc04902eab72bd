"""Describes the changes of leaders and ISRs between two versions of `metadata`, in one log line for all partitions.

Kafka logs one line for each partition, and a broker that dies may lead thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

Partitions = Mapping[TopicIdPartition, PartitionRegistration]

_NAMED = 3  # the most partitions that a line names for one change; it counts the others


def partition_changes(before: Partitions, after: Partitions) -> str:
    """The changes of all partitions that both versions have and that are not being deleted; "" if there are none."""
    changed = [
        (before[partition], now)
        for partition, now in sorted(after.items())
        if partition in before and before[partition] is not now and now.leader != LEADER_DURING_DELETE
    ]
    moved = [(was, now) for was, now in changed if was.leader != now.leader]
    new_leaders = [now.name for was, now in moved if now.leader >= 0 and was.leader >= 0]
    offline = [now.name for _, now in moved if now.leader == NO_LEADER]
    online = [now.name for was, now in moved if was.leader == NO_LEADER]
    clauses = [
        _clause("1 partition has a new leader", "partitions have new leaders", new_leaders),
        _clause("1 partition is offline", "partitions are offline", offline),
        _clause("1 partition is online again", "partitions are online again", online),
        *_memberships("leaves", [(set(was.isr) - set(now.isr), now) for was, now in changed]),
        *_memberships("joins", [(set(now.isr) - set(was.isr), now) for was, now in changed]),
    ]
    return ", ".join(clause for clause in clauses if clause)


def first_names(names: Sequence[str], shown: int = _NAMED) -> str:
    """The first `shown` names, and the number of further ones."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _clause(one: str, many: str, names: Sequence[str]) -> str:
    count = one if len(names) == 1 else f"{len(names)} {many}"
    return f"{count} ({first_names(names)})" if names else ""


def _memberships(verb: str, moves: Iterable[tuple[set[int], PartitionRegistration]]) -> list[str]:
    """A clause for each broker that leaves, or joins, ISRs."""
    by_broker: dict[int, list[str]] = {}
    for brokers, registration in moves:
        for broker in brokers:
            by_broker.setdefault(broker, []).append(registration.name)
    return [f"broker {broker} {verb} {_clause('1 ISR', 'ISRs', names)}" for broker, names in sorted(by_broker.items())]
