"""A round of a leader: which partitions are due, its reads, decisions and writes, in their order. See `rounds`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol import leadership
from lakelog.replication.protocol.isr import AlterIsrOutcome, FollowerProgress, IsrChange, IsrOutcomes
from lakelog.replication.protocol.leadership import (
    HostedPartition,
    LeaderInputs,
    caught_up,
    has_member_out_of_sync,
    next_lag_time_passes_at,
    still_caught_up,
)
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.broker_steps import BrokerState
from lakelog.replication.protocol.rounds.carry_out import Result

Rows = Mapping[TopicIdPartition, ReplicaStatus]
Value = TypeVar("Value")

_MARGIN = 0.001  # seconds by which a partition is due early, as sums of floating-point numbers are not exact


class AlterPartitions(NamedTuple):
    """One commit on `metadata` for these changes, each with an outcome of its own. Answer: `IsrOutcomes`."""

    changes: tuple[IsrChange, ...]


class IsrChangesSettled(NamedTuple):
    """Does nothing. Between the ISR changes and the new HWs the process may be killed, and others may act."""


class ReadFollowerRows(NamedTuple):
    """Reads the `replicas` of these brokers. Answer: `FollowersSeen`, without brokers that cannot be read."""

    brokers: tuple[int, ...]


class FollowersSeen(NamedTuple):
    """The rows of each broker, and when the read of each began, in seconds of the reader's clock. Rows that have not
    changed since the last answer are the same objects, as far as the reader knows."""

    rows: Mapping[int, Mapping[TopicIdPartition, ReplicaStatus]]
    began_at: Mapping[int, float]


class ReadCluster(NamedTuple):
    """In memory: asks for this broker's last view of the cluster. Answer: `ClusterView`."""


class ClusterView(NamedTuple):
    """The broker epochs of all registered brokers; those of brokers that are alive and not shutting down; and the
    `effective_min_isr` of a partition. `settings` is another object once `min_isr` may answer something else."""

    broker_epochs: Mapping[int, int]
    alive: Mapping[int, int]
    min_isr: Callable[[PartitionRegistration], int]
    settings: object = None


class ReadLog(NamedTuple):
    """Reads this broker's log up to its newest commit. `since`: the mark of an earlier answer, None if there is none.
    Answer: `LogsSeen`."""

    since: object


class LogsSeen(NamedTuple):
    """The log of each partition; the partitions that may have changed since the mark of `ReadLog`, None if all may
    have; and the mark of this answer."""

    log_of: Callable[[TopicIdPartition], PartitionLog]
    changed: Collection[TopicIdPartition] | None
    mark: object


LeaderStep: TypeAlias = AlterPartitions | IsrChangesSettled | ReadFollowerRows | ReadCluster | ReadLog

Round: TypeAlias = carry_out.Round[LeaderStep, Result]


@dataclass(frozen=True)
class LeaderRules:
    """The rules that a leader's round calls, as fields, so that the simulation can replace one."""

    observe_followers: Callable[[HostedPartition, LeaderInputs], HostedPartition] = leadership.observe_followers
    settle_isr_change: Callable[[HostedPartition, AlterIsrOutcome, PartitionRegistration | None], HostedPartition] = (
        leadership.settle_isr_change
    )
    raise_high_watermark: Callable[[HostedPartition, LeaderInputs], HostedPartition] = leadership.raise_high_watermark


LEADER_RULES = LeaderRules()


class CaughtUp(NamedTuple):
    """The followers that the last round has found caught up, and the progress of all followers after it."""

    followers: tuple[int, ...]
    progress: Mapping[int, FollowerProgress]


