"""A broker's main thread: it registers, claims its tables, takes up roles and leads. The shipped rules decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.protocol.partition_log import STOPPED, may_become
from lakelog.replication.protocol.rounds import steps
from lakelog.replication.protocol.rounds.role_round import take_up_roles
from lakelog.verification.simulation.actor import Outcoming, Work
from lakelog.verification.simulation.broker_memory import BrokerMemory
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.fetcher import SimulatedFetcher
from lakelog.verification.simulation.leader_duties import LeaderDuties
from lakelog.verification.simulation.tables import BrokerRow, Rows, SimulatedLogChange, SimulatedLogState

_PUBLISHES = 4  # one round in this many publishes the rows anyway, as a heartbeat does


class SimulatedReplicaManager(LeaderDuties):
    """Repeats rounds: reads the metadata, applies it if it has moved, and does the duties of a leader."""

    def __init__(self, process: BrokerMemory) -> None:
        super().__init__(process, "main")
        self._version, self._applied = -1, -1
        self.fetchers: dict[int, SimulatedFetcher] = {}
        self.handlers |= {
            steps.ReadOwnLogs: self._read_own_logs,
            steps.StopFetching: self._stop_fetching,
            steps.CommitRoles: self._commit_roles,
            steps.DeleteLogs: self._delete_logs,
            steps.HostPartitions: self._host,
            steps.PublishReplicas: lambda step: self.publish(step.why),
            steps.StartFetching: self._start_fetching,
            steps.StopIdleFetchers: self._stop_idle_fetchers,
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
        version, metadata = self.look(self.world.metadata)
        if version > self._version:
            self._version, process.metadata = version, metadata.partitions
        yield
        process.registry = self.look(self.world.registry)[1]
        self.check_claim(process.registry[process.broker_id].broker_epoch, "brokers")
        if self._applied < self._version:
            version = self._version
            todo = take_up_roles(process.broker_id, process.epoch, self.memory, process.metadata, self.rules)
            yield from self.carry_out(todo, self.handlers)
            self._applied = version
            yield from self._tell_registry("metadata applied", lambda row: row._replace(metadata_version=version))
        if process.is_shutting_down and not process.registry[process.broker_id].shutting_down:
            yield from self._tell_registry("shutting down", lambda row: row._replace(shutting_down=True))
        has_news = yield from self._lead()
        if has_news or self.turn.salt % _PUBLISHES == 0:
            yield from self.publish("high watermark" if has_news else "heartbeat")

    def _tell_registry(self, why: str, change: Callable[[BrokerRow], BrokerRow]) -> Work:
        me = self.process.broker_id

        def decide(_: int, brokers: Mapping[int, BrokerRow]) -> dict[int, BrokerRow] | None:
            self.check_claim(brokers[me].broker_epoch, "brokers")
            row = change(brokers[me])
            return None if row == brokers[me] else {**brokers, me: row}

        yield from self.transact(self.world.registry, decide, why)

    def _read_own_logs(self, step: steps.ReadOwnLogs) -> Outcoming:
        yield
        log = self.refresh_log()
        known = {*log.partitions, *(p for p, r in step.metadata.items() if self.process.broker_id in r.replicas)}
        return steps.OwnLogs({p: log.partition(p) for p in sorted(known)})

    def _stop_fetching(self, step: steps.StopFetching) -> Work:
        """Waits until no fetcher is in its write phase, as a fetcher's lock does. After that nothing more is
        appended."""
        yield
        for fetcher in list(self.fetchers.values()):
            while fetcher.states.is_held and self.rules.rounds_are_awaited:
                yield
            fetcher.states.remove(step.partitions)
        self.say("stops fetching %s", ", ".join(map(str, step.partitions)))

    def _commit_roles(self, step: steps.CommitRoles) -> Work:
        def decide(state: SimulatedLogState) -> SimulatedLogChange | None:
            newer = {p: role for p, role in step.roles.items() if may_become(state.partition(p).role, role)}
            return SimulatedLogChange(roles=newer) if newer else None

        words = ", ".join(f"{p} {r.name}@{r.leader_epoch}" for p, r in step.roles.items())
        yield from self.transact_log(decide, f"roles {words}")

    def _delete_logs(self, step: steps.DeleteLogs) -> Work:
        def decide(state: SimulatedLogState) -> SimulatedLogChange | None:
            gone = [
                p for p in step.partitions if state.partition(p).role.kind == STOPPED and state.partition(p).batches
            ]
            drops = {p: frozenset(batch.segment for batch in state.partition(p).batches) for p in gone}
            return SimulatedLogChange(drops=drops) if drops else None

        yield from self.transact_log(decide, "delete unassigned logs")

    def _host(self, step: steps.HostPartitions) -> Work:
        yield
        process = self.process
        for partition in step.gone:
            process.hosted.pop(partition, None)
        for partition, registration in step.registrations.items():
            process.hosted[partition] = self.rules.host(
                process.hosted.get(partition), process.published.get(partition), registration,
                process.log.partition(partition), process.broker_id, self.world.now,
            )  # fmt: skip
        facts = (step.registrations, step.gone)
        self.say("hosts [%s], no more [%s]", *(", ".join(map(str, names)) for names in facts))

    def _start_fetching(self, step: steps.StartFetching) -> Work:
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

    def _stop_idle_fetchers(self, _: steps.StopIdleFetchers) -> Work:
        yield
        for source, fetcher in list(self.fetchers.items()):
            if not len(fetcher.states):
                fetcher.stop()
                del self.fetchers[source]
