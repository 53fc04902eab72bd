"""A round of a leader: its reads, decisions and writes, in their order. See `broker_rounds`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.isr import IsrOutcomes
from lakelog.replication.protocol.leadership import (
    HostedPartition,
    LeaderInputs,
    caught_up,
    has_member_out_of_sync,
    next_lag_time_passes_at,
    still_caught_up,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.broker_rounds import RULES, BrokerRules, Memory
from lakelog.replication.protocol.rounds.leader_watch import CaughtUp, LeaderWatch, Rows
from lakelog.replication.protocol.rounds.steps import (
    AlterPartitions,
    ClusterView,
    FollowersSeen,
    IsrChangesSettled,
    LogsSeen,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
    Round,
)


class LeaderRound:
    """The leader rounds of one broker. `clock` is monotonic; all times are in seconds.

    `isr_expiration_interval`: how often the ISR may shrink. With half the lag time, a follower leaves the ISR after 1
    to 1.5 times the lag time, as in Kafka. [BR-03, IS-01]
    """

    def __init__(
        self, broker_id: int, replica_lag_time_max: float, isr_expiration_interval: float, clock: Callable[[], float],
        rules: BrokerRules = RULES,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._replica_lag_time_max = replica_lag_time_max
        self._isr_expiration_interval = isr_expiration_interval
        self._clock = clock
        self._rules = rules
        self._lag_looked_at = self._looked_at = clock()
        self._watch = LeaderWatch(broker_id)
        self._log_mark: object = None
        self._untold: set[TopicIdPartition] = set()  # partitions whose log start the rows do not have yet

    def run(self, memory: Memory) -> Round[bool]:
        """Reads the followers' rows, changes the ISR, raises the HWs; returns whether the rows have news to publish.

        It looks only at partitions of which something has changed, see `LeaderWatch`: the result is as if it had looked
        at all.

        The log is read last. That read fails once a newer process has claimed the log, and a change that was decided on
        older metadata loses by its partition epoch. A change of the ISR without an answer stays pending, and the HW
        waits for both ISRs.

        Kafka: `Partition.maybeShrinkIsr`, `maybeExpandIsr`, `maybeIncrementLeaderHW`. [HW-01, IS-01, IS-04, FE-03]
        """
        hosted, published, watch = memory.hosted, memory.published(), self._watch
        left = watch.see_hosted(hosted, memory.offline.faults, self._clock())
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
        self._looked_at = now
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
        is_untold = self._note_untold(inputs, published, logs)
        return is_untold or any(hosted[p].high_watermark > before[p] for p in inputs)

    def _leader_inputs(
        self, found: FollowersSeen, cluster: ClusterView, logs: LogsSeen, now: float
    ) -> dict[TopicIdPartition, LeaderInputs]:
        """The inputs of the partitions that are due."""
        may_shrink = now - self._lag_looked_at >= self._isr_expiration_interval
        self._lag_looked_at = now if may_shrink else self._lag_looked_at
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
        looked, alive = found.began_at, cluster.alive
        return {b: alive[b] for b in registration.followers if b in alive and looked.get(b, since) >= since}

    def _observed(self, partition: TopicIdPartition, hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
        """Observes the followers."""
        before = self._up_to_date(hosted, self._watch.caught_up.get(partition))
        after = self._rules.observe_followers(before, inputs)
        self._watch.caught_up[partition] = CaughtUp(caught_up(before, after), after.progress)
        return after

    def _up_to_date(self, hosted: HostedPartition, last: CaughtUp | None) -> HostedPartition:
        """The partition as of the last look, which may not have looked at it. A new role has reset its progress."""
        is_known = last is not None and last.progress is hosted.progress
        return still_caught_up(hosted, last.followers, self._looked_at) if last and is_known else hosted

    def _settle(
        self, hosted: Mapping[TopicIdPartition, HostedPartition], inputs: Mapping[TopicIdPartition, LeaderInputs],
        changing: Collection[TopicIdPartition], cluster: ClusterView,
    ) -> None:  # fmt: skip
        """Tells the watch when the next round must look at partitions again. Those for which it has decided on another
        ISR are due at once, whatever the outcome, as are those with a follower that waits for a newer read of its row
        before it may join."""
        watch = self._watch
        for partition, found in inputs.items():
            after, followers = hosted[partition], watch.led[partition].followers
            passes_at = next_lag_time_passes_at(after, watch.caught_up[partition].followers, found)
            watch.expect(partition, passes_at, has_member_out_of_sync(after, found))
            waits = sum(broker in cluster.alive for broker in followers) > len(found.eligible)
            watch.settled(partition, None if waits or partition in changing else after)

    def _note_untold(self, looked_at: Iterable[TopicIdPartition], published: Rows, logs: LogsSeen) -> bool:
        """Whether a client has raised a log start since the row was published; others wait for it."""
        for partition in {*looked_at, *self._watch.see_published(published), *self._untold}:
            row = published.get(partition) if partition in self._watch.led else None
            is_raised = row is not None and row.log_start_offset < logs.log_of(partition).log_start_offset
            (self._untold.add if is_raised else self._untold.discard)(partition)
        return bool(self._untold)
