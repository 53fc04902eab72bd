"""Predicts what the controller decides when brokers die or are stopped, by the decisions that it runs itself.

Kafka has no counterpart: there one finds out by doing it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.events import (
    BrokerChange,
    ControlledShutdown,
    ControllerChange,
    Event,
    ReplicaLeaderElection,
)
from lakelog.replication.controller.requested_elections import UNCLEAN
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.protocol.record_batch import TopicIdPartition

_REQUEST = "what-if"


class Prediction(NamedTuple):
    """Three views of one cluster. `now`: what was read. `settled`: after all decisions that are due anyway, such as
    those on a broker that has died a moment ago. `then`: after the loss."""

    now: ControllerContext
    settled: ControllerContext
    then: ControllerContext


def predict(context: ControllerContext, killed: Collection[int] = (), stopped: Collection[int] = ()) -> Prediction:
    """What the controller makes of a loss. `context` has the rows of the tables and the brokers that live now.

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


def elect_uncleanly(context: ControllerContext) -> dict[TopicIdPartition, int]:
    """The broker that an unclean election by hand lets lead each partition without a leader; without those of which
    no replica lives. [LE-02]"""
    event = ReplicaLeaderElection(AdminRequest(_REQUEST, "elect_leaders", {"election_type": UNCLEAN}))
    changed = decide(context, event).changed
    return {p: r.leader for p, r in changed.items() if r.leader >= 0 and context.partitions[p].leader == NO_LEADER}


def _after(context: ControllerContext, event: Event) -> ControllerContext:
    return decide(context, event).applied(0)