class LeaderWatch:
    """The partitions that a broker leads, in `led`, and those of them that are due. [FE-03]

    It compares values by identity, so a mapping that it was given must not change. `since`: when each registration
    was seen for the first time, in seconds of the leader's clock. `caught_up`: the result of the last
    round of each partition.
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
        """The partitions that are due. They stay due until the round calls `settled`."""
        self._due = {partition for partition in self._due if partition in self.led}
        return sorted(self._due)

    def settled(self, partition: TopicIdPartition, hosted: HostedPartition | None) -> None:
        """A round has handled the partition. `hosted`: the result, None if the partition stays due."""
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


class LeaderRound:
    """The leader rounds of one broker. `clock` is monotonic; all times are in seconds.

    `isr_expiration_interval`: how often the ISR may shrink. With half the lag time, a follower leaves the ISR after 1
    to 1.5 times the lag time, as in Kafka. [BR-03, IS-01]
    """

    def __init__(
        self, broker_id: int, replica_lag_time_max: float, isr_expiration_interval: float, clock: Callable[[], float],
        rules: LeaderRules = LEADER_RULES,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._replica_lag_time_max = replica_lag_time_max
        self._isr_expiration_interval = isr_expiration_interval
        self._clock = clock
        self._rules = rules
        self._lag_checked_at = self._polled_at = clock()
        self._watch = LeaderWatch(broker_id)
        self._log_mark: object = None
        self._unpublished: set[TopicIdPartition] = set()  # partitions whose log start the rows do not have yet

    def run(self, state: BrokerState) -> Round[bool]:
        """Reads the followers' rows, changes the ISR, raises the HWs; returns whether rows have changed that others
        wait for.

        It handles only partitions whose inputs have changed, see `LeaderWatch`: the result is as if it had handled all.

        The log is read last. That read fails once a newer process has claimed the log, and a change that was decided on
        older metadata loses by its partition epoch. A change of the ISR without an answer stays pending, and the HW
        waits for both ISRs.

        Kafka: `Partition.maybeShrinkIsr`, `maybeExpandIsr`, `maybeIncrementLeaderHW`. [HW-01, IS-01, IS-04, FE-03]
        """
        hosted, published, watch = state.hosted, state.published(), self._watch
        left = watch.see_hosted(hosted, state.offline.faults, self._clock())
        hosted.update({p: self._up_to_date(hosted[p], last) for p, last in left.items() if p in hosted})
        if not watch.led:
            return False
        rows: FollowersSeen = yield ReadFollowerRows(watch.followers)
        cluster: ClusterView = yield ReadCluster()
        logs: LogsSeen = yield ReadLog(self._log_mark)
        now = self._clock()
        inputs = self._leader_inputs(rows, cluster, logs, now)
        before = {p: hosted[p].high_watermark for p in inputs}
        hosted.update({p: self._observed(p, hosted[p], found) for p, found in inputs.items()})
        self._polled_at = now
        changes = tuple(change for p in inputs if (change := hosted[p].pending))
        if changes:
            try:
                outcomes: IsrOutcomes = yield AlterPartitions(changes)
            except KafkaStorageException:
                outcomes = {}
            for partition, (outcome, current) in outcomes.items():
                hosted[partition] = self._rules.settle_isr_change(hosted[partition], outcome, current)
        yield IsrChangesSettled()
        hosted.update({p: self._rules.raise_high_watermark(hosted[p], found) for p, found in inputs.items()})
        self._settle(hosted, inputs, {change.topic_id_partition for change in changes}, cluster)
        is_unpublished = self._note_unpublished(inputs, published, logs)
        return is_unpublished or any(hosted[p].high_watermark > before[p] for p in inputs)

    def _leader_inputs(
        self, found: FollowersSeen, cluster: ClusterView, logs: LogsSeen, now: float
    ) -> dict[TopicIdPartition, LeaderInputs]:
        """The inputs of the partitions that are due."""
        may_shrink = now - self._lag_checked_at >= self._isr_expiration_interval
        self._lag_checked_at = now if may_shrink else self._lag_checked_at
        watch, rows = self._watch, found.rows
        watch.see_rows(rows)
        watch.see_cluster(cluster)
        watch.see_log(logs.changed)
        watch.see_time(now, may_shrink)
        self._log_mark = logs.mark
        due = {p: watch.led[p] for p in watch.due()}
        return {
            p: LeaderInputs(
                logs.log_of(p), {b: rows[b][p] for b in r.followers if b in rows and p in rows[b]},
                cluster.broker_epochs, self._eligible(r, found, cluster), now, self._replica_lag_time_max,
                cluster.min_isr(r), may_shrink,
            )
            for p, r in due.items()
        }  # fmt: skip

    def _eligible(
        self, registration: PartitionRegistration, found: FollowersSeen, cluster: ClusterView
    ) -> dict[int, int]:
        """The followers that may join the ISR: those whose rows were read under the current registration.

        Rows that were read earlier, from a root that hangs, may show records that the broker has given up since. It
        changes the registration before it does that. [IS-04, OL-01]
        """
        since = self._watch.since[registration.topic_id_partition]
        read_at, alive = found.began_at, cluster.alive
        return {b: alive[b] for b in registration.followers if b in alive and read_at.get(b, since) >= since}

    def _observed(self, partition: TopicIdPartition, hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
        """Observes the followers."""
        before = self._up_to_date(hosted, self._watch.caught_up.get(partition))
        after = self._rules.observe_followers(before, inputs)
        self._watch.caught_up[partition] = CaughtUp(caught_up(before, after), after.progress)
        return after

    def _up_to_date(self, hosted: HostedPartition, last: CaughtUp | None) -> HostedPartition:
        """The partition as of the last round, in which it may not have been due. A new role has reset its progress."""
        is_known = last is not None and last.progress is hosted.progress
        return still_caught_up(hosted, last.followers, self._polled_at) if last and is_known else hosted

    def _settle(
        self, hosted: Mapping[TopicIdPartition, HostedPartition], inputs: Mapping[TopicIdPartition, LeaderInputs],
        changing: Collection[TopicIdPartition], cluster: ClusterView,
    ) -> None:  # fmt: skip
        """Notes in the watch when partitions are due again. Those for which the round has decided on another ISR are
        due at once, whatever the outcome, as are those with a follower that waits for a newer read of its row before it
        may join."""
        watch = self._watch
        for partition, found in inputs.items():
            after, followers = hosted[partition], watch.led[partition].followers
            passes_at = next_lag_time_passes_at(after, watch.caught_up[partition].followers, found)
            watch.expect(partition, passes_at, has_member_out_of_sync(after, found))
            waits = sum(broker in cluster.alive for broker in followers) > len(found.eligible)
            watch.settled(partition, None if waits or partition in changing else after)

    def _note_unpublished(self, observed: Iterable[TopicIdPartition], published: Rows, logs: LogsSeen) -> bool:
        """Whether a client has raised a log start since the row was published; followers and readers wait for the
        next row."""
        for partition in {*observed, *self._watch.see_published(published), *self._unpublished}:
            row = published.get(partition) if partition in self._watch.led else None
            is_raised = row is not None and row.log_start_offset < logs.log_of(partition).log_start_offset
            (self._unpublished.add if is_raised else self._unpublished.discard)(partition)
        return bool(self._unpublished)
