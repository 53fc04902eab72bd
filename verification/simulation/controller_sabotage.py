"""Broken rules of the controller. Each replaces the shipped one where the code looks it up, while it decides an
event."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from lakelog.replication.controller import (
    broker_events,
    partition_state_machine,
    reassignment,
    replica_state_machine,
    topic_deletion_manager,
)
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.decision import Decision, uninterrupted
from lakelog.replication.controller.events import Event
from lakelog.replication.protocol import leader_election
from lakelog.replication.protocol.partition_registration import PartitionRegistration

_on_broker_change = broker_events.on_broker_change
_complete_replica_deletions = topic_deletion_manager.complete_replica_deletions
_put = Decision.put


class BrokenController(NamedTuple):
    """A description of the break, and `decide` with that break."""

    what: str
    decide: Callable[[ControllerContext, Event], Decision]


@contextmanager
def swapped(owner: ModuleType | type, name: str, broken: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function of a module or class during the block."""
    shipped = getattr(owner, name)
    setattr(owner, name, broken)
    try:
        yield
    finally:
        setattr(owner, name, shipped)


def _with(what: str, owner: ModuleType | type, name: str, broken: Callable[..., Any]) -> BrokenController:
    def decide_with(
        context: ControllerContext, event: Event, keep_office: Callable[[], None] = uninterrupted
    ) -> Decision:
        with swapped(owner, name, broken):
            return decide(context, event, keep_office)

    return BrokenController(what, decide_with)


def _elects_anybody(
    registration: PartitionRegistration, live: Collection[int], unclean_allowed: bool
) -> PartitionRegistration | None:
    """The first live replica leads, in sync or not, with all other replicas in the ISR."""
    return leader_election.elect_offline(replace(registration, isr=registration.replicas), live, unclean_allowed)


def _prefers_anybody(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """The preferred leader leads as soon as it lives, in sync or not, and joins the ISR."""
    isr = tuple(broker for broker in registration.replicas if broker in (*registration.isr, registration.replicas[0]))
    return leader_election.elect_preferred(replace(registration, isr=isr), live)


def _keeps_the_leader_epoch(decision: Decision, registration: PartitionRegistration) -> None:
    _put(decision, registration)
    partition = registration.topic_id_partition
    before, changed = decision.context.partitions.get(partition), decision.changed.get(partition)
    if before is not None and changed is not None:
        decision.changed[partition] = replace(changed, leader_epoch=before.leader_epoch)


def _overlooks_new_broker_epochs(decision: Decision, before: Mapping[int, BrokerView]) -> None:
    now = decision.context.brokers
    _on_broker_change(decision, {broker: now.get(broker, view) for broker, view in before.items()})


def _takes_deletions_for_done(decision: Decision) -> None:
    """Nobody is waited for: all brokers pass for having carried out the newest metadata."""
    brokers = {b: replace(view, metadata_version=2**31) for b, view in decision.context.brokers.items()}
    decision.context = replace(decision.context, brokers=brokers)
    _complete_replica_deletions(decision)


def _leaves_the_isr_to_the_last(registration: PartitionRegistration, broker: int) -> PartitionRegistration:
    """An offline replica leaves the ISR. If it was the last member, all other assigned replicas replace it."""
    left = leader_election.replica_offline(registration, broker)
    return (
        left if left.isr != (broker,) else replace(left, isr=tuple(b for b in left.replicas if b != broker) or left.isr)
    )


BROKEN_CONTROLLERS: dict[str, BrokenController] = {
    "elects_anybody": _with(
        "a replica outside the ISR is elected like a member", partition_state_machine, "elect_offline", _elects_anybody
    ),
    "prefers_anybody": _with(
        "the preferred leader need not be in sync", partition_state_machine, "elect_preferred", _prefers_anybody
    ),
    "the_isr_is_not_kept": _with(
        "the last member of an ISR leaves it to replicas that are not in sync",
        replica_state_machine, "replica_offline", _leaves_the_isr_to_the_last,
    ),
    "fails_without_a_new_epoch": _with(
        "a failover keeps the leader epoch", Decision, "put", _keeps_the_leader_epoch
    ),
    "overlooks_new_broker_epochs": _with(
        "a restarted broker counts as its earlier process",
        broker_events, "on_broker_change", _overlooks_new_broker_epochs,
    ),
    "reassigns_before_all_are_in_sync": _with(
        "a reassignment ends before its target has caught up", reassignment, "may_complete", lambda _: True
    ),
    "deletes_before_brokers_have": _with(
        "a topic is gone before brokers have deleted its replicas",
        topic_deletion_manager, "complete_replica_deletions", _takes_deletions_for_done,
    ),
}  # fmt: skip
