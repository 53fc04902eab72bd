"""The controller in office: looks at the tables, queues what has happened, writes what that leads to.

Kafka: `KafkaController.onControllerFailover` and its event handlers. [FO-01, FO-02, FO-03, FO-04, FO-05]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from replication.controller.admin_requests import AdminRequests
from replication.controller.batch import Batch, DecisionInterrupted, uninterrupted
from replication.controller.controller_context import BrokerView, ControllerContext
from replication.controller.decide import decide
from replication.controller.events import (
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerChange,
    ControllerEventManager,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
)
from replication.controller.offset_retention import OffsetRetention
from replication.controller.producer_expiration import ProducerExpiration
from replication.errors import LakelogException, UnknownServerException
from replication.protocol.admin_request import AdminRequest, Outcome
from replication.protocol.broker_registration import BrokerRegistration
from replication.protocol.lease import Lease
from replication.protocol.liveness import Liveness
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.cluster import Cluster
from replication.storage.metadata_history import requests_carried_out

logger = logging.getLogger(__name__)
state_changes = logging.getLogger("state.change.logger")

_FIRST_REBALANCE_SECONDS = 5.0


class ActiveController:
    """One term of office. Every write carries its epoch and is refused once a newer controller has claimed."""

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
        self._events = ControllerEventManager(self._process, clock)
        self._offsets = OffsetRetention(cluster, self._epoch, clock)
        self._producers = ProducerExpiration(cluster, self._epoch, clock)
        self._rebalance_at = clock() + _FIRST_REBALANCE_SECONDS
        self.context = ControllerContext(self._epoch, cluster.config)

    def fail_over(self, brokers_before: Mapping[int, BrokerView]) -> None:
        """Claims, then reads, then goes on with what was half done.

        The claims come before anything is read: what is read then no older controller can change. `brokers_before`:
        the brokers while the last controller was at work. [FO-01, FO-02, FO-03, FO-04]
        """
        for table in (self._cluster.metadata, self._cluster.topics, self._cluster.admin, self._cluster.configs):
            table.claim(self._epoch)
        self._cluster.topics.refresh()
        self._cluster.configs.refresh()
        self._cluster.metadata.refresh()
        self.context = replace(
            self.context, brokers=self._views(), topics=self._cluster.topics.topics,
            partitions=self._cluster.metadata.partitions, configs=self._cluster.configs.configs,
            registered=frozenset(self._cluster.brokers),
        ).started(self._cluster.metadata.version)  # fmt: skip
        self._requests.settle_what_has_landed(self._cluster.root)
        self._events.put(ControllerChange(brokers_before))
        self._events.process_all()

    def release(self) -> None:
        """Gives back what it has in hand: it stops by itself, and the next controller may decide the same."""
        self._requests.release()

    def look(self) -> None:
        """Looks at every table once, and deals with what has happened."""
        self._look_at_brokers()
        self._look_at_metadata()
        for event in self._requests.look():
            self._events.put(event)
        config = self._cluster.config
        if config.auto_leader_rebalance_enable and self._clock() >= self._rebalance_at:
            self._rebalance_at = self._clock() + config.leader_imbalance_check_interval_seconds
            self._events.put(AutoPreferredReplicaLeaderElection())
        self._events.process_all()
        self._offsets.look_if_due()
        self._producers.look_if_due()

    def _views(self) -> dict[int, BrokerView]:
        return views(self._cluster.refresh_brokers(), self._liveness)

    def _look_at_brokers(self) -> None:
        before, now = self.context.brokers, self._views()
        registered = frozenset(self._cluster.brokers)
        if before == now and registered == self.context.registered:
            return
        self.context = replace(self.context, brokers=now, registered=registered)
        if before.keys() != now.keys() or any(before[b].broker_epoch != now[b].broker_epoch for b in now):
            self._events.put(BrokerChange(before))
            self._log_storage_errors(before.keys() - now.keys())
        if any(before[b].offline != now[b].offline for b in before.keys() & now.keys()):
            self._events.put(LogDirEventNotification(before))
        for broker in sorted(self.context.shutting_down_brokers):
            if broker not in before or not before[broker].shutting_down:
                self._events.put(ControlledShutdown(broker))
        if self.context.deletions:
            self._events.put(BrokerModifications())

    def _log_storage_errors(self, gone: Collection[int]) -> None:
        """Brokers that still show that they are there, and say that their storage does not work. [LI-04]"""
        for broker, registration in self._cluster.brokers.items():
            if broker in gone and registration.storage_error:
                state_changes.warning(
                    "controller epoch %d: LogDirEventNotification: broker %d has failed: %s",
                    self._epoch, broker, registration.storage_error,
                )  # fmt: skip

    def _look_at_metadata(self) -> None:
        if self._cluster.metadata.refresh():
            self.context = self.context.with_partitions(self._cluster.metadata.partitions)
            self._events.put(IsrChangeNotification())

    def _process(self, event: Event) -> None:
        """An answer comes last of all."""
        request: AdminRequest | None = getattr(event, "request", None)
        if request is None:
            self._write(event, decide(self.context, event, self._keep_office), None)
        elif self._requests.take_up(request):
            self._requests.answer(request, self._carry_out(event, request))

    def _carry_out(self, event: Event, request: AdminRequest) -> Mapping[str, Outcome]:
        """What has become of a request. One that meets an error of this code is answered too, and holds up nobody."""
        try:
            batch = decide(self.context, event, self._keep_office)
            if batch.writes and not request.validate_only and self._requests.begin_to_apply(request):
                batch = self._write(event, batch, request)
            return batch.outcomes
        except (LakelogException, DecisionInterrupted):
            raise
        except Exception as error:
            logger.exception("request %s: %s", request.request_id, request.kind)
            problem = f"request {request.request_id}: {request.kind} met an error of the controller: {error!r}"
            return {request.kind: Outcome(UnknownServerException.__name__, problem)}

    def _write(self, event: Event, batch: Batch, request: AdminRequest | None) -> Batch:
        """Topics are written before their partitions, and dropped after them."""
        cause: dict[str, Any] = {
            "who": "controller", "controller": self._held.controller_id, "controller_epoch": self._epoch,
            "why": batch.why,
        }  # fmt: skip
        if batch.topics:
            self._cluster.topics.change(batch.topics.values(), (), cause, self._epoch)
        if batch.configs:
            self._cluster.configs.change(batch.configs, cause, self._epoch)
        if batch.touches_metadata:
            batch = self._commit(event, cause, request)
        self.context = batch.applied(self._cluster.metadata.version)
        batch.log()
        if batch.deletions_begun:
            self._events.put(BrokerModifications())  # brokers may have carried it out before this was known
        if batch.dropped:
            self._cluster.topics.change((), batch.dropped, cause, self._epoch)
            self._offsets.topic_has_gone()
        return batch

    def _commit(self, event: Event, cause: dict[str, Any], request: AdminRequest | None) -> Batch:
        """One compare-and-set for all that the event changes; decided anew if leaders have changed ISRs meanwhile.

        A request is looked for before that: where only the answer was lost, it has been carried out already.
        """
        last: list[Batch] = []
        since = self._cluster.metadata.version

        def choose(
            partitions: Mapping[TopicIdPartition, PartitionRegistration],
        ) -> dict[TopicIdPartition, PartitionRegistration | None]:
            context = self.context.with_partitions(partitions)
            landed = requests_carried_out(self._cluster.root, since) if last and request is not None else {}
            if request is not None and request.request_id in landed:
                last[:] = [Batch(context, type(event).__name__)]
                last[-1].outcomes.update(landed[request.request_id])
                return {}
            batch = decide(context, event, self._keep_office)
            last[:] = [batch]
            if request is not None:
                told = {name: [outcome.error, outcome.message] for name, outcome in batch.outcomes.items()}
                cause["requests"] = {request.request_id: told}
            return {**batch.changed, **dict.fromkeys(batch.removed)}

        self._cluster.metadata.change(choose, cause, self._epoch)
        return last[-1]


def views(registrations: Mapping[int, BrokerRegistration], liveness: Liveness) -> dict[int, BrokerView]:
    """The brokers that live, as the controller sees them. [FO-05, BC-01]"""
    live = liveness.look(registrations) | liveness.leaving(registrations)
    return {
        broker: BrokerView(r.broker_epoch, r.shutting_down, r.metadata_version, r.rack, r.log_epoch, r.offline)
        for broker, r in sorted(registrations.items())
        if broker in live
    }
