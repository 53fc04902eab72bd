"""A broker in memory: its process, its threads, and the reads and commits of their rounds.

The rounds and rules are shipped code. Only the tables are simulated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lakelog.replication.errors import FencedLeaderEpochException, LakelogException, StaleBrokerEpochException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.fetch_state import FetchStates, PartitionFetchState
from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrOutcomes
from lakelog.replication.protocol.leadership import HostedPartition, follow_high_watermarks
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_log import STOPPED, PartitionLog, PlacedBatch, may_become
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds import fetch_round, leader_round, role_round
from lakelog.replication.protocol.rounds.broker_steps import BrokerState, OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import FetchLimits, RaiseLogStarts, TruncateLogs
from lakelog.replication.protocol.rounds.role_round import take_up_roles
from lakelog.verification.simulation.actor import Actor, Handler, Outcoming, Work
from lakelog.verification.simulation.history_events import AGAIN, AnswerLost
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.simulated_tables import (
    BrokerRow,
    Metadata,
    NewBatch,
    Rows,
    SimulatedLogChange,
    SimulatedLogState,
    VersionedTable,
)
from lakelog.verification.simulation.stage import Stage

_REPEATED = 40  # the most commits of the leader's log that a tail goes back, at its start or in a repetition
# A record is one byte. The limits are small, so some fetches leave records out.
_LIMITS = FetchLimits(response_max_bytes=5, partition_max_bytes=4, backoff_ms=300)
_PUBLISHES = 4  # one round in this many publishes the rows anyway, as a heartbeat does


class SimulatedBrokerState(ABC):
    """What a process has read of the tables, and what it hosts."""

    def __init__(self, world: Stage, name: str, broker_id: int) -> None:
        self.world = world
        self.name = name
        self.broker_id = broker_id
        self.is_paused = False
        self.is_shutting_down = False
        self.epoch = -1
        self.log_table = world.logs[broker_id]
        self.log_version, self.log = 0, self.log_table.at(0)
        self.replica_table = world.replicas[broker_id]
        self.published: Mapping[TopicIdPartition, ReplicaStatus] = {}
        self.metadata: Mapping[TopicIdPartition, PartitionRegistration] = {}
        self.registry: Mapping[int, BrokerRow] = {}
        self.hosted: dict[TopicIdPartition, HostedPartition] = {}

    @abstractmethod
    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""


class BrokerThread(Actor):
    """A thread of a process. All threads share the process's memory and lose it together."""

    def __init__(self, process: SimulatedBrokerState, name: str) -> None:
        self.process = process
        self.rules = process.world.rules
        super().__init__(process.world, f"{process.name}/{name}")

    def check_claim(self, claimed: int, table: str) -> None:
        """Raises StaleBrokerEpochException if a newer process of this broker has claimed the table."""
        if self.rules.claims_are_checked and claimed > self.process.epoch:
            raise StaleBrokerEpochException(f"{table} is claimed under broker epoch {claimed}")

    def refresh_log(self) -> SimulatedLogState:
        """Replays the new commits of the log. Raises StaleBrokerEpochException, AnswerLost."""
        self._see(*self.read(self.process.log_table, may_repeat=False))
        return self.process.log

    def _see(self, version: int, state: SimulatedLogState) -> None:
        self.check_claim(state.broker_epoch, self.process.log_table.name)
        if version > self.process.log_version:
            self.process.log_version, self.process.log = version, state

    def transact_log(self, decide: Callable[[SimulatedLogState], SimulatedLogChange | None], why: str) -> Work:
        """Commits to the log. `decide` sees its newest state."""

        def on_newest(version: int, state: SimulatedLogState) -> SimulatedLogChange | None:
            self._see(version, state)
            return decide(state)

        table = self.process.log_table
        version = yield from self.transact(table, on_newest, why)
        if version is not None:
            self._see(table.newest, table.at(table.newest))

    def publish(self, why: str) -> Work:
        """Writes the broker's rows of its replicas if they differ from the published ones."""
        process, table = self.process, self.process.replica_table

        def decide(_: int, state: Rows) -> Rows | None:
            self.check_claim(state.broker_epoch, table.name)
            process.published = state.replicas
            wanted = {p: self._row(p, process.log.partition(p)) for p in process.hosted}
            return None if _facts(wanted) == _facts(state.replicas) else Rows(state.broker_epoch, wanted)

        version = yield from self.transact(table, decide, why)
        if version is not None:
            process.published = table.at(table.newest).replicas

    def _row(self, partition: TopicIdPartition, log: PartitionLog) -> ReplicaStatus:
        process = self.process
        row: ReplicaStatus = self.rules.replica_row(
            process.broker_id, process.epoch, process.hosted[partition], log, process.fetch_state(partition),
            process.published.get(partition), process.log_version,
        )  # fmt: skip
        return row


