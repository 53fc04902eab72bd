"""The leaders and ISRs that have changed between two looks at `metadata`, in words: one log line for all partitions.

Kafka logs a line for each partition. A broker that dies may lead thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

Partitions = Mapping[TopicIdPartition, PartitionRegistration]

_NAMED = 3  # partitions of one change; of the others the line has the number


def partition_changes(before: Partitions, after: Partitions) -> str:
    """The changes of all partitions that both looks have and that nobody deletes; "" if there are none."""
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
    """The first names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _clause(one: str, many: str, names: Sequence[str]) -> str:
    count = one if len(names) == 1 else f"{len(names)} {many}"
    return f"{count} ({first_names(names)})" if names else ""


def _memberships(verb: str, moves: Iterable[tuple[set[int], PartitionRegistration]]) -> list[str]:
    """The brokers that leave ISRs, or join some."""
    by_broker: dict[int, list[str]] = {}
    for brokers, registration in moves:
        for broker in brokers:
            by_broker.setdefault(broker, []).append(registration.name)
    return [f"broker {broker} {verb} {_clause('1 ISR', 'ISRs', names)}" for broker, names in sorted(by_broker.items())]
