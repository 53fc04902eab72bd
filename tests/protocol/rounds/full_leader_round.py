"""A leader's round that looks at all partitions each time: the plain form of `LeaderRound`, which must do the same."""

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.leadership import LeaderInputs, observe_followers, raise_high_watermark
from lakelog.replication.protocol.leadership import settle_isr_change as settle
from lakelog.replication.protocol.rounds.leader_round import (
    AlterPartitions,
    IsrChangesSettled,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
)


class FullLeaderRound:
    """The rounds of broker 1. All times are in seconds of `clock`."""

    def __init__(self, lag_time, interval, clock):
        self._lag_time, self._interval, self._clock = lag_time, interval, clock
        self._lag_checked_at, self._since = clock(), {}

    def run(self, memory):
        hosted, published = memory.hosted, memory.published()
        known = memory.offline.without(hosted)
        led = {p: h.registration for p, h in sorted(known.items()) if h.registration.leader == 1}
        if not led:
            self._since = {}
            return False
        self._since = {
            p: found if (found := self._since.get(p, ()))[:1] == (r,) else (r, self._clock()) for p, r in led.items()
        }
        seen = yield ReadFollowerRows(tuple(sorted({b for r in led.values() for b in r.followers})))
        cluster = yield ReadCluster()
        logs = yield ReadLog(None)
        inputs = self._inputs(led, seen, cluster, {p: logs.log_of(p) for p in led})
        before = {p: hosted[p].high_watermark for p in led}
        hosted.update({p: observe_followers(hosted[p], found) for p, found in inputs.items()})
        changes = tuple(change for p in led if (change := hosted[p].pending))
        if changes:
            try:
                outcomes = yield AlterPartitions(changes)
            except KafkaStorageException:
                outcomes = {}
            for partition, (outcome, current) in outcomes.items():
                hosted[partition] = settle(hosted[partition], outcome, current)
        yield IsrChangesSettled()
        hosted.update({p: raise_high_watermark(hosted[p], found) for p, found in inputs.items()})
        return any(
            hosted[p].high_watermark > before[p]
            or (p in published and published[p].log_start_offset < logs.log_of(p).log_start_offset)
            for p in led
        )

    def _inputs(self, led, seen, cluster, logs):
        now, rows = self._clock(), seen.rows
        may_shrink = now - self._lag_checked_at >= self._interval
        self._lag_checked_at = now if may_shrink else self._lag_checked_at
        return {
            p: LeaderInputs(
                logs[p], {b: rows[b][p] for b in r.followers if b in rows and p in rows[b]}, cluster.broker_epochs,
                self._eligible(p, r, seen, cluster), now, self._lag_time, cluster.min_isr(r), may_shrink,
            )
            for p, r in led.items()
        }  # fmt: skip

    def _eligible(self, partition, registration, seen, cluster):
        _, since = self._since[partition]
        polled = seen.began_at
        return {
            b: cluster.alive[b] for b in registration.followers if b in cluster.alive and polled.get(b, since) >= since
        }