def _facts(replicas: Mapping[TopicIdPartition, ReplicaStatus]) -> dict[TopicIdPartition, ReplicaStatus]:
    return {partition: replace(row, log_version=0) for partition, row in replicas.items()}


def truncated_logs(rules: Rules, step: TruncateLogs, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The batches that go, where the role is still the one that this was decided in."""
    drops: dict[TopicIdPartition, frozenset[str]] = {}
    restarts: dict[TopicIdPartition, LogEnd] = {}
    for partition, truncation in step.truncations.items():
        try:
            rules.check_truncation(state.partition(partition), truncation, str(partition))
        except FencedLeaderEpochException:
            continue
        stop = truncation.offset if truncation.restart is None else 0  # starting over, it keeps nothing below its start
        removed = [b for b in state.partition(partition).batches if b.header.next_offset > stop]
        drops.update({partition: frozenset(b.segment for b in removed)} if removed else {})
        restarts.update({} if truncation.restart is None else {partition: truncation.restart})
    return SimulatedLogChange((), drops, restarts=restarts) if drops or restarts else None


def raised_log_starts(step: RaiseLogStarts, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The log starts that rise, of partitions that still follow at the epoch of the decision."""
    starts = {
        p: offset
        for p, (leader_epoch, offset) in step.starts.items()
        if state.partition(p).role.follows_at(leader_epoch) and offset > state.partition(p).log_start_offset
    }
    return SimulatedLogChange((), log_starts=starts) if starts else None


class LeaderDuties(BrokerThread):
    """The leader's part of a broker's main thread."""

    def __init__(self, process: SimulatedBrokerState, name: str) -> None:
        super().__init__(process, name)
        self.memory = BrokerState(process.hosted, lambda: process.published, OfflineReplicas(process.broker_id))
        self._leader = self.rules.leader_round(  # lags count in each round: so more of them matter
            process.broker_id, self.world.setting.replica_lag_time_max, 0.0, lambda: self.world.now, self.rules
        )
        self.handlers: dict[type, Handler] = {
            leader_round.ReadFollowerRows: self._follower_rows,
            leader_round.ReadCluster: self._cluster,
            leader_round.ReadLog: self._read_log,
            leader_round.AlterPartitions: self._alter_partitions,
            leader_round.IsrChangesSettled: self._isr_changes_settled,
        }

    def _lead(self) -> Generator[None, None, bool]:
        """Runs a leader's round. Returns whether its rows have changed."""
        before = dict(self.process.hosted)
        has_changed_rows: bool = yield from self.carry_out(self._leader.run(self.memory), self.handlers)
        for partition, now in self.process.hosted.items():
            is_led = now.registration.leader == self.process.broker_id
            if is_led and now.high_watermark != before[partition].high_watermark:
                self.say("HW of %s: %d", str(partition), now.high_watermark)
        return has_changed_rows

    def _follower_rows(self, step: leader_round.ReadFollowerRows) -> Outcoming:
        rows: dict[int, Mapping[TopicIdPartition, ReplicaStatus]] = {}
        began_at: dict[int, float] = {}
        for broker in step.brokers:
            yield
            try:
                began_at[broker] = self.world.now
                rows[broker] = self.read(self.world.replicas[broker])[1].replicas
            except AnswerLost:
                continue
        return leader_round.FollowersSeen(rows, began_at)

    def _cluster(self, _: leader_round.ReadCluster) -> Outcoming:
        yield from ()
        registry = self.process.registry
        epochs = {broker: row.broker_epoch for broker, row in registry.items()}
        alive = {broker: row.broker_epoch for broker, row in registry.items() if not row.shutting_down}
        return leader_round.ClusterView(epochs, alive, self.world.min_isr)

    def _read_log(self, step: leader_round.ReadLog) -> Outcoming:
        yield
        log, before = self.refresh_log(), step.since
        changed = None
        if isinstance(before, SimulatedLogState):
            changed = [p for p, found in log.partitions.items() if before.partitions.get(p) is not found]
        return leader_round.LogsSeen(log.partition, changed, log)

    def _isr_changes_settled(self, _: leader_round.IsrChangesSettled) -> Outcoming:
        yield

    def _alter_partitions(self, step: leader_round.AlterPartitions) -> Outcoming:
        outcomes: IsrOutcomes = {}

        def decide(_: int, metadata: Metadata) -> Metadata | None:
            nonlocal outcomes
            registry = self.world.registry.at(self.world.registry.newest)
            epochs = {broker: row.broker_epoch for broker, row in registry.items()}
            found = metadata.partitions
            outcomes = {
                c.topic_id_partition: self.rules.alter_partition(found.get(c.topic_id_partition), c, epochs)
                for c in step.changes
            }
            applied = {p: r for p, (outcome, r) in outcomes.items() if r and outcome is AlterIsrOutcome.APPLIED}
            return metadata._replace(partitions={**found, **applied}) if applied else None

        words = ", ".join(f"ISR of {c.topic_id_partition}: {c.isr}" for c in step.changes)
        yield from self.transact(self.world.metadata, decide, words)
        for partition, (outcome, _) in outcomes.items():
            self.say("ISR of %s: %s", str(partition), outcome.value)
        return outcomes


class SimulatedFetcher(BrokerThread):
    """Follows one source broker, one round after the other."""

    def __init__(self, process: SimulatedBrokerState, source: int) -> None:
        super().__init__(process, f"fetcher-{source}")
        self.states = FetchStates(lambda: self.world.now)
        self._round = self.rules.fetch_round(self.states, _LIMITS, self.rules)
        self._source = source
        self._tail = max(0, self.world.logs[source].newest - self.world.step % _REPEATED)
        self._followed_to = self._tail  # the begin of the current round
        self._found: dict[str, PlacedBatch] = {}
        self._handlers: dict[type, Handler] = {
            fetch_round.ReadLeaderRows: self._leader_rows,
            fetch_round.ReadFollowedLogs: self._followed_logs,
            fetch_round.ReadLeaderBatches: self._leader_batches,
            fetch_round.ReportDiverged: self._report_diverged,
            fetch_round.TruncateLogs: self._truncate,
            fetch_round.ThrottleFetch: self._throttle,
            fetch_round.FetchHeaders: self._headers,
            fetch_round.CopyBatches: self._copy,
            fetch_round.AppendFetched: self._append,
            fetch_round.FollowHighWatermarks: self._follow_high_watermarks,
            fetch_round.RaiseLogStarts: self._raise_log_starts,
            PublishReplicas: lambda step: self.publish(step.why),
        }

    def work(self) -> Work:
        while True:
            yield  # a fetcher without partitions takes no step in a round
            self._followed_to = self._tail
            yield from self.carry_out(self._round.run(), self._handlers)

    def _leader_rows(self, _: fetch_round.ReadLeaderRows) -> Outcoming:
        yield from ()
        return self.read(self.world.replicas[self._source])[1].replicas

    def _followed_logs(self, step: fetch_round.ReadFollowedLogs) -> Outcoming:
        yield
        log = self.refresh_log()
        return OwnLogs({p: log.partition(p) for p in step.partitions})

    def _leader_batches(self, step: fetch_round.ReadLeaderBatches) -> Outcoming:
        yield
        state = self.read(self.world.logs[self._source], may_repeat=False)[1]
        ends = {
            p: [LogEnd(b.header.next_offset, b.header.chain) for b in state.partition(p).batches
                if b.header.next_offset > offset]
            for p, offset in step.offsets.items()
        }  # fmt: skip
        return fetch_round.LeaderBatches(ends, {})

    def _report_diverged(self, step: fetch_round.ReportDiverged) -> Outcoming:
        yield from ()
        for partition in step.partitions:
            self.say("has another history of %s than its leader", str(partition))

    def _throttle(self, _: fetch_round.ThrottleFetch) -> Outcoming:
        yield from ()
        return fetch_round.Throttled()

    def _headers(self, step: fetch_round.FetchHeaders) -> Outcoming:
        """Reads headers. The tail may be old or repeat itself, and a repeated round gets the same headers again."""
        yield
        table = self.world.logs[self._source]
        is_again, first = self.turn.fault == AGAIN, self._followed_to
        first = max(0, first - 1 - self.turn.salt % _REPEATED) if is_again else first
        version, state = self.read(table, may_repeat=False)
        changes = [change for change in table.changes[first + 1 : version + 1] if change]
        self._tail = max(self._tail, version)
        added = [PlacedBatch(b.header.base_offset, b.header, b.segment) for change in changes for b in change.adds]
        added += [
            b for p in step.lagging for b in state.partition(p).batches
            if b.header.next_offset > step.log_ends[p].offset
        ]  # fmt: skip
        self._found = {b.segment: b for b in added if b.header.topic_id_partition in step.log_ends}
        yield
        return fetch_round.FetchedHeaders(
            [FetchedBatch.of(found.header, found.segment, found.header.records) for found in self._found.values()],
            {},
            False,
        )

    def _copy(self, _: fetch_round.CopyBatches) -> Outcoming:
        yield
        return {}

    def _truncate(self, step: fetch_round.TruncateLogs) -> Work:
        words = ", ".join(f"{p} to {truncation.offset}" for p, truncation in step.truncations.items())
        yield from self.transact_log(partial(truncated_logs, self.rules, step), f"truncate {words}")

    def _append(self, step: fetch_round.AppendFetched) -> Work:
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

    def _raise_log_starts(self, step: fetch_round.RaiseLogStarts) -> Work:
        words = ", ".join(f"{p} at {offset}" for p, (_, offset) in step.starts.items())
        yield from self.transact_log(partial(raised_log_starts, step), f"start {words}")

    def _follow_high_watermarks(self, step: fetch_round.FollowHighWatermarks) -> Outcoming:
        yield
        followed = follow_high_watermarks(self.process.hosted, step.log_ends, step.leader_high_watermarks)
        self.process.hosted.update(followed)
        for partition, hosted in followed.items():
            self.say("HW of %s: %d", str(partition), hosted.high_watermark)


class SimulatedReplicaManager(LeaderDuties):
    """Repeats rounds: reads the metadata, applies it if it has moved, and does the duties of a leader."""

    def __init__(self, process: SimulatedBrokerState) -> None:
        super().__init__(process, "main")
        self._version, self._applied = -1, -1
        self.fetchers: dict[int, SimulatedFetcher] = {}
        self.handlers |= {
            role_round.ReadOwnLogs: self._read_own_logs,
            role_round.StopFetching: self._stop_fetching,
            role_round.CommitRoles: self._commit_roles,
            role_round.DeleteLogs: self._delete_logs,
            role_round.HostPartitions: self._host,
            PublishReplicas: lambda step: self.publish(step.why),
            role_round.StartFetching: self._start_fetching,
            role_round.StopIdleFetchers: self._stop_idle_fetchers,
        }

    def work(self) -> Work:
        for begin in (self._register, self._claim_log, self._claim_replicas):
            yield from self._insist(begin)
        while True:
            try:
                yield from self._round()
            except StaleBrokerEpochException:
                raise
            except (AnswerLost, LakelogException) as error:
                self.say("gives up this round: %r", error)

    def _insist(self, begin: Callable[[], Work]) -> Work:
        while True:
            try:
                yield from begin()
                return
            except AnswerLost:
                continue

    def _register(self) -> Work:
        process, table = self.process, self.world.registry

        def decide(_: int, brokers: Mapping[int, BrokerRow]) -> dict[int, BrokerRow]:
            process.epoch = brokers[process.broker_id].broker_epoch + 1
            return {**brokers, process.broker_id: BrokerRow(process.epoch)}

        yield from self.transact(table, decide, "register")

    def _claim_log(self) -> Work:
        epoch = self.process.epoch
        yield from self.transact_log(
            lambda state: SimulatedLogChange(claim=epoch) if state.broker_epoch < epoch else None, f"claim {epoch}"
        )

    def _claim_replicas(self) -> Work:
        process = self.process

        def decide(_: int, state: Rows) -> Rows | None:
            self.check_claim(state.broker_epoch, process.replica_table.name)
            process.published = state.replicas
            return Rows(process.epoch, state.replicas) if state.broker_epoch < process.epoch else None

        yield from self.transact(process.replica_table, decide, f"claim {process.epoch}")

    def _round(self) -> Work:
        process = self.process
        yield
        version, metadata = self.read(self.world.metadata)
        if version > self._version:
            self._version, process.metadata = version, metadata.partitions
        yield
        process.registry = self.read(self.world.registry)[1]
        self.check_claim(process.registry[process.broker_id].broker_epoch, "brokers")
        if self._applied < self._version:
            version = self._version
            todo = take_up_roles(process.broker_id, process.epoch, self.memory, process.metadata, self.rules)
            yield from self.carry_out(todo, self.handlers)
            self._applied = version
            yield from self._tell_registry("metadata applied", lambda row: row._replace(metadata_version=version))
        if process.is_shutting_down and not process.registry[process.broker_id].shutting_down:
            yield from self._tell_registry("shutting down", lambda row: row._replace(shutting_down=True))
        has_changed_rows = yield from self._lead()
        if has_changed_rows or self.turn.salt % _PUBLISHES == 0:
            yield from self.publish("high watermark" if has_changed_rows else "heartbeat")

    def _tell_registry(self, why: str, change: Callable[[BrokerRow], BrokerRow]) -> Work:
        me = self.process.broker_id

        def decide(_: int, brokers: Mapping[int, BrokerRow]) -> dict[int, BrokerRow] | None:
            self.check_claim(brokers[me].broker_epoch, "brokers")
            row = change(brokers[me])
            return None if row == brokers[me] else {**brokers, me: row}

        yield from self.transact(self.world.registry, decide, why)

    def _read_own_logs(self, step: role_round.ReadOwnLogs) -> Outcoming:
        yield
        log = self.refresh_log()
        known = {*log.partitions, *(p for p, r in step.metadata.items() if self.process.broker_id in r.replicas)}
        return OwnLogs({p: log.partition(p) for p in sorted(known)})

    def _stop_fetching(self, step: role_round.StopFetching) -> Work:
        """Waits until no fetcher is in its write phase, as a fetcher's lock does. After that nothing more is
        appended."""
        yield
        for fetcher in list(self.fetchers.values()):
            while fetcher.states.is_held and self.rules.rounds_are_awaited:
                yield
            fetcher.states.remove(step.partitions)
        self.say("stops fetching %s", ", ".join(map(str, step.partitions)))

    def _commit_roles(self, step: role_round.CommitRoles) -> Work:
        def decide(state: SimulatedLogState) -> SimulatedLogChange | None:
            newer = {p: role for p, role in step.roles.items() if may_become(state.partition(p).role, role)}
            return SimulatedLogChange(roles=newer) if newer else None

        words = ", ".join(f"{p} {r.name}@{r.leader_epoch}" for p, r in step.roles.items())
        yield from self.transact_log(decide, f"roles {words}")

    def _delete_logs(self, step: role_round.DeleteLogs) -> Work:
        def decide(state: SimulatedLogState) -> SimulatedLogChange | None:
            deleted = [
                p for p in step.partitions if state.partition(p).role.kind == STOPPED and state.partition(p).batches
            ]
            drops = {p: frozenset(batch.segment for batch in state.partition(p).batches) for p in deleted}
            return SimulatedLogChange(drops=drops) if drops else None

        yield from self.transact_log(decide, "delete unassigned logs")

    def _host(self, step: role_round.HostPartitions) -> Work:
        yield
        process = self.process
        for partition in step.removed:
            process.hosted.pop(partition, None)
        for partition, registration in step.registrations.items():
            process.hosted[partition] = self.rules.host(
                process.hosted.get(partition), process.published.get(partition), registration,
                process.log.partition(partition), process.broker_id, self.world.now,
            )  # fmt: skip
        facts = (step.registrations, step.removed)
        self.say("hosts [%s], no more [%s]", *(", ".join(map(str, names)) for names in facts))

    def _start_fetching(self, step: role_round.StartFetching) -> Work:
        yield
        process = self.process
        for partition, initial in step.partitions.items():
            if not process.is_shutting_down:
                fetcher = self.fetchers.setdefault(initial.leader, SimulatedFetcher(process, initial.leader))
                fetcher.states.assign({partition: initial})
        self.say(
            "fetches %s",
            ", ".join(f"{p} from {i.leader}@{i.leader_epoch}" for p, i in step.partitions.items()),
        )

    def _stop_idle_fetchers(self, _: role_round.StopIdleFetchers) -> Work:
        yield
        for source, fetcher in list(self.fetchers.items()):
            if not len(fetcher.states):
                fetcher.stop()
                del self.fetchers[source]


class SimulatedBrokerProcess(SimulatedBrokerState):
    """A broker may have several at a time: older ones are zombies, and must find out by themselves."""

    def __init__(self, world: Stage, name: str, broker_id: int) -> None:
        super().__init__(world, name, broker_id)
        self._main = SimulatedReplicaManager(self)

    def threads(self) -> list[str]:
        """Names of its threads, as events have them."""
        return [self._main.name, *(fetcher.name for fetcher in self._main.fetchers.values())]

    def thread(self, name: str) -> Actor | None:
        """The thread of this name; None if it has ended."""
        if name == "main":
            return self._main
        return self._main.fetchers.get(int(name.removeprefix("fetcher-")))

    @property
    def is_about_to_commit(self) -> VersionedTable[Any] | None:
        """The table for which its main thread has a decided change that is not committed yet."""
        return self._main.is_about_to_commit

    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""
        states = (fetcher.states.all().get(partition) for fetcher in self._main.fetchers.values())
        return next((state for state in states if state is not None), None)

    def stop(self) -> None:
        """The end of the process, in the middle of whatever it was doing."""
        for thread in (self._main, *self._main.fetchers.values()):
            thread.stop()
