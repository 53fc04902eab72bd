"""The active controller: carries out its rounds on the cluster's tables, takes up the requests in `admin`, and removes
what has expired. [FO-01, FO-05]"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.decision import Decision, uninterrupted
from lakelog.replication.controller.events import EVENT_OF_REQUEST, Event
from lakelog.replication.controller.group_expiration import GroupExpiration
from lakelog.replication.controller.term import (
    AnswerRequest,
    BeginToApplyRequest,
    BrokersSeen,
    ChangeConfigs,
    ChangeMetadata,
    ChangeTopics,
    ClaimTables,
    ControllerTerm,
    IsBalanceDue,
    Partitions,
    ReadBrokers,
    ReadConfigs,
    ReadMetadata,
    ReadRequests,
    ReadTopics,
    SettleWhatHasLanded,
    TakeUpRequest,
    UnregisterBroker,
)
from lakelog.replication.errors import InvalidRequestException, LakelogException, TimeoutException
from lakelog.replication.protocol.admin_request import APPLYING, DECIDING, PENDING, AdminRequest, Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration, Liveness
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.partition_changes import partition_changes
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.carry_out import Handler, carry_out
from lakelog.replication.protocol.topic import Configs, Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.metadata_table import (
    BROKER_CHANGES,
    REQUESTED_BY,
    UNCLEAN_ELECTIONS,
    requests_carried_out,
)
from lakelog.replication.storage.tables.state_table import Row

logger = logging.getLogger(__name__)

_WHO = "controller"
_FIRST_REBALANCE_SECONDS = 5.0


class ActiveController:
    """One term of the controller. Each write carries its controller epoch.

    A write raises ControllerMovedException once a newer controller has claimed the table. `keep_lease` may raise
    DecisionInterrupted.
    """

    def __init__(
        self, cluster: Cluster, liveness: Liveness, held: Lease, clock: Callable[[], float] = time.monotonic,
        keep_lease: Callable[[], None] = uninterrupted,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._liveness = liveness
        self._held = held
        self._epoch = held.controller_epoch
        self._clock = clock
        self._keep_lease = keep_lease
        self.requests = AdminRequests(cluster.admin, cluster.config, self._epoch, clock)
        self._offsets = OffsetRetention(cluster, self._epoch, clock)
        self._groups = GroupExpiration(cluster, self._epoch, clock)
        self._producers = ProducerExpiration(cluster, self._epoch, clock)
        self._rebalance_at = clock() + _FIRST_REBALANCE_SECONDS
        self._storage_errors: Mapping[int, str] = {}
        self._brokers_before: Mapping[int, BrokerView] = {}
        self._logged: ControllerContext | None = None  # the context that was logged last
        # The one whose brokers commits have named by now. Of several events of a poll not each has a commit.
        self._noted: ControllerContext | None = None
        self._term = ControllerTerm(ControllerContext(self._epoch, cluster.config), self._decide, self._log, clock)
        self._handlers: dict[type, Handler] = {
            ClaimTables: lambda _: self._claim_tables(),
            ReadTopics: lambda _: self._read_topics(),
            ReadConfigs: lambda _: self._read_configs(),
            ReadMetadata: lambda _: self._read_metadata(),
            ReadBrokers: lambda step: self._read_brokers(step.newest),
            ReadRequests: lambda _: self.requests.poll(),
            IsBalanceDue: lambda _: self._is_balance_due(),
            SettleWhatHasLanded: lambda _: self.requests.settle_what_has_landed(cluster.root),
            TakeUpRequest: lambda step: self.requests.take_up(step.request),
            BeginToApplyRequest: lambda step: self.requests.begin_to_apply(step.request),
            AnswerRequest: lambda step: self.requests.answer(step.request, step.outcomes),
            ChangeTopics: self._change_topics,
            ChangeConfigs: lambda step: cluster.configs.change(step.put, self._cause(step.why), self._epoch),
            UnregisterBroker: lambda step: cluster.broker_directory.unregister(step.broker, self._cause(step.why)),
            ChangeMetadata: self._change_metadata,
        }

    @property
    def context(self) -> ControllerContext:
        """The controller's view of the cluster."""
        return self._term.context

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> None:
        """Begins the term: see `ControllerTerm.fail_over`."""
        self._brokers_before = brokers_before
        carry_out(self._term.fail_over(brokers_before), self._handlers)
        self._noted = self.context

    def poll(self) -> None:
        """Reads each table once and handles all events: see `ControllerTerm.poll`."""
        carry_out(self._term.poll(), self._handlers)
        self._noted = self.context
        self._offsets.check_if_due()
        self._groups.check_if_due()
        self._producers.check_if_due()

    def _decide(self, context: ControllerContext, event: Event) -> Decision:
        return decide(context, event, self._keep_lease)

    def _log(self, _: Event, decision: Decision, before: ControllerContext, after: ControllerContext) -> None:
        """Logs each state change to `state.change.logger`, and a summary to the controller's own log."""
        decision.log()
        logged, self._logged = self._logged or self._as_before(before), after
        if logger.isEnabledFor(logging.INFO):
            for line in cluster_changes(logged, after, decision.why, self._storage_errors):
                logger.info("controller epoch %d: %s", self._epoch, line, extra={"epoch": self._epoch})

    def _as_before(self, context: ControllerContext) -> ControllerContext:
        """The context with the brokers that lived while the last controller was at work, if that is known."""
        return replace(context, brokers=self._brokers_before or context.brokers)

    def _claim_tables(self) -> None:
        for table in (self._cluster.metadata, self._cluster.topics, self._cluster.admin, self._cluster.configs):
            table.claim(self._epoch, self._held.controller_id)

    def _read_topics(self) -> Mapping[str, Topic]:
        self._cluster.topics.poll()
        return self._cluster.topics.topics

    def _read_configs(self) -> Configs:
        self._cluster.configs.poll()
        return self._cluster.configs.configs

    def _read_metadata(self) -> tuple[int, Partitions]:
        self._cluster.metadata.poll()  # may be some seconds old, since a decision on an older version loses
        return self._cluster.metadata.version, self._cluster.metadata.partitions

    def _read_brokers(self, newest: bool) -> BrokersSeen:
        found = self._cluster.refresh_brokers() if newest else self._cluster.poll_brokers()
        self._storage_errors = {broker: r.storage_error for broker, r in found.items() if r.storage_error}
        is_newest = newest or self._cluster.root.version_cache is None  # on a disk every poll reads
        return BrokersSeen(
            views(found, self._liveness), frozenset(found), self._storage_errors, is_newest,
            self._cluster.unregistered_brokers,
        )  # fmt: skip

    def _is_balance_due(self) -> bool:
        config, now = self._cluster.config, self._clock()
        is_due = config.auto_leader_rebalance_enable and now >= self._rebalance_at
        self._rebalance_at = now + config.leader_imbalance_check_interval_seconds if is_due else self._rebalance_at
        return is_due

    def _cause(self, why: str) -> dict[str, Any]:
        return {
            "who": "controller", "controller": self._held.controller_id, "controller_epoch": self._epoch, "why": why,
        }  # fmt: skip

    def _change_topics(self, step: ChangeTopics) -> None:
        self._cluster.topics.change(step.put.values(), step.drop, self._cause(step.why), self._epoch)
        if step.drop:
            self._offsets.topic_has_gone()

    def _change_metadata(self, step: ChangeMetadata) -> tuple[Decision, int, bool]:
        """The commit also has what the history of the cluster tells besides the rows: who has asked for the change, and
        which brokers have changed. Before another attempt, checks whether the earlier commit has landed and only its
        answer was lost."""
        chosen: list[Decision] = []
        landed: Mapping[str, Outcome] | None = None
        since, cause, request = self._cluster.metadata.version, self._cause(step.why), step.request
        changed = broker_changes(self._noted or self._as_before(self.context), self.context, self._storage_errors)
        cause |= {BROKER_CHANGES: {str(broker): change for broker, change in changed.items()}} if changed else {}
        cause |= {REQUESTED_BY: request.requested_by} if request is not None else {}

        def choose(
            partitions: Mapping[TopicIdPartition, PartitionRegistration],
        ) -> dict[TopicIdPartition, PartitionRegistration | None]:
            nonlocal landed
            if chosen and request is not None:
                landed = requests_carried_out(self._cluster.root, since).get(request.request_id)
            decision = step.choose(partitions, landed)
            chosen[:] = [decision]
            if unclean := [registration.name for registration in decision.unclean_elections.values()]:
                cause[UNCLEAN_ELECTIONS] = unclean
            else:
                cause.pop(UNCLEAN_ELECTIONS, None)
            if request is not None:
                outcomes = {name: [outcome.error, outcome.message] for name, outcome in decision.outcomes.items()}
                cause["requests"] = {request.request_id: outcomes}
            return {**decision.changed, **dict.fromkeys(decision.removed)}

        written = self._cluster.metadata.change(choose, cause, self._epoch)
        self._noted = self._noted if written is None else self.context
        # The version of this commit: a leader may have changed an ISR since, and the next poll must find that.
        version = self._cluster.metadata.version if written is None else written
        return chosen[-1], version, landed is not None


