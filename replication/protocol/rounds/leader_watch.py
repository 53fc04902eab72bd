"""Tells a leader's round at which of its partitions it must look: the others would come out as they are.

A round is a function of a partition's registration, its log, its followers' rows, the view of the cluster, and time. A
partition is due if one of these has moved since the round that looked at it last, as far as the round depends on it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

from lakelog.replication.protocol.isr import FollowerProgress
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.rounds.steps import ClusterView

Rows = Mapping[TopicIdPartition, Replica]
Value = TypeVar("Value")

_MARGIN = 0.001  # seconds by which a partition is due early, as sums of floating-point numbers are not exact


class CaughtUp(NamedTuple):
    """The followers that a look has found caught up, and the progress of all that it has left behind."""

    followers: tuple[int, ...]
    progress: Mapping[int, FollowerProgress]


class LeaderWatch:
    """The partitions that a broker leads, in `led`, and those of them that are due. [FE-03]

    It compares values by identity, so nobody may change a mapping that it was shown. `since`: when each registration
    was seen for the first time, in seconds of the leader's clock. `caught_up`: what the last look at each partition
    has found.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.led: dict[TopicIdPartition, PartitionRegistration] = {}
        self.since: dict[TopicIdPartition, float] = {}
        self.caught_up: dict[TopicIdPartition, CaughtUp] = {}
        self._followers: Counter[int] = Counter()
        self._due: set[TopicIdPartition] = set()
        self._hosted: dict[TopicIdPartition, HostedPartition | None] = {}
        self._faults: Mapping[TopicIdPartition, str] = {}
        self._rows: dict[int, Rows] = {}
        self._cluster: tuple[Mapping[int, int], ...] = ()
        self._settings: object = None
        self._published: Rows = {}
        self._passing: dict[TopicIdPartition, float] = {}
        self._passing_in_order: list[tuple[float, TopicIdPartition]] = []
        self._out_of_sync: set[TopicIdPartition] = set()

    @property
    def followers(self) -> tuple[int, ...]:
        """The brokers that follow in a partition."""
        return tuple(sorted(broker for broker, count in self._followers.items() if count))

    def due(self) -> list[TopicIdPartition]:
        """The partitions at which a round must look. They stay due until it calls `settled`."""
        self._due = {partition for partition in self._due if partition in self.led}
        return sorted(self._due)

    def settled(self, partition: TopicIdPartition, hosted: HostedPartition | None) -> None:
        """A round has looked at the partition. `hosted`: what came out, None if the next round must look again."""
        self._due.discard(partition)
        self._hosted[partition] = hosted

    def see_hosted(
        self, hosted: Mapping[TopicIdPartition, HostedPartition], faults: Mapping[TopicIdPartition, str], now: float
    ) -> dict[TopicIdPartition, CaughtUp]:
        """Takes over what this broker hosts. It does not lead partitions with a broken file. Returns what was found of
        the partitions that it leads no more."""
        left = dict[TopicIdPartition, CaughtUp]()
        moved = _moved(self._hosted if faults == self._faults else {}, hosted)
        self._faults = faults
        if moved or len(hosted) != len(self._hosted):
            for partition in self._hosted.keys() - hosted.keys():
                del self._hosted[partition]
                self._lead_no_more(partition, left)
        for partition in moved:
            self._hosted[partition] = hosted[partition]
            registration = hosted[partition].registration
            if registration.leader == self._broker_id and partition not in faults:
                self._lead(partition, registration, now)
            else:
                self._lead_no_more(partition, left)
        return left

    def _lead(self, partition: TopicIdPartition, registration: PartitionRegistration, now: float) -> None:
        before = self.led.get(partition)
        if before != registration:
            self.since[partition] = now
            self._followers.subtract(before.followers if before else ())
            self._followers.update(registration.followers)
        self.led[partition] = registration
        self._due.add(partition)

    def _lead_no_more(self, partition: TopicIdPartition, left: dict[TopicIdPartition, CaughtUp]) -> None:
        before = self.led.pop(partition, None)
        if before is not None:
            self._followers.subtract(before.followers)
            del self.since[partition]
            left.update({partition: self.caught_up.pop(partition)} if partition in self.caught_up else {})
            self._passing.pop(partition, None)
            self._out_of_sync.discard(partition)
        self._due.discard(partition)

    def see_rows(self, rows: Mapping[int, Rows]) -> None:
        """Takes over the rows of the followers."""
        for broker in self.followers:
            before, now = self._rows.get(broker, {}), rows.get(broker, {})
            if now is not before:
                self._due.update(_moved(before, now), before.keys() - now.keys())
            self._rows[broker] = now

    def see_cluster(self, cluster: ClusterView) -> None:
        """Takes over the view of the cluster. Brokers seldom come or go, so any change makes all partitions due."""
        now = (dict(cluster.broker_epochs), dict(cluster.alive))
        if now != self._cluster or cluster.settings is not self._settings:
            self._due.update(self.led)
        self._cluster, self._settings = now, cluster.settings

    def see_log(self, changed: Collection[TopicIdPartition] | None) -> None:
        """Takes over the partitions whose logs have changed; None if any may have."""
        self._due.update(self.led if changed is None else changed)

    def see_published(self, published: Rows) -> list[TopicIdPartition]:
        """Takes over this broker's own rows. Returns the partitions that have another row."""
        before, self._published = self._published, published
        return [] if before is published else _moved(before, published)

    def see_time(self, now: float, may_shrink: bool) -> None:
        """Makes the partitions due for which a lag time passes at `now`, in seconds. If the ISR may shrink, those with
        a member that is out of sync are due too. [IS-01, IS-02]"""
        while self._passing_in_order and self._passing_in_order[0][0] <= now:
            at, partition = heapq.heappop(self._passing_in_order)
            if self._passing.get(partition) == at:
                del self._passing[partition]
                self._due.add(partition)
        self._due.update(self._out_of_sync if may_shrink else ())

    def expect(self, partition: TopicIdPartition, passes_at: float, is_out_of_sync: bool) -> None:
        """Notes when time alone changes something: when the next lag time passes, infinity if none does, and whether a
        member of the ISR is out of sync already."""
        at = passes_at - _MARGIN
        if at == float("inf"):
            self._passing.pop(partition, None)
        elif self._passing.get(partition) != at:
            self._passing[partition] = at
            heapq.heappush(self._passing_in_order, (at, partition))
        (self._out_of_sync.add if is_out_of_sync else self._out_of_sync.discard)(partition)


def _moved(
    before: Mapping[TopicIdPartition, Value | None], now: Mapping[TopicIdPartition, Value]
) -> list[TopicIdPartition]:
    return [partition for partition, value in now.items() if before.get(partition) is not value]
