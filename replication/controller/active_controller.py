"""The active controller: carries out its rounds on the cluster's tables. [FO-01, FO-05]"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lakelog.replication.controller.admin_requests import AdminRequests
from lakelog.replication.controller.cluster_changes import cluster_changes
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.decision import Decision, uninterrupted
from lakelog.replication.controller.events import Event
from lakelog.replication.controller.offset_retention import OffsetRetention
from lakelog.replication.controller.producer_expiration import ProducerExpiration
from lakelog.replication.controller.steps import (
    AnswerRequest,
    BeginToApplyRequest,
    BrokersSeen,
    ChangeConfigs,
    ChangeMetadata,
    ChangeTopics,
    ClaimTables,
    IsBalanceDue,
    Partitions,
    ReadBrokers,
    ReadConfigs,
    ReadMetadata,
    ReadRequests,
    ReadTopics,
    SettleWhatHasLanded,
    TakeUpRequest,
)
from lakelog.replication.controller.term import Term
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.entity import Configs
from lakelog.replication.protocol.lease import Lease
from lakelog.replication.protocol.liveness import Liveness
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.carry_out import Handler, carry_out
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.metadata_history import requests_carried_out

logger = logging.getLogger(__name__)

_FIRST_REBALANCE_SECONDS = 5.0


class ActiveController:
    """One term of the controller. Each write carries its controller epoch.

    A write raises ControllerMovedException once a newer controller has claimed the table. `keep_office` may raise
    DecisionInterrupted.
    """

    def __init__(
        self, cluster: Cluster, liveness: Liveness, held: Lease, clock: Callable[[], float] = time.monotonic,
        keep_office: Callable[[], None] = uninterrupted,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._liveness = liveness
        self._held = held
        self._epoch = held.controller_epoch
        self._clock = clock
        self._keep_office = keep_office
        self._requests = AdminRequests(cluster.admin, cluster.config, self._epoch, clock)
        self._offsets = OffsetRetention(cluster, self._epoch, clock)
        self._producers = ProducerExpiration(cluster, self._epoch, clock)
        self._rebalance_at = clock() + _FIRST_REBALANCE_SECONDS
        self._storage_errors: Mapping[int, str] = {}
        self._brokers_before: Mapping[int, BrokerView] = {}
        self._logged: ControllerContext | None = None  # the context that was logged last
        self._term = Term(ControllerContext(self._epoch, cluster.config), self._decide, self._log, clock)
        self._handlers: dict[type, Handler] = {
            ClaimTables: lambda _: self._claim_tables(),
            ReadTopics: lambda _: self._read_topics(),
            ReadConfigs: lambda _: self._read_configs(),
            ReadMetadata: lambda _: self._read_metadata(),
            ReadBrokers: lambda step: self._read_brokers(step.newest),
            ReadRequests: lambda _: self._requests.look(),
            IsBalanceDue: lambda _: self._is_balance_due(),
            SettleWhatHasLanded: lambda _: self._requests.settle_what_has_landed(cluster.root),
            TakeUpRequest: lambda step: self._requests.take_up(step.request),
            BeginToApplyRequest: lambda step: self._requests.begin_to_apply(step.request),
            AnswerRequest: lambda step: self._requests.answer(step.request, step.outcomes),
            ChangeTopics: self._change_topics,
            ChangeConfigs: lambda step: cluster.configs.change(step.put, self._cause(step.why), self._epoch),
            ChangeMetadata: self._change_metadata,
        }

    @property
    def context(self) -> ControllerContext:
        """The controller's view of the cluster."""
        return self._term.context

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> None:
        """Begins the term: see `Term.fail_over`."""
        self._brokers_before = brokers_before
        carry_out(self._term.fail_over(brokers_before), self._handlers)

    def release(self) -> None:
        """Puts back the request that it is deciding, so that the next controller may decide it."""
        self._requests.release()

    def look(self) -> None:
        """Reads each table once and handles all events: see `Term.look`."""
        carry_out(self._term.look(), self._handlers)
        self._offsets.look_if_due()
        self._producers.look_if_due()

    def _decide(self, context: ControllerContext, event: Event) -> Decision:
        return decide(context, event, self._keep_office)

    def _log(self, _: Event, decision: Decision, before: ControllerContext, after: ControllerContext) -> None:
        """Logs each state change to `state.change.logger`, and a summary to the controller's own log."""
        decision.log()
        logged = self._logged or replace(before, brokers=self._brokers_before or before.brokers)
        self._logged = after
        if logger.isEnabledFor(logging.INFO):
            for line in cluster_changes(logged, after, decision.why, self._storage_errors):
                logger.info("controller epoch %d: %s", self._epoch, line)

    def _claim_tables(self) -> None:
        for table in (self._cluster.metadata, self._cluster.topics, self._cluster.admin, self._cluster.configs):
            table.claim(self._epoch)

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
        is_newest = newest or self._cluster.root.newest_versions is None  # polls of a disk always look
        return BrokersSeen(views(found, self._liveness), frozenset(found), self._storage_errors, is_newest)

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
        """Before another attempt, checks whether the earlier commit has landed and only its answer was lost."""
        chosen: list[Decision] = []
        landed: Mapping[str, Outcome] | None = None
        since, cause, request = self._cluster.metadata.version, self._cause(step.why), step.request

        def choose(
            partitions: Mapping[TopicIdPartition, PartitionRegistration],
        ) -> dict[TopicIdPartition, PartitionRegistration | None]:
            nonlocal landed
            if chosen and request is not None:
                landed = requests_carried_out(self._cluster.root, since).get(request.request_id)
            decision = step.choose(partitions, landed)
            chosen[:] = [decision]
            if request is not None:
                told = {name: [outcome.error, outcome.message] for name, outcome in decision.outcomes.items()}
                cause["requests"] = {request.request_id: told}
            return {**decision.changed, **dict.fromkeys(decision.removed)}

        written = self._cluster.metadata.change(choose, cause, self._epoch)
        # The version of this commit: a leader may have changed an ISR since, and the next look must find that.
        version = self._cluster.metadata.version if written is None else written
        return chosen[-1], version, landed is not None


def views(registrations: Mapping[int, BrokerRegistration], liveness: Liveness) -> dict[int, BrokerView]:
    """The live brokers by id, including those that are shutting down. [FO-05, BC-01]"""
    live = liveness.look(registrations) | liveness.leaving(registrations)
    return {
        broker: BrokerView(r.broker_epoch, r.shutting_down, r.metadata_version, r.rack, r.log_epoch, r.offline)
        for broker, r in sorted(registrations.items())
        if broker in live
    }
