"""A broker's fetcher: follows one source broker, in the order that the rules give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from replication.errors import (
    FencedLeaderEpochException,
    LakelogException,
    OffsetOutOfRangeException,
    StaleBrokerEpochException,
)
from replication.protocol import fetch_state, steps
from replication.protocol.append_plan import AppendPlan, FetchedBatch
from replication.protocol.fetch_state import PartitionFetchState, ReplicaState
from replication.protocol.high_watermark import follower_high_watermark
from replication.protocol.partition_log import PartitionLog, PlacedBatch
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import InitialFetchState
from replication.protocol.truncation import has_other_history
from replication.simulation.actor import Work
from replication.simulation.broker_thread import BrokerThread
from replication.simulation.events import AGAIN, AnswerLost
from replication.simulation.log_changes import raised_log_starts, truncation
from replication.simulation.tables import LogChange, LogState, NewBatch, name_of

if TYPE_CHECKING:
    from replication.simulation.broker_process import BrokerProcess

_BACKOFF = 0.3
_REPEATED = 40  # commits of the leader's log that a tail goes back at most, at its start or when it repeats itself
_MAX_BYTES = 5  # of a fetch; a segment has one byte a record, so that some fetches leave something out

Leaders = Mapping[TopicIdPartition, Replica]


class Fetcher(BrokerThread):
    """One round after the other: look at the leader, cut, plan, append, tell."""

    def __init__(self, process: BrokerProcess, source: int) -> None:
        super().__init__(process, f"fetcher-{source}")
        self.states: dict[TopicIdPartition, PartitionFetchState] = {}
        self.is_in_round = False
        self._source = source
        self._epochs: dict[TopicIdPartition, int] = {}  # that the round has begun with
        self._tail = max(0, self.world.logs[source].newest - self.world.step % _REPEATED)

    def assign(self, partition: TopicIdPartition, initial: InitialFetchState) -> None:
        """Takes a partition over; one that it has under the same epoch stays as it is."""
        before = self.states.get(partition)
        self.states[partition] = fetch_state.assigned(before, *partition, initial.leader_epoch, initial.fetch_offset)

    def work(self) -> Work:
        while True:
            yield
            self.is_in_round = True
            try:
                yield from self._round()
            except StaleBrokerEpochException:
                raise
            except (AnswerLost, LakelogException) as error:
                self.say("gives up this round: %r", error)
                yield from self._delay_all(error)
            self.is_in_round = False

    def _round(self) -> Work:
        self._epochs = {p: state.leader_epoch for p, state in self.states.items()}
        for partition in self.states:
            self._move(partition, lambda state: fetch_state.ready(state, self.world.now))
        leaders = self._leaders(self.look(self.world.replicas[self._source])[1].replicas)
        yield
        log = self.refresh_log()
        logs = {p: log.partition(p) for p in self.states}
        unlike = [p for p in self.states if p in leaders and has_other_history(logs[p], leaders[p])]
        yield from self._diverged([p for p in self._fetchable() if p in unlike])
        truncating = [p for p, s in self.states.items() if s.shown_state == ReplicaState.TRUNCATING]
        theirs = self._batch_ends({p for p in truncating if p in unlike or self.states[p].diverged})
        todo = self.rules.maybe_truncate(truncating, list(self._fetchable()), logs, leaders, theirs)
        yield from self._carry_out(todo)
        fetchable = {p: s for p, s in self._fetchable().items() if p in leaders}
        yield
        ends = {p: log.log_end for p, log in self._logs(fetchable).items()}
        yield
        found = self._headers(fetchable, ends)
        batches = [_fetched(placed) for placed in found.values()]
        kept = [b for b in batches if self.rules.may_append(b, leaders[b.partition], ends[b.partition].offset)]
        plan = self.rules.plan_appends(kept, ends, _MAX_BYTES)
        yield from self._diverged(plan.diverged)
        plan = plan.without(plan.diverged)
        todo = self.rules.append_fetched(plan, {p: leaders[p] for p in plan.log_ends}, self._logs(ends))
        yield from self._carry_out(todo, found)
        self._settle(plan, fetchable)

    def _diverged(self, partitions: Collection[TopicIdPartition]) -> Work:
        for partition in partitions:
            self.say("has another history of %s than its leader", name_of(partition))
            self._move(partition, partial(fetch_state.diverged, error="DIVERGED"))
        if partitions:
            yield from self.publish("diverged")

    def _batch_ends(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, list[LogEnd]]:
        state = self.look(self.world.logs[self._source], may_repeat=False)[1]
        headers = {p: [batch.header for batch in state.partition(p).batches] for p in partitions}
        return {p: [LogEnd(header.next_offset, header.chain) for header in found] for p, found in headers.items()}

    def _fetchable(self) -> dict[TopicIdPartition, PartitionFetchState]:
        return {p: s for p, s in self.states.items() if s.is_ready_for_fetch}

    def _logs(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, PartitionLog]:
        log = self.refresh_log()
        return {p: log.partition(p) for p in partitions}

    def _leaders(self, rows: Leaders) -> dict[TopicIdPartition, Replica]:
        """The rows of leaders that are at our epoch. Where we are the slower ones, only newer metadata helps."""
        leaders = {}
        for partition, state in self.states.items():
            error = self.rules.check_leader_row(rows.get(partition), partition, state.leader_epoch)
            if isinstance(error, FencedLeaderEpochException):
                self._delay(partition, error, fetch_state.NEVER)
            elif error is None:
                leaders[partition] = rows[partition]
        return leaders

    def _headers(
        self, fetchable: Mapping[TopicIdPartition, PartitionFetchState], ends: Mapping[TopicIdPartition, LogEnd]
    ) -> dict[str, PlacedBatch]:
        """What the tail of the leader's log brings, which may be old or come again, and the snapshot of what lags."""
        table = self.world.logs[self._source]
        first = max(0, self._tail - 1 - self.turn.salt % _REPEATED) if self.turn.fault == AGAIN else self._tail
        version, state = self.look(table, may_repeat=False)
        changes = [change for change in table.changes[first + 1 : version + 1] if change]
        self._tail = max(self._tail, version)
        added = [PlacedBatch(b.header.base_offset, b.header, b.segment) for change in changes for b in change.adds]
        lagging = [p for p, s in fetchable.items() if s.lagging]
        added += [b for p in lagging for b in state.partition(p).batches if b.header.next_offset > ends[p].offset]
        return {b.segment: b for b in added if b.header.topic_id_partition in fetchable}

    def _carry_out(self, todo: Iterable[steps.Step], found: Mapping[str, PlacedBatch] | None = None) -> Work:
        for step in todo:
            match step:
                case steps.CutLogs():
                    yield from self._cut(step)
                case steps.FinishTruncation():
                    yield
                    for partition in step.partitions:
                        end = self.process.log.partition(partition).log_end_offset
                        self._move(partition, partial(fetch_state.truncated, offset=end))
                        self._lower_high_watermark(partition, end)
                    self.say("has truncated %s", ", ".join(map(name_of, step.partitions)))
                case steps.AppendFetched():
                    yield from self._append(step, found or {})
                case steps.AdvanceFetchOffsets():
                    yield
                    self._advance(step)
                case steps.RaiseLogStarts():
                    yield from self._raise_log_starts(step)
                case steps.PublishReplicas():
                    yield from self.publish(step.why)

    def _cut(self, step: steps.CutLogs) -> Work:
        words = ", ".join(f"{name_of(p)} to {cut.offset}" for p, cut in step.cuts.items())
        yield from self.transact_log(partial(truncation, self.rules, step), f"cut {words}")

    def _copy(self, placed: PlacedBatch) -> NewBatch:
        return NewBatch(placed.header, f"s{self.world.number()}", self.world.records[placed.segment])

    def _append(self, step: steps.AppendFetched, found: Mapping[str, PlacedBatch]) -> Work:
        plan = step.plan
        adds = tuple(self._copy(found[batch.segment]) for batch in plan.batches)
        names = {batch.segment for batch in adds}

        def decide(state: LogState) -> LogChange | None:
            if names <= {b.segment for p in plan.starts() for b in state.partition(p).batches}:
                return None  # our own commit, whose answer was lost
            for partition, previous in plan.starts().items():
                epoch = step.leader_epochs[partition]
                self.rules.check_follower_append(state.partition(partition), epoch, previous, str(partition))
            return LogChange(adds)

        words = ", ".join(f"{name_of(b.partition)} {b.base_offset}..{b.last_offset}@{b.leader_epoch}"
                          for b in plan.batches)  # fmt: skip
        yield from self.transact_log(decide, f"append {words}")

    def _raise_log_starts(self, step: steps.RaiseLogStarts) -> Work:
        words = ", ".join(f"{name_of(p)} at {offset}" for p, (_, offset) in step.starts.items())
        yield from self.transact_log(partial(raised_log_starts, step), f"start {words}")

    def _advance(self, step: steps.AdvanceFetchOffsets) -> None:
        hosted = self.process.hosted
        for partition, high_watermark in step.leader_high_watermarks.items():
            end = self.process.log.partition(partition).log_end_offset
            self._move(partition, partial(fetch_state.advanced, offset=end, leader_high_watermark=high_watermark))
            if partition in hosted:
                follows = follower_high_watermark(high_watermark, end)
                hosted[partition] = replace(hosted[partition], high_watermark=follows)
                self.say("HW of %s: %d", name_of(partition), follows)

    def _lower_high_watermark(self, partition: TopicIdPartition, end: int) -> None:
        hosted = self.process.hosted
        if partition in hosted:
            lowered = follower_high_watermark(hosted[partition].high_watermark, end)
            hosted[partition] = replace(hosted[partition], high_watermark=lowered)

    def _settle(self, plan: AppendPlan, fetchable: Mapping[TopicIdPartition, PartitionFetchState]) -> None:
        for partition, end in plan.log_ends.items():
            before = fetchable[partition]
            if partition not in plan.gaps:
                self._move(partition, fetch_state.caught_up)
            elif before.lagging and not plan.batches:
                error = OffsetOutOfRangeException(f"the leader has nothing at offset {end.offset}")
                self._delay(partition, error, self.world.now + _BACKOFF)
            else:
                self._move(partition, fetch_state.fell_behind)

    def _delay_all(self, error: Exception) -> Work:
        for partition in self.states:
            self._delay(partition, error, self.world.now + _BACKOFF)
        try:
            yield from self.publish("delayed")
        except AnswerLost:
            return

    def _delay(self, partition: TopicIdPartition, error: Exception, until: float) -> None:
        name = type(error).__name__
        self._move(partition, lambda state: fetch_state.delayed(fetch_state.fell_behind(state), name, until))

    def _move(
        self, partition: TopicIdPartition, transition: Callable[[PartitionFetchState], PartitionFetchState]
    ) -> None:
        """Moves a partition's state, if it is still followed under the epoch that this round has begun with."""
        state = self.states.get(partition)
        if state is not None and state.leader_epoch == self._epochs.get(partition):
            self.states[partition] = transition(state)


def _fetched(placed: PlacedBatch) -> FetchedBatch:
    header = placed.header
    return FetchedBatch(
        header.topic_id_partition, header.base_offset, header.last_offset, header.leader_epoch, placed.segment,
        header.records, header.records, header.previous, header.chain,
    )  # fmt: skip
