"""Predicts what the controller decides when brokers die or are stopped, by the decisions that it runs itself.

Kafka has no counterpart: there one finds out by doing it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.events import (
    BrokerChange,
    ControlledShutdown,
    ControllerChange,
    Event,
    IsrChangeNotification,
    PartitionReassignment,
    ReplicaLeaderElection,
)
from lakelog.replication.controller.requested_elections import UNCLEAN
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

_REQUEST = "what-if"


class Prediction(NamedTuple):
    """Three views of one cluster. `now`: what was read. `settled`: after all decisions that are due anyway, such as
    those on a broker that has died a moment ago. `then`: after the loss."""

    now: ControllerContext
    settled: ControllerContext
    then: ControllerContext


def predict(context: ControllerContext, killed: Collection[int] = (), stopped: Collection[int] = ()) -> Prediction:
    """Predicts the decisions of the controller after a loss. `context` has the rows of the tables and the brokers that
    live now.

    Brokers that are `stopped` first hand over what they lead. Those that are `killed` die at the same time, and the
    controller notices all of them in one poll. If it notices one later than another, the same replicas lead, but
    another one may be the last member of an ISR that has died as a whole. Brokers that do not live change nothing.
    """
    began = context.started(0)
    settled = _after(began, ControllerChange(began.brokers))
    found = settled
    for broker in sorted(found.brokers.keys() & set(stopped)):
        leaving = {**found.brokers, broker: replace(found.brokers[broker], shutting_down=True)}
        found = _after(replace(found, brokers=leaving), ControlledShutdown(broker))
    before, gone = found.brokers, {*killed, *stopped}
    left = {broker: view for broker, view in before.items() if broker not in gone}
    return Prediction(context, settled, _after(replace(found, brokers=left), BrokerChange(before)))


def predict_reassignments(context: ControllerContext, targets: Mapping[str, Sequence[int]]) -> Prediction:
    """Predicts the decisions of the controller on reassignments, by the names of their partitions, once every live
    replica that they add has caught up. A partition whose reassignment is refused, or cannot end, stays as it is or
    goes on moving. [RA-01, RA-03]"""
    began = context.started(0)
    settled = _after(began, ControllerChange(began.brokers))
    arguments = {"reassignments": {name: list(target) for name, target in targets.items()}}
    event = PartitionReassignment(AdminRequest(_REQUEST, "alter_partition_reassignments", arguments))
    moving = _after(settled, event)
    caught_up = {key: _caught_up(moving, registration) for key, registration in moving.partitions.items()}
    return Prediction(context, settled, _after(moving.with_partitions(caught_up), IsrChangeNotification()))


def _caught_up(context: ControllerContext, registration: PartitionRegistration) -> PartitionRegistration:
    """The partition once its leader has let all live replicas that are being added into the ISR."""
    if registration.leader not in context.live_brokers:
        return registration
    live = context.live_brokers
    joined = [b for b in registration.adding_replicas if b in live and b not in registration.isr]
    epochs = {broker: context.brokers[broker].broker_epoch for broker in joined}
    return replace(
        registration, isr=(*registration.isr, *joined), isr_epochs={**registration.isr_epochs, **epochs},
        partition_epoch=registration.partition_epoch + bool(joined),
    )  # fmt: skip


def elect_uncleanly(context: ControllerContext) -> dict[TopicIdPartition, int]:
    """The broker that an unclean election by hand lets lead each partition without a leader; without those of which
    no replica lives. [LE-02]"""
    event = ReplicaLeaderElection(AdminRequest(_REQUEST, "elect_leaders", {"election_type": UNCLEAN}))
    changed = decide(context, event).changed
    return {p: r.leader for p, r in changed.items() if r.leader >= 0 and context.partitions[p].leader == NO_LEADER}


def _after(context: ControllerContext, event: Event) -> ControllerContext:
    return decide(context, event).applied(0)
