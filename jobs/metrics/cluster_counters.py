"""Counters of what happens to a cluster, from the differences between scrapes.

They begin at 0 with each start of the exporter, as those of a Kafka broker do with each start of that: `rate` and
`increase` of Prometheus expect that of a counter. The offsets of a leader would be no better count: they go to another
broker with the leadership, and Prometheus takes what goes back for a restart. Within one run a counter never goes back.
The cluster may be opened anew meanwhile, for example after its root was away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from lakelog.jobs.metrics.scrape_reader import Scrape
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.delayed_operation import known_high_watermark
from lakelog.replication.protocol.elections import is_unclean
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.metadata_table import Partitions


class Counts(NamedTuple):
    """The counts since the first scrape.

    `isr_shrinks`, `isr_expands`: changes of an ISR, by the broker that led after the change; by the one before if none
    did. `unclean_elections`: leaders that were elected from outside the ISR, or whose log was lost. `messages`: records
    that have become committed, by topic and leader.
    """

    isr_shrinks: Mapping[int, int]
    isr_expands: Mapping[int, int]
    unclean_elections: int
    messages: Mapping[tuple[str, int], int]


class ClusterCounters:
    """Counts what happens from the first scrape on. It is not thread-safe."""

    def __init__(self) -> None:
        self._isr_shrinks: Counter[int] = Counter()
        self._isr_expands: Counter[int] = Counter()
        self._unclean_elections = 0
        self._messages: Counter[tuple[str, int]] = Counter()
        self._metadata: Partitions | None = None
        self._high_watermarks: dict[TopicIdPartition, int | None] = {}  # None: it was never known

    def observe(self, found: Scrape) -> Counts:
        """Counts what has happened since the last scrape, and returns all counts."""
        is_first = self._metadata is None
        brokers = {broker: seen.registration for broker, seen in found.state.brokers.items()}
        for broker in brokers:
            self._isr_shrinks[broker] += 0
            self._isr_expands[broker] += 0
        for partitions in found.metadata:
            self._count_changes(partitions, brokers)
        self._count_messages(found, is_first)
        messages = dict(self._messages)
        return Counts(dict(self._isr_shrinks), dict(self._isr_expands), self._unclean_elections, messages)

    def _count_changes(self, after: Partitions, brokers: Mapping[int, BrokerRegistration]) -> None:
        before, self._metadata = self._metadata, after
        for key, registration in after.items() if before is not None else ():
            known = before.get(key) if before is not None else None
            if known is None or known is registration:
                continue
            leader = registration.leader if registration.leader >= 0 else known.leader
            if leader >= 0:
                self._isr_shrinks[leader] += bool(set(known.isr) - set(registration.isr))
                self._isr_expands[leader] += bool(set(registration.isr) - set(known.isr))
            self._unclean_elections += _is_unclean(known, registration, brokers)

    def _count_messages(self, found: Scrape, is_first: bool) -> None:
        """A partition that was there without a known HW begins to count where its HW is first known."""
        before, self._high_watermarks = self._high_watermarks, {}
        for key, seen in found.leaderships.items():
            last = before.get(key, None if is_first else 0)
            end = known_high_watermark(seen)
            self._high_watermarks[key] = last if end is None else end
            topic, leader = seen.registration.topic, seen.registration.leader
            for broker in seen.registration.replicas:  # a counter that begins above 0 has no increase yet
                self._messages[topic, broker] += 0
            if leader >= 0 and end is not None and last is not None:
                self._messages[topic, leader] += max(0, end - last)
        _keep(self._messages, {seen.registration.topic for seen in found.leaderships.values()})


def _is_unclean(
    before: PartitionRegistration, after: PartitionRegistration, brokers: Mapping[int, BrokerRegistration]
) -> bool:
    """Whether a leader was elected that may lack committed records, as the controller's log says. [LI-04]"""
    if after.leader == before.leader or not before.isr:
        return False
    without_log = [b for b in before.isr if b in brokers and before.isr_epoch(b) < brokers[b].log_epoch]
    return is_unclean(before, after, without_log)


def _keep(messages: Counter[tuple[str, int]], topics: Collection[str]) -> None:
    """Forgets the topics that were deleted."""
    gone: Iterable[tuple[str, int]] = [name for name in messages if name[0] not in topics]
    for name in gone:
        del messages[name]
