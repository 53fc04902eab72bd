"""A round of a leader: its reads, decisions and writes, in their order. See `broker_rounds`."""

from __future__ import annotations

from collections.abc import Callable

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.become_leader_or_follower import Logs
from lakelog.replication.protocol.isr import IsrOutcomes
from lakelog.replication.protocol.leadership import LeaderInputs
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.rounds.broker_rounds import RULES, BrokerRules, Memory
from lakelog.replication.protocol.rounds.steps import (
    AlterPartitions,
    ClusterView,
    FollowersSeen,
    IsrChangesSettled,
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
        self._lag_looked_at = clock()
        self._seen: dict[TopicIdPartition, tuple[PartitionRegistration, float]] = {}

    def run(self, memory: Memory) -> Round[bool]:
        """Reads the followers' rows, changes the ISR, raises the HWs; returns whether the rows have news to publish.

        The log is read last. That read fails once a newer process has claimed the log, and a change that was decided on
        older metadata loses by its partition epoch. A change of the ISR without an answer stays pending, and the HW
        waits for both ISRs.

        Kafka: `Partition.maybeShrinkIsr`, `maybeExpandIsr`, `maybeIncrementLeaderHW`. [HW-01, IS-01, IS-04, FE-03]
        """
        hosted, published = memory.hosted, memory.published()
        led = self._led(memory)
        if not led:
            return False
        self._seen = {p: self._first_seen(r) for p, r in led.items()}
        rows: FollowersSeen = yield ReadFollowerRows(tuple(sorted({b for r in led.values() for b in r.followers})))
        cluster: ClusterView = yield ReadCluster(tuple(led.values()))
        logs: Logs = yield ReadLog(tuple(led))
        inputs = self._leader_inputs(led, rows, cluster, logs)
        before = {p: hosted[p].high_watermark for p in led}
        hosted.update({p: self._rules.observe_followers(hosted[p], found) for p, found in inputs.items()})
        changes = tuple(change for p in led if (change := hosted[p].pending))
        if changes:
            try:
                outcomes: IsrOutcomes = yield AlterPartitions(changes)
            except KafkaStorageException:
                outcomes = {}
            for partition, (outcome, current) in outcomes.items():
                hosted[partition] = self._rules.settle_isr_change(hosted[partition], outcome, current)
        yield IsrChangesSettled()
        hosted.update({p: self._rules.raise_high_watermark(hosted[p], found) for p, found in inputs.items()})
        return any(
            hosted[p].high_watermark > before[p] or _has_raised_log_start(published.get(p), logs[p]) for p in led
        )

    def _led(self, memory: Memory) -> Registrations:
        hosted = memory.offline.without(memory.hosted)
        return {p: h.registration for p, h in hosted.items() if h.registration.leader == self._broker_id}

    def _first_seen(self, registration: PartitionRegistration) -> tuple[PartitionRegistration, float]:
        known = self._seen.get(registration.topic_id_partition)
        return known if known is not None and known[0] == registration else (registration, self._clock())

    def _leader_inputs(
        self, led: Registrations, found: FollowersSeen, cluster: ClusterView, logs: Logs
    ) -> dict[TopicIdPartition, LeaderInputs]:
        now, rows = self._clock(), found.rows
        may_shrink = now - self._lag_looked_at >= self._isr_expiration_interval
        self._lag_looked_at = now if may_shrink else self._lag_looked_at
        return {
            p: LeaderInputs(
                logs[p], {b: rows[b][p] for b in r.followers if b in rows and p in rows[b]}, cluster.broker_epochs,
                self._eligible(r, found, cluster), now, self._replica_lag_time_max, cluster.min_isr[p], may_shrink,
            )
            for p, r in led.items()
        }  # fmt: skip

    def _eligible(
        self, registration: PartitionRegistration, found: FollowersSeen, cluster: ClusterView
    ) -> dict[int, int]:
        """The followers that may join the ISR: those whose rows were read under the current registration.

        Rows that were read earlier, from a root that hangs, may show records that the broker has given up since. It
        changes the registration before it does that. [IS-04, OL-01]
        """
        _, since = self._seen[registration.topic_id_partition]
        looked, alive = found.began_at, cluster.alive
        return {b: alive[b] for b in registration.followers if b in alive and looked.get(b, since) >= since}


def _has_raised_log_start(published: Replica | None, log: PartitionLog) -> bool:
    """Whether a client has raised the log start since the row was published; others wait for it."""
    return published is not None and published.log_start_offset < log.log_start_offset
