"""Decides what each event changes: a pure function of the context. [EV-05]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakelog.replication.controller import (
    broker_events,
    partition_reassignment,
    requested_elections,
    topic_deletion_manager,
    topic_requests,
)
from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.controller.decision import Decision, uninterrupted
from lakelog.replication.controller.events import (
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerConfigChange,
    BrokerModifications,
    BrokerUnregistration,
    ControlledShutdown,
    ControllerChange,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignment,
    ReplicaLeaderElection,
    RequestEvent,
    TopicChange,
    TopicConfigChange,
    TopicDeletion,
)
from lakelog.replication.errors import (
    ElectionNotNeededException,
    InvalidRequestException,
    LakelogException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.admin_request import (
    AdminRequest,
    Outcome,
    PartitionLimits,
    check_arguments,
    check_limits,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition


def decide(context: ControllerContext, event: Event, keep_lease: Callable[[], None] = uninterrupted) -> Decision:
    """The changes that an event makes. It writes nothing, so the caller may decide again on newer tables.

    Raises DecisionInterrupted if `keep_lease`, which each step calls, raises it.
    """
    decision = Decision(context, type(event).__name__, keep_lease)
    match event:
        case ControllerChange():
            broker_events.on_failover(decision, event.before)
        case BrokerChange():
            broker_events.on_broker_change(decision, event.before)
        case LogDirEventNotification():
            broker_events.on_log_dir_event(decision, event.before)
        case BrokerModifications():
            topic_deletion_manager.complete_replica_deletions(decision)
        case ControlledShutdown():
            broker_events.on_controlled_shutdown(decision, event.broker_id)
        case IsrChangeNotification():
            pass  # it may complete reassignments, which every event checks below
        case AutoPreferredReplicaLeaderElection():
            requested_elections.rebalance_leaders(decision)
        case _:
            _answer(decision, event)
    # A decision sees the newest ISRs, and a change that it has seen brings no event later. [RA-03, BU-02, FO-04]
    partition_reassignment.complete_where_possible(decision)
    topic_deletion_manager.resume_unnoticed_deletions(decision)
    return decision


def _answer(decision: Decision, event: RequestEvent) -> None:
    """Carries out a request. A refusal becomes its outcome, and nothing of a refused request is written.

    It checks the arguments again, because a row may come from another version or may have been written by hand.
    """
    request, config = event.request, decision.context.config
    try:
        check_arguments(request.kind, request.arguments)
    except InvalidRequestException as error:
        decision.outcomes[request.kind] = Outcome(error.name, str(error))
        return
    try:
        check_limits(request.kind, request.arguments, PartitionLimits.of(config))
        _carry_out(decision, event)
    except LakelogException as error:
        decision.outcomes[_name(request)] = Outcome(error.name, str(error))


def _carry_out(decision: Decision, event: RequestEvent) -> None:
    request, given = event.request, dict(event.request.arguments)
    match event:
        case TopicChange():
            message = topic_requests.create_topic(decision, request.request_id, **_with_assignment(given))
        case PartitionModifications():
            message = topic_requests.create_partitions(decision, request.request_id, **_with_assignment(given))
        case TopicConfigChange():
            message = topic_requests.alter_configs(decision, **given)
        case BrokerConfigChange():
            message = topic_requests.alter_broker_configs(decision, **given)
        case BrokerUnregistration():
            message = broker_events.unregister(decision, **given)
        case TopicDeletion():
            topic_deletion_manager.enqueue_topic_for_deletion(
                decision, topic_requests.topic_of(decision, given["topic"])
            )
            message = "is being deleted"
        case PartitionReassignment():
            _each(decision, given["reassignments"], lambda p, target: _reassign(decision, p, target))
            return
        case ReplicaLeaderElection():
            _elect(decision, given["election_type"], given.get("partitions"))
            return
    decision.outcomes[_name(request)] = Outcome(None, message)


def _name(request: AdminRequest) -> str:
    """The key of the outcome: the topic, the broker, or else the kind of the request."""
    given = request.arguments
    return str(given.get("topic", given.get("broker", request.kind)))


def _reassign(decision: Decision, partition: TopicIdPartition, target: list[int] | None) -> str:
    if target is None:
        return partition_reassignment.cancel(decision, partition)
    return partition_reassignment.reassign(decision, partition, target)


def _elect(decision: Decision, given_type: str, partitions: list[str] | None) -> None:
    """Elects by hand. If no partitions are given, the answer has only those that needed an election, as in Kafka."""
    election_type = requested_elections.check_type(given_type)
    chosen = _all_partitions(decision) if partitions is None else partitions
    _each(decision, dict.fromkeys(chosen), lambda p, _: requested_elections.elect(decision, p, election_type))
    if partitions is None:
        needed = {n: o for n, o in decision.outcomes.items() if o.error != ElectionNotNeededException.__name__}
        decision.outcomes = needed


def _each(decision: Decision, wanted: Mapping[str, Any], act: Callable[[TopicIdPartition, Any], str]) -> None:
    """Acts on each partition. Each one succeeds or is refused by itself, as in Kafka."""
    by_name = {r.name: p for p, r in decision.context.partitions.items()}
    for name, value in wanted.items():
        decision.keep_lease()
        try:
            if name not in by_name:
                raise UnknownTopicOrPartitionException(f"no partition {name}")
            decision.outcomes[name] = Outcome(None, act(by_name[name], value))
        except LakelogException as error:
            decision.outcomes[name] = Outcome(error.name, str(error))


def _all_partitions(decision: Decision) -> list[str]:
    """The names of all partitions, without topics that are being deleted. [TD-05]"""
    known = decision.context.partitions.values()
    return sorted(r.name for r in known if not decision.is_being_deleted(r))


def _with_assignment(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with partition numbers as integers: keys of JSON objects are text."""
    if given.get("assignment") is None:
        return given
    return {**given, "assignment": {int(number): replicas for number, replicas in given["assignment"].items()}}
