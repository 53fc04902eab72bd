"""The reads and commits of a fetcher's round, on tables in memory. The round is shipped code."""

from __future__ import annotations

from functools import partial

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.fetch_state import FetchStates
from lakelog.replication.protocol.leadership import follow_high_watermarks
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import LogEnd
from lakelog.replication.protocol.rounds import fetch_steps
from lakelog.replication.protocol.rounds.fetch_round import FetchLimits
from lakelog.replication.protocol.rounds.steps import OwnLogs, PublishReplicas
from lakelog.verification.simulation.actor import Handler, Outcoming, Work
from lakelog.verification.simulation.broker_memory import BrokerMemory
from lakelog.verification.simulation.broker_thread import BrokerThread, raised_log_starts, truncated_logs
from lakelog.verification.simulation.events import AGAIN
from lakelog.verification.simulation.tables import NewBatch, SimulatedLogChange, SimulatedLogState

_REPEATED = 40  # the most commits of the leader's log that a tail goes back, at its start or in a repetition
# A record is one byte. The limits are small, so some fetches leave records out.
_LIMITS = FetchLimits(response_max_bytes=5, partition_max_bytes=4, backoff_ms=300)


class SimulatedFetcher(BrokerThread):
    """Follows one source broker, one round after the other."""

    def __init__(self, process: BrokerMemory, source: int) -> None:
        super().__init__(process, f"fetcher-{source}")
        self.states = FetchStates(lambda: self.world.now)
        self._round = self.rules.fetch_round(self.states, _LIMITS, self.rules)
        self._source = source
        self._tail = max(0, self.world.logs[source].newest - self.world.step % _REPEATED)
        self._followed_to = self._tail  # the begin of the current round
        self._found: dict[str, PlacedBatch] = {}
        self._handlers: dict[type, Handler] = {
            fetch_steps.ReadLeaderRows: self._leader_rows,
            fetch_steps.ReadFollowedLogs: self._followed_logs,
            fetch_steps.ReadLeaderBatches: self._leader_batches,
            fetch_steps.TellDiverged: self._tell_diverged,
            fetch_steps.TruncateLogs: self._truncate,
            fetch_steps.ThrottleFetch: self._throttle,
            fetch_steps.FetchHeaders: self._headers,
            fetch_steps.CopyBatches: self._copy,
            fetch_steps.AppendFetched: self._append,
            fetch_steps.FollowHighWatermarks: self._follow_high_watermarks,
            fetch_steps.RaiseLogStarts: self._raise_log_starts,
            PublishReplicas: lambda step: self.publish(step.why),
        }

    def work(self) -> Work:
        while True:
            yield  # a fetcher without partitions takes no step in a round
            self._followed_to = self._tail
            yield from self.carry_out(self._round.run(), self._handlers)

    def _leader_rows(self, _: fetch_steps.ReadLeaderRows) -> Outcoming:
        yield from ()
        return self.look(self.world.replicas[self._source])[1].replicas

    def _followed_logs(self, step: fetch_steps.ReadFollowedLogs) -> Outcoming:
        yield
        log = self.refresh_log()
        return OwnLogs({p: log.partition(p) for p in step.partitions})

    def _leader_batches(self, step: fetch_steps.ReadLeaderBatches) -> Outcoming:
        yield
        state = self.look(self.world.logs[self._source], may_repeat=False)[1]
        ends = {
            p: [LogEnd(b.header.next_offset, b.header.chain) for b in state.partition(p).batches
                if b.header.next_offset > offset]
            for p, offset in step.offsets.items()
        }  # fmt: skip
        return fetch_steps.LeaderBatches(ends, {})

    def _tell_diverged(self, step: fetch_steps.TellDiverged) -> Outcoming:
        yield from ()
        for partition in step.partitions:
            self.say("has another history of %s than its leader", str(partition))

    def _throttle(self, _: fetch_steps.ThrottleFetch) -> Outcoming:
        yield from ()
        return fetch_steps.Throttled()

    def _headers(self, step: fetch_steps.FetchHeaders) -> Outcoming:
        """Reads headers. The tail may be old or repeat itself, and a repeated round gets the same headers again."""
        yield
        table = self.world.logs[self._source]
        is_again, first = self.turn.fault == AGAIN, self._followed_to
        first = max(0, first - 1 - self.turn.salt % _REPEATED) if is_again else first
        version, state = self.look(table, may_repeat=False)
        changes = [change for change in table.changes[first + 1 : version + 1] if change]
        self._tail = max(self._tail, version)
        added = [PlacedBatch(b.header.base_offset, b.header, b.segment) for change in changes for b in change.adds]
        added += [
            b for p in step.lagging for b in state.partition(p).batches
            if b.header.next_offset > step.log_ends[p].offset
        ]  # fmt: skip
        self._found = {b.segment: b for b in added if b.header.topic_id_partition in step.log_ends}
        yield
        return fetch_steps.FetchedHeaders(
            [FetchedBatch.of(found.header, found.segment, found.header.records) for found in self._found.values()],
            {},
            False,
        )

    def _copy(self, _: fetch_steps.CopyBatches) -> Outcoming:
        yield
        return {}

    def _truncate(self, step: fetch_steps.TruncateLogs) -> Work:
        words = ", ".join(f"{p} to {truncation.offset}" for p, truncation in step.truncations.items())
        yield from self.transact_log(partial(truncated_logs, self.rules, step), f"truncate {words}")

    def _append(self, step: fetch_steps.AppendFetched) -> Work:
        plan = step.plan
        adds = tuple(self._copied(self._found[batch.segment]) for batch in plan.batches)
        names = {batch.segment for batch in adds}

        def decide(state: SimulatedLogState) -> SimulatedLogChange | None:
            if names <= {b.segment for p in plan.starts() for b in state.partition(p).batches}:
                return None  # our own commit, whose reply was lost
            for partition, previous in plan.starts().items():
                epoch = step.leader_epochs[partition]
                self.rules.check_follower_append(state.partition(partition), epoch, previous, str(partition))
            return SimulatedLogChange(adds)

        words = ", ".join(f"{b.topic_id_partition} {b.base_offset}..{b.last_offset}@{b.leader_epoch}"
                          for b in plan.batches)  # fmt: skip
        yield from self.transact_log(decide, f"append {words}")

    def _copied(self, placed: PlacedBatch) -> NewBatch:
        return NewBatch(placed.header, f"s{self.world.number()}", self.world.records[placed.segment])

    def _raise_log_starts(self, step: fetch_steps.RaiseLogStarts) -> Work:
        words = ", ".join(f"{p} at {offset}" for p, (_, offset) in step.starts.items())
        yield from self.transact_log(partial(raised_log_starts, step), f"start {words}")

    def _follow_high_watermarks(self, step: fetch_steps.FollowHighWatermarks) -> Outcoming:
        yield
        followed = follow_high_watermarks(self.process.hosted, step.log_ends, step.leader_high_watermarks)
        self.process.hosted.update(followed)
        for partition, hosted in followed.items():
            self.say("HW of %s: %d", str(partition), hosted.high_watermark)
