"""A broker's fetcher: follows one source broker, in the order that the rules give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from replication.protocol.partition_log import FOLLOWER, PartitionLog, PlacedBatch, Role
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import InitialFetchState
from replication.simulation.actor import Work
from replication.simulation.broker_thread import BrokerThread
from replication.simulation.events import AGAIN, AnswerLost
from replication.simulation.tables import LogChange, LogState, NewBatch, name_of, part_of

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
        truncating = [p for p, s in self.states.items() if s.shown_state == ReplicaState.TRUNCATING]
        logs = {p: log.partition(p) for p in self.states}
        yield from self._carry_out(self.rules.maybe_truncate(truncating, list(self._fetchable()), logs, leaders))
        fetchable = {p: s for p, s in self._fetchable().items() if p in leaders}
        yield
        ends = {p: log.log_end_offset for p, log in self._logs(fetchable).items()}
        yield
        found = self._headers(fetchable, ends)
        batches = [_fetched(placed) for placed in found.values()]
        kept = [b for b in batches if self.rules.may_append(b, leaders[b.partition], ends[b.partition])]
        plan = self.rules.plan_appends(kept, ends, _MAX_BYTES)
        todo = self.rules.append_fetched(plan, {p: leaders[p] for p in plan.log_end_offsets}, self._logs(ends))
        yield from self._carry_out(todo, found)
        self._settle(plan, fetchable)

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
        self, fetchable: Mapping[TopicIdPartition, PartitionFetchState], ends: Mapping[TopicIdPartition, int]
    ) -> dict[str, PlacedBatch]:
        """What the tail of the leader's log brings, which may be old or come again, and the snapshot of what lags."""
        table = self.world.logs[self._source]
        first = max(0, self._tail - 1 - self.turn.salt % _REPEATED) if self.turn.fault == AGAIN else self._tail
        version, state = self.look(table, may_repeat=False)
        changes = [change for change in table.changes[first + 1 : version + 1] if change]
        self._tail = max(self._tail, version)
        added = [PlacedBatch(b.header.base_offset, b.header, b.segment) for change in changes for b in change.adds]
        lagging = [p for p, s in fetchable.items() if s.lagging]
        added += [b for p in lagging for b in state.partition(p).batches if b.header.next_offset > ends[p]]
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
        def decide(state: LogState) -> LogChange | None:
            adds: list[NewBatch] = []
            drops: dict[TopicIdPartition, frozenset[str]] = {}
            starts: dict[TopicIdPartition, int] = {}
            for partition, cut in step.cuts.items():
                try:
                    self.rules.check_cut(state.partition(partition), cut, str(partition))
                except FencedLeaderEpochException:
                    continue
                stop = cut.offset if cut.restart_at is None else 0  # starting over, it keeps nothing below its start
                gone = [b for b in state.partition(partition).batches if b.header.next_offset > stop]
                drops.update({partition: frozenset(b.segment for b in gone)} if gone else {})
                starts.update({} if cut.restart_at is None else {partition: cut.restart_at})
                adds += [self._part(b, b.base_offset, stop) for b in gone if b.base_offset < stop]
            return LogChange(tuple(adds), drops, log_starts=starts) if drops or starts else None

        words = ", ".join(f"{name_of(p)} to {cut.offset}" for p, cut in step.cuts.items())
        yield from self.transact_log(decide, f"cut {words}")

    def _part(self, placed: PlacedBatch, start: int, stop: int) -> NewBatch:
        return part_of(placed, self.world.records[placed.segment], start, stop, f"s{self.world.number()}")

    def _append(self, step: steps.AppendFetched, found: Mapping[str, PlacedBatch]) -> Work:
        plan = step.plan
        adds = tuple(self._part(found[r.batch.segment], r.start, r.stop) for r in plan.ranges)
        names = {batch.segment for batch in adds}

        def decide(state: LogState) -> LogChange | None:
            if names <= {b.segment for p in plan.starts() for b in state.partition(p).batches}:
                return None  # our own commit, whose answer was lost
            for partition, start in plan.starts().items():
                epoch = step.leader_epochs[partition]
                self.rules.check_follower_append(state.partition(partition), epoch, start, str(partition))
            return LogChange(adds)

        words = ", ".join(f"{name_of(r.batch.partition)} {r.start}..{r.stop - 1}@"
                          f"{r.batch.leader_epoch}" for r in plan.ranges)  # fmt: skip
        yield from self.transact_log(decide, f"append {words}")

    def _raise_log_starts(self, step: steps.RaiseLogStarts) -> Work:
        def decide(state: LogState) -> LogChange | None:
            starts = {
                p: offset
                for p, (leader_epoch, offset) in step.starts.items()
                if state.partition(p).role == Role(leader_epoch, FOLLOWER)
                and offset > state.partition(p).log_start_offset
            }
            return LogChange((), log_starts=starts) if starts else None

        words = ", ".join(f"{name_of(p)} at {offset}" for p, (_, offset) in step.starts.items())
        yield from self.transact_log(decide, f"start {words}")

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
        for partition, end in plan.log_end_offsets.items():
            before = fetchable[partition]
            if partition not in plan.gaps:
                self._move(partition, fetch_state.caught_up)
            elif before.lagging and not plan.ranges:
                error = OffsetOutOfRangeException(f"the leader has nothing at offset {end}")
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
        header.records, header.records,
    )  # fmt: skip