def views(registrations: Mapping[int, BrokerRegistration], liveness: Liveness) -> dict[int, BrokerView]:
    """The live brokers by id, including those that are shutting down. [FO-05, BC-01]"""
    live = liveness.observe(registrations) | liveness.leaving(registrations)
    return {broker: BrokerView.of(found) for broker, found in sorted(registrations.items()) if broker in live}


class AdminRequests:
    """The requests in the `admin` table, under one controller epoch: it takes them up, and answers or refuses them.

    It commits each state of a request before the work of that state. So the next controller can tell during which
    request this one has died, and no request can end one controller after another. Writes raise
    ControllerMovedException once a newer controller has claimed the table. [LI-06, FO-04]
    """

    def __init__(
        self, admin: AdminTable, config: Config, controller_epoch: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = admin
        self._config = config
        self._epoch = controller_epoch
        self._clock = clock
        # When a request was first seen, undecided and decided, by our clock: the client's clock may differ.
        self._seen_at: dict[tuple[str, bool], float] = {}
        self._older: set[str] | None = None  # requests that were there at the first poll of this term

    def settle_what_has_landed(self, cluster: StorageRoot) -> None:
        """Answers the requests whose changes the last controller wrote before it died without an answer. [FO-04]"""
        self._admin.refresh()
        pending = [request for request in self._admin.requests if request.outcomes is None]
        if pending:
            landed = requests_carried_out(cluster, min(request.metadata_version for request in pending))
            self._settle({r.request_id: landed[r.request_id] for r in pending if r.request_id in landed})

    def poll(self) -> list[AdminRequest]:
        """The waiting requests, oldest first. It refuses those that cannot be carried out."""
        self._admin.poll()
        requests = self._admin.requests
        self._note(requests)
        pending = [request for request in requests if request.outcomes is None]
        refused = {request.request_id: outcome for request in pending if (outcome := self._refusal(request))}
        self._settle({r.request_id: {r.kind: refused[r.request_id]} for r in pending if r.request_id in refused})
        self._forget_dry_runs(requests)
        # Events of one request must be equal in every state, so that it is queued once.
        return [
            dataclasses.replace(request, state=PENDING, controller_epoch=-1)
            for request in pending
            if request.request_id not in refused
        ]

    def take_up(self, request: AdminRequest) -> bool:
        """Marks a request as being decided. Returns False if it has timed out or was withdrawn."""
        if self._is_over(request):
            self._settle({request.request_id: {request.kind: _expired(request)}})
            return False
        return self._admin.move(request.request_id, DECIDING, self._epoch)

    def begin_to_apply(self, request: AdminRequest) -> bool:
        """Marks a request as being applied: from now on it will be finished. Returns False if it was withdrawn."""
        return self._admin.move(request.request_id, APPLYING, self._epoch)

    def answer(self, request: AdminRequest, outcomes: Mapping[str, Outcome]) -> None:
        """Stores the outcomes of a request, by topic, partition, broker or kind."""
        self._settle({request.request_id: outcomes})

    def release(self) -> None:
        """Puts back a request that was being decided, so that the next controller may decide it: the request is not the
        reason why this controller stops."""
        for request in self._admin.requests:
            if (request.state, request.controller_epoch) == (DECIDING, self._epoch):
                self._admin.move(request.request_id, PENDING, self._epoch)

    def _settle(self, decided: Mapping[str, Mapping[str, Outcome]]) -> None:
        if decided:
            self._admin.decide(decided, self._epoch, self._config.lakelog_admin_requests_kept)

    def _note(self, requests: list[AdminRequest]) -> None:
        if self._older is None:
            self._older = {request.request_id for request in requests if request.outcomes is None}
        now, there = self._clock(), [(request.request_id, request.outcomes is not None) for request in requests]
        self._seen_at = {key: self._seen_at.get(key, now) for key in there}

    def _refusal(self, request: AdminRequest) -> Outcome | None:
        """The outcome of a request that cannot be carried out; None if it can."""
        if request.problem is not None:
            return _invalid(f"request {request.request_id} cannot be read: {request.problem}")
        if request.kind not in EVENT_OF_REQUEST:
            return _invalid(f"{request.kind} is none of {', '.join(EVENT_OF_REQUEST)}")
        if request.state == DECIDING and request.controller_epoch != self._epoch:
            return _invalid(
                f"request {request.request_id}: the controller of epoch {request.controller_epoch} ended while it "
                "decided this request; nothing was written, and no controller decides it again, as it might end too"
            )
        if request.state != APPLYING and self._is_over(request):
            return _expired(request)
        return None

    def _is_over(self, request: AdminRequest) -> bool:
        """Whether the client's time-out has passed. A live client withdraws its own request, but a dead one cannot.

        A request that is older than this term may have waited for days without a controller. For it the deadline
        counts, by the clock of its client. A wrong clock refuses no request that comes during the term.
        """
        if request.deadline_ms is not None and request.request_id in (self._older or ()):
            return time.time() * 1000 >= request.deadline_ms
        return request.timeout_ms >= 0 and self._has_waited(request, False, request.timeout_ms)

    def _has_waited(self, request: AdminRequest, is_decided: bool, milliseconds: int) -> bool:
        since = self._seen_at.get((request.request_id, is_decided), self._clock())
        return self._clock() - since >= milliseconds / 1000

    def _forget_dry_runs(self, requests: list[AdminRequest]) -> None:
        """Removes old answers to dry runs that no client has fetched. Clients remove the answers that they fetch."""
        kept_ms = self._config.request_timeout_ms
        dry_runs = [request for request in requests if request.validate_only and request.outcomes is not None]
        over = [r.request_id for r in dry_runs if self._has_waited(r, True, max(r.timeout_ms, kept_ms))]
        if over:
            self._admin.forget(over, _WHO)


def _invalid(message: str) -> Outcome:
    return Outcome(InvalidRequestException.__name__, message)


def _expired(request: AdminRequest) -> Outcome:
    return Outcome(
        TimeoutException.__name__, f"its client waited {request.timeout_ms} ms, and no controller decided it"
    )


class OffsetRetention:
    """Checks after each deletion, and every `offsets.retention.check.interval.ms`, as a consumer may commit late."""

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "topics are gone", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = clock()

    def topic_has_gone(self) -> None:
        """Makes the next check due at once."""
        self._due_at = self._clock()

    def check_if_due(self) -> None:
        """If a check is due, removes offsets of unknown topics. It logs an error, and the next check tries again."""
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + self._cluster.config.offsets_retention_check_interval_ms / 1000
        try:
            self._cluster.groups.forget_all_but(self._topic_ids, self._cause)
        except LakelogException as error:
            logger.warning("offsets of deleted topics stay for now: %s", error)

    def _topic_ids(self) -> set[str]:
        """The ids of all topics, read after the offsets: a topic exists before any consumer commits its offsets."""
        self._cluster.topics.refresh()
        return {topic.topic_id for topic in self._cluster.topics.topics.values()}


class ProducerExpiration:
    """Checks every `transaction.remove.expired.transaction.cleanup.interval.ms` which names were unused since.

    The rows keep the unused time in ms, so that the next controller continues from there.
    """

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "names expire", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = self._checked_at = clock()
        self._seen: Mapping[str, Row] = {}

    def check_if_due(self) -> None:
        """If a check is due, adds the time since the last one to the unused names, and removes expired names. It logs
        an error, and the next check tries again."""
        now, config = self._clock(), self._cluster.config
        if now < self._due_at:
            return
        self._due_at = now + config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        passed_ms = int((now - self._checked_at) * 1000)
        try:
            self._seen = self._cluster.producers.expire(
                self._seen, passed_ms, config.transactional_id_expiration_ms, self._cause
            )
        except LakelogException as error:
            logger.warning("names of producers that nobody uses stay for now: %s", error)
        else:
            self._checked_at = self._clock()


def cluster_changes(
    before: ControllerContext, after: ControllerContext, why: str, storage_errors: Mapping[int, str]
) -> list[str]:
    """One line for each broker that has started, stopped, failed or begun to stop, and one for all partitions.

    If a single broker has changed, it is the cause of the partitions' changes, and both share a line. Otherwise the
    line of the partitions names `why`, the event. `storage_errors` has the errors that brokers report, by id.
    """
    brokers = [f"broker {b} {text}" for b, (_, text) in broker_changes(before, after, storage_errors).items()]
    partitions = partition_changes(before.partitions, after.partitions)
    if not partitions:
        return brokers
    if len(brokers) == 1:
        return [f"{brokers[0]}: {partitions}"]
    return [*brokers, f"{why}: {partitions}"]


class ChangeOfBroker(NamedTuple):
    """An event of a broker: one word for it, and the rest of a sentence that begins with its name."""

    event: str
    text: str


def broker_changes(
    before: ControllerContext, after: ControllerContext, storage_errors: Mapping[int, str]
) -> dict[int, ChangeOfBroker]:
    """The events of brokers between two contexts, by id: of brokers that have started, stopped, failed or begun to
    stop. `storage_errors` has the errors that brokers report, by id."""
    known = sorted(before.brokers.keys() | after.brokers.keys())
    changes = {broker: _change_of_broker(broker, before, after, storage_errors) for broker in known}
    return {broker: change for broker, change in changes.items() if change is not None}


def _change_of_broker(
    broker: int, before: ControllerContext, after: ControllerContext, storage_errors: Mapping[int, str]
) -> ChangeOfBroker | None:
    was, now = before.brokers.get(broker), after.brokers.get(broker)
    if now is None:
        if was is not None and was.shutting_down:
            return ChangeOfBroker("BrokerStopped", "has stopped")
        silence = f"no heartbeat for {after.config.broker_session_timeout_ms / 1000:g} s"
        error = storage_errors.get(broker)
        return ChangeOfBroker("BrokerLost", f"is lost ({f'its storage fails: {error}' if error else silence})")
    if was is None:
        verb = "is back" if broker in before.registered else "has registered"
        return ChangeOfBroker("BrokerStarted", f"{verb} under broker epoch {now.broker_epoch}")
    if was.broker_epoch != now.broker_epoch:
        return ChangeOfBroker("BrokerStarted", f"has started again under broker epoch {now.broker_epoch}")
    if now.shutting_down and not was.shutting_down:
        return ChangeOfBroker("BrokerStopping", "is shutting down")
    return None


def overview(context: ControllerContext) -> str:
    """The numbers of brokers and partitions, in one line for the log at failover."""
    dead = sorted(context.registered - context.brokers.keys())
    offline = sum(registration.leader == NO_LEADER for registration in context.partitions.values())
    return (
        f"brokers alive: {_numbers(sorted(context.brokers))}; dead: {_numbers(dead)}; "
        f"partitions: {len(context.partitions)}, {offline} of them offline"
    )


def _numbers(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"
